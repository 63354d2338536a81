"""Commands on data sets whose jobs run in this process: what a process does is in tests/jobs."""

from __future__ import annotations

import pytest

from sce_video.jobs import Workers
from sce_video.jobs.process_pool import run_here


@pytest.fixture
def in_process(monkeypatch):
    """Jobs run here; nothing limits their time, and a crash would end the tests."""
    monkeypatch.setattr(Workers, "run", lambda workers, job, items: run_here(job, items))
