"""Training steps on torch's meta device, whose tensors have shapes and no values.

Reading a value fails there, as it would make the host wait on a GPU. An operation that mixes meta
tensors with those of the host is what fails on a GPU, or copies behind the user's back.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import init_default_scope
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import sce_video
from sce_video.engine.config.load import load_config
from sce_video.registry import MODELS

_PACKAGE = str(Path(sce_video.__file__).parent)
#: Operations that copy between devices on purpose.
_COPIES = {"_to_copy", "copy_", "detach", "lift_fresh", "lift"}


class MixedDevices(TorchDispatchMode):
    """Collects operations between the host and the meta device, and copies to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if name not in _COPIES:
            # A number of the host, such as a learning rate, may be part of any operation.
            kinds = {x.device.type for x in tensors if x.ndim or x.device.type == "meta"}
            if len(kinds) > 1:
                self.found.append(f"{name} at {_line()}")
        elif name == "_to_copy" and tensors[0].device.type == "meta":
            target = kwargs.get("device")
            if target is not None and torch.device(target).type == "cpu":
                self.found.append(f"copy to the host at {_line()}")
        return func(*args, **kwargs)


def _line() -> str:
    """Return the innermost line of the package."""
    own = [f for f in traceback.extract_stack() if f.filename.startswith(_PACKAGE)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else "unknown"


@contextmanager
def autocast_on_meta() -> Iterator[None]:
    """Let ``torch.autocast("meta")`` do nothing; torch refuses this type of device."""
    autocast, enabled = torch.autocast, torch.is_autocast_enabled

    class Autocast(autocast):  # type: ignore[misc, valid-type]
        def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
            if device_type == "meta":
                device_type, kwargs = "cpu", {**kwargs, "enabled": False}
            super().__init__(device_type, *args, **kwargs)

    def is_autocast_enabled(device_type: str = "cuda") -> bool:
        return device_type != "meta" and enabled(device_type)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "autocast", Autocast)
        patched.setattr(torch, "is_autocast_enabled", is_autocast_enabled)
        yield


def meta_model(
    config: Path, change: Callable[[dict[str, Any]], object] = lambda model: None
) -> tuple[nn.Module, Any]:
    """Return the network of a recipe on the meta device, and its optimiser wrapper."""
    cfg = load_config(config, {})
    init_default_scope("sce_video")
    settings = {"data_preprocessor": cfg.get("data_preprocessor"), **cfg.model.to_dict()}
    change(settings)
    model = MODELS.build(settings)
    model.init_weights()
    if settings["type"] == "Distill":
        model.set_teacher(features=torch.ones(8, 2, settings["teacher_channels"]).to("meta"))
    model.to("meta").train()
    wrapper = cfg.optim_wrapper.to_dict() | {"type": "OptimWrapper"}
    wrapper.pop("dtype", None)
    return model, build_optim_wrapper(model, wrapper)


def meta_steps(
    model: nn.Module,
    wrapper: Any,
    views: int,
    steps: int = 2,
    shape: tuple[int, int, int, int] = (4, 4, 32, 32),
) -> list[str]:
    """Train whole steps on views (N, T, H, W), and return the operations that mix devices.

    Raises:
        RuntimeError, NotImplementedError: If a value is read.
    """
    mixed, samples = MixedDevices(), shape[0]
    with autocast_on_meta(), mixed:
        for _ in range(steps):
            clip = torch.zeros(*shape, 3, dtype=torch.uint8, device="meta")
            data = {"inputs": [clip for _ in range(views)]}
            for key in ("index", "label", "clip"):
                data[key] = torch.zeros(samples, dtype=torch.int64)
            data["seed"] = torch.arange(samples)
            with wrapper.optim_context(model):
                prepared = model.data_preprocessor(data, training=True)
                losses = model(**prepared, mode="loss")
            loss, _ = model.parse_losses(losses)
            loss.backward()
            model.before_optimizer_step()
            wrapper.optimizer.step()
            wrapper.optimizer.zero_grad()
            model.after_optimizer_step()
    return mixed.found
