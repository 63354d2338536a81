"""ReSSL, Relational Self-Supervised Learning with Weak Augmentation (Zheng et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sce_video.models.algorithms.base import QuerySum, SelfSupervisedModel, mean_cosines
from sce_video.models.losses.sce_losses import ressl_loss, sharpness_warnings
from sce_video.registry import MODELS
from sce_video.utils.errors import Alarm
from sce_video.utils.stored_arguments import Entries, PartConfig
from sce_video.utils.tensors import LoggedValue


@MODELS.register_module()
class ReSSL(SelfSupervisedModel):
    """Learning of the target's similarities to a queue, without contrast or predictor.

    The first view (strong augmentation) is the query, and the last one (weak) is the key. With
    ``symmetric=True``, every view is both. In the multi-crop variant, additional smaller views are
    queries. The loss is the mean over the pairs of different views. ``tau_m`` must stay below
    ``tau``, because the method collapses as the two approach each other.

    ``SelfSupervisedModel`` describes the other arguments.

    Args:
        tau: Temperature of the online distribution.
        tau_m: Temperature of the target's relations.
    """

    def __init__(
        self,
        backbone: PartConfig,
        projector: PartConfig,
        queue_size: Entries = 131072,
        momentum: float = 0.999,
        tau: float = 0.1,
        tau_m: float = 0.04,
        symmetric: bool = False,
        target_views: Sequence[int] | None = None,
        shuffle_bn_splits: int | None = None,
        data_preprocessor: PartConfig | nn.Module | None = None,
        backward_per_query: bool = False,
    ) -> None:
        super().__init__(backbone, data_preprocessor, backward_per_query)
        self.build_heads(projector)
        self.build_target(momentum, symmetric, target_views, shuffle_bn_splits, queue_size)
        self.tau = tau
        self.tau_m = tau_m
        self.check_settings()

    def check_training(
        self, num_samples: int, batch_size: int, num_views: int | None
    ) -> Sequence[str | Alarm]:
        """Return warnings about an unsuitable queue or temperature.

        Raises:
            ValueError: If the views form no pairs.
        """
        warnings = super().check_training(num_samples, batch_size, num_views)
        return [*warnings, *sharpness_warnings(self.tau, self.tau_m)]

    def chance_level(self) -> float:
        """Return log(K), the loss if query and queue are unrelated. The positive has no logit."""
        return math.log(len(self.queue.keys))

    def loss(self, views: Sequence[Tensor]) -> dict[str, LoggedValue]:
        """Compute the cross-entropy of the relations for every pair, and the mean cosine."""
        keys, keys_of = self.encode_keys(views)
        num_pairs = sum(map(len, keys_of.values()))
        sums = QuerySum(self)
        for i, own in keys_of.items():
            h, _, query = self.encode_query(views[i])
            losses = [
                ressl_loss(query, keys[j], self.queue.keys, tau=self.tau, tau_m=self.tau_m)
                for j in own
            ]
            loss = torch.stack(losses).sum() / num_pairs
            similarity = mean_cosines(query, [keys[j] for j in own]).sum() / num_pairs
            sums.add(h, query, {"loss": loss, "positive_similarity": similarity})
        return sums.total()
