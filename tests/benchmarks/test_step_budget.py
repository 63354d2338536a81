"""benchmarks/step_budget.py: no step costs more than recorded, and what raises a count is seen."""

from __future__ import annotations

import importlib
import sys
from dataclasses import fields

import pytest
import torch

from sce_video.models.algorithms import sce
from sce_video.utils.files import read_json

ALLOWED = 1.05


@pytest.fixture(scope="module")
def tool(repo):
    sys.path.insert(0, str(repo / "benchmarks"))
    try:
        yield importlib.import_module("step_budget")
    finally:
        sys.path.remove(str(repo / "benchmarks"))


@pytest.fixture(scope="module")
def recorded(tool):
    return {name: tool.Counts(**counts) for name, counts in read_json(tool.RECORDED).items()}


def risen(tool, found, recorded) -> list[str]:
    """Names of the counts that are more than 5 % above the recorded ones."""
    names = [field.name for field in fields(tool.Counts)]
    return [n for n in names if getattr(found, n) > ALLOWED * getattr(recorded, n)]


@pytest.mark.parametrize("method", "sce moco moco_v3 ressl simclr byol swav lejepa".split())
def test_no_count_rises(tool, recorded, method):
    """If a rise is wanted, write it down: ``python benchmarks/step_budget.py --record``."""
    assert risen(tool, tool.counts_of(method), recorded[method]) == []


def test_the_augmentation_keeps_its_aim(recorded):
    """At most 20 GB and 150 kernels for 64 samples of two views of 8x224."""
    for counts in recorded.values():
        assert counts.augmentation_kernels <= 150 and counts.augmentation_gigabytes <= 20


def test_more_kernels_and_a_wait_are_found(tool, recorded, monkeypatch):
    terms = sce.sce_terms

    def wasteful(*args, **kwargs):
        found = terms(*args, **kwargs)
        for _ in range(60):
            found.infonce.clone()
        if found.infonce.device.type == "cpu":  # a value cannot be read on the meta device
            found.infonce.mean().item()
        return found

    monkeypatch.setattr(sce, "sce_terms", wasteful)
    assert risen(tool, tool.counts_of("sce"), recorded["sce"]) == ["kernels", "waits"]


def test_a_graph_break_is_found(tool):
    def broken(x):
        x = 2 * x
        torch._dynamo.graph_break()
        return x + 1

    assert tool.graph_breaks(broken, torch.ones(2)) == 1
