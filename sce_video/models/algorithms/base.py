"""What the engine and the evaluation expect of a self-supervised method."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sce_video.models.backbones.common import init_info_to_file, represent
from sce_video.models.losses.collapse import feature_std, logged_rank
from sce_video.models.losses.siamese import check_temperature, full_precision
from sce_video.models.modules import KeyQueue, TargetEncoder, check_momentum, queue_warnings
from sce_video.models.modules.view_pairs import check_target_views, check_views, pair_views
from sce_video.registry import MODELS
from sce_video.utils.tensors import DeferredNumber, LoggedValue


class SelfSupervisedModel(BaseModel):
    """A method that learns a backbone from the views of unlabelled samples.

    A method is one subclass in one file of this folder. State that is not trained by gradient (a
    target network, a queue, prototypes) changes in :meth:`after_optimizer_step`, and not in
    :meth:`loss`, which also runs for micro-batches and for fp16 steps that are skipped.

    Arguments that methods share, of which each has those that it needs:

    - ``backbone``: config of the encoder, a network with ``out_channels``;
    - ``projector``, ``predictor``: configs of heads; the sizes of their inputs, and of the
      predictor's output, follow from what is before them;
    - ``momentum``: m of the target's moving average, target <- m*target + (1-m)*online. Like
      temperatures and coefficients it is read at every step, so that a schedule can set it;
    - ``symmetric``: whether target views are queries, too, for the other keys;
    - ``target_views``: indices of the views that the target encodes (keys). None: all views as
      large as the first if symmetric, else the last view;
    - ``queue_size``: K, number of keys in the queue;
    - ``shuffle_bn_splits``: Shuffle-BN of the target with this many groups of samples on each rank
      (:class:`~sce_video.models.modules.target_encoder.BatchShuffle`), None for none. 1 is that of
      several GPUs without ``sync_bn``, more simulate it on one;
    - ``data_preprocessor``: config of the batched augmentation, or a built module;
    - ``backward_per_query``: keep the activations of one query view at a time, see
      :class:`QuerySum`; not for fp16;
    - ``joint_views``: see :meth:`encode_views`; True where a method's authors have it.

    A setting out of its range is a ValueError when the method is built.
    """

    _dump_init_info = init_info_to_file

    projector: Any
    predictor: Any
    target: Any
    target_views: Any
    queue: Any

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

    def build_heads(
        self, projector: dict[str, Any], predictor: dict[str, Any] | None = None
    ) -> None:
        """Set ``projector`` and ``predictor``, the identity if it is None."""
        self.projector = MODELS.build({"in_channels": self.backbone.out_channels, **projector})
        dim = self.projector.out_channels
        self.predictor = nn.Identity()
        if predictor is not None:
            self.predictor = MODELS.build({"in_channels": dim, "out_channels": dim, **predictor})

    def build_target(
        self,
        momentum: float,
        symmetric: bool,
        target_views: Sequence[int] | None,
        shuffle_bn_splits: int | None = None,
        queue_size: int | None = None,
    ) -> None:
        """Set ``target``, a copy of backbone and projector, and a ``queue`` of its keys."""
        check_target_views(target_views)
        self.momentum = momentum
        self.symmetric = symmetric
        self.target_views = target_views
        self.target = TargetEncoder(self.backbone, self.projector, shuffle_bn_splits)
        if queue_size is not None:
            self.queue = KeyQueue(queue_size, self.projector.out_channels)

    def init_weights(self) -> None:
        """Initialise the online branch, then make the target, if there is one, its copy."""
        super().init_weights()
        if isinstance(target := getattr(self, "target", None), TargetEncoder):
            target.copy_from(self.backbone, self.projector)

    def represent(self, view: Tensor) -> Tensor:
        """Representation h (N, C) of a view (N, 3, T, H, W)."""
        return represent(self.backbone, view)

    def encode_keys(
        self, views: Sequence[Tensor]
    ) -> tuple[dict[int, Tensor], dict[int, list[int]]]:
        """Unit embeddings (N, D) of the target views, and the keys of each query view, by index.

        Keys have no gradient. All of them come before the first query: Shuffle-BN gathers over
        ranks, which must call it in the same order. A queue takes the keys after the step.
        """
        targets, keys_of = pair_views(views, self.target_views, self.symmetric)
        keys = {j: unit_vectors(self.target(views[j])) for j in targets}
        if hasattr(self, "queue"):
            # Staged, not enqueued: all micro-batches of a step see one queue.
            for key in keys.values():
                self.queue.stage(key)
        return keys, keys_of

    def encode_query(self, view: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h (N, C), the projector's z (N, D) and the unit query (N, D) of a view, with gradient."""
        h = self.represent(view)
        z = self.projector(h)
        return h, z, unit_vectors(self.predictor(z))

    def encode_views(self, views: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """h (N, C) and the projector's embedding z (N, D) of each view, with gradient.

        With ``joint_views`` adjacent views of one size pass through the backbone as one batch, and
        all views through the projector, as in facebookresearch/swav, ``src/resnet50.py: forward``:
        batch norm has one mean and variance for them, and not one of each view.
        """
        if not self.joint_views:
            h = [self.represent(view) for view in views]
            return h, [self.projector(x) for x in h]
        sizes = itertools.groupby(views, key=lambda view: view.shape)
        joint = torch.cat([self.represent(torch.cat(list(group))) for _, group in sizes])
        samples = len(views[0])
        return list(joint.split(samples)), list(self.projector(joint).split(samples))

    @abstractmethod
    def loss(self, views: Sequence[Tensor]) -> Mapping[str, LoggedValue]:
        """Compute the scalars of one step: ``loss`` is minimised, all others are only logged.

        ``views`` are V views (N, 3, T, H, W) of any T, H and W. A number that makes the host wait
        for the device is logged as a :class:`~sce_video.utils.tensors.DeferredNumber`.
        """

    def check_settings(self) -> None:
        """Raise ValueError for a number out of its range: here ``momentum`` and temperatures.

        Methods call it when they are built; a schedule calls it with the values it will set.
        """
        if hasattr(self, "momentum"):
            check_momentum(self.momentum)
        for name in ("tau", "tau_m"):
            if hasattr(self, name):
                check_temperature(name, getattr(self, name))

    def check_training(self, num_samples: int, batch_size: int, num_views: int | None) -> list[str]:
        """Warnings about data that do not suit the method; ValueError if it cannot be trained.

        ``batch_size`` are the samples of an optimiser step (all ranks and micro-batches);
        ``num_views`` is None if it is not known before the first sample.
        """
        if not hasattr(self, "target"):
            return []
        made = check_views(num_views, self.target_views, self.symmetric)
        if not hasattr(self, "queue"):
            return []
        return queue_warnings(len(self.queue.keys), num_samples, batch_size, made)

    def chance_level(self) -> float | None:
        """The loss of a network that tells no samples apart; None if the method knows none."""
        return None

    def queue_steps(self) -> int | None:
        """Optimiser steps that fill the queue with keys; None without a queue or before a step."""
        made = getattr(getattr(self, "queue", None), "keys_per_step", None)
        return None if made is None else math.ceil(len(self.queue.keys) / made)

    def before_optimizer_step(self) -> None:
        """Change gradients; called once before each real optimiser step."""

    def after_optimizer_step(self) -> None:
        """Update target and queue, or other state; called once after each real optimiser step."""
        if isinstance(target := getattr(self, "target", None), TargetEncoder):
            target.update(self.backbone, self.projector, self.momentum)
        if isinstance(queue := getattr(self, "queue", None), KeyQueue):
            queue.commit()

    def discard_step(self) -> None:
        """Forget what :meth:`loss` has kept for a step that the optimiser skipped: staged keys."""
        if isinstance(queue := getattr(self, "queue", None), KeyQueue):
            queue.discard_staged()

    def forward(
        self, inputs: Sequence[Tensor], data_samples: Any = None, mode: str = "tensor"
    ) -> Mapping[str, LoggedValue] | list[Tensor]:
        """Of V views (N, 3, T, H, W) the :meth:`loss`, or h (N, C) of each if ``mode="tensor"``.

        Of ``data_samples`` the ``seed`` of each is handed to a backbone that drops tokens; without
        it seeds are drawn from torch's global generator. Another mode is a ValueError.
        """
        if mode == "loss":
            dropping = getattr(self.backbone, "token_dropping", None)
            if dropping is None or dropping.keep_tokens == 1.0:
                return self.loss_of_samples(inputs, data_samples)
            seeds = data_samples.get("seed") if isinstance(data_samples, dict) else None
            if seeds is None:
                seeds = torch.randint(2**63 - 1, (len(inputs[0]),)).tolist()
            with dropping.step(seeds):
                return self.loss_of_samples(inputs, data_samples)
        if mode == "tensor":
            return [self.represent(view) for view in inputs]
        raise ValueError(
            f"mode must be 'loss' or 'tensor', got {mode!r}: {type(self).__name__} predicts no "
            "labels"
        )

    def loss_of_samples(self, views: Sequence[Tensor], samples: Any) -> Mapping[str, LoggedValue]:
        """:meth:`loss`; a method that needs more of the samples than their views replaces this."""
        return self.loss(views)

    def parse_losses(
        self, losses: Mapping[str, LoggedValue]
    ) -> tuple[Tensor, dict[str, LoggedValue]]:
        """Return the value to minimise, the entry called ``loss``, and all values to log.

        mmengine's would add up every entry with "loss" in its name.
        """
        method = f"{type(self).__name__}.loss() must return"
        if "loss" not in losses:
            raise ValueError(f"{method} a 'loss', got {sorted(losses)}")
        scalars: dict[str, Tensor] = {}
        deferred: dict[str, DeferredNumber] = {}
        for name, value in losses.items():
            if isinstance(value, DeferredNumber) and name != "loss":
                deferred[name] = replace(value, tensor=value.tensor.detach())  # frees the graph
            elif isinstance(value, Tensor) and value.numel() == 1:
                scalars[name] = value.mean()
            else:
                shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(f"{method} scalar tensors, {name!r} is {shape}")
        loss = scalars.pop("loss")
        return loss, {"loss": loss, **scalars, **deferred}

    @torch.no_grad()
    def collapse_metrics(self, h: Tensor, z: Tensor | None = None) -> dict[str, LoggedValue]:
        """Compute the spread ``h_std`` and effective rank ``h_rank`` of representations h (N, C).

        They fall towards 0 when the representation collapses. A collapse of the projector's
        embeddings z (N, D), spread ``z_std``, comes first, and behind a head of several layers it
        can stay alone: equal embeddings pass no gradient on to the backbone.
        """
        h = h.float()
        found: dict[str, LoggedValue] = {"h_std": feature_std(h), "h_rank": logged_rank(h)}
        return found if z is None else {**found, "z_std": feature_std(z)}


class QuerySum:
    """The scalars of a step, summed over its queries: one backward pass for all, or one for each.

    With ``backward_per_query`` :meth:`add` takes the gradients of a query at once, which frees its
    activations. The graph of the summed loss is then one node, which hands their sum to the
    parameters: hooks of DistributedDataParallel, accumulated steps and clipping see the gradients
    of the whole step. The queries must not share a graph beyond the parameters.
    """

    def __init__(self, model: SelfSupervisedModel) -> None:
        self._model = model
        # Without gradient mode there is no backward pass, and nothing to keep.
        self._one_each = model.backward_per_query and torch.is_grad_enabled()
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._gradients: list[Tensor | None] = [None] * len(self._parameters)
        self._sums: dict[str, Tensor] = {}
        self._collapse: dict[str, LoggedValue] = {}

    def add(self, h: Tensor, z: Tensor, terms: dict[str, Tensor]) -> None:
        """Add the scalars of a query, its ``loss`` among them; ValueError under fp16 autocast.

        The collapse metrics of the step are those of the first query's h (N, C) and z (N, D).
        """
        if not self._sums:
            self._collapse = self._model.collapse_metrics(h, z)
        if self._one_each:
            kind = terms["loss"].device.type
            if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16:
                raise ValueError(
                    "backward_per_query=True takes gradients before the loss is scaled, and in "
                    "float16 small ones become 0: set optim_wrapper.dtype to bfloat16 or float32 "
                    "(--amp bfloat16)"
                )
            with torch.autocast(kind, enabled=False):  # a backward pass belongs outside of it
                found = torch.autograd.grad(terms["loss"], self._parameters, allow_unused=True)
            self._gradients = [
                total if new is None else full_precision(new) if total is None else total + new
                for total, new in zip(self._gradients, found, strict=True)
            ]
            terms = {name: value.detach() for name, value in terms.items()}
        for name, value in terms.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def total(self) -> dict[str, LoggedValue]:
        """Return sums and collapse metrics by name, as :meth:`SelfSupervisedModel.loss` does."""
        if self._one_each:
            loss = _StoredGradients.apply(self._sums["loss"], self._gradients, *self._parameters)
            self._sums["loss"] = loss
        return {**self._sums, **self._collapse}


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


def mean_cosines(query: Tensor, keys: Sequence[Tensor]) -> Tensor:
    """Mean cosine of unit queries (N, D) and each of P keys (N, D): (P,), without gradient."""
    return torch.stack([(query.detach() * key).sum(dim=1).mean() for key in keys])
