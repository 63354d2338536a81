"""Augmentation of a whole batch by three functions that torch.compile turns into kernels.

:func:`~sce_video.models.augmentation.augment` computes every operation only for the samples that it
applies to, which suits a CPU. On a GPU, it would launch a thousand small kernels that read and
write the views again and again. Here, all samples take the same path. If an operation does not
apply to a sample, its parameters are such that it changes nothing. Shapes and code therefore do not
depend on what was drawn.

The order of the four operations of the colour jitter differs between samples. Contrast needs the
mean luma of its input frame, so it divides the jitter into a stage before it and a stage after it.
Within a stage, brightness and saturation come before or after hue, in either order. A stage thus
consists of two blends, hue, and two more blends. Steps that are not part of a sample's order leave
the sample unchanged.

Values stay in float32 between the functions. The rounding error of half precision (up to 2.4e-4)
would exceed 1e-5, which is the tolerance of the tests relative to float64.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sce_video.models.augmentation import (
    JITTER_PARTS,
    RotatedHue,
    ViewParameters,
    gaussian_blur,
    luma,
    solarise,
)
from sce_video.utils.tensors import to_device

Planes = list[Tensor]  # red, green and blue, each (N, T, H, W)

# Column numbers in the factors and in the order of the colour jitter.
_BRIGHTNESS = JITTER_PARTS.index("brightness")
_CONTRAST = JITTER_PARTS.index("contrast")
_SATURATION = JITTER_PARTS.index("saturation")
_HUE = JITTER_PARTS.index("hue")

# Columns of a stage. Each of four blends has a factor and a weight for the luma, and two columns
# for the hue follow.
_SHIFT = 8
_ROTATES = 9  # 1 if the hue is rotated, otherwise 0
_STAGE_COLUMNS = 10

# Number of clip shapes for which a process compiles kernels, which equals torch.compile's limit
_MOST_SHAPES = 8
_shapes: set[tuple[int, ...]] = set()


class Column(IntEnum):
    """First column of each part of a view's parameter table."""

    BEFORE = 0  # first stage, before contrast
    AFTER = _STAGE_COLUMNS  # second stage, after contrast
    CONTRAST = 2 * _STAGE_COLUMNS  # factor; 1 has no effect
    GREY = 2 * _STAGE_COLUMNS + 1  # 1 if the operation is applied, otherwise 0
    SOLARISE = 2 * _STAGE_COLUMNS + 2  # 1 or 0, like GREY
    FLIP = 2 * _STAGE_COLUMNS + 3  # 1 or 0, like GREY


@functools.cache
def can_compile(device: torch.device) -> bool:
    """Return whether torch.compile can make kernels, which needs a GPU, Triton and a compiler."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    compilers = (os.environ.get("CC"), "cc", "gcc", "clang")
    has_compiler = any(name and shutil.which(name) for name in compilers)
    return has_compiler and torch.cuda.get_device_capability(device) >= (7, 0)  # required by Triton


def accepts(shape: tuple[int, ...]) -> bool:
    """Return whether kernels are compiled for a clip shape, one of the first eight in a process.

    Other shapes are rare in a training run, for example batches from which a bad file was left out.
    """
    if len(_shapes) < _MOST_SHAPES:
        _shapes.add(shape)
    return shape in _shapes


@functools.cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of this module to kernels, separately for each argument shape.

    The function runs eagerly if torch.compile does not work, for example while a dispatch mode
    records operations.
    """
    return torch.compile(function, dynamic=False)


