"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).resolve().parent))  # tests/helpers/videos.py


@pytest.fixture(scope="session")
def repo() -> Path:
    """The repository's root."""
    return REPO


@pytest.fixture(scope="session")
def shared_videos() -> Path:
    """Folder with ``formats`` and ``weizmann4`` (real files, not part of the project)."""
    root = Path(os.environ.get("SCE_VIDEO_TEST_VIDEOS", REPO.parent / "shared" / "videos"))
    if not (root / "formats").is_dir():
        pytest.skip(f"no real test videos at {root} (set SCE_VIDEO_TEST_VIDEOS)")
    return root
