"""Reading a value in nested dicts, whatever its path leads through."""

from __future__ import annotations

import pytest
from mmengine.config import Config

from sce_video.utils.records import at

DATA = {"model": {"type": "SCE", "depth": 18, "sizes": [1, 2]}, "on": True, "none": None}


@pytest.mark.parametrize("data", [DATA, Config(DATA)])
@pytest.mark.parametrize(
    ("path", "kind", "value"),
    [
        ("model.type", None, "SCE"),
        ("model.depth", int, 18),
        ("model.depth", int | float, 18),
        ("model.depth", str, None),
        ("model.sizes", list, [1, 2]),
        ("model", dict, DATA["model"]),
        ("model.type.name", None, None),
        ("model.sizes.0", None, None),
        ("other.type", None, None),
        ("none.type", None, None),
        ("on", bool, True),
        ("on", int, None),  # a bool is not a number
        ("on", None, True),
    ],
)
def test_a_path_of_keys(data, path, kind, value):
    assert at(data, path, kind) == value


@pytest.mark.parametrize("data", [None, 5, "text", [DATA]])
def test_what_is_no_dict_has_nothing(data):
    assert at(data, "model") is None
