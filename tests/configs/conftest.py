"""The files in configs/ do not change: each is read once, not once for every recipe on it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from sce_video.engine.config import inheritance

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
known: dict = {}


# Of a module: other tests of the process see files merged into their bases.
@pytest.fixture(scope="module", autouse=True)
def read_once():
    original = inheritance._read_with_bases

    def read(path, sources=None):
        resolved = Path(path).resolve()
        if sources is not None or CONFIGS not in resolved.parents:
            return original(path, sources)
        if resolved not in known:
            known[resolved] = original(path)
        return copy.deepcopy(known[resolved])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inheritance, "_read_with_bases", read)
        yield
