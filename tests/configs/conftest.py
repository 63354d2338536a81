"""The files in configs/ do not change: each is read once, not once for every recipe on it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from mmengine.config import Config

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
known: dict = {}


# Of a module: other tests of the process see files merged into their bases.
@pytest.fixture(scope="module", autouse=True)
def read_once():
    original = vars(Config)["_file2dict"]

    def read(filename, *options, **named):
        if CONFIGS not in Path(filename).resolve().parents:
            return original.__func__(filename, *options, **named)
        key = (str(Path(filename).resolve()), options, tuple(named.items()))
        if key not in known:
            known[key] = original.__func__(filename, *options, **named)
        return copy.deepcopy(known[key])

    Config._file2dict = staticmethod(read)
    yield
    Config._file2dict = original
