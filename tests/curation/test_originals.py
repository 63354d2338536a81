"""An edited copy never wins over the video that it was made from."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sce_video.curation import near_duplicates
from sce_video.curation.comparison import ThumbnailFile
from sce_video.curation.matching import Thumbnails
from sce_video.curation.near_duplicates import Decisions, grouped, pairs_of_frames
from sce_video.curation.originals import edited_videos
from sce_video.options.find import EDITS

from .test_edited_copies import _SIZE, EDITED, filmed, sized, texted, video


def logo(frames: np.ndarray) -> np.ndarray:
    frames = frames.copy()
    frames[:, 6:20, 70:90] = np.where(np.arange(20) % 8 < 4, 250, 10)
    return frames


KINDS = {
    "cropped a little": lambda f: sized(f[:, 6:84, 4:82], _SIZE),
    "cropped": lambda f: sized(f[:, 40:84, 20:64], _SIZE),
    "inset": EDITED["inset"][1],
    "text": texted,
    "logo": logo,
    "covered": EDITED["covered"][1],
    "mirrored": lambda f: f[:, :, ::-1],
    "letterbox": lambda f: sized(np.pad(f, ((0, 0), (24, 24), (0, 0))), _SIZE),
}


def groups(tmp_path, shown: list[Thumbnails], files: list[str]) -> list:
    """Groups of near-duplicates and edited copies; the last video has the highest bitrate."""
    with closing(ThumbnailFile(tmp_path)) as stored:
        for number, frames in enumerate(shown):
            stored.add(number, frames)
        pairs = np.empty((0, 2), dtype=np.int64)
        edges, _ = pairs_of_frames(stored, pairs, 0.97, 20, EDITS)
        edited = edited_videos(stored.places, edges, files)
    return grouped(edges, lambda row: (-row,), files, Decisions(), edited)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [True, False])
def test_the_original_is_kept_whatever_the_bitrate_is(tmp_path, kind, first):
    original = filmed(2)
    pair = [video(original), video(KINDS[kind](original))]
    files = [str(tmp_path / name) for name in ("original.mp4", "edited.mp4", "other.mp4")]
    for file in files:
        Path(file).touch()
    os.utime(files[0], (1000, 1000))
    order = [0, 1] if first else [1, 0]
    shown = [pair[number] for number in order] + [video(filmed(5))]
    (group,) = groups(tmp_path, shown, [*(files[n] for n in order), files[2]])
    assert group.kept == order.index(0), kind


def test_of_mirrored_videos_those_with_more_copies_are_the_originals(tmp_path):
    frames = filmed(3)
    shown = [video(frames), replace(video(frames), height=50), video(frames[:, :, ::-1])]
    (group,) = groups(tmp_path, shown, ["a.mp4", "b.mp4", "c.mp4"])
    assert group.kept == 1 and len(group.removed) == 2


def test_a_plain_copy_is_not_called_edited(tmp_path):
    frames = filmed(4)
    noisy = frames + np.random.default_rng(0).normal(0, 6, frames.shape)
    copy = sized(noisy.clip(0, 255).astype(np.uint8), 70)
    with closing(ThumbnailFile(tmp_path)) as stored:
        for number, shown in enumerate((frames, copy, frames[8:60])):
            stored.add(number, video(sized(shown, _SIZE)))
        edges, _ = pairs_of_frames(stored, np.empty((0, 2), dtype=np.int64), 0.97, 20, EDITS)
        assert len(edges) == 3
        assert edited_videos(stored.places, edges, ["a.mp4", "b.mp4", "c.mp4"]) == {}


def test_where_all_are_edited_the_best_one_is_kept():
    edges = {(0, 1): near_duplicates.Removed(0, 1, 0.99)}
    for edited, kept in (({}, 0), ({(0, 1): 0}, 1)):
        (group,) = grouped(edges, lambda row: (row,), ["a", "b"], Decisions(), edited)
        assert group.kept == kept
    decided = Decisions(frozenset("a"))
    (group,) = grouped(edges, lambda row: (row,), ["a", "b"], decided, {(0, 1): 0})
    assert group.kept == 0, "a decision by hand goes first"