def augment_fused(
    clip: Tensor,
    parameters: ViewParameters,
    mean: Tensor,
    std: Tensor,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Tensor:
    """Augment and normalise uint8 clips (N, T, H, W, 3), each sample by its own parameters.

    Nothing is read back from the device. The values equal those of
    :func:`~sce_video.models.augmentation.augment` up to rounding.

    Args:
        clip: Clips on the device.
        parameters: Parameters of the N samples.
        mean: Value to subtract, (1, 1 or 3, 1, 1, 1), on the 0..1 scale.
        std: Value to divide by after the subtraction, with the same shape.
        memory_format: Memory format of the result.

    Returns:
        Views, float32 (N, 3, T, H, W).
    """
    table = to_device(parameter_table(parameters), clip.device)
    x, levels = compiled(before_contrast)(clip, table)
    x = compiled(contrast_and_after)(x, levels, table)
    blurred = np.flatnonzero(parameters.blur)
    if len(blurred) == len(x):
        x = gaussian_blur(x, to_device(parameters.sigma, x.device))
    elif len(blurred):
        rows = to_device(blurred, x.device)
        sigma = to_device(parameters.sigma[blurred], x.device)
        x.index_copy_(0, rows, gaussian_blur(x.index_select(0, rows), sigma))
    return compiled(solarise_and_normalise)(x, table, mean, std, memory_format)


def before_contrast(clip: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Flip clips, convert them to floats, and compute the jitter's operations before contrast.

    Args:
        clip: uint8 (N, T, H, W, 3).
        table: Parameters (:func:`parameter_table`).

    Returns:
        Views (N, 3, T, H, W) in 0..1, and the mean luma of each frame (N, T, 1, 1).
    """
    flips = table[:, Column.FLIP].view(-1, 1, 1, 1, 1) > 0.5
    clip = torch.where(flips, clip.flip(3), clip)
    planes = [plane.to(torch.float32) / 255.0 for plane in clip.unbind(4)]
    planes = _stage(planes, table[:, Column.BEFORE :])
    return torch.stack(planes, dim=1), luma(*planes).mean((-2, -1), keepdim=True)


def contrast_and_after(x: Tensor, levels: Tensor, table: Tensor) -> Tensor:
    """Compute contrast, the jitter's operations after it, and grey.

    Args:
        x: Views (N, 3, T, H, W) in 0..1.
        levels: Mean luma of each frame (N, T, 1, 1).
        table: Parameters (:func:`parameter_table`).
    """
    factor = _per_sample(table, Column.CONTRAST)
    others = (1.0 - factor) * levels
    planes = [(plane * factor + others).clamp(0.0, 1.0) for plane in x.unbind(1)]
    planes = _stage(planes, table[:, Column.AFTER :])
    greys, grey = _per_sample(table, Column.GREY) > 0.5, luma(*planes)
    return torch.stack([torch.where(greys, grey, plane) for plane in planes], dim=1)


def solarise_and_normalise(
    x: Tensor, table: Tensor, mean: Tensor, std: Tensor, memory_format: torch.memory_format
) -> Tensor:
    """Solarise and normalise views (N, 3, T, H, W), and convert them to a memory format."""
    solarises = table[:, Column.SOLARISE].view(-1, 1, 1, 1, 1) > 0.5
    x = torch.where(solarises, solarise(x), x)
    return ((x - mean) / std).contiguous(memory_format=memory_format)


def _stage(planes: Planes, table: Tensor) -> Planes:
    """Compute two blends, rotate the hue, and compute two more blends."""
    for slot in (0, 1):
        planes = _blend(planes, table, slot)
    rotated = RotatedHue.of(planes, _per_sample(table, _SHIFT))
    rotates = _per_sample(table, _ROTATES) > 0.5
    planes = [torch.where(rotates, rotated.channel(i), planes[i]) for i in range(3)]
    for slot in (2, 3):
        planes = _blend(planes, table, slot)
    return planes


def _blend(planes: Planes, table: Tensor, slot: int) -> Planes:
    """Multiply by a slot's factor, add the luma with the slot's weight, and clamp to 0..1."""
    factor, weight = _per_sample(table, 2 * slot), _per_sample(table, 2 * slot + 1)
    others = weight * luma(*planes)
    return [(plane * factor + others).clamp(0.0, 1.0) for plane in planes]


def _per_sample(table: Tensor, column: int) -> Tensor:
    return table[:, column].view(-1, 1, 1, 1)


def parameter_table(parameters: ViewParameters) -> np.ndarray:
    """Return the table that the functions read, float32 (N, columns), as in :class:`Column`."""
    p = parameters
    rank = np.argsort(p.order, axis=1)  # position of each operation in its sample's order
    contrast = rank[:, _CONTRAST, None]
    jitters = p.jitter[:, None]
    table = np.zeros((len(p), Column.FLIP + 1), dtype=np.float32)
    for first, chosen in ((Column.BEFORE, rank < contrast), (Column.AFTER, rank > contrast)):
        table[:, first : first + _STAGE_COLUMNS] = _stage_table(p.factors, rank, chosen & jitters)
    table[:, Column.CONTRAST] = np.where(p.jitter, p.factors[:, _CONTRAST], 1.0)
    table[:, Column.GREY] = p.grey
    table[:, Column.SOLARISE] = p.solarise
    table[:, Column.FLIP] = p.flip
    return table


def _stage_table(factors: np.ndarray, rank: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the columns of a stage that applies only the operations in ``chosen``, bool (N, 4)."""
    nothing = np.array([1, 0] * 4 + [0, 0], dtype=np.float32)
    table = np.tile(nothing, (len(rank), 1))
    table[:, _SHIFT] = factors[:, _HUE]
    table[:, _ROTATES] = chosen[:, _HUE] & (factors[:, _HUE] != 0.0)
    after_hue = chosen[:, _HUE, None] & (rank > rank[:, _HUE, None])
    for part, other in ((_BRIGHTNESS, _SATURATION), (_SATURATION, _BRIGHTNESS)):
        on_one_side = chosen[:, other] & (after_hue[:, part] == after_hue[:, other])
        second = on_one_side & (rank[:, part] > rank[:, other])
        slot = 2 * after_hue[:, part] + second
        rows = np.flatnonzero(chosen[:, part])
        table[rows, 2 * slot[rows]] = factors[rows, part]
        if part == _SATURATION:
            table[rows, 2 * slot[rows] + 1] = 1.0 - factors[rows, part]
    return table
