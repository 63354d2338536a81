"""MoCo v2, Momentum Contrast (He et al. 2020; Chen et al. 2020), and rho-MoCo for video."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sce_video.models.algorithms.base import QuerySum, SelfSupervisedModel, mean_cosines
from sce_video.models.losses import info_nce_loss
from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import Entries, PartConfig
from sce_video.utils.tensors import LoggedValue


@MODELS.register_module()
class MoCo(SelfSupervisedModel):
    """InfoNCE with a moving-average target and a queue of negatives, without a predictor.

    The first view is the query, and the last one is the key. With ``symmetric=True``, every view is
    both. The loss is the mean over the pairs of a query and a key from different views. rho-MoCo
    uses rho views with ``symmetric=True`` and ``sum_queries=True`` (facebookresearch/SlowFast,
    ``slowfast/models/contrastive.py``, whose learning rates are tuned for this sum).

    ``SelfSupervisedModel`` describes the other arguments.

    Args:
        tau: Temperature of the online distribution.
        sum_queries: Whether the loss is the sum over queries of the mean over their keys. If each
            of rho views is both query and key, this is rho times the mean over pairs.
    """

    def __init__(
        self,
        backbone: PartConfig,
        projector: PartConfig,
        queue_size: Entries = 65536,
        momentum: float = 0.999,
        tau: float = 0.2,
        symmetric: bool = False,
        sum_queries: bool = False,
        target_views: Sequence[int] | None = None,
        shuffle_bn_splits: int | None = None,
        data_preprocessor: PartConfig | nn.Module | None = None,
        backward_per_query: bool = False,
    ) -> None:
        super().__init__(backbone, data_preprocessor, backward_per_query)
        self.build_heads(projector)
        self.build_target(momentum, symmetric, target_views, shuffle_bn_splits, queue_size)
        self.tau = tau
        self.sum_queries = sum_queries
        self._num_queries: int | None = None  # number of queries in the last step
        self.check_settings()

    def chance_level(self) -> float | None:
        """Return log(K+1), which is the loss if query and keys are unrelated.

        With ``sum_queries``, this is multiplied by the number of queries. The result is then None
        before the first step.
        """
        queries = self._num_queries if self.sum_queries else 1
        return None if queries is None else queries * math.log(len(self.queue.keys) + 1)

    def loss(self, views: Sequence[Tensor]) -> dict[str, LoggedValue]:
        """Compute InfoNCE with the queue for every pair of views, and the pairs' mean cosine."""
        keys, keys_of = self.encode_keys(views)
        num_pairs = sum(map(len, keys_of.values()))
        self._num_queries = len(keys_of)
        sums = QuerySum(self)
        for i, own in keys_of.items():
            h, _, query = self.encode_query(views[i])
            losses = [info_nce_loss(query, keys[j], self.queue.keys, tau=self.tau) for j in own]
            loss = torch.stack(losses).sum() / (len(own) if self.sum_queries else num_pairs)
            similarity = mean_cosines(query, [keys[j] for j in own]).sum() / num_pairs
            sums.add(h, query, {"loss": loss, "positive_similarity": similarity})
        return sums.total()
