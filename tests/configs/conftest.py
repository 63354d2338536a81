"""The files in configs/ do not change: each is read once, not once for every recipe on it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from sce_video.engine.config import changes

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.fixture(scope="session", autouse=True)
def read_once():
    original, known = changes._read_with_bases, {}

    def read(path):
        resolved = Path(path).resolve()
        if CONFIGS not in resolved.parents:
            return original(path)
        if resolved not in known:
            known[resolved] = original(path)
        return copy.deepcopy(known[resolved])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "_read_with_bases", read)
        yield
