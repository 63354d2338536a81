"""Facts of a folder against what was written to it."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.videos import write_video

from sce_video.apis.automatic import examine_folder


def write(path, frames=20, height=48, width=64):
    rng = np.random.default_rng(0)
    write_video(path, rng.integers(0, 255, (frames, height, width, 3), dtype=np.uint8))


def test_counts_medians_and_unreadable_files(tmp_path):
    for number, frames in enumerate((10, 20, 60)):
        write(tmp_path / f"class{number % 2}/v{number}.mp4", frames)
    (tmp_path / "class0/broken.mp4").write_bytes(b"no video")
    found = examine_folder(str(tmp_path))
    assert (found.num_videos, found.num_classes, found.num_examined) == (4, 2, 4)
    assert (found.height, found.width, found.short_side) == (48, 64, 48)
    assert found.duration == pytest.approx(20 / found.fps, abs=0.02)
    (bad,) = found.unreadable
    assert bad[0].endswith("class0/broken.mp4") and bad[1]
    assert "4 videos" in found.describe() and "1 of them unreadable" in found.describe()


def test_at_most_48_files_are_opened(tmp_path, monkeypatch):
    write(tmp_path / "v000.mp4")
    for number in range(1, 60):
        (tmp_path / f"v{number:03d}.mp4").hardlink_to(tmp_path / "v000.mp4")
    assert examine_folder(str(tmp_path)).num_examined == 48


def test_folders_without_a_readable_video(tmp_path):
    with pytest.raises(ValueError, match="no video in"):
        examine_folder(str(tmp_path))
    (tmp_path / "a.mp4").write_bytes(b"no video")
    with pytest.raises(ValueError, match=r"none of 1 examined videos.*a\.mp4"):
        examine_folder(str(tmp_path))
