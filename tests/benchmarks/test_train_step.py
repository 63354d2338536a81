"""benchmarks/train_step.py with its floor: one small run."""

from __future__ import annotations

import json

import pytest
from helpers.run_tool import run_tool


@pytest.mark.slow
def test_a_small_run(repo, tmp_path):
    out = tmp_path / "step.json"
    command = ["--device", "cpu"]
    command += [*"--frames 2 --size 32 --batch 4 --steps 1 --rounds 1 --json".split(), str(out)]
    command += ["--settings", "eager", "channels_last", "--cfg-options"]
    command += ["model.backbone.base_channels=8", "model.queue_size=64"]
    run = run_tool(repo / "benchmarks/train_step.py", *command)
    assert run.returncode == 0, run.stderr
    report = json.loads(out.read_text())
    network = report["networks"]["r3d18"]
    assert report["ratios"] == network["ratios"] and not network["left_out"]
    assert set(report["ratios"]) == {"channels_last_over_eager", "lars_and_target_share"}
    for name, flags in (("eager", []), ("channels_last", ["channels_last"])):
        values = network["settings"][name]
        assert values["flags"] == flags and len(values["seconds"]["steps"]) == 1
        assert sum(values["parts"].values()) == pytest.approx(1)
        assert values["share_of_peak"] > 0 and values["peak_memory_bytes"] > 2**27
        assert values["clips_per_s"] == pytest.approx(8 / values["seconds"]["wall"])
