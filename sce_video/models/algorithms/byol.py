"""BYOL, Bootstrap Your Own Latent (Grill et al. 2020), and rho-BYOL (Feichtenhofer et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sce_video.models.algorithms.base import SelfSupervisedModel, unit_vectors
from sce_video.models.losses import byol_loss
from sce_video.models.modules import TargetEncoder, check_momentum
from sce_video.models.modules.view_pairs import (
    check_target_views,
    check_views,
    default_target_views,
    view_pairs,
)
from sce_video.registry import MODELS


@MODELS.register_module()
class BYOL(SelfSupervisedModel):
    """An online network that predicts the target's embedding of another view; no negatives.

    With q the online prediction and k the target's embedding, both l2-normalised, a pair costs
    ``|q - k|^2 = 2 - 2 q.k`` (eq. 2 of BYOL). Each query's cost is the mean over its keys, and the
    loss is the sum over queries: for two views the sum of both directions as in BYOL, for more
    views the gradient of rho-BYOL (SlowFast, ``slowfast/models/contrastive.py``, with its
    temperature 0.5).

    Args:
        backbone: Config of the encoder; must have ``out_channels``.
        projector: Config of the projector; ``in_channels`` is the backbone's.
        predictor: Config of the predictor: without one the representation collapses.
        momentum: m of the target's moving average, target <- m*target + (1-m)*online; read at every
            step, so that a schedule can set it.
        symmetric: Whether target views are queries, too, for the other keys.
        target_views: Indices of the views that the target encodes (keys). None: all views as large
            as the first if symmetric, else the last view.
        data_preprocessor: Config of the batched augmentation.

    Raises:
        ValueError: ``target_views`` are not different indices of views, or ``momentum`` is out of
            its range.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        projector: dict[str, Any],
        predictor: dict[str, Any],
        momentum: float = 0.996,
        symmetric: bool = True,
        target_views: Sequence[int] | None = None,
        data_preprocessor: dict[str, Any] | nn.Module | None = None,
    ) -> None:
        super().__init__(backbone, data_preprocessor)
        if target_views is not None:
            check_target_views(target_views)
        self.projector = MODELS.build({"in_channels": self.backbone.out_channels, **projector})
        dim = self.projector.out_channels
        self.predictor = MODELS.build({"in_channels": dim, "out_channels": dim, **predictor})
        self.target = TargetEncoder(self.backbone, self.projector)
        self.momentum = momentum
        self.symmetric = symmetric
        self.target_views = target_views
        self.check_settings()

    def init_weights(self) -> None:
        """Initialise the online branch, then make the target its copy."""
        super().init_weights()
        self.target.copy_from(self.backbone, self.projector)

    def check_settings(self) -> None:
        """Raise ValueError for a ``momentum`` out of its range."""
        check_momentum(self.momentum)

    def check_training(self, num_samples: int, batch_size: int, num_views: int | None) -> list[str]:
        """No warnings; ValueError if the views form no pairs."""
        check_views(num_views, self.target_views, self.symmetric)
        return []

    def loss(self, views: Sequence[Tensor]) -> dict[str, Tensor]:
        """Squared distances of predictions and targets, for any number of views.

        Returns:
            ``loss``, ``positive_similarity`` (mean cosine of the pairs) and collapse metrics.
        """
        if len(views) < 2:
            raise ValueError(f"BYOL compares at least two views, got {len(views)}")
        target_views = self.target_views or default_target_views(views, self.symmetric)
        pairs = view_pairs(len(views), target_views, self.symmetric)

        h = {i: self.represent(views[i]) for i in sorted({query for query, _ in pairs})}
        queries = {i: unit_vectors(self.predictor(self.projector(x))) for i, x in h.items()}
        keys = {i: unit_vectors(self.target(views[i])) for i in target_views}

        losses = {(i, j): byol_loss(queries[i], keys[j]) for i, j in pairs}
        means = [
            torch.stack([loss for (i, _), loss in losses.items() if i == query]).mean()
            for query in queries
        ]
        return {
            "loss": torch.stack(means).sum(),
            "positive_similarity": 1 - torch.stack(list(losses.values())).mean().detach() / 2,
            **self.collapse_metrics(next(iter(h.values()))),
        }

    def after_optimizer_step(self) -> None:
        """Update the target (eq. 1 of BYOL)."""
        self.target.update(self.backbone, self.projector, self.momentum)
