"""Distillation from a frozen teacher, with SCE's loss as one of the objectives, as in SEED."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sce_video.models.algorithms.base import QuerySum, SelfSupervisedModel, unit_vectors
from sce_video.models.backbones.common import average_pool, rows_of_positions
from sce_video.models.backbones.frame_pools import features_of_frame, frame_features
from sce_video.models.losses.frame_losses import (
    FrameScales,
    frame_scales,
    frame_targets,
    frame_terms,
)
from sce_video.models.losses.sce_losses import check_sce, sce_terms
from sce_video.models.losses.siamese import byol_loss, full_precision
from sce_video.models.modules import KeyQueue, queue_warnings
from sce_video.registry import MODELS
from sce_video.utils.errors import Alarm
from sce_video.utils.stored_arguments import Entries, Outputs, PartConfig, Word
from sce_video.utils.tensors import LoggedValue

#: Strengths of a ridge regression, as multiples of the features' mean variance
_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
#: One in this many clips is held out to choose the strength
_HELD_OUT = 5
OBJECTIVES = ("cosine", "tokens", "relations", "frames")


@dataclass(frozen=True)
class TeacherClip:
    """Size of the clips that a teacher network accepts."""

    frames: int
    side: int  # height and width in pixels


#: Representations (N, C) of a view, their projections, and the scalars of the comparison
_Compared = tuple[Tensor, Tensor, dict[str, Tensor]]


@MODELS.register_module()
class Distill(SelfSupervisedModel):
    """A student whose projected representation approaches the features of a frozen teacher.

    Let z be the student's projection and t the teacher's feature of a clip, both l2-normalised.
    ``objective`` selects the loss, which is averaged over samples and views:

    - ``cosine``: 1 - z.t of the pooled features.
    - ``tokens``: 1 - z.t at each position of the teacher's grid, to which the student's features
      are interpolated.
    - ``relations``: SCE (eq. 9) with z as the query, t as the key and a queue of the teacher's
      features. SEED (arXiv 2101.04731) uses the teacher's softmax share instead of ``lambda_``.
    - ``frames``: Squared errors for the teacher's standardised frame features, their mean over the
      clip, their motion and their change (:func:`~sce_video.models.losses.frame_terms`). The
      projector predicts the features at each temporal position of the student.

    The teacher is either a set of stored features of fixed clips, which the samples' ``index`` and
    ``clip`` identify, or a network that receives the student's augmented view (arXiv 2106.05237) in
    the teacher's size and normalisation. ``tokens`` requires a network. The teacher is not saved
    with the student, because it has its own checkpoint.

    ``SelfSupervisedModel`` describes the other arguments, and ``SCE`` describes ``lambda_``,
    ``tau`` and ``tau_m``.

    Args:
        teacher_channels: D, size of the teacher's feature and of the projector's output.
        teacher: Config of an ``Encoder``. None if :meth:`set_teacher` will be called.
        queue_size: Number of keys for ``relations``, K.
    """

    def __init__(
        self,
        backbone: PartConfig,
        projector: PartConfig,
        teacher_channels: Outputs,
        objective: Word = "cosine",
        teacher: PartConfig | None = None,
        queue_size: Entries = 65536,
        lambda_: float = 0.5,
        tau: float = 0.1,
        tau_m: float = 0.05,
        data_preprocessor: PartConfig | nn.Module | None = None,
    ) -> None:
        super().__init__(backbone, data_preprocessor or {"type": "VideoDataPreprocessor"})
        if objective == "frames":
            projector = {"in_channels": features_of_frame(self.backbone), **projector}
        self.build_heads({**projector, "out_channels": teacher_channels})
        self.objective = objective
        self.lambda_ = lambda_
        self.tau = tau
        self.tau_m = tau_m
        if objective == "relations":
            self.queue = KeyQueue(queue_size, teacher_channels)
        self.set_teacher(None if teacher is None else MODELS.build(teacher))
        self.check_settings()

    def check_settings(self) -> None:
        """Check the objective, the coefficient and the temperatures.

        Raises:
            ValueError: If one of them is unknown or out of range.
        """
        if self.objective not in OBJECTIVES:
            known = ", ".join(OBJECTIVES)
            raise ValueError(f"objective must be one of {known}, got {self.objective!r}")
        check_sce(self.lambda_, None, None, self.tau, self.tau_m)

    def check_training(
        self, num_samples: int, batch_size: int, num_views: int | None
    ) -> Sequence[str | Alarm]:
        """Return warnings about an unsuitable queue."""
        if self.objective != "relations":
            return []
        return queue_warnings(len(self.queue.keys), num_samples, batch_size, 1)

    def chance_level(self) -> float | None:
        """Return log(K+1) for ``relations``, as for SCE, and None for the other objectives.

        A cosine has no chance level, because all features share some directions.
        """
        return math.log(len(self.queue.keys) + 1) if self.objective == "relations" else None

    def set_teacher(
        self,
        network: nn.Module | None = None,
        features: Tensor | None = None,
        clip: TeacherClip | None = None,
    ) -> None:
        """Set the teacher to a network or to stored features.

        Args:
            network: An ``Encoder``.
            features: (videos, clips, D), or (videos, clips, T, D) for ``frames``. They are 0 for
                videos that could not be read.
            clip: Size of the clips that the network accepts. None passes the student's view in the
                student's size.

        Raises:
            ValueError: If the features do not suit the objective.
        """
        # Hide the teacher in a tuple, where nn.Module does not register it, so that it is neither
        # trained nor saved.
        self._teacher: Any = () if network is None else (network.eval().requires_grad_(False),)
        self._features = features
        self._clip = clip
        self._scales: FrameScales | None = None
        if self.objective == "frames" and features is not None:
            if features.ndim != 4:
                raise ValueError(
                    "objective 'frames' needs the teacher's features of each frame, (videos, "
                    f"clips, T, D), got shape {tuple(features.shape)}"
                )
            readable = features.flatten(1).any(dim=1)
            self._scales = frame_scales(features[readable].flatten(0, 1))

    @torch.no_grad()
    def start_linearly(self, positions: Tensor, taught: Tensor) -> float:
        """Start a linear projector for ``frames`` from a ridge regression.

        With random weights, the projector would destroy the features of a pretrained student before
        it has learned anything itself, as a random classifier does (Kumar et al. 2022, arXiv
        2202.10054).

        Args:
            positions: (N, T, C) features of the student for N clips, before training.
            taught: (N, U, D) features of the teacher for these clips.

        Returns:
            Share of the variance of the teacher's features that the regression explains on a fifth
            of the clips, from which it was not computed.
        """
        assert self._scales is not None  # the scales are set together with the stored features
        linear, norm = self.projector.layers
        weight, explained = _ridge(
            positions, frame_targets(taught, positions.shape[1], self._scales)
        )
        predicted = positions.flatten(0, 1).cpu().double() @ weight
        variance, mean = torch.var_mean(predicted, dim=0, correction=0)
        linear.weight.copy_(weight.T)
        norm.weight.copy_(variance.sqrt())  # because the BN standardises the layer's predictions
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
        return explained

    @torch.no_grad()
    def teach(self, view: Tensor, samples: Mapping[str, Tensor] | None) -> Tensor:
        """Return the teacher's features for a view.

        Args:
            view: (N, 3, T, H, W).
            samples: ``index`` and ``clip`` (N,) of the samples, which select stored features.

        Returns:
            (N, D), (N, T, D) for ``frames``, or (N, D, T, H, W) for ``tokens``, without gradient.

        Raises:
            ValueError: If there is no teacher, or if ``frames`` has no stored features.
        """
        if self._features is not None and samples is not None and "clip" in samples:
            return full_precision(self._features[samples["index"], samples["clip"]])
        if self.objective == "frames":
            raise ValueError(
                "objective 'frames' needs stored features of the teacher. Set teacher_checkpoint, "
                "and OneOfClips.num_clips to 1 or more"
            )
        if not self._teacher:
            raise ValueError("Distill has no teacher. Set teacher_checkpoint or model.teacher")
        teacher = self._teacher[0].to(view.device)
        own = self.data_preprocessor
        its = teacher.data_preprocessor
        shown = ((view * own.std + own.mean - its.mean) / its.std).to(view.dtype)
        if self._clip is not None:
            frames = self._clip.frames
            side = self._clip.side
            kept = torch.arange(frames, device=view.device) * (view.shape[2] - 1)
            shown = shown.index_select(2, kept // max(1, frames - 1))
            if shown.shape[3:] != (side, side):
                shown = F.interpolate(shown, (frames, side, side), mode="trilinear")
        return teacher.backbone(shown) if self.objective == "tokens" else teacher.represent(shown)

    def loss_of_samples(self, views: Sequence[Tensor], samples: Any) -> dict[str, LoggedValue]:
        """Compute the loss with the samples' ``index`` and ``clip``."""
        return self.loss(views, samples)

    def loss(
        self, views: Sequence[Tensor], samples: Mapping[str, Tensor] | None = None
    ) -> dict[str, LoggedValue]:
        """Compute the objective and its parts.

        Args:
            views: V views (N, 3, T, H, W).
            samples: ``index`` and ``clip`` (N,) of the samples, which select stored features.
        """
        sums = QuerySum(self)
        for view in views:
            taught = self.teach(view, samples)  # computed without gradient
            if self.objective == "frames":
                h, z, terms = self.frame_errors(view, taught)
            else:
                h, z, terms = self.compare_vectors(view, taught, is_first=view is views[0])
            sums.add(h, z, {name: value / len(views) for name, value in terms.items()})
        return sums.total()

    def frame_errors(self, view: Tensor, taught: Tensor) -> _Compared:
        """Compare a view with the teacher's frame features (N, T, D), for ``frames``."""
        assert self._scales is not None  # the scales are set together with the stored features
        positions = frame_features(self.backbone, view)  # (N, T, C)
        z = self.projector(positions.flatten(0, 1)).unflatten(0, positions.shape[:2])
        parts = frame_terms(z, taught, self._scales)
        terms = {name: value.detach() for name, value in parts.items()}
        loss = torch.stack([*parts.values()]).sum()
        return positions.mean(dim=1), z.mean(dim=1), {"loss": loss, **terms}

    def compare_vectors(self, view: Tensor, taught: Tensor, is_first: bool) -> _Compared:
        """Compare unit vectors for all objectives except ``frames``.

        Args:
            view: (N, 3, T, H, W).
            taught: Features of the teacher, as :meth:`teach` returns them.
            is_first: Whether this is the first view of the step. Only its keys enter the queue.
        """
        if self.objective == "tokens":  # compare each position as a separate row
            features = self.backbone(view)
            h = average_pool(features)
            rows, keys = rows_of_positions(features, taught)
        else:
            h = rows = self.represent(view)
            keys = taught
        z = self.projector(rows)
        query, key = unit_vectors(z), unit_vectors(keys).to(z.dtype)
        if self.objective != "relations":
            loss = byol_loss(query, key) / 2  # equals 1 - z.t
            return h, z, {"loss": loss, "positive_similarity": 1 - loss.detach()}
        parts = sce_terms(
            query, key, self.queue.keys, lambda_=self.lambda_, tau=self.tau, tau_m=self.tau_m
        )
        if is_first:  # these keys enter the queue after the optimiser step
            self.queue.stage(key)
        return h, z, parts._asdict()


