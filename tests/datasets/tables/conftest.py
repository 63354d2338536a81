"""Folders of repacked videos, and the tables of them."""

from __future__ import annotations

import pytest
from helpers.tables import write_folder, write_table


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Six repacked videos in two classes, key frames only; not to be changed."""
    return write_folder(tmp_path_factory.mktemp("repacked"))


@pytest.fixture(scope="session")
def table(folder, tmp_path_factory):
    """The table of ``folder``; not to be changed."""
    return write_table(folder, tmp_path_factory.mktemp("tables") / "videos.lance")
