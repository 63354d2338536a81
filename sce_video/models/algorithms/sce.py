"""SCE, Similarity Contrastive Estimation, for video (paper, section 3.2 and appendix A)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sce_video.models.algorithms.base import QuerySum, SelfSupervisedModel
from sce_video.models.losses.sce_losses import SCETerms, check_sce, sce_terms, sce_warnings
from sce_video.models.modules import check_momentum
from sce_video.registry import MODELS
from sce_video.utils.errors import Alarm
from sce_video.utils.stored_arguments import Entries, PartConfig
from sce_video.utils.tensors import LoggedValue


@MODELS.register_module()
class SCE(SelfSupervisedModel):
    """Online encoder, projector and predictor with a moving-average target and a queue.

    ``h = pool(backbone(view))`` is the representation. The query ``z1 = predictor(projector(h))``
    comes from the online branch, and the key ``z2 = projector(h)`` from the target branch. Both are
    l2-normalised. The loss is the mean over the pairs of a query and a key from different views
    (:func:`~sce_video.models.modules.view_pairs.view_pairs`). For two views of the same size, this
    is the symmetrised loss of the paper's video experiments. With ``symmetric=False``, it is the
    loss of the paper's image ablations, where the first view (strong augmentation) is the query and
    the last one (weak) is the key.

    A schedule can change ``momentum``, ``lambda_``, ``tau``, ``tau_m``, ``mu`` and ``eta``.

    ``SelfSupervisedModel`` describes the other arguments.

    Args:
        lambda_: Weight of the positive in the target distribution (eq. 7). Three numbers set the
            free coefficients (lambda, mu, eta) of eq. 10, ``lambda InfoNCE + mu ReSSL + eta Ceil``.
            For example, ``(0.5, 0.5, 0.5)`` equals ``0.5``, and ``(0, 1, 0)`` is ReSSL's loss.
        tau: Temperature of the online distribution (eq. 8).
        tau_m: Temperature of the relations (eq. 3).
        mask_positive: True computes eq. 3, where the relations are a softmax over the negatives
            only. False follows the pseudo-code of appendix A, where the positive has logit 0.
    """

    def __init__(
        self,
        backbone: PartConfig,
        projector: PartConfig,
        predictor: PartConfig | None = None,
        queue_size: Entries = 65536,
        momentum: float = 0.99,
        lambda_: float | Sequence[float] = 0.5,
        tau: float = 0.1,
        tau_m: float = 0.05,
        mask_positive: bool = True,
        symmetric: bool = True,
        target_views: Sequence[int] | None = None,
        shuffle_bn_splits: int | None = None,
        data_preprocessor: PartConfig | nn.Module | None = None,
        backward_per_query: bool = False,
    ) -> None:
        super().__init__(backbone, data_preprocessor, backward_per_query)
        self.build_heads(projector, predictor)
        self.build_target(momentum, symmetric, target_views, shuffle_bn_splits, queue_size)
        given: Any = lambda_ if isinstance(lambda_, Sequence) else (lambda_, None, None)
        if len(given) != 3:
            wanted = "one number or the three (lambda, mu, eta) of eq. 10"
            raise ValueError(f"lambda_ must be {wanted}, got {lambda_}")
        self.lambda_, self.mu, self.eta = given
        self.tau = tau
        self.tau_m = tau_m
        self.mask_positive = mask_positive
        self.check_settings()

    def check_settings(self) -> None:
        """Check coefficients, temperatures and ``momentum``.

        Raises:
            ValueError: If one of them is out of range.
        """
        check_momentum(self.momentum)
        check_sce(self.lambda_, self.mu, self.eta, self.tau, self.tau_m, self.mask_positive)

    def check_training(
        self, num_samples: int, batch_size: int, num_views: int | None
    ) -> Sequence[str | Alarm]:
        """Return warnings about an unsuitable queue or objective.

        Raises:
            ValueError: If the views form no pairs.
        """
        warnings = super().check_training(num_samples, batch_size, num_views)
        return [*warnings, *sce_warnings(self.lambda_, self.mu, self.eta, self.tau, self.tau_m)]

    def chance_level(self) -> float:
        """Return the loss if query and keys are unrelated, which is log(K+1) for eq. 9."""
        info_nce, ressl = (math.log(len(self.queue.keys) + own) for own in (1, 0))
        if self.mu is None or self.eta is None:
            return info_nce
        return self.lambda_ * info_nce + self.mu * ressl + self.eta * (info_nce - ressl)

    def loss(self, views: Sequence[Tensor]) -> dict[str, LoggedValue]:
        """Compute the paper's pseudo-code (appendix A) for any number of views.

        Returns:
            The fields of ``SCETerms``, averaged over the pairs, and the collapse metrics.
        """
        # Only target views pass through the target branch, which has no gradient.
        keys, keys_of = self.encode_keys(views)
        num_pairs = sum(map(len, keys_of.values()))
        sums = QuerySum(self)
        for i, own in keys_of.items():
            # Only queries pass through the online branch, which has a gradient.
            h, z, query = self.encode_query(views[i])
            # Read the settings at every step, because a schedule may change them.
            pairs = [
                sce_terms(
                    query,
                    keys[j],
                    self.queue.keys,
                    lambda_=self.lambda_,
                    mu=self.mu,
                    eta=self.eta,
                    tau=self.tau,
                    tau_m=self.tau_m,
                    mask_positive=self.mask_positive,
                )
                for j in own
            ]
            terms = {
                name: torch.stack([getattr(pair, name) for pair in pairs]).sum() / num_pairs
                for name in SCETerms._fields
            }
            sums.add(h, z, terms)
        return sums.total()
