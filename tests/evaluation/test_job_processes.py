"""Processes that run a network: devices, modules, reasons."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from helpers.crashing_reads import CrashingReads

from sce_video.evaluation.extraction import (
    device_of_process,
    explain_network_error,
    failure_of,
    modules_of,
    time_limit,
)
from sce_video.jobs import Record


def test_processes_are_spread_over_the_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    process, found = multiprocessing.current_process(), []
    for number in (1, 2, 3, 4):
        monkeypatch.setattr(process, "_identity", (number,))
        found.append(str(device_of_process("cuda")))
    assert found == ["cuda:1", "cuda:0", "cuda:1", "cuda:0"]
    assert str(device_of_process("cuda:1")) == "cuda:1"  # of a rank
    assert str(device_of_process("cpu")) == "cpu"


def test_modules_are_those_that_register_the_parts():
    network = torch.nn.Sequential(CrashingReads(), torch.nn.Linear(1, 1))
    assert modules_of(network.modules()) == ["helpers.crashing_reads"]


def test_reasons_and_limits():
    record = Record("a", False, None, {}, kind="crash", reason="killed by SIGSEGV")
    assert failure_of(record) == "crashed the process that was reading it (killed by SIGSEGV)"
    full = torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
    assert "memory is full (CUDA out of memory.): take fewer" in explain_network_error(full, "a")
    assert explain_network_error(RuntimeError("no"), "a.mp4") == "the network fails for a.mp4: no"
    assert time_limit(60.0) == pytest.approx(660.0) and time_limit(None) > 1e5
