"""MoCo v2, Momentum Contrast (He et al. 2020; Chen et al. 2020), and rho-MoCo for video."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sce_video.models.algorithms.base import SelfSupervisedModel, unit_vectors
from sce_video.models.losses import check_temperature, info_nce_loss
from sce_video.models.modules import KeyQueue, TargetEncoder, check_momentum, queue_warnings
from sce_video.models.modules.view_pairs import (
    check_target_views,
    check_views,
    count_target_views,
    default_target_views,
    view_pairs,
)
from sce_video.registry import MODELS


@MODELS.register_module()
class MoCo(SelfSupervisedModel):
    """InfoNCE between views, with a moving-average target and a queue of negatives; no predictor.

    The first view is the query and the last the key; with ``symmetric=True`` every view is both.
    The loss is the mean over the pairs of a query and a key of different views. rho-MoCo is rho
    views with ``symmetric=True``; SlowFast (``slowfast/models/contrastive.py``) sums over the rho
    queries, so its learning rates of SGD are to be multiplied by rho here.

    ``momentum`` and ``tau`` are plain numbers that are read at every step, so that a schedule can
    set them; MoCo keeps both constant.

    Args:
        backbone: Config of the encoder; must have ``out_channels``.
        projector: Config of the projector; ``in_channels`` is the backbone's.
        queue_size: K, number of keys in the queue.
        momentum: m of the target's moving average, target <- m*target + (1-m)*online.
        tau: Temperature of the online distribution.
        symmetric: Whether target views are queries, too, for the other keys.
        target_views: Indices of the views that the target encodes (keys). None: all views as large
            as the first if symmetric, else the last view.
        data_preprocessor: Config of the batched augmentation.

    Raises:
        ValueError: ``target_views`` are not different indices of views; a temperature or
            ``momentum`` out of its range.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        projector: dict[str, Any],
        queue_size: int = 65536,
        momentum: float = 0.999,
        tau: float = 0.2,
        symmetric: bool = False,
        target_views: Sequence[int] | None = None,
        data_preprocessor: dict[str, Any] | nn.Module | None = None,
    ) -> None:
        super().__init__(backbone, data_preprocessor)
        if target_views is not None:
            check_target_views(target_views)
        self.projector = MODELS.build({"in_channels": self.backbone.out_channels, **projector})
        self.target = TargetEncoder(self.backbone, self.projector)
        self.queue = KeyQueue(queue_size, self.projector.out_channels)
        self.momentum = momentum
        self.tau = tau
        self.symmetric = symmetric
        self.target_views = target_views
        self.check_settings()

    def init_weights(self) -> None:
        """Initialise the online branch, then make the target its copy."""
        super().init_weights()
        self.target.copy_from(self.backbone, self.projector)

    def check_settings(self) -> None:
        """Raise ValueError for a temperature or ``momentum`` out of its range."""
        check_momentum(self.momentum)
        check_temperature("tau", self.tau)

    def check_training(self, num_samples: int, batch_size: int, num_views: int | None) -> list[str]:
        """Warn of an unsuitable queue; ValueError if the views form no pairs."""
        check_views(num_views, self.target_views, self.symmetric)
        made = count_target_views(num_views, self.target_views, self.symmetric)
        return queue_warnings(len(self.queue.keys), num_samples, batch_size, made)

    def chance_level(self) -> float:
        """log(K+1): the loss if query and keys are unrelated."""
        return math.log(len(self.queue.keys) + 1)

    def loss(self, views: Sequence[Tensor]) -> dict[str, Tensor]:
        """InfoNCE of every pair of views against the queue, for any number of views.

        Returns:
            ``loss``, ``positive_similarity`` (mean cosine of the pairs) and collapse metrics.
        """
        if len(views) < 2:
            raise ValueError(f"MoCo compares at least two views, got {len(views)}")
        target_views = self.target_views or default_target_views(views, self.symmetric)
        pairs = view_pairs(len(views), target_views, self.symmetric)

        h = {i: self.represent(views[i]) for i in sorted({query for query, _ in pairs})}
        queries = {i: unit_vectors(self.projector(x)) for i, x in h.items()}
        keys = {i: unit_vectors(self.target(views[i])) for i in target_views}

        losses = [
            info_nce_loss(queries[i], keys[j], self.queue.keys, tau=self.tau) for i, j in pairs
        ]
        similarities = [(queries[i].detach() * keys[j]).sum(dim=1).mean() for i, j in pairs]
        # After the optimiser step they are negatives: all micro-batches of it see one queue.
        for key in keys.values():
            self.queue.stage(key)
        return {
            "loss": torch.stack(losses).mean(),
            "positive_similarity": torch.stack(similarities).mean(),
            **self.collapse_metrics(next(iter(h.values()))),
        }

    def after_optimizer_step(self) -> None:
        """Update the target and enqueue the keys of this step."""
        self.target.update(self.backbone, self.projector, self.momentum)
        self.queue.commit()

    def discard_step(self) -> None:
        """Drop the staged keys of a step that the optimiser skipped."""
        self.queue.discard_staged()
