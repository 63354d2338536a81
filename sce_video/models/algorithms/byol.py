"""BYOL, Bootstrap Your Own Latent (Grill et al. 2020), and rho-BYOL (Feichtenhofer et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sce_video.models.algorithms.base import QuerySum, SelfSupervisedModel
from sce_video.models.losses import byol_loss
from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import PartConfig
from sce_video.utils.tensors import LoggedValue


@MODELS.register_module()
class BYOL(SelfSupervisedModel):
    """Prediction of the target's embedding of another view, without negatives.

    Let q be the online prediction and k the target's embedding, both l2-normalised. A pair costs
    ``|q - k|^2 = 2 - 2 q.k`` (eq. 2 of BYOL). The cost of a query is the mean over its keys, and
    the loss is the sum over queries. For two views, this is the sum of both directions, as in BYOL.
    For more views, it has the gradient of rho-BYOL (SlowFast, ``slowfast/models/contrastive.py``,
    with its temperature of 0.5). Without a predictor, the representation collapses.

    ``SelfSupervisedModel`` describes all arguments.
    """

    def __init__(
        self,
        backbone: PartConfig,
        projector: PartConfig,
        predictor: PartConfig,
        momentum: float = 0.996,
        symmetric: bool = True,
        target_views: Sequence[int] | None = None,
        data_preprocessor: PartConfig | nn.Module | None = None,
        backward_per_query: bool = False,
    ) -> None:
        super().__init__(backbone, data_preprocessor, backward_per_query)
        self.build_heads(projector, predictor)
        self.build_target(momentum, symmetric, target_views)
        self.check_settings()

    def loss(self, views: Sequence[Tensor]) -> dict[str, LoggedValue]:
        """Compute the squared distances of predictions and targets, and the pairs' mean cosine."""
        # The keys have no gradient, which implements the paper's stop-gradient.
        keys, keys_of = self.encode_keys(views)
        num_pairs = sum(map(len, keys_of.values()))
        sums = QuerySum(self)
        for i, own in keys_of.items():
            h, z, query = self.encode_query(views[i])
            losses = torch.stack([byol_loss(query, keys[j]) for j in own])
            similarity = (1 - losses.detach() / 2).sum() / num_pairs
            sums.add(h, z, {"loss": losses.mean(), "positive_similarity": similarity})
        return sums.total()
