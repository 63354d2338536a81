"""MoCo v3 (Chen, Xie & He 2021, arXiv 2104.02057): contrast within the batch, with a target."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sce_video.models.algorithms.base import QuerySum, SelfSupervisedModel, mean_cosines
from sce_video.models.losses import moco_v3_loss
from sce_video.models.modules.view_pairs import check_batch_negatives
from sce_video.registry import MODELS
from sce_video.utils.distributed import gather_samples, global_positions
from sce_video.utils.stored_arguments import PartConfig
from sce_video.utils.tensors import LoggedValue


@MODELS.register_module()
class MoCoV3(SelfSupervisedModel):
    """Online encoder, projector and predictor with a moving-average target, without a queue.

    The candidates for a query are the target's keys of another view, for all samples in the batch
    on all ranks (:func:`~sce_video.models.losses.moco_v3_loss`). The loss of a query is the mean
    over its key views, and the total is the sum over queries. For two views, this is the sum of
    both directions, as in facebookresearch/moco-v3, moco/builder.py. Accumulated micro-batches are
    not compared with each other.

    ``SelfSupervisedModel`` describes the other arguments.

    Args:
        tau: Temperature. The authors use 1.0 for batches of 4096. Small batches need 0.2.
    """

    def __init__(
        self,
        backbone: PartConfig,
        projector: PartConfig,
        predictor: PartConfig,
        momentum: float = 0.99,
        tau: float = 1.0,
        symmetric: bool = True,
        target_views: Sequence[int] | None = None,
        data_preprocessor: PartConfig | nn.Module | None = None,
        backward_per_query: bool = False,
    ) -> None:
        super().__init__(backbone, data_preprocessor, backward_per_query)
        self.build_heads(projector, predictor)
        self.build_target(momentum, symmetric, target_views)
        self.tau = tau
        self._chance: float | None = None  # chance level of the last step
        self.check_settings()

    def check_training(self, num_samples: int, batch_size: int, num_views: int | None) -> list[str]:
        """Return a warning if the batch contains samples twice.

        Raises:
            ValueError: If there are no pairs of views or no negatives.
        """
        super().check_training(num_samples, batch_size, num_views)
        return check_batch_negatives(num_samples, batch_size)

    def chance_level(self) -> float | None:
        """Return the loss if queries and keys are unrelated, or None before the first step.

        It is 2 tau log(N) times the number of query views, where N is the number of samples in the
        last step, or in its last micro-batch.
        """
        return self._chance

    def loss(self, views: Sequence[Tensor]) -> dict[str, LoggedValue]:
        """Compute the contrastive losses within the batch, and the mean cosine of the pairs."""
        keys, keys_of = self.encode_keys(views)
        num_pairs = sum(map(len, keys_of.values()))
        # The keys of all ranks are candidates, and ``own`` are the rows of this rank's positives.
        candidates = {j: gather_samples(key) for j, key in keys.items()}
        own = global_positions(len(views[0]), views[0].device)
        # Count the keys of one micro-batch, because micro-batches are not compared with each other.
        num_candidates = len(next(iter(candidates.values())))
        self._chance = len(keys_of) * 2 * self.tau * math.log(num_candidates)
        sums = QuerySum(self)
        for i, others in keys_of.items():
            h, z, query = self.encode_query(views[i])
            losses = [moco_v3_loss(query, candidates[j], own, tau=self.tau) for j in others]
            similarity = mean_cosines(query, [keys[j] for j in others]).sum() / num_pairs
            sums.add(h, z, {"loss": torch.stack(losses).mean(), "positive_similarity": similarity})
        return sums.total()
