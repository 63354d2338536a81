"""Models of transformers and a folder of small videos."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.hf_models import VIDEO_SIZE, save_model
from helpers.videos import write_video

pytest.importorskip("transformers", reason="no transformers: pip install 'sce-video[hf]'")
from transformers.utils import is_timm_available


@pytest.fixture(scope="session")
def hf_videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of three videos of 1.2 s: smooth noise that moves."""
    folder = tmp_path_factory.mktemp("hf_videos")
    rng = np.random.default_rng(0)
    for number in range(6):
        coarse = rng.integers(0, 256, (8, 10, 3), dtype=np.uint8)
        frame = np.kron(coarse, np.ones((8, 8, 1), np.uint8))
        height, width = VIDEO_SIZE
        frames = np.stack([np.roll(frame, t, axis=number % 2)[:height, :width] for t in range(30)])
        # Odd sides do not fit 4:2:0: the encoder gets even ones.
        frames = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        write_video(folder / "ab"[number % 2] / f"{number}.mp4", frames)
    return folder


@pytest.fixture(scope="session")
def hf_model(tmp_path_factory: pytest.TempPathFactory) -> Callable:
    """(folder, model) of a family, saved once."""
    saved = {}

    def model(family: str):
        if family == "pe_video" and not is_timm_available():
            pytest.skip("transformers builds networks of timm only next to torchvision")
        if family not in saved:
            folder = tmp_path_factory.mktemp(family) / family
            saved[family] = (folder, save_model(family, folder))
        return saved[family]

    return model


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of models are made below the temporary folder, once for all tests."""
    monkeypatch.setenv("SCE_VIDEO_CACHE", str(tmp_path_factory.getbasetemp() / "hf_cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
