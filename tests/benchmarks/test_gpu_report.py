"""benchmarks/gpu.sh: its driver; CI runs its parts."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
import torch

PART = """
import os, sys, time
from gpu_parts.part import Part
part = Part("fake", sys.argv[1:])
part.run("first", lambda: {"value": 1.0, "passed": True})
part.run("second", lambda: SECOND)
part.run("third", lambda: {"value": 3.0})
sys.exit(0)
"""


@pytest.fixture(scope="module")
def tool(repo):
    sys.path.insert(0, str(repo / "benchmarks"))
    try:
        yield importlib.import_module("gpu_report")
    finally:
        sys.path.remove(str(repo / "benchmarks"))


@pytest.fixture
def run(tool, repo, tmp_path, monkeypatch, capsys):
    """Runs gpu.sh's driver on one part, whose second measurement is given."""
    monkeypatch.setenv("PYTHONPATH", f"{repo}:{repo / 'benchmarks'}:{tmp_path}")
    monkeypatch.setitem(tool.MODULES, "evaluation", "fake_part")

    def call(second: str):
        (tmp_path / "fake_part.py").write_text(PART.replace("SECOND", second))
        out = tmp_path / "out"
        options = f"--device cpu --smoke --parts evaluation --minutes 5 --out {out}"
        status = tool.main(options.split())
        content = json.loads((out / "gpu.json").read_text())
        return status, content["parts"]["evaluation"], capsys.readouterr().out

    return call


def test_a_process_that_dies_costs_its_measurement(run):
    status, part, text = run("os._exit(11)")
    assert status == 1 and not part["passed"]
    assert [part["results"][n].get("value") for n in ("first", "second", "third")] == [1, None, 3]
    assert part["results"]["second"]["error"] == "the process ended in it"
    assert "value 3" in text and "FAILED: evaluation" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--device cpu", "on a CPU only --smoke"),
        ("--device cpu --smoke --minutes 0", "--minutes must be above 0"),
        ("--device cpu --smoke --videos nowhere", "nowhere: no such folder"),
    ],
)
def test_wrong_options(tool, capsys, options, message):
    with pytest.raises(SystemExit):
        tool.main(options.split())
    assert message in capsys.readouterr().err


def test_two_ranks_are_left_out_on_one_gpu(tool, tmp_path, monkeypatch):
    part = importlib.import_module("gpu_parts.two_ranks")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    results = tmp_path / "results.json"
    options = f"--device cuda --seconds 60 --folder {tmp_path} --results {results}"
    assert part.main(options.split()) == 0
    found = {"left_out": "this machine has one GPU, and two ranks need two"}
    assert json.loads(results.read_text()) == {"two ranks": found}


def test_every_gpu_test_is_marked(repo):
    """gpu.sh runs ``-m gpu``: a test that skips without a GPU for another reason is not run."""
    for path in (repo / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8") if path.name != "test_gpu_report.py" else ""
        skips = text.count('mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")')
        assert text.count("@pytest.mark.gpu\n") >= skips, path
