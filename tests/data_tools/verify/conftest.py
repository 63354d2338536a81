"""Fixtures of the tests of verification."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.videos import write_video


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Good files of 40 frames, 1.6 s, in three containers; noise makes them large."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 64, 80, 3), dtype=np.uint8)
    folder = tmp_path_factory.mktemp("videos")
    options = {"crf": "20", "g": "10", "bf": "0"}
    for name in ("a.mp4", "b.mkv", "c.avi"):
        codec = "mpeg4" if name.endswith("avi") else "libx264"
        write_video(folder / name, noise, codec=codec, options=options)
    return folder
