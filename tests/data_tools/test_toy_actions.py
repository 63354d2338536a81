"""Toy actions: h264 files, disjoint parts, reproducible, with distinguishable classes."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pytest

from sce_video.data_tools import generated as toy_actions
from sce_video.data_tools.generated import CLASSES, HOWS, WHATS, generate_toy_actions
from sce_video.data_tools.generated import render_toy_action as render

SMALL = {"size": 32, "num_frames": 12, "fps": 10}


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*.mp4"))}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("toy") / "videos"
    return generate_toy_actions(root, {"train": 14, "val": 12, "test": 3}, seed=5, **SMALL)


def test_files_are_h264_of_the_given_shape_in_a_folder_per_class(made: Path) -> None:
    counts = {part: len(list(made.glob(f"{part}/*/*.mp4"))) for part in ("train", "val", "test")}
    assert counts == {"train": 14, "val": 12, "test": 3}
    assert {p.name for p in (made / "train").iterdir()} == set(CLASSES)
    with av.open(str(next(made.glob("train/*/*.mp4")))) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.average_rate) == ("h264", 10)
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert [frame.shape for frame in frames] == [(32, 32, 3)] * 12


def test_equal_seeds_give_equal_files_for_any_number_of_workers(made: Path, tmp_path: Path) -> None:
    files = contents(made)
    assert len(set(files.values())) == len(files) == 29
    again = generate_toy_actions(tmp_path / "a", {"train": 14}, seed=5, workers=1, **SMALL)
    assert contents(again) == {k: v for k, v in files.items() if k.startswith("train/")}
    other = generate_toy_actions(tmp_path / "b", {"train": 2}, seed=6, **SMALL)
    assert not set(contents(other).values()) & set(files.values())


def test_other_parameters_are_refused_unless_told_to_overwrite(tmp_path: Path) -> None:
    root = tmp_path / "v"
    generate_toy_actions(root, {"val": 13}, seed=1, **SMALL)
    before = contents(root)
    with pytest.raises(ValueError, match="seed.*overwrite=True"):
        generate_toy_actions(root, {"val": 13}, seed=2, **SMALL)
    assert contents(root) == before
    generate_toy_actions(root, {"val": 1}, seed=2, overwrite=True, **SMALL)
    assert len(contents(root)) == 1
    assert not set(contents(root).values()) & set(before.values())
    assert json.loads((root / "manifest.json").read_text())["seed"] == 2


def test_a_part_is_added_but_never_changed_in_size(tmp_path: Path) -> None:
    root = tmp_path / "v"
    generate_toy_actions(root, {"train": 3}, **SMALL)
    before = contents(root)
    generate_toy_actions(root, {"train": 3, "val": 2}, **SMALL)
    generate_toy_actions(root, {"val": 2}, **SMALL)
    assert {k: v for k, v in contents(root).items() if k in before} == before
    assert len(contents(root)) == 5
    with pytest.raises(ValueError, match="a different number of train videos"):
        generate_toy_actions(root, {"train": 2}, **SMALL)  # a third video would stay in the folder
    assert len(contents(root)) == 5


def test_bad_parameters_and_other_folders_are_left_alone(tmp_path: Path) -> None:
    arguments = {"num_videos": {"val": 1}, **SMALL}
    for change, message in (({"size": 33}, "even.*got 33"), ({"seed": -1}, "seed.*-1")):
        with pytest.raises(ValueError, match=message):
            generate_toy_actions(tmp_path / "v", **{**arguments, **change})
    assert not (tmp_path / "v").exists()
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(ValueError, match="not empty"):
        generate_toy_actions(tmp_path, overwrite=True, **arguments)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(("what", "how"), zip((*WHATS, WHATS[0]), HOWS, strict=True))
def test_colours_are_muted_and_the_disc_moves(what: str, how: str) -> None:
    frames = render(what, how, np.random.default_rng(3)).astype(float)
    saturation = frames.max(axis=-1) - frames.min(axis=-1)
    assert saturation.mean() < 12
    assert np.abs(frames[7] - frames[0]).mean() > 4
    assert frames.std() > 8
    with pytest.raises(ValueError, match="wobble"):
        render(what, "wobble", np.random.default_rng(0))


def test_motions_agree_with_their_names() -> None:
    seconds = np.arange(90, dtype=np.float32) / 30
    paths = {how: toy_actions._draw_motion(how, np.random.default_rng(0), seconds) for how in HOWS}
    x, y, _ = paths["bounce"]
    velocity = np.hypot(np.diff(x), np.diff(y))
    assert np.isclose(velocity, np.median(velocity), rtol=1e-3).mean() > 0.8  # except at the walls
    assert min(x.min(), y.min()) >= 0.15 - 1e-6 and max(x.max(), y.max()) <= 0.85 + 1e-6
    x, y, _ = paths["circle"]
    reach = np.hypot(x - (x.max() + x.min()) / 2, y - (y.max() + y.min()) / 2)
    assert np.ptp(reach) < 0.01 < reach.min()
    x, y, _ = paths["shake"]
    assert np.ptp(x) < 0.5 and np.ptp(y) < 0.5
    steps = np.diff(x if np.ptp(x) > np.ptp(y) else y)
    assert (np.diff(np.sign(steps)) != 0).sum() >= 6  # turns in 3 s
    radius = paths["pulse"][2]
    assert radius.max() / radius.min() > 1.6
    assert all(np.ptp(paths[how][2]) == 0 for how in ("bounce", "circle", "shake"))


def test_lists_of_patterns_label_what_a_frame_shows(made: Path) -> None:
    lists = toy_actions.write_pattern_lists(made)
    assert [path.name for path in lists] == [f"{p}_patterns.txt" for p in ("train", "val", "test")]
    for path, count in zip(lists, (14, 12, 3), strict=True):
        lines = [line.split() for line in path.read_text().splitlines()]
        assert len(lines) == count
        for video, label in lines:
            assert (made / video).is_file() and video.startswith(path.name.split("_")[0])
            assert video.split("/")[1].startswith(WHATS[int(label)])
