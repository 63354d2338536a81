"""SCE, Similarity Contrastive Estimation, for video (paper, section 3.2 and appendix A)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from torch import Tensor, nn

from sce_video.models.losses import SCETerms, effective_rank, feature_std, sce_terms
from sce_video.models.modules import KeyQueue, TargetEncoder
from sce_video.registry import MODELS


@MODELS.register_module()
class SCE(BaseModel):
    """Online encoder, projector and predictor against a moving-average target and a queue.

    ``h = pool(backbone(view))`` is the representation; ``z1 = predictor(projector(h))`` of the
    online branch is the query, ``z2 = projector(h)`` of the target branch the key, both
    l2-normalised. With V views of which G are global (those as large as the first view; the
    target sees only these), the loss is the mean over the ``G*(V-1)`` ordered pairs of a key of
    one view and a query of another. Two equal views give the symmetrised loss of the paper.

    ``momentum``, ``lambda_``, ``tau`` and ``tau_m`` are plain numbers read at every step: the
    schedule hook sets them. The target is updated and the keys enter the queue in
    :meth:`after_optimizer_step`, not here: only real optimiser steps count.

    Args:
        backbone: Config of the encoder; must have ``out_channels``.
        projector: Config of the projector; ``in_channels`` is the backbone's.
        predictor: Config of the predictor, or None for none.
        queue_size: K, keys kept.
        momentum: The target keeps this share of itself at a step.
        lambda_: Weight of the positive in the target distribution (eq. 7).
        tau: Temperature of the online distribution (eq. 8).
        tau_m: Temperature of the relations (eq. 3).
        mask_positive: True is eq. 3, False the pseudo-code's variant (SETTINGS 1).
        data_preprocessor: Config of the batched augmentation.
    """

    def __init__(
        self,
        backbone: dict,
        projector: dict,
        predictor: dict | None = None,
        queue_size: int = 65536,
        momentum: float = 0.99,
        lambda_: float = 0.5,
        tau: float = 0.1,
        tau_m: float = 0.05,
        mask_positive: bool = True,
        data_preprocessor: dict | nn.Module | None = None,
    ) -> None:
        if isinstance(data_preprocessor, dict):
            data_preprocessor = MODELS.build(data_preprocessor)
        super().__init__(data_preprocessor=data_preprocessor)
        self.backbone = MODELS.build(backbone)
        self.projector = MODELS.build({"in_channels": self.backbone.out_channels, **projector})
        dim = self.projector.out_channels
        self.predictor = nn.Identity()
        if predictor is not None:
            self.predictor = MODELS.build({"in_channels": dim, "out_channels": dim, **predictor})
        self.target = TargetEncoder(self.backbone, self.projector)
        self.queue = KeyQueue(queue_size, dim)
        self.momentum = momentum
        self.lambda_ = lambda_
        self.tau = tau
        self.tau_m = tau_m
        self.mask_positive = mask_positive

    def init_weights(self) -> None:
        """Initialise the online branch, then make the target its copy."""
        super().init_weights()
        self.target.copy_from(self.backbone, self.projector)

    def forward(
        self, inputs: Sequence[Tensor], data_samples: Any = None, mode: str = "tensor"
    ) -> dict[str, Tensor] | list[Tensor]:
        """Views to losses or representations.

        Args:
            inputs: V views (N, C, T, H, W).
            data_samples: Labels and indices; not used.
            mode: "loss" gives the loss and what is logged beside it; "tensor" gives h of the
                online encoder for every view, V times (N, C).
        """
        if mode == "loss":
            return self.loss(inputs)
        if mode == "tensor":
            return [self.represent(view) for view in inputs]
        raise ValueError(f"mode must be 'loss' or 'tensor', got {mode!r}: SCE predicts no labels")

    def represent(self, view: Tensor) -> Tensor:
        """h (N, C) of a view (N, 3, T, H, W): features averaged over time and space."""
        return self.backbone(view).mean(dim=(2, 3, 4))

    def loss(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """One step of the pseudo-code (appendix A) up to the loss, for any number of views."""
        if len(inputs) < 2:
            raise ValueError(f"SCE contrasts at least two views, got {len(inputs)}")
        representations = [self.represent(view) for view in inputs]
        queries = [self._embed(self.predictor(self.projector(h))) for h in representations]
        keys = self._target_keys([v for v in inputs if v.shape == inputs[0].shape])

        pairs = [
            self._terms(query, key)
            for i, key in enumerate(keys)
            for j, query in enumerate(queries)
            if i != j
        ]
        terms = SCETerms(*(torch.stack(values).mean() for values in zip(*pairs, strict=True)))

        for key in keys:
            self.queue.stage(key)
        return {**terms._asdict(), **self._health(representations[0])}

    def _embed(self, x: Tensor) -> Tensor:
        """Unit vectors, in fp32 under autocast too."""
        return F.normalize(x.float(), dim=1)

    @torch.no_grad()
    def _target_keys(self, views: Sequence[Tensor]) -> list[Tensor]:
        """z2 of every global view, (N, D) each."""
        target = self.target
        return [self._embed(target.projector(target.backbone(v).mean((2, 3, 4)))) for v in views]

    def _terms(self, query: Tensor, key: Tensor) -> SCETerms:
        return sce_terms(
            query,
            key,
            self.queue.keys,
            lambda_=self.lambda_,
            tau=self.tau,
            tau_m=self.tau_m,
            mask_positive=self.mask_positive,
        )

    @torch.no_grad()
    def _health(self, h: Tensor) -> dict[str, Tensor]:
        """What shows a collapse: spread and effective rank of h (N, C)."""
        h = h.float()
        return {"h_std": feature_std(h), "h_rank": effective_rank(h)}

    def after_optimizer_step(self) -> None:
        """Move the target and let this step's keys into the queue (end of the pseudo-code)."""
        self.target.update(self.backbone, self.projector, self.momentum)
        self.queue.commit()

    def discard_step(self) -> None:
        """Forget this step's keys: the optimiser skipped the step."""
        self.queue.discard_staged()
