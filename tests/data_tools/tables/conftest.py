"""Fixtures of the tests of tables."""

from __future__ import annotations

import pytest
from helpers.tables import inline, write_folder

from sce_video.jobs import process_pool


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Six repacked videos; not to be changed."""
    return write_folder(tmp_path_factory.mktemp("files"))


@pytest.fixture
def inside(monkeypatch):
    """Rows are made in this process."""
    monkeypatch.setattr(process_pool, "process_items", inline)
