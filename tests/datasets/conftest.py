"""What the tests of data sets share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sce_video.datasets import video_dataset
from sce_video.datasets.loading import time_limit
from sce_video.datasets.readers import av_reader, base
from sce_video.datasets.readers import base as limits


@pytest.fixture
def clock(monkeypatch):
    """The time of readers and data sets: it stands still until a test changes ``clock[0]``."""
    now = [0.0]
    for module in (av_reader, base, limits, time_limit, video_dataset):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(video_dataset, "_GRACE", 0.0)
    return now
