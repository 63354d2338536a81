"""The last transform of a pipeline: from views to the sample of a data loader."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sce_video.datasets.loading.batches import empty_batch
from sce_video.datasets.readers.limits import DecodeLimits
from sce_video.datasets.transforms.lazy_view import LazyView, render_views
from sce_video.datasets.transforms.spatial import View, crop_offsets
from sce_video.registry import TRANSFORMS


@TRANSFORMS.register_module()
class PackClips:
    """Turn the views into uint8 tensors; the data preprocessor normalises and permutes them.

    The crops and the resizing of a :class:`LazyView` are computed here, directly in the tensors.
    """

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``views``, and ``targets`` if present: V tensors, a slot of a shared batch buffer.

        Returns:
            ``inputs`` (list of V uint8 tensors (T, H, W, 3)), ``label``, ``index``, ``seed``; and
            ``differences`` of :class:`~.decoding.DecodeClips`, if present.

        Raises:
            ValueError: A local view has as many pixels as the first view: methods tell local from
                global views by their size.
        """
        views = results["views"]
        for number in range(len(views) - results.get("num_local_views", 0), len(views)):
            if math.prod(views[number].shape) >= math.prod(views[0].shape):
                (t, h, w, _), (t0, h0, w0, _) = views[number].shape, views[0].shape
                raise ValueError(
                    f"local view {number} has {t} frames of {h}x{w}, as much as view 0 with {t0} "
                    f"of {h0}x{w0}: lower local_num_frames of RandomClips or local_size of "
                    "RandomResizedCropClips"
                )
        inputs = pack_views(views, results.get("targets"))
        kept = {name: int(results[name]) for name in ("label", "index", "seed")}
        counted = {"differences": results["differences"]} if "differences" in results else {}
        return {"inputs": inputs, **kept, **counted}


def pack_views(views: Sequence[View], targets: Sequence[Tensor] | None) -> list[Tensor]:
    """The views as uint8 tensors (T, H, W, 3): in ``targets`` if shapes match, else new ones."""
    shapes = [tuple(view.shape) for view in views]
    if targets is None or [tuple(target.shape) for target in targets] != shapes:
        targets = [torch.empty(shape, dtype=torch.uint8) for shape in shapes]
    pending: list[tuple[LazyView, np.ndarray]] = []
    for view, target in zip(views, targets, strict=True):
        if isinstance(view, LazyView):
            pending.append((view, target.numpy()))
        else:
            target.numpy()[...] = view
    render_views([view for view, _ in pending], [out for _, out in pending])
    return list(targets)


@TRANSFORMS.register_module()
class PackBoxes:
    """Pack the clip and its boxes into the sample of a data loader."""

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Return ``inputs`` (one uint8 (T, H, W, 3)), ``boxes`` (n, 4) in pixels, ``actions``.

        ``actions`` is (n, 80) float32 of 0 and 1; ``label``, ``index`` and ``seed`` are kept. The
        clip is written to ``targets`` as in :class:`PackClips`.
        """
        (clip,) = pack_views(results["views"], results.get("targets"))
        if results.get("flipped"):
            clip.copy_(clip.flip(2))
        return {
            "inputs": [clip],
            "boxes": torch.from_numpy(results["boxes"].astype(np.float32)),
            "actions": torch.from_numpy(results["actions"].astype(np.float32)),
            **{name: int(results[name]) for name in ("label", "index", "seed")},
        }


@TRANSFORMS.register_module()
class PackVideo:
    """Pack the resized frames once, with the position of each of the K x C views in them.

    The views are cut on the device, a few at a time (:func:`sce_video.evaluation.view_chunks`):
    10 clips x 3 crops of 8 frames are 240 crops of 256 x 256, which share most of their pixels.

    Args:
        crop_size: Side of a crop, pixels.
        num_crops: C; 1 is the centre, 3 lie along the long side, see :func:`crop_offsets`.
        whole: The view is the whole frame; the network resizes it to ``crop_size``.
    """

    def __init__(self, crop_size: int, num_crops: int = 3, whole: bool = False) -> None:
        if crop_size < 1:
            raise ValueError(f"crop_size must be a positive number of pixels, got {crop_size}")
        if num_crops not in (1, 3):
            raise ValueError(
                f"num_crops must be 1 (centre) or 3 (along the long side), got {num_crops}"
            )
        if whole and num_crops != 1:
            raise ValueError(f"whole frames are one crop, got num_crops={num_crops}")
        self.crop_size, self.num_crops, self.whole = crop_size, num_crops, whole

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``views`` (one) and ``positions`` of :class:`DecodeSharedFrames`.

        Returns:
            ``frames`` uint8 (F, H, W, 3), ``positions`` int64 (K, T), ``offsets`` int64 (C, 2) (top
            and left of every crop), ``crop_size`` (side of a square, or height and width of whole
            frames), ``label``, ``index``, ``seed``.

        Raises:
            VideoDecodeError: The frames take more memory than the reader's limit.
        """
        (view,) = results["views"]
        limits = results.get("limits") or DecodeLimits()
        limits.check_held(results.get("path", "frames"), len(view), math.prod(view.shape))
        size: int | tuple[int, int] = self.crop_size
        if self.whole:
            size, offsets = tuple(view.shape[1:3]), [(0, 0)]
        else:
            offsets = crop_offsets(view.shape[1:3], self.crop_size, self.num_crops)
        (frames,) = pack_views([view], [empty_batch(view.shape)])  # in shared memory
        return {
            "frames": frames,
            "positions": torch.from_numpy(results["positions"].astype(np.int64)),
            "offsets": torch.tensor(offsets, dtype=torch.int64),
            "crop_size": size,
            **{name: int(results[name]) for name in ("label", "index", "seed")},
        }


def cut_views(video: dict[str, Any], first: int = 0, last: int | None = None) -> Tensor:
    """Views ``first`` to ``last`` (excluded; None: all K x C) of a packed video, cut on the CPU.

    Returns:
        uint8 (last - first, T, S, S, 3), of whole frames (last - first, T, H, W, 3); clip 0 crop 0,
        clip 0 crop 1, ..., clip 1 crop 0, ...
    """
    frames, (height, width) = video["frames"].numpy(), crop_sides(video)
    positions, offsets = video["positions"].tolist(), video["offsets"].tolist()
    last = len(positions) * len(offsets) if last is None else last
    views = torch.empty((last - first, len(positions[0]), height, width, 3), dtype=torch.uint8)
    for number, view in enumerate(views.numpy(), start=first):  # a seventh of indexing's time
        clip, crop = divmod(number, len(offsets))
        top, left = offsets[crop]
        for target, index in zip(view, positions[clip], strict=True):
            target[...] = frames[index, top : top + height, left : left + width]
    return views


def crop_sides(video: dict[str, Any]) -> tuple[int, int]:
    """Height and width of the views of a packed video."""
    size = video["crop_size"]
    return (size, size) if isinstance(size, int) else tuple(size)
