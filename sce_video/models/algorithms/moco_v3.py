"""MoCo v3 (Chen, Xie & He 2021, arXiv 2104.02057): contrast with the target's keys of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sce_video.models.algorithms.base import QuerySum, SelfSupervisedModel, mean_cosines
from sce_video.models.losses import moco_v3_loss
from sce_video.models.modules.view_pairs import check_batch_negatives
from sce_video.registry import MODELS
from sce_video.utils.distributed import gather_samples, global_positions
from sce_video.utils.tensors import LoggedValue


@MODELS.register_module()
class MoCoV3(SelfSupervisedModel):
    """Online encoder, projector and predictor against a moving-average target; no queue.

    The candidates of a query are the target's keys of another view of all samples of the batch, of
    all ranks (:func:`~sce_video.models.losses.moco_v3_loss`). Each query's loss is the mean over
    its key views, and the loss is the sum over queries: for two views the sum of both directions as
    in facebookresearch/moco-v3, moco/builder.py. Accumulated micro-batches do not see each other.

    Other arguments: see ``SelfSupervisedModel``.

    Args:
        tau: Temperature; 1.0 is the authors' for batches of 4096, small batches take 0.2.
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
        self.build_heads(projector, predictor)
        self.build_target(momentum, symmetric, target_views)
        self.tau = tau
        self._chance: float | None = None  # of the last step
        self.check_settings()

    def check_training(self, num_samples: int, batch_size: int, num_views: int | None) -> list[str]:
        """Warn of a batch that holds samples twice; ValueError without pairs or negatives."""
        super().check_training(num_samples, batch_size, num_views)
        return check_batch_negatives(num_samples, batch_size)

    def chance_level(self) -> float | None:
        """2 tau log(N) for each query view: the loss if queries and keys are unrelated.

        N is the number of samples of the last step, without accumulation; None before the first.
        """
        return self._chance

    def loss(self, views: Sequence[Tensor]) -> dict[str, LoggedValue]:
        """Contrastive losses within the batch, and the mean cosine of the pairs."""
        keys, keys_of = self.encode_keys(views)
        num_pairs = sum(map(len, keys_of.values()))
        # Keys of all ranks are candidates; ``own`` are the rows of this rank's positives in them.
        candidates = {j: gather_samples(key) for j, key in keys.items()}
        own = global_positions(len(views[0]), views[0].device)
        # Not the batch of an accumulated step: micro-batches do not see each other.
        num_candidates = len(next(iter(candidates.values())))
        self._chance = len(keys_of) * 2 * self.tau * math.log(num_candidates)
        sums = QuerySum(self)
        for i, others in keys_of.items():
            h, z, query = self.encode_query(views[i])
            losses = [moco_v3_loss(query, candidates[j], own, tau=self.tau) for j in others]
            similarity = mean_cosines(query, [keys[j] for j in others]).sum() / num_pairs
            sums.add(h, z, {"loss": torch.stack(losses).mean(), "positive_similarity": similarity})
        return sums.total()
