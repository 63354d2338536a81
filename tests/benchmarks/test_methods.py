"""benchmarks/methods.py: the ratios by hand, and a small run."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

PASSES = {
    "sce": (2, 2),
    "moco": (1, 1),
    "moco_v3": (2, 2),
    "ressl": (1, 1),
    "simclr": (2, 0),
    "byol": (2, 2),
    "swav": (2, 0),
    "lejepa": (2, 0),
}


@pytest.fixture(scope="module")
def tool(repo):
    sys.path.insert(0, str(repo / "benchmarks"))
    try:
        spec = importlib.util.spec_from_file_location("m", repo / "benchmarks" / "methods.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def test_a_small_run(tool, tmp_path, capsys):
    out = tmp_path / "methods.json"
    options = "--device cpu --frames 2 --size 32 --batch 4 --rounds 1 --json".split()
    options += [str(out), "--cfg-options", "model.backbone.base_channels=4"]
    assert tool.main(options) == 0
    report = json.loads(out.read_text())
    shown = capsys.readouterr().out
    base = report["methods"]["sce"]["seconds"]["cpu"]
    for name, (online, target) in PASSES.items():
        values = report["methods"][name]
        assert values["passes"] == dict(online=online, target=target), name
        assert values["cost"] == 3 * online + target
        ratio = values["seconds"]["cpu"] / base * 8 / values["cost"]
        assert report["ratios"][name] == pytest.approx(ratio)
        assert f"| {name} | {online} / {target} | {values['cost']} | " in shown
    assert set(report["methods"]) == set(PASSES) and report["measured_weight"] > 1
    with pytest.raises(SystemExit):
        tool.main(["--rounds", "0"])
