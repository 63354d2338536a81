"""The oldest Python and torch: one number in setup.py, the checks and the pages."""

from __future__ import annotations

import re

from packaging.version import Version

from sce_video.dependencies import dependency_problems
from sce_video.runs.doctor import FAILURE, check_python

PYTHON, TORCH = (3, 11), "2.6"


def test_every_statement_is_the_same(repo):
    setup = (repo / "setup.py").read_text(encoding="utf-8")
    assert f'python_requires=">={PYTHON[0]}.{PYTHON[1]}"' in setup and f'"torch>={TORCH}"' in setup
    settings = (repo / "pyproject.toml").read_text(encoding="utf-8")
    assert f'target-version = "py{PYTHON[0]}{PYTHON[1]}"' in settings
    page = (repo / "docs/performance.md").read_text(encoding="utf-8")
    assert re.search(rf"Python {PYTHON[0]}\.{PYTHON[1]} or later, torch {TORCH} or later", page)


def test_older_ones_are_refused():
    assert check_python((PYTHON[0], PYTHON[1] - 1)).level == FAILURE
    assert check_python(PYTHON).level != FAILURE

    def problems(torch):
        return " ".join(dependency_problems(lambda *names: Version(torch), lambda name: True))

    assert f"torch 2.5.1 is older than {TORCH}" in problems("2.5.1")
    assert "is older than 2." not in problems(TORCH).replace("mmaction2", "")


def test_transformers_is_the_one_that_was_tested(repo):
    """What its configs can make it load or import was looked for in that version."""
    setup = (repo / "setup.py").read_text(encoding="utf-8")
    pinned = (repo / "requirements/constraints.txt").read_text(encoding="utf-8")
    tested = re.search(r"^transformers==(\d+\.\d+)\.", pinned, re.MULTILINE)[1]
    assert set(re.findall(r'"transformers([^"]*)"', setup)) == {f">={tested}"}
