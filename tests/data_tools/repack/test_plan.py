"""Shards, and paths of outputs."""

from __future__ import annotations

import pytest

from sce_video.data_tools.repack import (
    Shard,
)
from sce_video.data_tools.repack.plan import name_outputs


def test_shards_cover_any_list_exactly():
    paths = [f"class {i % 7}/video_{i}.mp4" for i in range(5000)]
    for count in (1, 2, 7, 32):
        shards = [Shard(number, count) for number in range(1, count + 1)]
        held = [[path for path in paths if shard.holds(path)] for shard in shards]
        assert sorted(sum(held, [])) == sorted(paths)
        assert min(map(len, held)) > 0.7 * 5000 / count


def test_names_of_outputs():
    assert name_outputs(["a.avi", "a.mp4", "b.mkv", "c/d.e.mov", "f"]) == {
        "a.avi": "a.avi.mp4",
        "a.mp4": "a.mp4",
        "b.mkv": "b.mp4",
        "c/d.e.mov": "c/d.e.mp4",
        "f": "f.mp4",
    }
    with pytest.raises(ValueError, match=r"a\.avi\.mp4"):
        name_outputs(["a.avi", "a.mkv", "a.avi.mp4"])
