"""Thumbnails that are kept for a later run: damaged ones are made again, or named in an error."""

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from helpers.tiny_encoder import moving_frames, write_lossless

from sce_video.curation import comparison
from sce_video.curation.comparison import ThumbnailFile, read_thumbnails
from sce_video.curation.matching import SIDE
from sce_video.curation.selection import motion_of
from sce_video.jobs import StoreError

FACTS = {"duration": 1.0, "height": 48, "width": 64}


def stored(times):
    """Data of a record with frames at these times."""
    return np.array(times, np.float64).tobytes() + bytes(len(times) * SIDE * SIDE)


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    return [str(write_lossless(folder / f"{i}.mp4", moving_frames(20, seed=i))) for i in (0, 1)]


def frames_of(folder, videos):
    """Thumbnails of the videos, motion included, and how many files were read."""
    read = []
    found = ThumbnailFile(folder)
    try:
        assert read_thumbnails(found, videos, 0, lambda *args: read.append(args)) == []
        thumbnails = [found.places[i].read() for i in range(len(videos))]
        return [(t.frames.tobytes(), t.times.tolist(), motion_of(t)) for t in thumbnails], read
    finally:
        found.close()


@pytest.mark.parametrize(
    "change",
    [
        {"facts": json.dumps({})},
        {"facts": json.dumps({**FACTS, "duration": "x"})},
        {"facts": json.dumps({**FACTS, "duration": None, "height": []})},
        {"facts": json.dumps({**FACTS, "duration": float("nan")})},
        {"facts": json.dumps({**FACTS, "duration": -1.0})},
        {"facts": json.dumps({**FACTS, "height": 0})},
        {"facts": json.dumps({**FACTS, "width": 10**30})},
        {"data": b""},
        {"data": stored([0.0, 1.0])[:-1]},
        {"data": stored([0.0, float("nan")])},
        {"data": stored([2.0, 1.0, 0.0])},
        {"data": stored([0.0, 0.0])},
        {"data": stored([1.0, 2.0])},
    ],
)
def test_a_damaged_record_is_made_again(tmp_path, videos, change):
    expected, read = frames_of(tmp_path, videos)
    assert len(read) == 2 and frames_of(tmp_path, videos) == (expected, [])
    with closing(sqlite3.connect(tmp_path / comparison.THUMBNAILS)) as base:
        ((name, value),) = change.items()
        base.execute(f"UPDATE records SET {name} = ? WHERE key = ?", (value, videos[0]))
        base.commit()
    again, read = frames_of(tmp_path, videos)
    assert again == expected and len(read) == 1
    assert frames_of(tmp_path, videos) == (expected, [])


def test_a_damaged_file_is_told_in_a_sentence(tmp_path, videos):
    frames_of(tmp_path, videos)
    file = tmp_path / comparison.THUMBNAILS
    content = file.read_bytes()
    for damaged in (content[:5000], content[:4096] + bytes(len(content) - 4096), b"nothing"):
        file.write_bytes(damaged)
        with pytest.raises(StoreError, match=r"thumbnails\.sqlite is .*Delete it to create"):
            frames_of(tmp_path, videos)
    file.unlink()
    assert len(frames_of(tmp_path, videos)[1]) == 2
