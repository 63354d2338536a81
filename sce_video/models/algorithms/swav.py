"""SwAV (Caron et al. 2020): swapped prediction of cluster assignments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from mmengine.dist import get_rank, get_world_size
from torch import Tensor, nn

from sce_video.models.algorithms.base import SelfSupervisedModel, unit_vectors
from sce_video.models.losses.siamese import check_temperature, full_precision
from sce_video.models.losses.swav_losses import check_sinkhorn, sinkhorn, swav_loss
from sce_video.models.modules import KeyQueue, StepGenerator, uneven_queue_warnings
from sce_video.models.modules.view_pairs import check_target_views, check_views
from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import Entries, PartConfig, Stored
from sce_video.utils.tensors import LoggedValue


class Prototypes(nn.Module):
    """K trained unit vectors (K, D), which are normalised after each optimiser step."""

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        if count < 2:
            raise ValueError(f"num_prototypes must be at least 2, got {count}")
        self.weight = nn.Parameter(torch.randn(count, dim))
        self.normalise()

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return similarities (N, K) with unit embeddings (N, D), in fp32 even under autocast."""
        with torch.autocast(self.weight.device.type, enabled=False):
            return full_precision(embeddings) @ full_precision(self.weight).T

    @torch.no_grad()
    def normalise(self) -> None:
        """Normalise the prototypes to length 1."""
        self.weight.copy_(F.normalize(self.weight, dim=1))


@MODELS.register_module()
class SwAV(SelfSupervisedModel):
    """Online clustering in which each view's balanced assignment is predicted from other views.

    ``z = projector(h)`` is compared with K prototypes, and both are l2-normalised. Sinkhorn-Knopp
    over the samples of all ranks computes the codes of each assigned view, which every other view
    predicts (:func:`~sce_video.models.losses.swav_loss`). With gradient accumulation, codes are
    balanced only over a micro-batch. For small batches, earlier embeddings in a queue take part in
    the assignment (section 3.1). There is no target network.

    ``SelfSupervisedModel`` describes the other arguments.

    Args:
        num_prototypes: Number of prototypes, K.
        tau: Temperature of the predictions. It is read at every step, so a schedule can set it.
        epsilon: Weight of the entropy in Sinkhorn-Knopp. It is read at every step.
        frozen_prototype_steps: Number of optimiser steps before the prototypes are trained. The
            authors freeze them for 1 epoch.
        queue_size: Number of embeddings that are kept for each assigned view, over all ranks. 0
            means no queue.
        queue_start_steps: Number of optimiser steps before the queue starts to fill. It is used as
            soon as it is full.
        target_views: Indices of the assigned views.

    The checkpoint contains the queue and the buffer ``steps.step`` () int64, which counts the
    optimiser steps.
    """

    def __init__(
        self,
        backbone: PartConfig,
        projector: PartConfig,
        num_prototypes: Entries = 1000,
        tau: float = 0.1,
        epsilon: float = 0.05,
        frozen_prototype_steps: int = 0,
        queue_size: Annotated[int, Stored(2**20, least=0, is_width=True)] = 0,
        queue_start_steps: int = 0,
        target_views: Sequence[int] = (0, 1),
        data_preprocessor: PartConfig | nn.Module | None = None,
        joint_views: bool = False,
    ) -> None:
        super().__init__(backbone, data_preprocessor, joint_views=joint_views)
        check_target_views(target_views)
        self.build_heads(projector)
        self.prototypes = Prototypes(self.projector.out_channels, num_prototypes)
        self.tau = tau
        self.epsilon = epsilon
        self.frozen_prototype_steps = frozen_prototype_steps
        self.queue_size = queue_size
        self.queue_start_steps = queue_start_steps
        self.target_views = tuple(target_views)
        self.check_settings()
        self.steps = StepGenerator()
        self.queue = None
        if queue_size:  # each row contains the embeddings of all assigned views of a sample
            self.queue = KeyQueue(queue_size, len(self.target_views) * self.projector.out_channels)
            self.queue.keys.zero_()  # zeros show that the queue is not full yet

    def check_settings(self) -> None:
        """Check the temperature, ``epsilon``, and the numbers of steps and keys.

        Raises:
            ValueError: If one of them is out of range.
        """
        check_temperature("tau", self.tau)
        check_sinkhorn(self.epsilon)
        for name in ("frozen_prototype_steps", "queue_size", "queue_start_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")

    def check_training(self, num_samples: int, batch_size: int, num_views: int | None) -> list[str]:
        """Return warnings if batches are too small or do not fill the queue evenly.

        Raises:
            ValueError: If there are too few samples or views.
        """
        check_views(num_views, self.target_views)
        count = len(self.prototypes.weight)
        if num_samples < count:
            few = f"{num_samples} training samples are fewer than the {count} prototypes"
            raise ValueError(f"{few}. Lower model.num_prototypes to a fraction of the samples")
        warnings = uneven_queue_warnings(self.queue_size, batch_size)
        if batch_size + self.queue_size < count:
            few = f"a batch of {batch_size} and a queue of {self.queue_size} have fewer samples"
            advice = "Raise model.queue_size or lower model.num_prototypes"
            warnings.insert(0, f"{few} than there are prototypes, {count}. {advice}")
        return warnings

    def chance_level(self) -> float:
        """Return log(K), the loss if each view predicts all prototypes equally."""
        return math.log(len(self.prototypes.weight))

    def loss(self, views: Sequence[Tensor]) -> dict[str, LoggedValue]:
        """Compute the swapped prediction (eq. 1) for any number of views.

        Returns:
            ``loss``, the mean ``code_entropy`` (0 for one-hot codes, at most log K) and collapse
            metrics.
        """
        check_views(len(views), self.target_views)
        h, z = self.encode_views(views)
        embeddings = [unit_vectors(x) for x in z]
        scores = [self.prototypes(x) for x in embeddings]
        # Only assigned views have codes. The other views only predict codes.
        codes: list[Tensor | None] = [None] * len(views)
        for number, view in enumerate(self.target_views):
            codes[view] = self._codes(scores[view], number)
        # Stage the embeddings instead of adding them to the queue, so that all micro-batches of a
        # step use the same queue.
        if self.queue is not None and self.steps.done >= self.queue_start_steps:
            self.queue.stage(torch.cat([embeddings[view] for view in self.target_views], dim=1))
        assigned = torch.cat([code for code in codes if code is not None])
        return {
            "loss": swav_loss(scores, codes, tau=self.tau),
            "code_entropy": torch.special.entr(assigned).sum(dim=1).mean(),
            **self.collapse_metrics(h[0], embeddings[0]),
        }

    @torch.no_grad()
    def _codes(self, scores: Tensor, number: int) -> Tensor:
        """Return the codes (N, K) for the scores (N, K) of an assigned view with this index."""
        rows = [scores]
        if self.queue is not None and self.queue.is_full():
            # All ranks have the same queue, so each rank takes only its share of the samples.
            samples = self.queue.keys[get_rank() :: get_world_size()]
            rows.append(self.prototypes(samples.chunk(len(self.target_views), dim=1)[number]))
        return sinkhorn(torch.cat(rows), epsilon=self.epsilon)[: len(scores)]

    def before_optimizer_step(self) -> None:
        """Remove the gradient of frozen prototypes, so that their momentum stays 0."""
        if self.steps.done < self.frozen_prototype_steps:
            self.prototypes.weight.grad = None

    def after_optimizer_step(self) -> None:
        """Normalise the prototypes, enqueue the embeddings of this step, and count the step."""
        self.prototypes.normalise()
        super().after_optimizer_step()
        self.steps.advance()
