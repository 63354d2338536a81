"""Packages that import each of their names on first use."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

LAZY = ("sce_video", "sce_video.datasets", "sce_video.engine", "sce_video.evaluation")


@pytest.mark.parametrize("name", LAZY)
def test_every_public_name_is_found(name):
    package = importlib.import_module(name)
    for public in package.__all__:
        exec(f"from {name} import {public}")
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        _ = package.nothing


def test_the_packages_import_nothing_before():
    heavy = {"torch", "mmengine", "numpy"}
    code = f"import sys, {', '.join(LAZY)}; print(*{heavy} & {{*sys.modules}})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "\n"
