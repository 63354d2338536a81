"""Parent class of self-supervised methods, with the interface that the engine calls."""

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
from sce_video.utils.errors import Alarm
from sce_video.utils.stored_arguments import PartConfig
from sce_video.utils.tensors import DeferredNumber, LoggedValue


class SelfSupervisedModel(BaseModel):
    """A method that learns a backbone from the views of unlabelled samples.

    A method is one subclass in one file of this folder. State that no gradient trains, such as a
    target network or a queue, changes in :meth:`after_optimizer_step` and not in :meth:`loss`,
    because :meth:`loss` also runs for micro-batches and for fp16 steps that are skipped.

    Methods share the following arguments. Each method accepts only the ones that it needs:

    - ``backbone``: Config of the encoder, a network with ``out_channels``.
    - ``projector``, ``predictor``: Configs of the heads. The sizes of their inputs, and of the
      predictor's output, follow from the networks before them.
    - ``momentum``: m in the moving average target <- m*target + (1-m)*online. Like temperatures and
      coefficients, it is read at every step, so a schedule can change it.
    - ``symmetric``: Whether target views are also queries for the other keys.
    - ``target_views``: Indices of the views that the target encodes as keys. None means all views
      as large as the first one if ``symmetric``, and the last view otherwise.
    - ``queue_size``: Number of keys in the queue, K.
    - ``shuffle_bn_splits``: Number of groups of samples per rank for the target's Shuffle-BN
      (:class:`~sce_video.models.modules.target_encoder.BatchShuffle`). None turns it off. 1 only
      shuffles samples between GPUs, and larger values simulate several GPUs on each of them.
    - ``data_preprocessor``: Config of the batched augmentation, or a built module.
    - ``backward_per_query``: Whether only the activations of one query view are kept at a time
      (:class:`QuerySum`). This does not work with fp16.
    - ``joint_views``: Whether views share batch statistics (:meth:`encode_views`). Recipes set it
      if the method's authors do so.

    Raises:
        ValueError: If a setting is out of range when the method is built.
    """

    _dump_init_info = init_info_to_file

    projector: Any
    predictor: Any
    target: Any
    target_views: Any
    queue: Any

    def __init__(
        self,
        backbone: PartConfig,
        data_preprocessor: PartConfig | nn.Module | None = None,
        backward_per_query: bool = False,
        joint_views: bool = False,
    ) -> None:
        if isinstance(data_preprocessor, dict):
            data_preprocessor = MODELS.build(data_preprocessor)
        super().__init__(data_preprocessor=data_preprocessor)
        self.backbone = MODELS.build(backbone)
        self.backward_per_query = backward_per_query
        self.joint_views = joint_views

    def build_heads(self, projector: PartConfig, predictor: PartConfig | None = None) -> None:
        """Set ``projector`` and ``predictor``. Without a config, the predictor is the identity."""
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
        """Set ``target``, a copy of backbone and projector, and the ``queue`` of its keys."""
        check_target_views(target_views)
        self.momentum = momentum
        self.symmetric = symmetric
        self.target_views = target_views
        self.target = TargetEncoder(self.backbone, self.projector, shuffle_bn_splits)
        if queue_size is not None:
            self.queue = KeyQueue(queue_size, self.projector.out_channels)

    def init_weights(self) -> None:
        """Initialise the online branch, then copy it to the target if there is one."""
        super().init_weights()
        if isinstance(target := getattr(self, "target", None), TargetEncoder):
            target.copy_from(self.backbone, self.projector)

    def represent(self, view: Tensor) -> Tensor:
        """Return the representation h (N, C) of a view (N, 3, T, H, W)."""
        return represent(self.backbone, view)

    def encode_keys(
        self, views: Sequence[Tensor]
    ) -> tuple[dict[int, Tensor], dict[int, list[int]]]:
        """Encode the target views, and list the keys of each query view.

        All keys are computed before the first query. All ranks must call this in the same order,
        because Shuffle-BN gathers samples over ranks. The keys enter the queue after the step.

        Args:
            views: V views (N, 3, T, H, W).

        Returns:
            Unit embeddings (N, D) by target view, without gradient, and for each query view the
            target views with whose keys it is compared.
        """
        targets, keys_of = pair_views(views, self.target_views, self.symmetric)
        keys = {j: unit_vectors(self.target(views[j])) for j in targets}
        if hasattr(self, "queue"):
            # Stage the keys instead of adding them to the queue, so that all micro-batches of a
            # step use the same queue.
            for key in keys.values():
                self.queue.stage(key)
        return keys, keys_of

    def encode_query(self, view: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encode a query view with gradient.

        Args:
            view: (N, 3, T, H, W).

        Returns:
            Representation h (N, C), the projector's embedding z (N, D) and the unit query (N, D).
        """
        h = self.represent(view)
        z = self.projector(h)
        return h, z, unit_vectors(self.predictor(z))

    def encode_views(self, views: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Encode all views with gradient.

        With ``joint_views``, adjacent views of one size pass through the backbone as one batch, and
        all views pass through the projector together (facebookresearch/swav, ``src/resnet50.py:
        forward``). Batch norm then computes one mean and variance for all of them instead of one
        per view.

        Args:
            views: V views (N, 3, T, H, W).

        Returns:
            For each view, its representations h (N, C) and the projector's embeddings z (N, D).
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
        """Compute the scalars of one step.

        If reading a number would make the host wait for the device, log it as a
        :class:`~sce_video.utils.tensors.DeferredNumber`.

        Args:
            views: V views (N, 3, T, H, W) with any T, H and W.

        Returns:
            Scalars by name. ``loss`` is minimised, and all others are only logged.
        """

    def check_settings(self) -> None:
        """Check ``momentum`` and the temperatures. Methods add checks of their own settings.

        A method calls this when it is built, and a schedule calls it for the values that it will
        set.

        Raises:
            ValueError: If a setting is out of range.
        """
        if hasattr(self, "momentum"):
            check_momentum(self.momentum)
        for name in ("tau", "tau_m"):
            if hasattr(self, name):
                check_temperature(name, getattr(self, name))

    def check_training(
        self, num_samples: int, batch_size: int, num_views: int | None
    ) -> Sequence[str | Alarm]:
        """Check whether the training data suit the method.

        Args:
            num_samples: Number of training samples.
            batch_size: Number of samples per optimiser step, over all ranks and micro-batches.
            num_views: Number of views, or None if it is not known before the first sample.

        Returns:
            Warnings about data on which the method learns less. An :class:`Alarm` is also written
            to ``alarms.jsonl``.

        Raises:
            ValueError: If the method cannot be trained on these data.
        """
        if not hasattr(self, "target"):
            return []
        made = check_views(num_views, self.target_views, self.symmetric)
        if not hasattr(self, "queue"):
            return []
        return queue_warnings(len(self.queue.keys), num_samples, batch_size, made)

    def chance_level(self) -> float | None:
        """Return the loss of a network that cannot distinguish samples; None if unknown."""
        return None

    def queue_steps(self) -> int | None:
        """Return how many steps fill the queue; None without a queue or before the first step."""
        made = getattr(getattr(self, "queue", None), "keys_per_step", None)
        return None if made is None else math.ceil(len(self.queue.keys) / made)

    def before_optimizer_step(self) -> None:
        """Change gradients. The engine calls this before each optimiser step that takes place."""

    def after_optimizer_step(self) -> None:
        """Update target, queue and other state, after each optimiser step that took place."""
        if isinstance(target := getattr(self, "target", None), TargetEncoder):
            target.update(self.backbone, self.projector, self.momentum)
        if isinstance(queue := getattr(self, "queue", None), KeyQueue):
            queue.commit()

    def discard_step(self) -> None:
        """Discard staged keys, because the optimiser skipped the step that they belong to."""
        if isinstance(queue := getattr(self, "queue", None), KeyQueue):
            queue.discard_staged()

    def forward(
        self, inputs: Sequence[Tensor], data_samples: Any = None, mode: str = "tensor"
    ) -> Mapping[str, LoggedValue] | list[Tensor]:
        """Compute the :meth:`loss` or the representations of V views.

        Args:
            inputs: V views (N, 3, T, H, W).
            data_samples: Data of the samples. A backbone that drops tokens uses their ``seed``. If
                there is none, seeds are drawn from torch's global generator.
            mode: "loss", or "tensor" for the representations.

        Returns:
            Scalars of :meth:`loss`, or h (N, C) of each view.

        Raises:
            ValueError: If the mode is unknown.
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
            f"mode must be 'loss' or 'tensor', got {mode!r}, because {type(self).__name__} "
            "predicts no labels"
        )

    def loss_of_samples(self, views: Sequence[Tensor], samples: Any) -> Mapping[str, LoggedValue]:
        """Compute :meth:`loss`. Methods that need more data than the views override this."""
        return self.loss(views)

    def parse_losses(
        self, losses: Mapping[str, LoggedValue]
    ) -> tuple[Tensor, dict[str, LoggedValue]]:
        """Return the value to minimise, which is the entry ``loss``, and all values to log.

        mmengine's own method would add up all entries with "loss" in their names.
        """
        method = f"{type(self).__name__}.loss() must return"
        if "loss" not in losses:
            raise ValueError(f"{method} a 'loss', got {sorted(losses)}")
        scalars: dict[str, Tensor] = {}
        deferred: dict[str, DeferredNumber] = {}
        for name, value in losses.items():
            if isinstance(value, DeferredNumber) and name != "loss":
                deferred[name] = replace(value, tensor=value.tensor.detach())  # release the graph
            elif isinstance(value, Tensor) and value.numel() == 1:
                scalars[name] = value.mean()
            else:
                shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(f"{method} scalar tensors, but {name!r} is {shape}")
        loss = scalars.pop("loss")
        return loss, {"loss": loss, **scalars, **deferred}

    @torch.no_grad()
    def collapse_metrics(self, h: Tensor, z: Tensor | None = None) -> dict[str, LoggedValue]:
        """Compute the spread ``h_std`` and effective rank ``h_rank`` of representations.

        Both approach 0 when the representation collapses. The projector's embeddings collapse
        first, which ``z_std`` shows. If the projector has several layers, the representation may
        not collapse as well, because equal embeddings pass no gradient to the backbone.

        Args:
            h: Representations (N, C).
            z: Embeddings (N, D) of the projector. None leaves ``z_std`` out.
        """
        h = h.float()
        found: dict[str, LoggedValue] = {"h_std": feature_std(h), "h_rank": logged_rank(h)}
        return found if z is None else {**found, "z_std": feature_std(z)}


