"""Threads of torch beside loader workers."""

from __future__ import annotations

import os

import pytest
import torch

from sce_video.runs.launch import cores_for_workers


@pytest.mark.parametrize(
    ("cores", "workers", "threads"), [(8, 2, 6), (2, 1, 1), (2, 4, 1), (4, 0, 4)]
)
def test_workers_have_cores_of_their_own(monkeypatch, cores, workers, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        with cores_for_workers(workers):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == cores
    finally:
        torch.set_num_threads(before)
