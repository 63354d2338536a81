"""Small runs of keyframe_distance.py, batch_memory.py, worker_memory.py and video_list.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import av
import pytest
from helpers.run_tool import run_tool
from helpers.videos import numbered_frames, write_video


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    root = tmp_path_factory.mktemp("videos")
    for i in range(8):
        write_video(root / f"{i}.mp4", numbered_frames(60 + i, 48, 64), options={"g": "30"})
    return root


def run(repo, name, *arguments):
    """Those that measure memory do so in new processes of their own."""
    return run_tool(repo / "benchmarks" / f"{name}.py", *arguments)


def run_alone(repo, name, *arguments):
    """In a process that has imported nothing more than it needs, whose memory is measured."""
    command = [sys.executable, str(repo / "benchmarks" / f"{name}.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(repo), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.mark.slow
def test_keyframe_distance(repo, videos, tmp_path):
    files = sorted(videos.iterdir())[:2]
    outputs = ("--json", tmp_path / "a.json", "--figure", tmp_path / "a.png")
    settings = ("--keyint", 1, 4, "--crf", "auto", "40", "--rounds", 2)
    done = run(repo, "keyframe_distance", *files, *settings, *outputs)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "a.json").read_text())
    assert sorted(result["files"]) == ["0.mp4", "1.mp4"]
    rows = {(row["keyint"], row["crf"]): row for row in result["mean"]}
    assert list(rows) == [("source", ""), (1, "auto"), (1, "40"), (4, "auto"), (4, "40")]
    assert rows[1, "auto"]["psnr_luma"] > max(36, rows[1, "40"]["psnr_luma"])
    assert rows[1, "40"]["ratio"] > rows[4, "40"]["ratio"], "more key frames, more bytes"
    for row in result["mean"]:
        mean = row["videos_per_cpu_second"] / rows["source", ""]["videos_per_cpu_second"]
        assert row["speedup"] == pytest.approx(mean)
    assert "means over 2 files" in done.stdout
    with av.open(str(tmp_path / "a.png")) as image:
        assert next(image.decode(video=0)).width == 900


def test_batch_memory(repo, videos, tmp_path):
    done = run(repo, "batch_memory", "--videos", videos, "--batches", 6, "--rounds", 1,
               "--json", tmp_path / "b.json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "b.json").read_text())
    # A sample is 588 pages; with two batches under way some batches of six are new as well.
    assert result["new"]["page_faults"] > result["used again"]["page_faults"] + 100
    ratio = result["new"]["wall_ms"] / result["used again"]["wall_ms"]
    assert result["ratio"]["wall_ms"] == pytest.approx(ratio)


@pytest.mark.slow
def test_worker_memory(repo, videos, tmp_path):
    done = run_alone(repo, "worker_memory", "--videos", videos, "--samples", 80, "--workers", 2,
               "--batch-size", 2, "--json", tmp_path / "m.json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "m.json").read_text())
    assert result["samples"] == 80 and sorted(result["workers"]) == ["0", "1"]
    for worker, series in result["series_mib"].items():
        assert len(series) >= 15 and 1 < min(series) <= max(series) < 2000
        assert f"worker {worker}: " in done.stdout
        values = result["workers"][worker]
        grown = values["late_mib"] - values["early_mib"]
        assert values["growth_mib"] == pytest.approx(grown, abs=0.02)


@pytest.mark.slow
def test_video_list(repo, tmp_path):
    done = run(repo, "video_list", "--lines", 5000, "--workers", 1, "--json", tmp_path / "l.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "l.json").read_text())
    for variant in ("arrays", "strings", "one line"):
        (mib,) = result[variant]["worker_mib"]
        assert 1 < mib < 2000 and f"{variant}: " in done.stdout
    assert result["arrays"]["checksum"] == result["strings"]["checksum"] > 5000 * 40


@pytest.mark.slow
def test_unit_costs_and_the_plan(repo, videos, tmp_path):
    pytest.importorskip("lance")
    costs = tmp_path / "c.json"
    done = run_alone(repo, "unit_costs", "--videos", videos, "--all", "--items", 200, "--rows", 300,
               "--rounds", 1, "--json", costs)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(costs.read_text())
    assert len(found["videos"]) == 8 and found["table"]["rows"] == 300
    assert min(found["video"].values()) > 0 and found["driver"]["record_bytes"] > 300
    plan = run(repo, "scale_plan", costs, "--cores", 10, "--dimensions", 1000)
    assert plan.returncode == 0, plan.stderr
    assert "| features, 1000 numbers | 4 GB | 40 GB | 400 GB |" in plan.stdout
    hours = found["video"]["verify"] * 1e8 / 3600
    line = next(line for line in plan.stdout.splitlines() if line.startswith("| verify"))
    assert f"{hours:,.0f}; " in line.split("|")[-2]
