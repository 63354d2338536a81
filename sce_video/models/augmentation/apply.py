"""Apply drawn parameters to a batch of views."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from sce_video.models.augmentation.blur import gaussian_blur
from sce_video.models.augmentation.color import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    solarise,
    to_grey,
)
from sce_video.models.augmentation.geometry import flip_horizontal
from sce_video.models.augmentation.parameters import JITTER_PARTS, ViewParameters

# Operation -> its function. These five take one parameter per sample: column i of the block of
# values that is copied to the device belongs to the i-th of them.
_WITH_VALUE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "brightness": adjust_brightness,
    "contrast": adjust_contrast,
    "saturation": adjust_saturation,
    "hue": adjust_hue,
    "blur": gaussian_blur,
}
_WITHOUT_VALUE: dict[str, Callable[[Tensor], Tensor]] = {
    "grey": to_grey,
    "solarise": solarise,
    "flip": flip_horizontal,
}
_COLUMN = {name: column for column, name in enumerate(_WITH_VALUE)}
_NEUTRAL = np.array([1.0, 1.0, 1.0, 0.0], dtype=np.float32)


def plan(parameters: ViewParameters) -> list[tuple[str, np.ndarray]]:
    """The operations in order, each with the samples (int64 indices) that it is applied to.

    The colour jitter takes four rounds: in round r each jittered sample gets the r-th operation of
    its own order, so a round is at most four batched operations for any batch size. Then grey,
    blur, solarise, flip, the order of the authors' code (juliendenize/eztorch,
    eztorch/configs/transform/contrastive). Operations without effect are left out.
    """
    p = parameters
    steps = []
    for round_ in range(len(JITTER_PARTS)):
        for part, name in enumerate(JITTER_PARTS):
            here = p.jitter & (p.order[:, round_] == part)
            steps.append((name, here & (p.factors[:, part] != _NEUTRAL[part])))
    steps += [("grey", p.grey), ("blur", p.blur), ("solarise", p.solarise), ("flip", p.flip)]
    return [(name, np.flatnonzero(mask)) for name, mask in steps if mask.any()]


def augment(x: Tensor, parameters: ViewParameters) -> Tensor:
    """Augment views (N, 3, T, H, W), float in 0..1, each sample by its parameters.

    Each operation is computed for the samples it is applied to only. Nothing is read back from the
    device; the indices and the values are copied to it in one transfer each.

    Args:
        x: The views. Overwritten: do not read it afterwards.
        parameters: The parameters of the same N samples.

    Returns:
        The augmented views, in 0..1; may share memory with ``x``.
    """
    if len(parameters) != len(x):
        raise ValueError(f"{len(parameters)} parameters for {len(x)} samples")
    steps = plan(parameters)
    if not steps:
        return x
    indices = _to_device(np.concatenate([samples for _, samples in steps]), x.device)
    block = np.concatenate([parameters.factors, parameters.sigma[:, None]], axis=1)
    values = _to_device(block, x.device)
    sizes = [len(samples) for _, samples in steps]
    for (name, _), index in zip(steps, indices.split(sizes), strict=True):
        if len(index) == len(x):
            x = _run(name, x, values)
        else:
            part = _run(name, x.index_select(0, index), values.index_select(0, index))
            x.index_copy_(0, index, part)
    return x


def _run(name: str, x: Tensor, values: Tensor) -> Tensor:
    if name in _WITH_VALUE:
        return _WITH_VALUE[name](x, values[:, _COLUMN[name]])
    return _WITHOUT_VALUE[name](x)


def _to_device(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
