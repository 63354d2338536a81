"""What the engine and the evaluation expect of a self-supervised method."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sce_video.models.backbones.common import represent
from sce_video.models.losses import feature_std, logged_rank
from sce_video.models.losses.siamese import full_precision
from sce_video.models.modules import KeyQueue, TargetEncoder
from sce_video.registry import MODELS
from sce_video.utils.tensors import HostValue


class SelfSupervisedModel(BaseModel):
    """A method that learns a backbone from the views of unlabelled samples.

    A method is one subclass in one file of this folder: its constructor builds what it needs beside
    the backbone, :meth:`loss` computes a step. A method with state that is not trained by gradient
    (a target network, a queue, prototypes) changes it in :meth:`after_optimizer_step`, and not in
    ``loss``, which also runs for the micro-batches of an accumulated step and for fp16 steps that
    are skipped. A ``target`` starts as a copy of the online branch, and keys staged in a ``queue``
    are dropped with a skipped step.

    Arguments that methods share, of which each has those that it needs:

    - ``backbone``: config of the encoder, a network with ``out_channels``;
    - ``projector``, ``predictor``: configs of heads; the sizes of their inputs, and of the
      predictor's output, follow from what is before them;
    - ``momentum``: m of the target's moving average, target <- m*target + (1-m)*online. Like
      temperatures and coefficients it is read at every step, so that a schedule can set it;
    - ``symmetric``: whether target views are queries, too, for the other keys;
    - ``target_views``: indices of the views that the target encodes (keys). None: all views as
      large as the first if symmetric, else the last view;
    - ``shuffle_bn_splits``: Shuffle-BN of the target with this many groups of samples on each rank
      (:class:`~sce_video.models.modules.target_encoder.BatchShuffle`), None for none. 1 is that of
      several GPUs without ``sync_bn``, more simulate it on one;
    - ``data_preprocessor``: config of the batched augmentation, or a built module;
    - ``backward_per_query``: keep the activations of one query view at a time, see
      :class:`QuerySum`; not for fp16;
    - ``joint_views``: see :meth:`encode_views`; True where a method's authors have it.
    """

    projector: Any  # of methods that call encode_views or have a target

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

    def init_weights(self) -> None:
        """Initialise the online branch, then make the target, if there is one, its copy."""
        super().init_weights()
        target = getattr(self, "target", None)
        if isinstance(target, TargetEncoder):
            target.copy_from(self.backbone, self.projector)

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
        """Forget what :meth:`loss` has kept for a step that the optimiser skipped: staged keys."""
        queue = getattr(self, "queue", None)
        if isinstance(queue, KeyQueue):
            queue.discard_staged()

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


class QuerySum:
    """The scalars of a step, summed over its queries: one backward pass for all, or one for each.

    One backward pass keeps the activations of all queries until the engine calls it. With the
    method's ``backward_per_query`` :meth:`add` takes the gradients of a query at once, which frees
    its activations, and adds them up, in fp32 at least. The graph of the summed loss is then one
    node, which hands these gradients, times its own, to the parameters. So hooks of
    DistributedDataParallel, accumulated steps and clipping see the gradients of the whole step.

    Args:
        model: The method; its queries must not share a graph beyond the parameters.
    """

    def __init__(self, model: SelfSupervisedModel) -> None:
        self._model = model
        # Without gradient mode there is no backward pass, and nothing to keep.
        self._one_each = model.backward_per_query and torch.is_grad_enabled()
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._gradients: list[Tensor | None] = [None] * len(self._parameters)
        self._sums: dict[str, Tensor] = {}

    def add(self, h: Tensor, z: Tensor, terms: dict[str, Tensor]) -> None:
        """Add the scalars of a query, the ``loss`` among them.

        The collapse metrics of the step are those of the first query.

        Args:
            h: Its representations (N, C).
            z: The projector's embeddings (N, D).
            terms: Its share of the scalars.

        Raises:
            ValueError: a backward pass per query under fp16 autocast.
        """
        if not self._sums:
            terms = {**terms, **self._model.collapse_metrics(h, z)}
        if self._one_each:
            self._add_gradients(terms["loss"])
            terms = {name: value.detach() for name, value in terms.items()}
        for name, value in terms.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def _add_gradients(self, loss: Tensor) -> None:
        kind = loss.device.type
        if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16:
            raise ValueError(
                "backward_per_query=True takes gradients before the loss is scaled, and in float16 "
                "small ones become 0: set optim_wrapper.dtype to bfloat16 or float32 (--amp "
                "bfloat16)"
            )
        with torch.autocast(kind, enabled=False):  # a backward pass belongs outside of autocast
            found = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        self._gradients = [
            total if new is None else full_precision(new) if total is None else total + new
            for total, new in zip(self._gradients, found, strict=True)
        ]

    def total(self) -> dict[str, Tensor]:
        """The sums by name: what :meth:`SelfSupervisedModel.loss` returns."""
        if self._one_each:
            loss = _StoredGradients.apply(self._sums["loss"], self._gradients, *self._parameters)
            self._sums["loss"] = loss
        return self._sums


class _StoredGradients(torch.autograd.Function):
    """A scalar whose backward pass gives each parameter its stored gradient."""

    @staticmethod
    def forward(
        ctx: Any, loss: Tensor, gradients: list[Tensor | None], *parameters: Tensor
    ) -> Tensor:
        ctx.gradients = [
            None if gradient is None else gradient.to(parameter.dtype)
            for gradient, parameter in zip(gradients, parameters, strict=True)
        ]
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor) -> Any:
        return None, None, *(None if g is None else g * factor for g in ctx.gradients)


def unit_vectors(x: Tensor) -> Tensor:
    """The rows of (N, D), l2-normalised, at least in fp32 (under autocast too)."""
    return F.normalize(full_precision(x), dim=1)
