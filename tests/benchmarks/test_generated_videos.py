"""The generated videos that the automatic choices are measured on."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest


def load(repo, name):
    spec = importlib.util.spec_from_file_location(name, repo / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.mp4")}


@pytest.mark.parametrize(("name", "classes"), [("moving_digits", 10), ("moving_textures", 8)])
def test_videos_depend_on_seed_and_number_alone(repo, tmp_path, name, classes):
    if name == "moving_digits":
        pytest.importorskip("sklearn")
    tool = load(repo, name)
    tool.generate(tmp_path / "a", dict(train=3, val=1, test=1))
    tool.generate(tmp_path / "b", dict(train=3, val=1, test=1))
    tool.generate(tmp_path / "c", dict(train=1, val=1, test=1), seed=1)
    one, same, other = files(tmp_path / "a"), files(tmp_path / "b"), files(tmp_path / "c")
    assert one == same and len(one) == 5
    assert len({path.split("/")[1] for path in one if path.startswith("train")}) == min(3, classes)
    assert len(set(one.values())) == 5  # parts, too, differ
    assert not set(one.values()) & set(other.values())


def test_the_digit_moves_and_is_in_every_frame(repo):
    pytest.importorskip("sklearn")
    tool = load(repo, "moving_digits")
    frames = tool.render(np.full((8, 8), 255, np.uint8), np.random.default_rng(0)).astype(float)
    away = np.abs(frames - np.median(frames, axis=(1, 2), keepdims=True)).mean(axis=-1) > 40
    areas = away.sum(axis=(1, 2))
    assert (areas > 25**2).all() and (areas < 64**2).all()
    centres = np.array([np.argwhere(frame).mean(axis=0) for frame in away])
    assert np.linalg.norm(centres.max(axis=0) - centres.min(axis=0)) > 20


def test_more_videos_than_digits(repo, tmp_path):
    pytest.importorskip("sklearn")
    tool = load(repo, "moving_digits")
    tool.encode = lambda frames: b"x"
    tool.render = lambda digit, rng: None
    with pytest.raises(ValueError, match="test has 364 digits, not 1000"):
        tool.generate(tmp_path, dict(train=1, val=1, test=1000))
