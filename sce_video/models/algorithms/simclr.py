"""SimCLR (Chen et al. 2020, arXiv 2002.05709): contrast within the batch, without a target."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from mmengine.dist import get_world_size
from torch import Tensor, nn

from sce_video.models.algorithms.base import SelfSupervisedModel, unit_vectors
from sce_video.models.losses import nt_xent_loss
from sce_video.models.modules.view_pairs import check_batch_negatives, check_views
from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import PartConfig
from sce_video.utils.tensors import LoggedValue


@MODELS.register_module()
class SimCLR(SelfSupervisedModel):
    """An encoder and a projector, without target, queue or predictor.

    All views pass through the network with gradient. The loss is the mean of
    :func:`~sce_video.models.losses.nt_xent_loss` over the pairs of views. The candidates are the
    two views of all samples of the batch on all ranks. More views therefore change neither the size
    of the loss nor its chance level. rho-SimCLR (facebookresearch/SlowFast,
    ``slowfast/models/contrastive.py``) uses ``consecutive=True``, the sum over the rho - 1 pairs of
    a view and the next one. Accumulated micro-batches are not compared with each other.

    ``SelfSupervisedModel`` describes the other arguments.

    Args:
        tau: Temperature. It is read at every step, so a schedule can set it.
        consecutive: Whether the loss is the sum over pairs of consecutive views, instead of the
            mean over all pairs.
    """

    def __init__(
        self,
        backbone: PartConfig,
        projector: PartConfig,
        tau: float = 0.1,
        consecutive: bool = False,
        data_preprocessor: PartConfig | nn.Module | None = None,
        joint_views: bool = False,
    ) -> None:
        super().__init__(backbone, data_preprocessor, joint_views=joint_views)
        self.build_heads(projector)
        self.tau = tau
        self.consecutive = consecutive
        self._chance: float | None = None  # chance level of the last step
        self.check_settings()

    def check_training(self, num_samples: int, batch_size: int, num_views: int | None) -> list[str]:
        """Return a warning if the batch contains samples twice.

        Raises:
            ValueError: If there is only one view or one sample.
        """
        check_views(num_views, None)
        return check_batch_negatives(num_samples, batch_size)

    def chance_level(self) -> float | None:
        """Return log(2N-1), the loss if views are unrelated, or None before the first step.

        N is the number of samples in the last step, or in its last micro-batch. With
        ``consecutive``, the value is multiplied by the number of pairs.
        """
        return self._chance

    def loss(self, views: Sequence[Tensor]) -> dict[str, LoggedValue]:
        """Compute NT-Xent for the pairs of views, and their mean cosine.

        Raises:
            ValueError: If there are fewer than two views.
        """
        if len(views) < 2:
            raise ValueError(f"SimCLR contrasts at least two views, got {len(views)}")
        h, z = self.encode_views(views)
        embeddings = [unit_vectors(x) for x in z]  # always in fp32, even under autocast
        all_pairs = itertools.combinations(embeddings, 2)
        pairs = list(itertools.pairwise(embeddings) if self.consecutive else all_pairs)
        losses = [nt_xent_loss(first, second, tau=self.tau) for first, second in pairs]
        with torch.no_grad():
            cosines = [(first * second).sum(dim=1).mean() for first, second in pairs]
        # SlowFast sums the losses of the pairs, and its learning rates are tuned for this sum.
        weight = 1 if self.consecutive else 1 / len(pairs)
        self._chance = weight * len(pairs) * math.log(2 * len(h[0]) * get_world_size() - 1)
        return {
            "loss": weight * torch.stack(losses).sum(),
            "positive_similarity": torch.stack(cosines).mean(),
            **self.collapse_metrics(h[0], embeddings[0]),
        }
