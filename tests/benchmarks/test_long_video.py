"""benchmarks/long_video.py: its scenes, and the memory of a process that it measures."""

import importlib.util
import sys

import numpy as np
import pytest


@pytest.fixture(scope="module")
def benchmark(repo):
    spec = importlib.util.spec_from_file_location("long", repo / "benchmarks" / "long_video.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_memory_is_that_of_the_command_alone(benchmark):
    ballast = np.ones(200 * 2**20, dtype=np.uint8)
    found = benchmark.measured([sys.executable, "-c", "b'1' * 60 * 2**20"])
    assert len(ballast) and 60 < found["memory_mb"] < 150
    with pytest.raises(SystemExit, match="status 3"):
        benchmark.measured([sys.executable, "-c", "raise SystemExit(3)"])


def test_every_scene_is_there_once(benchmark):
    total = 120 * benchmark.FPS
    scenes = list(benchmark.scenes(total, 5, seed=1))
    firsts = [first for first, _, _ in scenes]
    lengths = [len(frames) for _, _, frames in scenes]
    assert firsts == np.cumsum([0, *lengths[:-1]]).tolist() and sum(lengths) == total
    planted = [frames for _, planted, frames in scenes if planted]
    assert [len(frames) for frames in planted] == [5 * benchmark.FPS] * 5
    contents = {frames[0].tobytes() for _, _, frames in scenes}
    assert len(contents) == len(scenes)
