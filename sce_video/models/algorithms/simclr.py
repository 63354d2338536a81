"""SimCLR (Chen et al. 2020, arXiv 2002.05709): contrast within the batch, without a target."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from mmengine.dist import get_world_size
from torch import Tensor, nn

from sce_video.models.algorithms.base import SelfSupervisedModel, unit_vectors
from sce_video.models.losses import nt_xent_loss
from sce_video.models.modules.view_pairs import check_batch_negatives, check_views
from sce_video.registry import MODELS
from sce_video.utils.tensors import LoggedValue


@MODELS.register_module()
class SimCLR(SelfSupervisedModel):
    """An encoder and a projector; no target, no queue, no predictor.

    All views pass with gradient. The loss is the mean over the pairs of views of
    :func:`~sce_video.models.losses.nt_xent_loss`, whose candidates are the two views of all samples
    of the batch, of all ranks. So more views change neither the size of the loss nor its chance
    level. rho-SimCLR (facebookresearch/SlowFast, ``slowfast/models/contrastive.py``) is
    ``consecutive=True``: the sum over the rho - 1 pairs of a view and the next one. Accumulated
    micro-batches do not see each other.

    Other arguments: see ``SelfSupervisedModel``.

    Args:
        tau: Temperature; read at every step, so that a schedule can set it.
        consecutive: Whether the loss is the sum over the pairs of consecutive views, and not the
            mean over all pairs.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        projector: dict[str, Any],
        tau: float = 0.1,
        consecutive: bool = False,
        data_preprocessor: dict[str, Any] | nn.Module | None = None,
        joint_views: bool = False,
    ) -> None:
        super().__init__(backbone, data_preprocessor, joint_views=joint_views)
        self.build_heads(projector)
        self.tau = tau
        self.consecutive = consecutive
        self._chance: float | None = None  # of the last step
        self.check_settings()

    def check_training(self, num_samples: int, batch_size: int, num_views: int | None) -> list[str]:
        """Warn of a batch that holds samples twice; ValueError for one view or one sample."""
        check_views(num_views, None)
        return check_batch_negatives(num_samples, batch_size)

    def chance_level(self) -> float | None:
        """log(2N-1): the loss if the views of a sample are unrelated; None before the first step.

        N is the number of samples of the last step, without accumulation. For each pair if
        ``consecutive``.
        """
        return self._chance

    def loss(self, views: Sequence[Tensor]) -> dict[str, LoggedValue]:
        """NT-Xent of the pairs of views, and their mean cosine."""
        if len(views) < 2:
            raise ValueError(f"SimCLR contrasts at least two views, got {len(views)}")
        h, z = self.encode_views(views)
        embeddings = [unit_vectors(x) for x in z]  # in fp32 under autocast too
        all_pairs = itertools.combinations(embeddings, 2)
        pairs = list(itertools.pairwise(embeddings) if self.consecutive else all_pairs)
        losses = [nt_xent_loss(first, second, tau=self.tau) for first, second in pairs]
        with torch.no_grad():
            cosines = [(first * second).sum(dim=1).mean() for first, second in pairs]
        # SlowFast adds up its pairs, and its learning rates are for that sum.
        weight = 1 if self.consecutive else 1 / len(pairs)
        self._chance = weight * len(pairs) * math.log(2 * len(h[0]) * get_world_size() - 1)
        return {
            "loss": weight * torch.stack(losses).sum(),
            "positive_similarity": torch.stack(cosines).mean(),
            **self.collapse_metrics(h[0], embeddings[0]),
        }
