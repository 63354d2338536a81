"""What the engine and the evaluation expect of a self-supervised method."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from torch import Tensor, nn

from sce_video.models.losses import feature_std, logged_rank
from sce_video.models.losses.cosine import full_precision
from sce_video.models.modules.pooling import represent
from sce_video.models.modules.query_sum import sum_over_queries
from sce_video.registry import MODELS
from sce_video.utils.tensors import HostValue


class SelfSupervisedModel(BaseModel):
    """A method that learns a backbone from the views of unlabelled samples.

    A method is one subclass in one file of this folder: its constructor builds what it needs beside
    the backbone, :meth:`loss` computes a step. A method with state that is not trained by gradient
    (a target network, a queue, prototypes) changes it in :meth:`after_optimizer_step`, and not in
    ``loss``, which also runs for the micro-batches of an accumulated step and for fp16 steps that
    are skipped.

    Args:
        backbone: Config of the encoder, a network with ``out_channels``.
        data_preprocessor: Config of the batched augmentation, or a built module.
        backward_per_query: See :meth:`sum_over_queries`, for methods that call it.
        joint_views: See :meth:`encode_views`, for methods that call it.
    """

    projector: Any  # of methods that call encode_views

    def __init__(
        self,
        backbone: dict[str, Any],
        data_preprocessor: dict[str, Any] | nn.Module | None = None,
        backward_per_query: bool = False,
        joint_views: bool = False,
    ) -> None:
        if isinstance(data_preprocessor, dict):
            data_preprocessor = MODELS.build(data_preprocessor)
        super().__init__(data_preprocessor=data_preprocessor)
        self.backbone = MODELS.build(backbone)
        self.backward_per_query = backward_per_query
        self.joint_views = joint_views

    def represent(self, view: Tensor) -> Tensor:
        """Representation h (N, C) of a view (N, 3, T, H, W)."""
        return represent(self.backbone, view)

    def encode_views(self, views: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """h (N, C) and the projector's embedding z (N, D) of each view, with gradient.

        With ``joint_views`` adjacent views of one size pass through the backbone as one batch, and
        all views through the projector, as in facebookresearch/swav, ``src/resnet50.py: forward``:
        batch norm has one mean and variance for them, and not one of each view. Nothing else
        depends on it. All ranks pass the same views, so SyncBN sees those of all ranks.

        Args:
            views: V views (N, 3, T, H, W) of the same N samples.
        """
        if not self.joint_views:
            h = [self.represent(view) for view in views]
            return h, [self.projector(x) for x in h]
        sizes = itertools.groupby(views, key=lambda view: view.shape)
        joint = torch.cat([self.represent(torch.cat(list(group))) for _, group in sizes])
        samples = len(views[0])
        return list(joint.split(samples)), list(self.projector(joint).split(samples))

    @abstractmethod
    def loss(self, views: Sequence[Tensor]) -> dict[str, Tensor]:
        """Scalars of one step: ``loss`` is minimised, all others are only logged.

        Args:
            views: V views (N, 3, T, H, W); they may differ in T, H and W.
        """

    def sum_over_queries(
        self,
        terms_of: Callable[[int], tuple[Tensor, Tensor, dict[str, Tensor]]],
        queries: Iterable[int],
    ) -> dict[str, Tensor]:
        """What :meth:`loss` returns if it is a sum over queries that share no graph.

        With ``backward_per_query`` the gradients of each query are taken at once, and only its
        activations are in memory; loss and gradients are the same. Not for fp16, whose loss scaler
        acts on the whole loss: see :func:`~sce_video.models.modules.query_sum.sum_over_queries`.

        Args:
            terms_of: Takes the index of a view, returns its h (N, C), the projector's embedding
                z (N, D) and its share of the scalars.
            queries: Indices of views; the collapse metrics are those of the first.
        """
        queries = list(queries)

        def scalars_of(query: int) -> dict[str, Tensor]:
            h, z, terms = terms_of(query)
            return {**terms, **self.collapse_metrics(h, z)} if query == queries[0] else terms

        trained = [p for p in self.parameters() if p.requires_grad]
        return sum_over_queries(scalars_of, queries, trained if self.backward_per_query else None)

    def check_settings(self) -> None:
        """Raise ValueError for a number out of its range.

        Methods call it when they are built; a schedule calls it with the values it will set.
        """

    def check_training(self, num_samples: int, batch_size: int, num_views: int | None) -> list[str]:
        """Warnings about data that do not suit the method; called once before training.

        Args:
            num_samples: Samples of the training set.
            batch_size: Samples of an optimiser step, all ranks and micro-batches together.
            num_views: V, views of a sample; None if not known before the first sample.

        Raises:
            ValueError: the method cannot be trained with such samples.
        """
        return []

    def chance_level(self) -> float | None:
        """The loss of a network that tells no samples apart; None if the method knows none."""
        return None

    def queue_steps(self) -> int | None:
        """Optimiser steps that fill the queue with keys; None without a queue or before a step."""
        queue = getattr(self, "queue", None)
        if queue is None or queue.keys_per_step is None:
            return None
        return math.ceil(len(queue.keys) / queue.keys_per_step)

    def before_optimizer_step(self) -> None:
        """Change gradients; called once before each real optimiser step."""

    def after_optimizer_step(self) -> None:
        """Change the method's own state; called once after each real optimiser step."""

    def discard_step(self) -> None:
        """Forget what :meth:`loss` has kept for a step that the optimiser skipped."""

    def forward(
        self, inputs: Sequence[Tensor], data_samples: Any = None, mode: str = "tensor"
    ) -> dict[str, Tensor] | list[Tensor]:
        """Views to losses or representations.

        Args:
            inputs: V views (N, 3, T, H, W).
            data_samples: Labels and indices; not used.
            mode: "loss" gives :meth:`loss`; "tensor" gives h of every view, V times (N, C).

        Raises:
            ValueError: another mode.
        """
        if mode == "loss":
            return self.loss(inputs)
        if mode == "tensor":
            return [self.represent(view) for view in inputs]
        raise ValueError(
            f"mode must be 'loss' or 'tensor', got {mode!r}: {type(self).__name__} predicts no "
            "labels"
        )

    def parse_losses(self, losses: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The value to minimise, and all values to log.

        Unlike mmengine's, which adds up every entry with "loss" in its name, this minimises the
        entry called ``loss`` and nothing else.

        Raises:
            ValueError: there is no ``loss``, or an entry is not a tensor of one element.
        """
        if "loss" not in losses:
            raise ValueError(
                f"{type(self).__name__}.loss() must return a 'loss', got {sorted(losses)}"
            )
        for name, value in losses.items():
            if isinstance(value, HostValue) and name != "loss":
                continue
            if not isinstance(value, Tensor) or value.numel() != 1:
                shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(
                    f"{type(self).__name__}.loss() must return scalar tensors, {name!r} is {shape}"
                )
        loss = losses["loss"].mean()
        return loss, {"loss": loss, **{n: v.mean() for n, v in losses.items() if n != "loss"}}

    @torch.no_grad()
    def collapse_metrics(self, h: Tensor, z: Tensor | None = None) -> dict[str, Any]:
        """Spread ``h_std`` and effective rank ``h_rank`` of representations h (N, C).

        They fall towards 0 when the representation collapses; see
        :mod:`sce_video.models.losses.collapse`. A collapse of the projector's embeddings z (N, D),
        spread ``z_std``, comes first, and behind a head of several layers it can stay alone: equal
        embeddings pass no gradient on to the backbone.
        """
        h = h.float()
        found = {"h_std": feature_std(h), "h_rank": logged_rank(h)}
        return found if z is None else {**found, "z_std": feature_std(z)}


def unit_vectors(x: Tensor) -> Tensor:
    """The rows of (N, D), l2-normalised, at least in fp32 (under autocast too)."""
    return F.normalize(full_precision(x), dim=1)
