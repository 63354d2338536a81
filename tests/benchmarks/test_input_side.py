"""benchmarks/data_pipeline.py: a small run, and the reported ratios."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.run_tool import run_tool
from helpers.videos import numbered_frames, write_video


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two videos, a file that is no video, and the repacked version of the first video."""
    pytest.importorskip("decord")
    root = tmp_path_factory.mktemp("bench")
    frames = numbered_frames(90, 120, 160)
    for name in ("a/one.mp4", "two.mkv"):
        write_video(root / "videos" / name, frames, options={"g": "30"})
    (root / "videos" / "none.mp4").write_text("no video")
    write_video(root / "repacked" / "a" / "one.mp4", frames, options={"g": "1"})
    return root


def run(repo, folders, name, *more):
    out = folders / f"{name}.json"
    arguments = ["--videos", folders / "videos", "--json", out, "--seconds", 0, *more]
    done = run_tool(repo / "benchmarks" / f"{name}.py", *arguments)
    return done, out


@pytest.mark.slow
def test_a_small_run(repo, folders):
    done, out = run(
        repo, folders, "data_pipeline", "--all", "--repacked", str(folders / "repacked")
    )
    assert done.returncode == 0, done.stderr
    assert "left out: none.mp4: cannot be opened" in done.stdout
    assert "two.mkv: not found in" in done.stdout
    values = json.loads(out.read_text())
    wanted = ["original", "repacked", "of_decoder_limit", "table", "table_to_repacked"]
    assert list(values["ratios"]) == list(values["ratios_wall"]) == wanted
    files = {row["file"]: row for row in values["files"]}
    assert sorted(files) == ["a/one.mp4", "two.mkv"] and "repacked" not in files["two.mkv"]
    assert {"mmaction2", "av", "limit"} <= set(files["two.mkv"]["original"]["samples"])

    def speed(file, kind, candidate):
        return files[file][kind]["samples"][candidate]["videos_per_second"]

    each = [speed(f, "original", "av") / speed(f, "original", "mmaction2") for f in files]
    assert values["ratios"]["original"] == pytest.approx(np.sqrt(each[0] * each[1]), rel=0.01)
    assert values["ratios"]["repacked"] == pytest.approx(
        speed("a/one.mp4", "repacked", "av") / speed("a/one.mp4", "original", "mmaction2"),
        rel=0.01,
    )
    assert {"open", "index", "seek+decode", "convert", "crop/resize"} <= set(
        values["stages_ms"]["repacked"]
    )


def test_files_unlike_kinetics_are_left_out(repo, folders):
    done, _ = run(repo, folders, "data_pipeline")
    assert done.returncode == 1
    assert "left out: two.mkv: h264, short side 120, 3.6 s, 25.0 a second" in done.stdout
    assert "no video like Kinetics'" in done.stderr
