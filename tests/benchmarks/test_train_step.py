"""benchmarks/train_step.py: FLOPs, timing of parts, settings, and one small run."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
from helpers.run_tool import run_tool

SMALL = ("model.backbone.base_channels=8", "model.queue_size=64")


@pytest.fixture(scope="module")
def tool(repo):
    sys.path.insert(0, str(repo / "benchmarks"))
    try:
        return importlib.import_module("train_step")
    finally:
        sys.path.pop(0)


def make_job(tool, **changes):
    settings = dict(
        recipe=tool.RECIPES["r3d18"],
        flags=frozenset(),
        frames=4,
        size=64,
        batch=2,
        device="cpu",
        threads=1,
        videos=None,
        workers=0,
        cfg_options=SMALL,
    )
    return tool.Job(**{**settings, **changes})


def test_the_sizes_of_a_recipe_are_used_unless_given(tool, repo):
    recipe = str(repo / "configs/sce/sce_r18_digits_small.py")
    settings = dict(recipe=recipe, frames=None, size=None, batch=None, cfg_options=())
    job = tool.with_sizes(make_job(tool, **settings))
    assert (job.frames, job.size, job.batch) == (1, 16, 32)
    job = tool.with_sizes(make_job(tool, **{**settings, "size": 24, "batch": 4}))
    assert (job.frames, job.size, job.batch) == (1, 24, 4)
    with pytest.raises(ValueError, match="MoCo with 2 views"):
        moco = str(repo / "configs/moco/moco_r18_digits_small.py")
        tool.with_sizes(make_job(tool, **{**settings, "recipe": moco}))


def test_settings(tool, monkeypatch):
    assert tool.flags_of("eager", "cpu") == frozenset()
    assert tool.flags_of("bf16+channels_last", "cpu") == {"bf16", "channels_last"}
    assert tool.flags_of("best", "cpu") >= {"channels_last"}
    with pytest.raises(ValueError, match="unknown setting 'chanels_last'"):
        tool.flags_of("chanels_last", "cpu")
    monkeypatch.setattr(tool, "cpu_has_bf16", lambda: False)
    assert "bf16" not in tool.flags_of("best", "cpu")
    assert "instructions" in tool.obstacle("bf16", "cpu")
    monkeypatch.setattr(tool.shutil, "which", lambda _: None)
    assert "C++ compiler" in tool.obstacle("compile", "cpu")
    assert tool.obstacle("channels_last", "cpu") is None


@pytest.mark.slow
def test_a_small_run(repo, tmp_path):
    out = tmp_path / "step.json"
    command = ["--device", "cpu"]
    command += [*"--frames 2 --size 32 --batch 4 --steps 1 --rounds 2 --json".split(), str(out)]
    command += ["--settings", "eager", "channels_last", "--cfg-options", *SMALL]
    run = run_tool(repo / "benchmarks/train_step.py", *command)
    assert run.returncode == 0, run.stderr
    report = json.loads(out.read_text())
    network = report["networks"]["r3d18"]
    assert report["ratios"] == network["ratios"] and not network["left_out"]
    assert set(report["ratios"]) == {"channels_last_over_eager", "lars_and_target_share"}
    for name, flags in (("eager", []), ("channels_last", ["channels_last"])):
        values = network["settings"][name]
        assert values["flags"] == flags and len(values["seconds"]["steps"]) == 2
        assert sum(values["parts"].values()) == pytest.approx(1)
        assert all(share > 0 for part, share in values["parts"].items())
        assert 0 < values["share_of_peak"] < 1
        assert values["clips_per_s"] == pytest.approx(8 / values["seconds"]["wall"])
        assert 2**27 < values["peak_memory_bytes"] < 2**34
