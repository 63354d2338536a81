"""Packing of views into a sample, and arguments of all transforms."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sce_video.datasets import VideoReader
from sce_video.datasets.transforms import (
    CenterSegmentClip,
    DecodeSharedFrames,
    PackVideo,
    RandomSegmentClip,
    UniformClips,
    crop_offsets,
)
from sce_video.datasets.transforms.packing import pack_views
from sce_video.evaluation import view_chunks
from sce_video.evaluation.multi_view import _cut_on_device
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


WRONG = [
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
]


@pytest.mark.parametrize(("name", "options", "word"), WRONG)
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


# -- The 30-view test against tables written by hand: which frames, which crops, in which order


class Reader(VideoReader):
    """Frame i of a video of constant rate is filled with i in red; columns and rows in the rest."""

    def __init__(self, frames: int, fps: float, height: int = 8, width: int = 11) -> None:
        self.timestamps = np.arange(frames) / fps
        self.duration = frames / fps
        self.path, self.size = "numbers", (height, width)
        self.reads: list[list[int]] = []

    def read(self, indices):
        self.reads.append(list(indices))
        height, width = self.size
        frames = np.zeros((len(indices), height, width, 3), dtype=np.uint8)
        frames[..., 0] = np.asarray(indices, dtype=np.uint8)[:, None, None]
        frames[..., 1] = np.arange(height, dtype=np.uint8)[:, None]
        frames[..., 2] = np.arange(width, dtype=np.uint8)
        return frames

    def close(self):
        pass


def packed(reader, sampler, crop_size=8, num_crops=3):
    results = {"reader": reader, "rng": np.random.default_rng(0), "label": 3, "index": 5, "seed": 7}
    return PackVideo(crop_size, num_crops)(DecodeSharedFrames()(sampler(results)))


# 10 clips of 2.56 s, 8 frames. Clip k starts at k * (duration - 2.56) / 9 seconds; its frames are
# those that begin in [start, start + 2.56), n of them; kept are first + i * (n - 1) // 7.
_64 = [0, 9, 18, 27, 36, 45, 54, 63]  # n = 64
_77 = [0, 10, 21, 32, 43, 54, 65, 76]  # n = 77
_76 = [0, 10, 21, 32, 42, 53, 64, 75]  # n = 76
TABLE = {
    # frames, rate: first frame and offsets of each of the ten clips
    (250, 25.0): [(first, _64) for first in (0, 21, 42, 62, 83, 104, 124, 145, 166, 186)],
    # 3 s at 30: starts are 1.4667 k frames, ends 76.8 + 1.4667 k; the last end falls on frame 90
    (90, 30.0): [(first, _77) for first in (0, 2, 3, 5, 6, 8, 9, 11, 12)] + [(14, _76)],
    # 1.2 s: shorter than a clip, all ten are the whole video, n = 30
    (30, 25.0): [(0, [0, 4, 8, 12, 16, 20, 24, 29])] * 10,
    # 5 frames for 8: frames repeat
    (5, 25.0): [(0, [0, 0, 1, 1, 2, 2, 3, 4])] * 10,
    (1, 25.0): [(0, [0] * 8)] * 10,
}


@pytest.mark.parametrize("video", TABLE, ids=lambda v: f"{v[0]}frames{v[1]:g}fps")
def test_frames_of_ten_clips(video):
    reader = Reader(*video)
    sample = packed(reader, UniformClips(clip_duration=2.56, num_frames=8, num_clips=10))
    shown = sample["frames"][sample["positions"], 0, 0, 0].tolist()
    assert shown == [[first + offset for offset in offsets] for first, offsets in TABLE[video]]
    assert len(reader.reads) == 1, "one pass over the file"
    (decoded,) = reader.reads
    assert decoded == sorted(set(decoded)), "each frame once, in order"


# height, width, crop: offsets (top, left) of the three crops
CROPS = {
    (256, 340, 256): [(0, 0), (0, 42), (0, 84)],
    (256, 455, 256): [(0, 0), (0, 100), (0, 199)],  # 199 / 2 rounds up
    (256, 256, 256): [(0, 0), (0, 0), (0, 0)],
    (341, 256, 256): [(0, 0), (43, 0), (85, 0)],
    (130, 170, 128): [(1, 0), (1, 21), (1, 42)],
}


@pytest.mark.parametrize("shape", CROPS, ids=str)
def test_offsets_of_three_crops(shape):
    height, width, size = shape
    assert crop_offsets((height, width), size, 3) == CROPS[shape]
    central = tuple(round((side - size) / 2.0) for side in (height, width))  # torchvision's
    assert crop_offsets((height, width), size, 1) == [central]


def test_a_crop_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match="256 does not fit into frames of 200 x 300"):
        crop_offsets((200, 300), 256, 3)
    with pytest.raises(ValueError, match="got 5"):
        PackVideo(8, 5)


@pytest.mark.parametrize("max_views", [1, 7, 100])
def test_views_in_clip_major_order_whatever_the_chunks(max_views):
    sample = packed(Reader(90, 30.0), UniformClips(2.56, 8, 10))
    chunks = list(view_chunks(sample, "cpu", max_views))
    assert max(map(len, chunks)) == min(max_views, 30)
    parts = [(start, min(start + max_views, 30)) for start in range(0, 30, max_views)]
    for chunk, other in zip(chunks, _cut_on_device(sample, "cpu", parts), strict=True):
        assert torch.equal(chunk, other), "the way of a GPU gives the same"
    views = torch.cat(chunks)
    assert views.shape == (30, 8, 8, 8, 3) and views.dtype == torch.uint8
    for k in range(10):
        first, offsets = TABLE[90, 30.0][k]
        for c, left in enumerate((0, 2, 3)):  # 8 of 11 columns: 0, ceil(1.5), 3
            view = views[3 * k + c]
            assert view[:, 0, 0, 0].tolist() == [first + offset for offset in offsets]
            assert view[0, 0, :, 2].tolist() == list(range(left, left + 8))
            assert view[0, :, 0, 1].tolist() == list(range(8))


def test_segments():
    """One frame per equal segment: centres for testing, anywhere inside for training."""
    for frames, expected in ((40, [*range(2, 40, 5)]), (3, [0, 0, 0, 1, 1, 2, 2, 2])):
        sample = packed(Reader(frames, 25.0), CenterSegmentClip(num_frames=8), num_crops=1)
        assert sample["frames"][sample["positions"][0], 0, 0, 0].tolist() == expected
    seen = [set() for _ in range(8)]
    reader, rng = Reader(40, 25.0), np.random.default_rng(0)
    for _ in range(100):
        (clip,) = RandomSegmentClip(8)({"reader": reader, "rng": rng})["clips"]
        for segment, frame in zip(seen, clip.frames.tolist(), strict=True):
            segment.add(frame)
    assert seen == [set(range(5 * i, 5 * i + 5)) for i in range(8)]
    with pytest.raises(ValueError, match="num_frames"):
        RandomSegmentClip(0)