class QuerySum:
    """Sums of a step's scalars over its queries, with one backward pass in total or per query.

    With ``backward_per_query``, :meth:`add` computes the gradients of a query immediately, which
    frees its activations. The graph of the summed loss is then a single node that passes the sums
    of the gradients to the parameters. DistributedDataParallel, gradient accumulation and clipping
    therefore see the gradients of the whole step. The graphs of the queries may share nothing but
    the parameters.
    """

    def __init__(self, model: SelfSupervisedModel) -> None:
        self._model = model
        # Without gradients, no backward pass follows, so nothing needs to be kept.
        self._per_query = model.backward_per_query and torch.is_grad_enabled()
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._gradients: list[Tensor | None] = [None] * len(self._parameters)
        self._sums: dict[str, Tensor] = {}
        self._collapse: dict[str, LoggedValue] = {}

    def add(self, h: Tensor, z: Tensor, terms: dict[str, Tensor]) -> None:
        """Add the scalars of a query.

        Args:
            h: Representations (N, C). The collapse metrics of the step are computed from h and z of
                the first query.
            z: Embeddings (N, D).
            terms: Scalars by name, including ``loss``.

        Raises:
            ValueError: If gradients are computed per query under fp16 autocast.
        """
        if not self._sums:
            self._collapse = self._model.collapse_metrics(h, z)
        if self._per_query:
            kind = terms["loss"].device.type
            if torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16:
                raise ValueError(
                    "backward_per_query=True computes gradients before the loss is scaled, and in "
                    "float16 small gradients become 0. Set optim_wrapper.dtype to bfloat16 or "
                    "float32 (--amp bfloat16)"
                )
            with torch.autocast(kind, enabled=False):  # backward passes must run without autocast
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
        if self._per_query:
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
    """Normalise the rows of (N, D) to length 1, at least in fp32 (also under autocast)."""
    return F.normalize(full_precision(x), dim=1)


def mean_cosines(query: Tensor, keys: Sequence[Tensor]) -> Tensor:
    """Return the mean cosines (P,) of unit queries (N, D) and P keys (N, D), without gradient."""
    return torch.stack([(query.detach() * key).sum(dim=1).mean() for key in keys])
