"""MoCo v2, Momentum Contrast (He et al. 2020; Chen et al. 2020), and rho-MoCo for video."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sce_video.models.algorithms.base import QuerySum, SelfSupervisedModel, unit_vectors
from sce_video.models.losses import check_temperature, info_nce_loss
from sce_video.models.modules import KeyQueue, TargetEncoder, check_momentum, queue_warnings
from sce_video.models.modules.view_pairs import check_target_views, check_views, pair_views
from sce_video.registry import MODELS


@MODELS.register_module()
class MoCo(SelfSupervisedModel):
    """InfoNCE between views, with a moving-average target and a queue of negatives; no predictor.

    The first view is the query and the last the key; with ``symmetric=True`` every view is both.
    The loss is the mean over the pairs of a query and a key of different views. rho-MoCo is rho
    views with ``symmetric=True`` and ``sum_queries=True``: SlowFast (facebookresearch/SlowFast,
    ``slowfast/models/contrastive.py``) adds up the gradients of the rho queries, each the mean over
    the other keys, and its learning rates are for that sum.

    ``momentum`` and ``tau`` are plain numbers that are read at every step, so that a schedule can
    set them; MoCo keeps both constant.

    Shared arguments: see ``SelfSupervisedModel``.

    Args:
        queue_size: K, number of keys in the queue.
        tau: Temperature of the online distribution.
        sum_queries: Whether the loss is the sum over queries of the mean over their keys: with
            rho views, each query and key, rho times the mean over pairs.

    Raises:
        ValueError: ``target_views`` are not different indices of views; a temperature,
            ``momentum`` or ``shuffle_bn_splits`` out of its range.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        projector: dict[str, Any],
        queue_size: int = 65536,
        momentum: float = 0.999,
        tau: float = 0.2,
        symmetric: bool = False,
        sum_queries: bool = False,
        target_views: Sequence[int] | None = None,
        shuffle_bn_splits: int | None = None,
        data_preprocessor: dict[str, Any] | nn.Module | None = None,
        backward_per_query: bool = False,
    ) -> None:
        super().__init__(backbone, data_preprocessor, backward_per_query)
        check_target_views(target_views)
        self.projector = MODELS.build({"in_channels": self.backbone.out_channels, **projector})
        self.target = TargetEncoder(self.backbone, self.projector, shuffle_bn_splits)
        self.queue = KeyQueue(queue_size, self.projector.out_channels)
        self.momentum = momentum
        self.tau = tau
        self.symmetric = symmetric
        self.sum_queries = sum_queries
        self._num_queries: int | None = None  # of the last step
        self.target_views = target_views
        self.check_settings()

    def check_settings(self) -> None:
        """Raise ValueError for a temperature or ``momentum`` out of its range."""
        check_momentum(self.momentum)
        check_temperature("tau", self.tau)

    def check_training(self, num_samples: int, batch_size: int, num_views: int | None) -> list[str]:
        """Warn of an unsuitable queue; ValueError if the views form no pairs."""
        made = check_views(num_views, self.target_views, self.symmetric)
        return queue_warnings(len(self.queue.keys), num_samples, batch_size, made)

    def chance_level(self) -> float | None:
        """log(K+1): the loss if query and keys are unrelated.

        For each query with ``sum_queries``; then it is None before the first step.
        """
        queries = self._num_queries if self.sum_queries else 1
        return None if queries is None else queries * math.log(len(self.queue.keys) + 1)

    def loss(self, views: Sequence[Tensor]) -> dict[str, Tensor]:
        """InfoNCE of every pair of views against the queue, for any number of views.

        Returns:
            ``loss``, ``positive_similarity`` (mean cosine of the pairs) and collapse metrics.
        """
        targets, keys_of = pair_views(views, self.target_views, self.symmetric)
        num_pairs = sum(map(len, keys_of.values()))
        # All keys first: Shuffle-BN gathers over ranks, which must call it in the same order.
        keys = {j: unit_vectors(self.target(views[j])) for j in targets}

        self._num_queries = len(keys_of)

        sums = QuerySum(self)
        for i, own in keys_of.items():
            h = self.represent(views[i])
            query = unit_vectors(self.projector(h))
            losses = [info_nce_loss(query, keys[j], self.queue.keys, tau=self.tau) for j in own]
            loss = torch.stack(losses).sum() / (len(own) if self.sum_queries else num_pairs)
            cosines = torch.stack([(query.detach() * keys[j]).sum(dim=1).mean() for j in own])
            similarity = cosines.sum() / num_pairs
            sums.add(h, query, {"loss": loss, "positive_similarity": similarity})
        # After the optimiser step they are negatives: all micro-batches of it see one queue.
        for key in keys.values():
            self.queue.stage(key)
        return sums.total()

    def after_optimizer_step(self) -> None:
        """Update the target and enqueue the keys of this step."""
        self.target.update(self.backbone, self.projector, self.momentum)
        self.queue.commit()
