"""ReSSL, Relational Self-Supervised Learning with weak augmentation (Zheng et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sce_video.models.algorithms.base import QuerySum, SelfSupervisedModel, unit_vectors
from sce_video.models.losses import check_temperature, ressl_loss, sharpness_warnings
from sce_video.models.modules import KeyQueue, TargetEncoder, check_momentum, queue_warnings
from sce_video.models.modules.view_pairs import check_target_views, check_views, pair_views
from sce_video.registry import MODELS


@MODELS.register_module()
class ReSSL(SelfSupervisedModel):
    """Learns the target's similarities to a queue; positives are not contrasted, no predictor.

    The first view (strong augmentation) is the query and the last (weak) the key; with
    ``symmetric=True`` every view is both. More views than two are queries of smaller crops in the
    multi-crop variant. The loss is the mean over the pairs of different views. ``tau_m`` must stay
    below ``tau``: the closer they are, the nearer the method is to a collapse.

    ``momentum``, ``tau`` and ``tau_m`` are plain numbers that are read at every step, so that a
    schedule can set them.

    Shared arguments: see ``SelfSupervisedModel``.

    Args:
        queue_size: K, number of keys in the queue.
        tau: Temperature of the online distribution.
        tau_m: Temperature of the relations of the target.

    Raises:
        ValueError: ``target_views`` are not different indices of views; a temperature,
            ``momentum`` or ``shuffle_bn_splits`` out of its range.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        projector: dict[str, Any],
        queue_size: int = 131072,
        momentum: float = 0.999,
        tau: float = 0.1,
        tau_m: float = 0.04,
        symmetric: bool = False,
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
        self.tau_m = tau_m
        self.symmetric = symmetric
        self.target_views = target_views
        self.check_settings()

    def check_settings(self) -> None:
        """Raise ValueError for a temperature or ``momentum`` out of its range."""
        check_momentum(self.momentum)
        check_temperature("tau", self.tau)
        check_temperature("tau_m", self.tau_m)

    def check_training(self, num_samples: int, batch_size: int, num_views: int | None) -> list[str]:
        """Warn of an unsuitable queue or temperature; ValueError if the views form no pairs."""
        made = check_views(num_views, self.target_views, self.symmetric)
        return [
            *queue_warnings(len(self.queue.keys), num_samples, batch_size, made),
            *sharpness_warnings(self.tau, self.tau_m),
        ]

    def chance_level(self) -> float:
        """log(K): the loss if query and queue are unrelated; the positive takes no part."""
        return math.log(len(self.queue.keys))

    def loss(self, views: Sequence[Tensor]) -> dict[str, Tensor]:
        """Cross-entropy of the relations of every pair of views, for any number of views.

        Returns:
            ``loss``, ``positive_similarity`` (mean cosine of the pairs) and collapse metrics.
        """
        targets, keys_of = pair_views(views, self.target_views, self.symmetric)
        num_pairs = sum(map(len, keys_of.values()))
        # All keys first: Shuffle-BN gathers over ranks, which must call it in the same order.
        keys = {j: unit_vectors(self.target(views[j])) for j in targets}
        taus = {"tau": self.tau, "tau_m": self.tau_m}

        sums = QuerySum(self)
        for i, own in keys_of.items():
            h = self.represent(views[i])
            query = unit_vectors(self.projector(h))
            losses = [ressl_loss(query, keys[j], self.queue.keys, **taus) for j in own]
            loss = torch.stack(losses).sum() / num_pairs
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
