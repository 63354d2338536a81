"""Shared by the tests of trainings."""

from __future__ import annotations

import pytest
from helpers.training import make_videos


@pytest.fixture(scope="session")
def videos(tmp_path_factory):
    """12 tiny videos in two classes: 3 iterations an epoch of ``small_config``."""
    return make_videos(tmp_path_factory.mktemp("videos"))
