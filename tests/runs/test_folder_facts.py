"""Facts of a folder against what was written to it."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.videos import write_video

from sce_video.runs.choices import notes
from sce_video.runs.doctor import check_video_files
from sce_video.runs.folder_facts import examine_folder


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


def test_folders_without_a_readable_video(tmp_path):
    with pytest.raises(ValueError, match="no video in"):
        examine_folder(str(tmp_path))
    (tmp_path / "a.mp4").write_bytes(b"no video")
    with pytest.raises(ValueError, match=r"none of 1 examined videos.*a\.mp4"):
        examine_folder(str(tmp_path))


def test_adjacent_frames_that_are_equal_are_counted(tmp_path):
    """A third of the frames shown twice: 25 of 100 adjacent pairs; others never."""
    rng = np.random.default_rng(0)
    scenes = rng.integers(0, 255, (75, 48, 64, 3), dtype=np.uint8)
    twice = np.sort(np.concatenate([np.arange(75), np.arange(0, 75, 3)]))
    write_video(tmp_path / "twice/a.mp4", scenes[twice])
    write_video(tmp_path / "once/a.mp4", scenes)
    found = examine_folder(str(tmp_path / "twice"))
    stretch = twice[50:67]
    assert found.repeats == (stretch[1:] == stretch[:-1]).mean() > 0.2
    assert f"{100 * found.repeats:.0f} % of adjacent frames are equal" in found.describe()
    once = examine_folder(str(tmp_path / "once"))
    assert once.repeats == 0 and "of adjacent" not in once.describe()
    warned = [finding for finding in check_video_files(found) if finding.level == "warning"]
    assert "next frame that differs" in warned[0].what and warned[0].advice
    assert [f.level for f in check_video_files(once)] == ["ok"]
    assert any("stays RGB" in note for note in notes(found, 64, 1.0, 0.2))
    assert not any(
        "stays RGB" in note for note in (*notes(found, 64, 1.0), *notes(once, 64, 1.0, 0.2))
    )
