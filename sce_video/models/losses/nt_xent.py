"""NT-Xent, the contrastive loss of SimCLR (Chen et al. 2020, arXiv 2002.05709, eq. 1).

Two views of N samples are 2N embeddings. Each is an anchor once: its positive is the other view of
its sample, its candidates are all embeddings but itself::

    loss_i = - z_i.z_p / tau + log sum_{a != i} exp(z_i.z_a / tau)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sce_video.models.losses.embeddings import check_same_shape, check_temperature, full_precision
from sce_video.utils.distributed import gather_samples, global_positions


def nt_xent_loss(first: Tensor, second: Tensor, *, tau: float) -> Tensor:
    """The mean of NT-Xent over the 2N embeddings of two views, a scalar tensor.

    In a distributed run the candidates are the embeddings of all ranks, gathered with gradient, and
    the anchors are those of the rank: the mean over ranks of the loss, and of the gradients of the
    parameters (as DistributedDataParallel takes it), is that of one process with the joint batch.
    All ranks must call this with the same number of samples.

    Args:
        first: Embeddings of one view, (N, D), l2-normalised.
        second: Those of the other view of the same samples, (N, D), l2-normalised.
        tau: Temperature.

    Raises:
        ValueError: shapes that do not match, no samples, or a temperature not above 0.
    """
    check_same_shape("first and second", first, second)
    check_temperature("tau", tau)
    with torch.autocast(first.device.type, enabled=False):
        views = torch.stack([full_precision(first), full_precision(second)], dim=1)  # (n, 2, D)
        anchors = views.transpose(0, 1).flatten(0, 1)  # (2n, D), those of the first view first
        # One gather of both views: as few and as large collectives as possible.
        gathered = gather_samples(views, gradient=True)  # (N, 2, D)
        candidates = gathered.transpose(0, 1).flatten(0, 1)  # (2N, D)
        rows = global_positions(len(first), first.device)
        itself = torch.cat([rows, rows + len(gathered)])
        partner = torch.cat([rows + len(gathered), rows])
        logits = anchors @ candidates.T / tau  # (2n, 2N)
        logits = logits.scatter(1, itself[:, None], float("-inf"))
        return F.cross_entropy(logits, partner)
