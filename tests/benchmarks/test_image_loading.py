"""A small run of benchmarks/image_loading.py, and its generated images."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
from helpers.run_tool import run_tool


@pytest.mark.slow
def test_a_small_run(repo, tmp_path):
    path, out = repo / "benchmarks/image_loading.py", tmp_path / "out.json"
    settings = ("--seconds", 0, "--images", 2, "--size", 240, 320, "--json", out)
    done = run_tool(path, *settings)
    assert done.returncode == 0, done.stderr
    values = json.loads(out.read_text())
    assert {"PIL", "torchvision", "ours", "ours, normalised", "OpenCV"} <= set(values["ratios"])
    assert values["size"] == [240, 320] and values["batch"] == 2 and values["rounds"] == 5
    speeds = values["images_per_second"]
    for name, ratio in values["ratios"].items():
        assert ratio == pytest.approx(speeds[name] / speeds["PIL"], rel=0.02)
        assert f"{ratio:6.2f} x PIL" in done.stdout
        to_torchvision = values["ratios_torchvision"][name]
        assert to_torchvision == pytest.approx(speeds[name] / speeds["torchvision"], rel=0.02)


def test_the_images_have_the_spectrum_of_photographs(repo, monkeypatch):
    """The power of brightness falls as 1 / frequency^2: by 16 from 4 to 16 periods."""
    monkeypatch.syspath_prepend(str(repo / "benchmarks"))
    path = repo / "benchmarks/image_loading.py"
    spec = importlib.util.spec_from_file_location("image_loading", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    power = np.zeros((128, 128))
    for seed in range(6):
        image = module.photograph_like(128, 128, seed)
        assert image.shape == (128, 128, 3) and image.dtype == np.uint8
        power += np.abs(np.fft.fft2(image.astype(float).mean(axis=-1))) ** 2
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(128) * 128, np.fft.fftfreq(128) * 128))
    low, high = (power[np.abs(frequency - f) < 1].mean() for f in (4, 16))
    assert 8 < low / high < 32
