"""Packing of views into a sample, and arguments of all transforms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sce_video.datasets.transforms.packing import pack_views
from sce_video.registry import TRANSFORMS


def build(name, **options):
    return TRANSFORMS.build({"type": name, **options})


def coordinates(height, width, frames=2):
    """Frames whose red channel is the row and whose green channel is the column."""
    view = np.zeros((frames, height, width, 3), dtype=np.uint8)
    view[..., 0] = np.arange(height)[:, None]
    view[..., 1] = np.arange(width)
    return view


def results(*views, seed=0):
    return {"views": list(views), "rng": np.random.default_rng(seed)}


def test_pack():
    state = {**results(coordinates(4, 5), coordinates(4, 5)), "label": np.int64(3), "index": 7,
             "seed": 2**62, "path": "x"}  # fmt: skip
    sample = build("PackClips")(state)
    assert set(sample) == {"inputs", "label", "index", "seed"}
    assert [tuple(t.shape) for t in sample["inputs"]] == [(2, 4, 5, 3)] * 2
    assert all(t.dtype == torch.uint8 for t in sample["inputs"])
    assert (sample["label"], sample["index"], sample["seed"]) == (3, 7, 2**62)


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("RandomClips", {"clip_duration": 0, "num_frames": 8}, "clip_duration"),
        ("RandomClips", {"clip_duration": 1, "num_frames": 0}, "num_frames"),
        ("RandomClips", {"clip_duration": 1, "num_frames": 8, "diff_prob": 1.2}, "diff_prob"),
        ("RandomClips", {"clip_duration": 1, "num_frames": 8, "duration_jitter": 1}, "jitter"),
        ("UniformClips", {"clip_duration": 1, "num_frames": 8, "num_clips": 0}, "num_clips"),
        ("RandomResizedCropClips", {"size": 8, "area": (0.5, 0.2)}, "area"),
        ("ResizeShortSide", {"size": (9, 5)}, "size"),
        ("CenterCropClips", {"size": 0}, "size"),
        ("OpenVideo", {"backend": "magic"}, "magic"),
        ("OpenVideo", {"num_threads": 0}, "num_threads"),
    ],
)
def test_wrong_arguments(name, options, word):
    with pytest.raises(ValueError, match=word):
        build(name, **options)


def test_targets_are_used_if_all_shapes_match():
    views = [coordinates(4, 5), coordinates(2, 3)]
    for shapes, used in (
        ([(2, 4, 5, 3), (2, 2, 3, 3)], True),
        ([(2, 4, 5, 3), (2, 2, 4, 3)], False),
        ([(2, 4, 5, 3)], False),
        ([(1, 4, 5, 3), (1, 2, 3, 3)], False),
    ):
        targets = [torch.zeros(shape, dtype=torch.uint8) for shape in shapes]
        packed = pack_views(views, targets)
        assert [tensor.tolist() for tensor in packed] == [view.tolist() for view in views]
        assert (packed[0].data_ptr() == targets[0].data_ptr()) == used
        assert used or all((target == 0).all() for target in targets)
