"""The generated videos that the automatic choices are measured on."""

from __future__ import annotations

import importlib.util

import numpy as np


def load(repo, name):
    spec = importlib.util.spec_from_file_location(name, repo / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.mp4")}


def test_videos_depend_on_seed_and_number_alone(repo, tmp_path):
    tool = load(repo, "camera_patterns")
    tool.generate(tmp_path / "a", dict(train=3, val=1, test=1))
    tool.generate(tmp_path / "b", dict(train=3, val=1, test=1))
    tool.generate(tmp_path / "c", dict(train=1, val=1, test=1), seed=1)
    one, same, other = files(tmp_path / "a"), files(tmp_path / "b"), files(tmp_path / "c")
    assert one == same and len(one) == 5
    assert len({path.split("/")[1] for path in one if path.startswith("train")}) == 3
    assert len(set(one.values())) == 5  # parts, too, differ
    assert not set(one.values()) & set(other.values())


def test_patterns_repeat_after_a_cell(repo):
    tool = load(repo, "camera_patterns")
    y, x = np.mgrid[-3:3:97j, -3:3:89j]
    for name, pattern in tool.PATTERNS.items():
        here = pattern(x, y, 0.5)
        assert (here > 0).any() and (here < 0).any(), name
        across, down = 2, 2  # bricks are two cells long, and every second row is shifted
        np.testing.assert_allclose(pattern(x + across, y, 0.5), here, atol=1e-9, err_msg=name)
        if name != "waves":  # of a period of its own along the wave
            np.testing.assert_allclose(pattern(x, y + down, 0.5), here, atol=1e-9, err_msg=name)


def test_patterns_are_told_apart_by_their_frames(repo):
    """Two classes at the same random numbers differ in more than noise."""
    tool = load(repo, "camera_patterns")
    frames = [tool.render(name, np.random.default_rng(0))[:3] for name in tool.CLASSES]
    for index, one in enumerate(frames):
        for other in frames[index + 1 :]:
            assert np.abs(one.astype(float) - other).mean() > 3 * tool._NOISE
