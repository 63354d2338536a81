"""Videos that the parts of a page show."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.videos import write_video

from sce_video.pages.frames import ClipReader


@pytest.fixture(scope="module")
def reader() -> ClipReader:
    """Reads each file once for all tests of a module."""
    return ClipReader(600)


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> list[str]:
    """Twelve videos of noise, which compresses badly."""
    root = tmp_path_factory.mktemp("videos")
    rng = np.random.default_rng(0)
    paths = []
    for i in range(12):
        frames = rng.integers(0, 256, (8, 30, 40, 3), dtype=np.uint8)
        paths.append(str(write_video(root / f"c{i % 3}" / f"{i}.mp4", frames, fps=5)))
    return paths
