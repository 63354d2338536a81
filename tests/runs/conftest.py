"""What the tests of trainings share."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest


@pytest.fixture(scope="package", autouse=True)
def _configs_are_not_formatted() -> Iterator[None]:
    """mmengine formats the config five times per run, which takes longer than these trainings."""
    with mock.patch("mmengine.config.config.FormatCode", lambda text, **options: (text, False)):
        yield
