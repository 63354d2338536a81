"""benchmarks/attentive_probe.py: a small run; it compares both ways to compute the probes."""

from __future__ import annotations

import importlib.util


def test_a_small_run(repo, capsys):
    path = repo / "benchmarks" / "attentive_probe.py"
    spec = importlib.util.spec_from_file_location("attentive_probe_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = "--depth 18 --frames 2 --size 32 --batch 2 --classes 3 --rounds 1 --device cpu"
    assert module.main(sizes.split()) == 0
    shown = capsys.readouterr().out
    rows = [line.split(" | ")[0] for line in shown.splitlines() if line.startswith("| ")]
    parts = ["part", "backbone, forward", "linear", "one", "grid", "projected"]
    assert rows == [f"| {part}" for part in parts]
