"""BYOL, Bootstrap Your Own Latent (Grill et al. 2020), and rho-BYOL (Feichtenhofer et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sce_video.models.algorithms.base import QuerySum, SelfSupervisedModel, unit_vectors
from sce_video.models.losses import byol_loss
from sce_video.models.modules import TargetEncoder, check_momentum
from sce_video.models.modules.view_pairs import check_target_views, check_views, pair_views
from sce_video.registry import MODELS


@MODELS.register_module()
class BYOL(SelfSupervisedModel):
    """An online network that predicts the target's embedding of another view; no negatives.

    With q the online prediction and k the target's embedding, both l2-normalised, a pair costs
    ``|q - k|^2 = 2 - 2 q.k`` (eq. 2 of BYOL). Each query's cost is the mean over its keys, and the
    loss is the sum over queries: for two views the sum of both directions as in BYOL, for more
    views the gradient of rho-BYOL (SlowFast, ``slowfast/models/contrastive.py``, with its
    temperature 0.5).

    Shared arguments: see ``SelfSupervisedModel``.

    Args:
        predictor: Config of the predictor: without one the representation collapses.

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
        backward_per_query: bool = False,
    ) -> None:
        super().__init__(backbone, data_preprocessor, backward_per_query)
        check_target_views(target_views)
        self.projector = MODELS.build({"in_channels": self.backbone.out_channels, **projector})
        dim = self.projector.out_channels
        self.predictor = MODELS.build({"in_channels": dim, "out_channels": dim, **predictor})
        self.target = TargetEncoder(self.backbone, self.projector)
        self.momentum = momentum
        self.symmetric = symmetric
        self.target_views = target_views
        self.check_settings()

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
        targets, keys_of = pair_views(views, self.target_views, self.symmetric)
        num_pairs = sum(map(len, keys_of.values()))
        # The target gets no gradient: it is the stop-gradient of the method.
        keys = {j: unit_vectors(self.target(views[j])) for j in targets}

        sums = QuerySum(self)
        for i, own in keys_of.items():
            h = self.represent(views[i])
            z = self.projector(h)
            query = unit_vectors(self.predictor(z))
            losses = torch.stack([byol_loss(query, keys[j]) for j in own])
            similarity = (1 - losses.detach() / 2).sum() / num_pairs
            sums.add(h, z, {"loss": losses.mean(), "positive_similarity": similarity})
        return sums.total()

    def after_optimizer_step(self) -> None:
        """Update the target (eq. 1 of BYOL)."""
        self.target.update(self.backbone, self.projector, self.momentum)
