"""A tiny model and a folder of small videos, made once for all tests of the apis."""

from __future__ import annotations

import os
import shutil

import pytest
from helpers.small_index import NAMES
from helpers.tiny_encoder import moving_frames, save_tiny, write_lossless

import sce_video.datasets.transforms.decoding as decoding
from sce_video.apis import load_model


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A tiny checkpoint; not to be changed."""
    return save_tiny(tmp_path_factory.mktemp("model") / "tiny.pth")


@pytest.fixture(scope="session")
def model(checkpoint):
    """The network of the tiny checkpoint."""
    return load_model(checkpoint, device="cpu")


@pytest.fixture(scope="session")
def originals(tmp_path_factory):
    """The videos ``NAMES`` and ``more.mp4``; not to be changed."""
    folder = tmp_path_factory.mktemp("originals")
    for i, name in enumerate([*NAMES, "more.mp4"]):
        write_lossless(folder / name, moving_frames(20, seed=i))
    return folder


@pytest.fixture
def root(tmp_path, originals):
    """Copies of the five videos, a broken video and a text file."""
    for name in NAMES:
        (tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(originals / name, tmp_path / "videos" / name)
    (tmp_path / "videos" / "broken.mp4").write_bytes(b"nothing of a video")
    (tmp_path / "videos" / "notes.txt").write_text("no video")
    return tmp_path / "videos"


@pytest.fixture
def opened(monkeypatch):
    """Names of the files that are opened from now on."""
    names = []
    real = decoding.open_reader

    def counting(path, *args, **kwargs):
        names.append(os.path.basename(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(decoding, "open_reader", counting)
    return names
