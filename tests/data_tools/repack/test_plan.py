"""Paths of outputs."""

from __future__ import annotations

import pytest

from sce_video.data_tools.repack.plan import name_outputs


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
