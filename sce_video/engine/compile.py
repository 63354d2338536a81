"""Faster and safer computation of the same backbones.

:func:`compile_backbones` uses torch.compile, :func:`fold_backbones` computes spatial convolutions
in 2-D, and :func:`guard_small_convolutions` avoids wrong gradients in bf16 on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FoldedConv3d(nn.Conv3d):
    """A ``Conv3d`` with a 1 x k x k kernel that is computed as a 2-D convolution of all frames.

    Libraries have more and faster kernels for images. In ``channels_last_3d`` memory, the frames
    are a view of the clip. Otherwise, they are copied.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Map (N, C, T, H, W) to (N, C', T, H', W')."""
        n, _, t = input.shape[:3]
        images = input.transpose(1, 2).flatten(0, 1)
        assert not isinstance(self.padding, str)
        stride, padding, dilation = self.stride[1:], self.padding[1:], self.dilation[1:]
        weight = self.weight.squeeze(2)
        images = F.conv2d(images, weight, self.bias, stride, padding, dilation, self.groups)
        return images.unflatten(0, (n, t)).transpose(1, 2)


def compile_backbones(model: nn.Module, options: Any) -> int:
    """Compile every module named ``backbone`` of a bare model in place, for training.

    Graphs have static shapes unless the options set ``dynamic``. In evaluation mode, the backbones
    run eagerly. Otherwise, torch would see different shapes in an evaluation before the first step,
    and compile the training step with symbolic sizes and slower kernels.

    Returns:
        The number of backbones.

    Raises:
        ValueError: If ``options`` is not True or a dict of torch.compile's arguments, or if
            torch.compile refuses them.
    """
    if options is not True and not isinstance(options, dict):
        raise ValueError(
            "compile must be True, False or a dict of arguments for torch.compile, such as "
            f"compile.mode=max-autotune, got {options!r}"
        )
    options = {"dynamic": False, **({} if options is True else options)}
    found = _backbones(model)
    try:
        for backbone in found:
            # Compile in place, because the wrapper of torch.compile renames the weights.
            backbone.forward = _CompiledInTraining(backbone, options)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"compile={options}: {error}") from error
    return len(found)


class _CompiledInTraining:
    """Forward pass of a module that is compiled in training mode only."""

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        self.module, self.eager = module, module.forward
        self.compiled = torch.compile(module.forward, **options)

    def __call__(self, view: Tensor) -> Any:
        """Return the features of a view (N, 3, T, H, W)."""
        forward = self.compiled if self.module.training else self.eager
        return forward(view)


def fold_backbones(model: nn.Module) -> int:
    """Make all backbones compute spatial convolutions in 2-D, and return their number.

    The names and values of the weights do not change.

    Raises:
        ValueError: If there are no such convolutions, as in image networks and transformers.
    """
    spatial: list[nn.Module] = []
    for conv in (part for backbone in _backbones(model) for part in backbone.modules()):
        if type(conv) is not nn.Conv3d or isinstance(conv.padding, str):
            continue
        over_time = (conv.kernel_size[0], conv.stride[0], conv.padding[0])
        if over_time == (1, 1, 0) and conv.padding_mode == "zeros":
            spatial.append(conv)
    count = _replace(model, dict.fromkeys(spatial, FoldedConv3d))
    if not count:
        raise ValueError(
            "conv_2d=True has no effect, because the backbone has no 3-D convolutions that cover "
            "only space. Remove it"
        )
    return count


def _replace(module: nn.Module, classes: dict[Any, type]) -> int:
    """Replace convolutions inside a module with new ones that have the same state, and count them.

    Args:
        module: Module that contains the convolutions, possibly in several places.
        classes: Class of the new convolution for each old one.
    """
    made: dict[Any, Any] = {}
    for conv, kind in classes.items():
        made[conv] = object.__new__(kind)
        made[conv].__setstate__(vars(conv))  # shares settings, parameters and hooks
    for name, part in list(module.named_modules(remove_duplicate=False)):
        if part in made:
            module.set_submodule(name, made[part])
    return len(made)


def _backbones(model: nn.Module) -> list[nn.Module]:
    return [part for name, part in model.named_modules() if name.split(".")[-1] == "backbone"]


class _LeavesBf16(nn.Module):
    """Parent of convolutions that compute in float32 if oneDNN would be wrong in bf16."""

    # Under bf16 autocast on a CPU, the gradient of the weights is wrong if the input is smaller
    # than the kernel. It is NaN, infinite, or unrelated to the correct gradient, because the
    # operator reads uninitialised memory. For some sizes, the operator also corrupts the heap. We
    # observed this for two frames and a kernel of three, for strided one-pixel inputs, and for
    # other sizes (torch 2.6 to 2.13, AMD EPYC with avx512_bf16).

    def forward(self, input: Tensor) -> Tensor:
        on_cpu = input.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        in_bf16 = on_cpu and torch.get_autocast_dtype("cpu") == torch.bfloat16
        conv: Any = self
        if not (in_bf16 and too_small(conv, tuple(input.shape[2:]))):
            return super().forward(input)
        with torch.autocast("cpu", enabled=False):
            return super().forward(input.float()).to(torch.bfloat16)


#: For each convolution class, a variant with correct results for small bf16 inputs.
_CLASSES: dict[type, type] = {
    kind: type(f"Small{kind.__name__}", (_LeavesBf16, kind), {})
    for kind in (nn.Conv3d, nn.Conv2d, FoldedConv3d)
}


def guard_small_convolutions(module: nn.Module) -> int:
    """Make a module's convolutions use float32 if bf16 would be wrong, and return their number.

    Convolutions without padding are always correct. The names and values of the weights do not
    change.
    """
    found: list[Any] = [part for part in module.modules() if type(part) in _CLASSES]
    found = [c for c in found if isinstance(c.padding, str) or any(c.padding)]
    return _replace(module, {conv: _CLASSES[type(conv)] for conv in found})


def too_small(conv: nn.Conv3d | nn.Conv2d, sizes: tuple[int, ...]) -> bool:
    """Return whether oneDNN may be wrong for inputs of these sizes, (T, H, W) or (H, W).

    A thousand combinations of kernels (3, 5, 7), sizes and strides were tried in bf16. Results were
    wrong only for clips with fewer frames than the kernel, or with a height or width below half the
    kernel's.
    """
    spans = [d * (k - 1) + 1 for k, d in zip(conv.kernel_size, conv.dilation, strict=True)]
    small = [size <= span // 2 for size, span in zip(sizes, spans, strict=True)]
    if isinstance(conv, nn.Conv3d):
        small[0] = sizes[0] < spans[0]
    return any(small)
