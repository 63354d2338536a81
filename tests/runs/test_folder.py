"""Facts of a folder and of configs: settings, differences, chance level."""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.videos import write_video

from sce_video.engine.config.load import load_config
from sce_video.pages.run_record import different_settings, flattened
from sce_video.runs.choices import notes
from sce_video.runs.folder import chance_level
from sce_video.runs.folder_facts import MAX_BAD_SHARE, examine_folder
from sce_video.runs.machine_checks import check_video_files

CONFIG = {
    "model": {"type": "SCE", "tau": 0.1, "views": (1, 2)},
    "pipeline": [{"type": "OpenVideo"}, {"type": "RandomClips", "num_frames": 8}],
    "stages": [{"type": "A", "n": 1}, {"type": "A", "n": 2}],
    "planned": True,
    "_helper": 3,
    "work_dir": "runs/a",
}


def test_settings_are_named_by_the_types_of_steps():
    assert flattened(CONFIG) == {
        "model.type": "SCE",
        "model.tau": "0.1",
        "model.views": "[1, 2]",
        "pipeline.OpenVideo.type": "OpenVideo",
        "pipeline.RandomClips.type": "RandomClips",
        "pipeline.RandomClips.num_frames": "8",
        "stages.0.type": "A",
        "stages.0.n": "1",
        "stages.1.type": "A",
        "stages.1.n": "2",
    }


def test_only_differences_are_listed():
    other = {**CONFIG, "model": {"type": "SCE", "tau": 0.2, "views": [1, 2]}, "seed": 1}
    assert different_settings([CONFIG, other]) == {
        "model.tau": ["0.1", "0.2"],
        "seed": ["not set", "1"],
    }
    assert different_settings([CONFIG, {**CONFIG, "work_dir": "b"}, CONFIG]) == {}


def test_the_chance_level_of_a_recipe():
    moco, byol = (load_config(f"{n}_r3d18_folder_small").to_dict() for n in ("moco", "byol"))
    assert chance_level(moco) == pytest.approx(math.log(moco["model"]["queue_size"] + 1))
    assert chance_level(byol) is None


@pytest.mark.parametrize(
    "model",
    [
        *(None, {"type": "NoSuchMethod"}, {"type": "Recognizer3D"}),
        {"type": "SCE", "projector": {"type": "Visualizer"}},
        {"type": "SCE", "queue_size": "many"},
    ],
)
def test_other_models_have_none(model):
    assert chance_level({"model": model}) is None


@pytest.mark.parametrize(
    "model",
    [
        {"type": "named_by_a_stranger.Evil"},
        {"type": "SCE", "_scope_": "named_by_a_stranger"},
        {"type": "SCE", "projector": {"type": "MLP", "_scope_": "named_by_a_stranger"}},
        {"type": "SCE", "projector": {"type": "named_by_a_stranger.Evil"}},
        {"type": "SCE", "init_cfg": {"type": "named_by_a_stranger.Evil"}},
    ],
)
def test_no_module_of_a_stranger_is_imported(model, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "named_by_a_stranger"
    package.mkdir()
    for name in ("__init__", "registry"):
        (package / f"{name}.py").write_text("Evil = dict\n")
    chance_level({"model": model})
    assert not [name for name in sys.modules if name.startswith("named_by_a_stranger")]


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
    keys = {distance: replace(found, key_distance=distance).describe() for distance in (1.0, 10.0)}
    assert "every frame is a key frame" in keys[1.0]
    assert "a key frame every 10 frames" in keys[10.0]


def test_a_training_on_too_many_unreadable_files_is_refused(tmp_path):
    for recipe in ("sce/sce_r3d18_folder.py", "downstream/finetune/r3d18_folder.py"):
        config = load_config(Path(__file__).parents[2] / "configs" / recipe)
        assert config.default_hooks.bad_files.max_bad_share == MAX_BAD_SHARE
    write(tmp_path / "v/0.mp4")
    for number in range(1, 9):
        shutil.copy(tmp_path / "v/0.mp4", tmp_path / f"v/{number}.mp4")
    (tmp_path / "v/bad.mp4").write_bytes(b"no video")
    found = examine_folder(str(tmp_path / "v"))
    found.check_readable()  # one of ten
    (tmp_path / "v/8.mp4").write_bytes(b"no video")
    with pytest.raises(ValueError, match=r"2 of 10 examined.*tolerates only 10%.*8\.mp4"):
        examine_folder(str(tmp_path / "v")).check_readable()
    some = replace(found, num_videos=500, unreadable=found.unreadable * 2)
    some.check_readable()  # of all 500 a tenth may be readable
    with pytest.raises(ValueError, match="3 of 10 examined"):
        replace(some, unreadable=found.unreadable * 3).check_readable()


def test_folders_without_a_readable_video(tmp_path):
    with pytest.raises(ValueError, match="no video in"):
        examine_folder(str(tmp_path))
    (tmp_path / "a.mp4").write_bytes(b"no video")
    with pytest.raises(ValueError, match=r"none of the 1 examined videos.*a\.mp4"):
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
