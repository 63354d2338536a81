"""SCE, Similarity Contrastive Estimation, for video (paper, section 3.2 and appendix A)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sce_video.models.algorithms.base import SelfSupervisedModel, unit_vectors
from sce_video.models.losses import (
    SCETerms,
    check_coefficients,
    check_weights,
    coefficient_warnings,
    sce_free_loss,
    sce_terms,
    sharpness_warnings,
)
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
class SCE(SelfSupervisedModel):
    """Online encoder, projector and predictor against a moving-average target and a queue.

    ``h = pool(backbone(view))`` is the representation; ``z1 = predictor(projector(h))`` of the
    online branch is the query, ``z2 = projector(h)`` of the target branch the key, both
    l2-normalised. The loss is the mean over pairs of a query and a key of different views
    (:func:`~sce_video.models.modules.view_pairs.view_pairs`). By default two views of one size give
    the symmetrised loss of the paper's video experiments; ``symmetric=False`` gives that of its
    image ablations, where the online branch sees the first view (strong augmentation) and the
    target the last (weak augmentation).

    ``momentum``, ``lambda_``, ``tau`` and ``tau_m`` are plain numbers that are read at every step,
    so that a schedule can set them; with free coefficients ``mu`` and ``eta``, too.

    Args:
        backbone: Config of the encoder; must have ``out_channels``.
        projector: Config of the projector; ``in_channels`` is the backbone's.
        predictor: Config of the predictor, or None for none.
        queue_size: K, number of keys in the queue.
        momentum: m of the target's moving average, target <- m*target + (1-m)*online.
        lambda_: Weight of the positive in the target distribution (eq. 7). Three numbers are the
            free coefficients (lambda, mu, eta) of eq. 10, ``lambda InfoNCE + mu ReSSL + eta Ceil``:
            ``(0.5, 0.5, 0.5)`` is ``0.5``; (0, 1, 0) is ReSSL's loss.
        tau: Temperature of the online distribution (eq. 8).
        tau_m: Temperature of the relations (eq. 3).
        mask_positive: True is eq. 3: the relations are a softmax over the negatives only. False is
            the pseudo-code of appendix A: the positive takes part with logit 0.
        symmetric: Whether target views are queries, too, for the other keys.
        target_views: Indices of the views that the target encodes (keys). None: all views as large
            as the first if symmetric, else the last view.
        data_preprocessor: Config of the batched augmentation.

    Raises:
        ValueError: ``target_views`` are not different indices of views; a ``lambda_``, coefficient,
            temperature or ``momentum`` out of its range, or free coefficients without
            ``mask_positive``.
    """

    def __init__(
        self,
        backbone: dict[str, Any],
        projector: dict[str, Any],
        predictor: dict[str, Any] | None = None,
        queue_size: int = 65536,
        momentum: float = 0.99,
        lambda_: float | Sequence[float] = 0.5,
        tau: float = 0.1,
        tau_m: float = 0.05,
        mask_positive: bool = True,
        symmetric: bool = True,
        target_views: Sequence[int] | None = None,
        data_preprocessor: dict[str, Any] | nn.Module | None = None,
    ) -> None:
        super().__init__(backbone, data_preprocessor)
        if target_views is not None:
            check_target_views(target_views)
        self.projector = MODELS.build({"in_channels": self.backbone.out_channels, **projector})
        dim = self.projector.out_channels
        self.predictor = nn.Identity()
        if predictor is not None:
            self.predictor = MODELS.build({"in_channels": dim, "out_channels": dim, **predictor})
        self.target = TargetEncoder(self.backbone, self.projector)
        self.queue = KeyQueue(queue_size, dim)
        self.momentum = momentum
        self.lambda_, self.mu, self.eta = _coefficients(lambda_)
        self.tau = tau
        self.tau_m = tau_m
        self.mask_positive = mask_positive
        self.symmetric = symmetric
        self.target_views = target_views
        self.check_settings()

    def init_weights(self) -> None:
        """Initialise the online branch, then make the target its copy."""
        super().init_weights()
        self.target.copy_from(self.backbone, self.projector)

    def check_settings(self) -> None:
        """Raise ValueError for a coefficient, temperature or ``momentum`` out of its range."""
        check_momentum(self.momentum)
        if self.mu is None or self.eta is None:
            check_weights(self.lambda_, self.tau, self.tau_m)
            return
        check_weights(0.0, self.tau, self.tau_m)
        check_coefficients(self.lambda_, self.mu, self.eta)
        if not self.mask_positive:
            raise ValueError(
                "the free coefficients of eq. 10 need mask_positive=True: with False the loss is "
                "no sum of InfoNCE, ReSSL and Ceil"
            )

    def check_training(self, num_samples: int, batch_size: int, num_views: int | None) -> list[str]:
        """Warn of an unsuitable queue or objective; ValueError if the views form no pairs."""
        check_views(num_views, self.target_views, self.symmetric)
        made = count_target_views(num_views, self.target_views, self.symmetric)
        warnings = queue_warnings(len(self.queue.keys), num_samples, batch_size, made)
        if self.mu is not None and self.eta is not None:
            warnings += coefficient_warnings(self.lambda_, self.mu, self.eta)
            if self.lambda_ == self.eta == 0:
                warnings += sharpness_warnings(self.tau, self.tau_m)
        return warnings

    def chance_level(self) -> float:
        """log(K+1): the loss, whatever its target, if query and keys are unrelated.

        With free coefficients the sum of eq. 10 at equal probabilities.
        """
        k = len(self.queue.keys)
        if self.mu is None or self.eta is None:
            return math.log(k + 1)
        ceil = math.log(k + 1) - math.log(k)
        return self.lambda_ * math.log(k + 1) + self.mu * math.log(k) + self.eta * ceil

    def loss(self, views: Sequence[Tensor]) -> dict[str, Tensor]:
        """One step of the pseudo-code (appendix A) up to the loss, for any number of views.

        Returns:
            ``loss``, its parts (:class:`~sce_video.models.losses.SCETerms`) and collapse metrics.
        """
        if len(views) < 2:
            raise ValueError(f"SCE contrasts at least two views, got {len(views)}")
        target_views = self.target_views or default_target_views(views, self.symmetric)
        pairs = view_pairs(len(views), target_views, self.symmetric)

        # Only views that are queries pass through the online branch, with gradient ...
        h = {i: self.represent(views[i]) for i in sorted({query for query, _ in pairs})}
        queries = {i: unit_vectors(self.predictor(self.projector(x))) for i, x in h.items()}
        # ... and only target views through the target branch, without.
        keys = {i: unit_vectors(self.target(views[i])) for i in target_views}

        terms = [self._terms(queries[i], keys[j]) for i, j in pairs]
        means = SCETerms(*(torch.stack(values).mean() for values in zip(*terms, strict=True)))

        # The keys enter the queue after the optimiser step, so that all micro-batches of an
        # accumulated step are compared with the same queue.
        for key in keys.values():
            self.queue.stage(key)
        return {**means._asdict(), **self.collapse_metrics(next(iter(h.values())))}

    def _terms(self, query: Tensor, key: Tensor) -> SCETerms:
        inputs = query, key, self.queue.keys
        tau, tau_m, lambda_, mu, eta = self.tau, self.tau_m, self.lambda_, self.mu, self.eta
        if mu is None or eta is None:
            mask = self.mask_positive
            return sce_terms(*inputs, lambda_=lambda_, tau=tau, tau_m=tau_m, mask_positive=mask)
        with torch.no_grad():  # the parts, and the entropy of the target at mass 1
            terms = sce_terms(*inputs, lambda_=lambda_ / (lambda_ + mu), tau=tau, tau_m=tau_m)
        free = sce_free_loss(*inputs, lambda_=lambda_, mu=mu, eta=eta, tau=tau, tau_m=tau_m)
        return terms._replace(loss=free)

    def after_optimizer_step(self) -> None:
        """Update the target and enqueue the keys of this step (end of the pseudo-code)."""
        self.target.update(self.backbone, self.projector, self.momentum)
        self.queue.commit()

    def discard_step(self) -> None:
        """Drop the staged keys of a step that the optimiser skipped."""
        self.queue.discard_staged()


def _coefficients(lambda_: float | Sequence[float]) -> tuple[float, float | None, float | None]:
    """Lambda, mu and eta; mu and eta are None if only lambda is given."""
    if not isinstance(lambda_, Sequence):
        return lambda_, None, None
    if len(lambda_) != 3:
        raise ValueError(
            f"lambda_ must be one number or the three (lambda, mu, eta) of eq. 10, got {lambda_}"
        )
    return lambda_[0], lambda_[1], lambda_[2]
