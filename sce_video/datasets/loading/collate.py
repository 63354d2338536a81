"""Collate functions: from samples to a batch."""

from __future__ import annotations

from typing import Any

import torch

from sce_video.datasets.loading.shared_memory import stack_slots
from sce_video.registry import FUNCTIONS

_VIDEO_KEYS = ("frames", "positions", "offsets", "crop_size")


@FUNCTIONS.register_module()
def collate_views(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Stack samples view by view; samples of :class:`PackVideo` are returned as a list.

    Args:
        samples: Output of :class:`~sce_video.datasets.VideoDataset`: ``inputs``, a list of V
            uint8 tensors (T, H, W, 3) (None for a skipped sample), or ``frames, positions,
            offsets, crop_size``; and ``label``, ``index``, ``seed`` and ``failures``.

    Returns:
        ``inputs``: list of V uint8 tensors (N, T, H, W, 3), empty when every sample was skipped;
        or ``videos``: list of N dicts of ``frames, positions, offsets, crop_size``. Also
        ``label``, ``index``, ``seed``: (N,) int64; ``failures``: one flat list of (path, error);
        ``differences``: sums over the samples, see
        :class:`~sce_video.datasets.transforms.DecodeClips`.

    Raises:
        ValueError: The samples differ in their number of views or in the shape of a view.
    """
    failures = [failure for sample in samples for failure in sample.get("failures", ())]
    kept = [sample for sample in samples if "frames" in sample or sample["inputs"] is not None]
    if kept and "frames" in kept[0]:
        batch: dict[str, Any] = {
            "videos": [{name: sample[name] for name in _VIDEO_KEYS} for sample in kept]
        }
    else:
        batch = {"inputs": _stack_views(kept)}
    for name in ("label", "index", "seed"):
        batch[name] = torch.tensor([sample[name] for sample in kept], dtype=torch.int64)
    batch["failures"] = failures
    counted = [sample["differences"] for sample in kept if "differences" in sample]
    if counted:
        batch["differences"] = tuple(map(sum, zip(*counted, strict=True)))
    return batch


def _stack_views(kept: list[dict[str, Any]]) -> list[torch.Tensor]:
    if len({len(sample["inputs"]) for sample in kept}) > 1:
        counts = [len(sample["inputs"]) for sample in kept]
        raise ValueError(f"the samples of a batch have different numbers of views: {counts}")
    views = list(zip(*(sample["inputs"] for sample in kept), strict=True))
    for number, view in enumerate(views):
        shapes = sorted({tuple(tensor.shape) for tensor in view})
        if len(shapes) > 1:
            raise ValueError(
                f"view {number} has different shapes in one batch, {shapes}: "
                "end the pipeline with a crop of fixed size"
            )
    return [stack_slots(view) for view in views]


@FUNCTIONS.register_module()
def collate_boxes(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Stack clips; boxes and actions are returned as lists, since their number differs.

    Args:
        samples: Output of :class:`~sce_video.datasets.AVADataset`.

    Returns:
        As :func:`collate_views`, and ``boxes``, N tensors (n_i, 4), ``actions``, N tensors
        (n_i, 80).

    Raises:
        ValueError: The clips differ in shape, as test frames do: then batch_size must be 1.
    """
    batch = collate_views(samples)
    kept = [sample for sample in samples if sample["inputs"] is not None]
    for name in ("boxes", "actions"):
        batch[name] = [sample[name] for sample in kept]
    return batch