def _ridge(features: Tensor, targets: Tensor) -> tuple[Tensor, float]:
    """Fit a ridge regression, whose strength is chosen on every fifth clip.

    Args:
        features: (N, T, C), N of at least 2.
        targets: (N, T, D).

    Returns:
        Weights (C, D) float64 on the CPU, and the share of the variance of the held-out targets
        that they explain.
    """
    held = torch.arange(len(features)) % _HELD_OUT == 0
    features, targets = (part.cpu().double() for part in (features, targets))
    x, y = (part[~held].flatten(0, 1) for part in (features, targets))
    x_mean, y_mean = x.mean(dim=0), y.mean(dim=0)
    x, y = x - x_mean, y - y_mean
    x_held = features[held].flatten(0, 1) - x_mean
    y_held = targets[held].flatten(0, 1) - y_mean
    # All strengths share one decomposition of the covariance.
    variances, axes = torch.linalg.eigh(x.T @ x / len(x))
    variances = variances.clamp(min=0)  # rounding may make the smallest ones negative
    rotated = axes.T @ (x.T @ y / len(x))
    found = []
    for strength in _STRENGTHS:
        weight = axes @ (rotated / (variances + strength * variances.mean())[:, None])
        found.append((float((x_held @ weight - y_held).square().mean()), weight))
    error, weight = min(found, key=lambda pair: pair[0])
    return weight, 1 - error / (float(y_held.square().mean()) or 1.0)
