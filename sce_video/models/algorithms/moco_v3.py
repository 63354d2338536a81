"""MoCo v3 (Chen, Xie & He 2021, arXiv 2104.02057): contrast with the target's keys of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sce_video.models.algorithms.base import QuerySum, SelfSupervisedModel, unit_vectors
from sce_video.models.losses import moco_v3_loss
from sce_video.models.losses.siamese import check_temperature
from sce_video.models.modules import TargetEncoder, check_momentum
from sce_video.models.modules.view_pairs import (
    check_batch_negatives,
    check_target_views,
    check_views,
    pair_views,
)
from sce_video.registry import MODELS
from sce_video.utils.distributed import gather_samples, global_positions


@MODELS.register_module()
class MoCoV3(SelfSupervisedModel):
    """Online encoder, projector and predictor against a moving-average target; no queue.

    The candidates of a query are the target's keys of another view of all samples of the batch, of
    all ranks (:func:`~sce_video.models.losses.moco_v3_loss`). Each query's loss is the mean over
    its key views, and the loss is the sum over queries: for two views the sum of both directions as
    in facebookresearch/moco-v3, moco/builder.py.

    Candidates are those of one forward pass: accumulated micro-batches do not see each other.

    Shared arguments: see ``SelfSupervisedModel``.

    Args:
        tau: Temperature; 1.0 is the authors' for batches of 4096, small batches take 0.2.

    Raises:
        ValueError: ``target_views`` are not different indices of views, or ``momentum`` or ``tau``
            is out of its range.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        projector: dict[str, Any],
        predictor: dict[str, Any],
        momentum: float = 0.99,
        tau: float = 1.0,
        symmetric: bool = True,
        target_views: Sequence[int] | None = None,
        data_preprocessor: dict[str, Any] | nn.Module | None = None,
        backward_per_query: bool = False,
    ) -> None:
        super().__init__(backbone, data_preprocessor, backward_per_query)
        check_target_views(target_views)
        self.projector = MODELS.build({"in_channels": self.backbone.out_channels, **projector})
        dim = self.projector.out_channels
        self.predictor = MODELS.build({"in_channels": dim, "out_channels": dim, **predictor})
        self.target = TargetEncoder(self.backbone, self.projector)
        self.momentum = momentum
        self.tau = tau
        self.symmetric = symmetric
        self.target_views = target_views
        self._chance: float | None = None  # of the last step
        self.check_settings()

    def check_settings(self) -> None:
        """Raise ValueError for a ``momentum`` or temperature out of its range."""
        check_momentum(self.momentum)
        check_temperature("tau", self.tau)

    def check_training(self, num_samples: int, batch_size: int, num_views: int | None) -> list[str]:
        """Warn of a batch that holds samples twice; ValueError without pairs or negatives."""
        check_views(num_views, self.target_views, self.symmetric)
        return check_batch_negatives(num_samples, batch_size)

    def chance_level(self) -> float | None:
        """2 tau log(N) for each query view: the loss if queries and keys are unrelated.

        N is the number of samples of the last step, without accumulation; None before the first.
        """
        return self._chance

    def loss(self, views: Sequence[Tensor]) -> dict[str, Tensor]:
        """Contrastive losses within the batch, for any number of views.

        Returns:
            ``loss``, ``positive_similarity`` (mean cosine of the pairs) and collapse metrics.
        """
        targets, keys_of = pair_views(views, self.target_views, self.symmetric)
        num_pairs = sum(map(len, keys_of.values()))
        # Keys of all ranks are candidates; ``own`` are the rows of this rank's positives in them.
        keys = {j: gather_samples(unit_vectors(self.target(views[j]))) for j in targets}
        own = global_positions(len(views[0]), views[0].device)

        # Not the batch of an accumulated step: micro-batches do not see each other.
        self._chance = len(keys_of) * 2 * self.tau * math.log(len(keys[targets[0]]))

        sums = QuerySum(self)
        for i, others in keys_of.items():
            h = self.represent(views[i])
            z = self.projector(h)
            query = unit_vectors(self.predictor(z))
            losses = [moco_v3_loss(query, keys[j], own, tau=self.tau) for j in others]
            cosines = [(query.detach() * keys[j][own]).sum(dim=1).mean() for j in others]
            similarity = torch.stack(cosines).sum() / num_pairs
            sums.add(h, z, {"loss": torch.stack(losses).mean(), "positive_similarity": similarity})
        return sums.total()

    def after_optimizer_step(self) -> None:
        """Update the target."""
        self.target.update(self.backbone, self.projector, self.momentum)
