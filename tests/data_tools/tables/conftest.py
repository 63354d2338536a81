"""Fixtures of the tests of tables."""

from __future__ import annotations

import pytest
from helpers.tables import write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six repacked videos; not to be changed."""
    return write_folder(tmp_path_factory.mktemp("files"))
