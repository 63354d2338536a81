"""RoIAlign, which samples the features in a box to a grid, in torchvision or pure PyTorch."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

BACKENDS = ("auto", "torch", "torchvision")

# Maximum number of elements in an intermediate tensor, which take 64 MB in float32
CHUNK_ELEMENTS = 2**24


@dataclass(frozen=True)
class _Sampling:
    """Settings for sampling boxes to grids (:func:`roi_align`)."""

    height: int  # number of bins in the grid
    width: int
    scale: float  # cells of the map per pixel of the input frame
    ratio: int  # points per bin and axis; 0 adapts them to the box size
    aligned: bool


def roi_align(
    features: Tensor,
    rois: Tensor,
    output_size: int | Sequence[int],
    spatial_scale: float,
    sampling_ratio: int = 0,
    aligned: bool = True,
    backend: str = "auto",
) -> Tensor:
    """Average bilinear samples of the features in each box.

    The definition follows Mask R-CNN (arXiv 1703.06870, section 3). A box is divided into h x w
    equal bins. In every bin, the map is interpolated bilinearly at a regular grid of points, and
    the values are averaged. A point that is more than one cell outside the map has the value 0, and
    a closer point outside has the value of the border. Values and gradients equal those of mmcv's
    ``RoIAlign(pool_mode="avg")`` and ``torchvision.ops.roi_align``.

    Boxes may have zero or negative size. With ``aligned=False``, every box is at least one cell
    wide and high. With ``aligned=True``, such a box results in 0 if the sampling ratio is 0. With a
    fixed ratio, its points are sampled anyway, mirrored if the corners are inverted.

    The computation uses float32 (float64 for float64 features), even under autocast. In pure
    PyTorch, the gradient is deterministic, and a non-finite feature spreads to all boxes of its
    frame.

    Args:
        features: (N, C, H, W), floating point.
        rois: (R, 5), rows of (batch index, x1, y1, x2, y2) in pixels of the input frame. They
            receive no gradient, and may be on the CPU while the features are on a GPU.
        output_size: Side of a square output, or (h, w).
        spatial_scale: Cells of the map per pixel of the input frame, for example 1/16.
        sampling_ratio: Number of points per bin and axis. 0 means ceil(bin size in cells) for each
            box.
        aligned: Whether pixel centres are at half integers, which is correct. False uses the
            original definition, which is shifted by half a cell.
        backend: "torch" for pure PyTorch, "torchvision", or "auto" for torchvision if it can be
            imported and supports the device.

    Returns:
        (R, C, h, w) in the dtype of ``features``.

    Raises:
        ValueError: If a shape, dtype or batch index is wrong, a box is not finite, or a backend is
            unknown or cannot be imported.
    """
    pair = tuple(output_size) if isinstance(output_size, Sequence) else (output_size,) * 2
    if len(pair) != 2 or not all(type(n) is int and n >= 1 for n in pair):
        raise ValueError(
            f"output_size must be an int or (h, w), each at least 1, got {output_size!r}"
        )
    _check_inputs(features, rois, spatial_scale, sampling_ratio)
    name = _choose_backend(backend, features.device)
    if rois.shape[0] == 0:
        return features[:0, :, :1, :1].expand(-1, -1, *pair)
    dtype = torch.float64 if features.dtype == torch.float64 else torch.float32
    on_host = rois.detach().to("cpu", dtype)
    _check_rois(on_host, features.shape[0])
    sampling = _Sampling(pair[0], pair[1], float(spatial_scale), int(sampling_ratio), aligned)
    with torch.autocast(features.device.type, enabled=False):
        inputs = features.to(dtype)
        if name == "torch":
            pooled = _roi_align_torch(inputs, on_host, sampling)
        else:
            # The compiled implementation requires contiguous memory and inputs of the same dtype.
            boxes = rois.detach().to(features.device, dtype).contiguous()
            compiled: Any = _import_torchvision()[0]
            pooled = compiled.roi_align(
                inputs.contiguous(),
                boxes,
                output_size=(sampling.height, sampling.width),
                spatial_scale=sampling.scale,
                sampling_ratio=sampling.ratio,
                aligned=sampling.aligned,
            )
    return pooled.to(features.dtype)


# --- pure PyTorch -----------------------------------------------------------------------------


def _roi_align_torch(features: Tensor, rois: Tensor, sampling: _Sampling) -> Tensor:
    """Compute RoIAlign by two products per box: rows (h, H) @ map (H, W) @ columns (W, w)."""
    # A bilinear weight is the product of a row weight and a column weight, and the points of a bin
    # form a grid. The average over the points is therefore the product of a matrix for the rows and
    # a matrix for the columns. Both matrices are small, so the CPU computes them, and the features'
    # device computes the products.
    corners = rois[:, 1:] * sampling.scale - (0.5 if sampling.aligned else 0.0)
    x1, y1, x2, y2 = corners.unbind(1)
    rows = _axis_weights(y1, y2, sampling.height, features.shape[2], sampling)
    columns = _axis_weights(x1, x2, sampling.width, features.shape[3], sampling)
    # Sort the boxes by frame, so that one large product covers all boxes of a frame.
    frames = rois[:, 0].long()
    order = torch.argsort(frames, stable=True)
    counts = torch.bincount(frames, minlength=features.shape[0]).tolist()
    rows, columns = (weights[order].to(features.device) for weights in (rows, columns))

    box_elements = sampling.height * features.shape[1] * features.shape[3]
    chunk = max(1, CHUNK_ELEMENTS // max(1, box_elements))
    parts = []
    # Use unbind, because for each frame, indexing features[n] would create a gradient as large as
    # the whole batch.
    for map_, r, c in zip(
        features.unbind(0), rows.split(counts), columns.split(counts), strict=True
    ):
        for row, column in zip(r.split(chunk), c.split(chunk), strict=True):
            if len(row):
                by_row = torch.einsum("rph,chw->rpcw", row, map_)
                parts.append(torch.einsum("rpcw,rqw->rcpq", by_row, column))
    pooled = torch.cat(parts)
    if not torch.equal(order, torch.arange(len(order))):
        pooled = pooled[torch.argsort(order).to(features.device)]
    return pooled.contiguous()


def _axis_weights(start: Tensor, end: Tensor, bins: int, cells: int, sampling: _Sampling) -> Tensor:
    """Return the weights (R, bins, cells) of the cells of one axis in each bin of each box."""
    # ``start`` and ``end`` (R,) are measured in cells, whose centres are at integers. Keep the
    # order of operations in mmcv's kernel (open-mmlab/mmcv, roi_align_cuda_kernel.cuh), because
    # rounding decides whether a bin slightly larger than one cell has one point or two.
    length = end - start
    if not sampling.aligned:
        length = length.clamp(min=1)
    bin_size = (length / bins)[:, None, None]
    grid = torch.full_like(bin_size, sampling.ratio) if sampling.ratio else bin_size.ceil()
    grid = grid.clamp(min=0)
    bin_start = start[:, None, None] + torch.arange(bins)[:, None] * bin_size  # (R, bins, 1)
    point = _point_numbers(bin_start, bin_size, grid, cells, sampling.ratio)
    at = bin_start + (point + 0.5) * bin_size / grid.clamp(min=1)  # (R, bins, points)
    counts = (point < grid) & (at >= -1) & (at <= cells)

    at = torch.where(counts, at, 0.0).clamp(0, cells - 1)
    low = at.floor()
    share = counts.to(at.dtype) / grid.clamp(min=1)
    weights = at.new_zeros(len(start), bins, cells)
    weights.scatter_add_(2, low.long(), share * (1 - (at - low)))
    weights.scatter_add_(2, (low.long() + 1).clamp(max=cells - 1), share * (at - low))
    return weights


def _point_numbers(
    bin_start: Tensor, bin_size: Tensor, grid: Tensor, cells: int, sampling_ratio: int
) -> Tensor:
    """Return the indices of the points to evaluate, (R, bins, points) or (points,), as floats."""
    # Boxes have grids of different sizes, so indices of at least ``grid`` are padding. The points
    # of an adaptive grid are more than half a cell apart, so even in a large box, only few of them
    # are inside the map. Evaluate only a window around these points.
    if sampling_ratio:
        return torch.arange(sampling_ratio, dtype=grid.dtype)
    # Number of points in [-1, cells] at distances of 1/2, plus a margin for rounding.
    most = 2 * (cells + 1) + 8
    points = int(min(grid.max().item(), most))
    window = torch.arange(points, dtype=grid.dtype)
    if bool((grid <= points).all()):
        return window
    first = ((-1 - bin_start) * grid.clamp(min=1) / bin_size).nan_to_num().floor() - 3
    return first.clamp(min=0) + window


# --- checks -----------------------------------------------------------------------------------


def _check_inputs(
    features: Tensor, rois: Tensor, spatial_scale: float, sampling_ratio: int
) -> None:
    if features.ndim != 4 or 0 in features.shape[2:] or not features.is_floating_point():
        raise ValueError(
            "features must be floating point, (N, C, H, W) with at least one cell, got "
            f"{features.dtype} of shape {tuple(features.shape)}"
        )
    if rois.ndim != 2 or rois.shape[1] != 5 or rois.is_complex() or rois.dtype == torch.bool:
        raise ValueError(
            "rois must be (R, 5), rows of (batch index, x1, y1, x2, y2), got "
            f"{rois.dtype} of shape {tuple(rois.shape)}"
        )
    if not (math.isfinite(spatial_scale) and spatial_scale > 0):
        raise ValueError(f"spatial_scale must be positive and finite, got {spatial_scale}")
    if sampling_ratio < 0 or int(sampling_ratio) != sampling_ratio:
        raise ValueError(
            "sampling_ratio must be a number of points, or 0 to choose it by the size of the box, "
            f"got {sampling_ratio}"
        )


def _check_rois(rois: Tensor, num_frames: int) -> None:
    """Check the values of ``rois`` (R, 5) on the CPU.

    Raises:
        ValueError: If a box is not finite or a batch index is out of range.
    """
    # Check this, because with a wrong index, a compiled kernel would read memory out of bounds.
    finite = rois.isfinite().all(1)
    if not finite.all():
        row = int((~finite).nonzero()[0])
        raise ValueError(f"rois[{row}] is not finite: {rois[row].tolist()}")
    index = rois[:, 0]
    known = (index >= 0) & (index < num_frames) & (index == index.trunc())
    if not known.all():
        row = int((~known).nonzero()[0])
        raise ValueError(
            f"rois[{row}] has the batch index {index[row].item():g}, but the features have only "
            f"{num_frames} frames, counted from 0"
        )


# --- compiled ---------------------------------------------------------------------------------


@cache  # a failing import is also tried only once
def _import_torchvision() -> tuple[ModuleType | None, str]:
    """Return ``torchvision.ops``, or None and the reason why it cannot be imported."""
    try:
        module = importlib.import_module("torchvision.ops")
        # A build for another torch version may be importable although its operators are missing.
        if not hasattr(module, "roi_align"):
            return None, "torchvision.ops has no roi_align"
        torch.ops.torchvision.roi_align  # noqa: B018
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return None, f"{type(error).__name__}: {error}"
    return module, ""


def _choose_backend(backend: str, device: torch.device) -> str:
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "torch":
        return backend
    module, why = _import_torchvision()
    if backend == "torchvision":
        if module is None:
            raise ValueError(
                f"backend='torchvision' needs torchvision.ops, which cannot be imported ({why}). "
                'Install a build for this version of torch, or use backend="torch" or "auto"'
            )
        return backend
    if module is None or device.type not in ("cpu", "cuda"):
        return "torch"
    version = importlib.import_module("torchvision.version")
    on_gpu = bool(getattr(version, "cuda", None) or getattr(version, "hip", None))
    # Check the build, because builds of torchvision that support only the CPU are common.
    return "torchvision" if device.type == "cpu" or on_gpu else "torch"
