"""benchmarks/peers.py: our sides on a small file, peers that are not there, and the ratios."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from helpers.videos import numbered_frames, write_video


@pytest.fixture(scope="module")
def peers(repo):
    sys.path.insert(0, str(repo / "benchmarks"))
    try:
        import peers

        yield peers
    finally:
        sys.path.pop(0)


@pytest.mark.slow
def test_our_sides_run_and_missing_peers_are_said(peers, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(peers, "environment", lambda out: ("", "no network"))
    file = write_video(tmp_path / "a.mp4", numbered_frames(90, 120, 160), options={"g": "30"})
    options = ["--files", str(file), "--out", str(tmp_path), "--rounds", "1", "--rows", "frames"]
    assert peers.main(options) == 0
    row = json.loads((tmp_path / "peers.json").read_text())["rows"]["frames"]
    sides = row["sides"]
    assert sides["sce_video"]["ms"] > 0 and sides["sce_video"]["frames_differ"] == 0
    assert sides["decoder alone"]["ours_faster"]["mean"] > 0
    assert sides["torchcodec exact"]["error"] == "no network" and row["best_peer"] is None
    assert "no network" in capsys.readouterr().out
    assert (tmp_path / "peers.png").stat().st_size > 0


class SideHere:
    """A side in this process, so that packages are imported once."""

    def __init__(self, name, python, error, log):
        import peer_sides

        self.name, self.error, self.versions = name, error, {}
        self.run, self.answer = peer_sides.SIDES[name].run, peer_sides.answer

    def ask(self, job):
        answer = self.answer(self.run, job)
        self.error = self.error or answer.get("error", "")
        return None if "error" in answer else answer

    def close(self):
        pass


@pytest.mark.slow
def test_all_rows_run_with_our_sides_alone(peers, tmp_path, monkeypatch, capfd):
    import peer_steps

    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(peers, "SideProcess", SideHere)
    for what in peer_steps.SIZES:
        monkeypatch.setitem(peer_steps.SIZES, what, (peer_steps.SIZES[what][0], 32, 2))
    file = write_video(tmp_path / "a.mp4", numbered_frames(90, 120, 160), options={"g": "30"})
    monkeypatch.setenv("PYTHONPATH", str(Path(peers.__file__).parents[1]))
    options = ["--files", str(file), "--out", str(tmp_path), "--only", "own", "--smoke"]
    assert peers.main(options) == 0, capfd.readouterr().out
    rows = json.loads((tmp_path / "peers.json").read_text())["rows"]
    assert list(rows) == list(peers.ROWS)
    assert all(row["sides"][peers.ROWS[name].sides[0]]["ms"] > 0 for name, row in rows.items())
    copies = rows["near_duplicates"]["sides"]["sce-video curate"]["facts"]
    assert copies["recall"] > 0.5 and copies["precision"] > 0.5
    assert (tmp_path / "peers_search.png").stat().st_size > 0


def test_a_side_that_ends_or_fails_is_a_result(peers, tmp_path):
    side = peers.SideProcess("sce_video", sys.executable, "", tmp_path / "log")
    assert side.ask({"path": str(tmp_path / "none.mp4"), "indices": [0]}) is None
    assert "none.mp4: cannot be opened" in side.error
    side.close()
    side = peers.SideProcess("sce_video", "/bin/true", "", tmp_path / "log")
    assert side.error.startswith("the process ended with code 0")
    side.close()


def test_the_best_peer_is_that_of_each_file(peers):
    seconds = {
        "a.mp4": {"sce_video": [2.0, 1.0, 9.0], "SPDL": [4.0], "decord2": [6.0]},
        "b.mp4": {"sce_video": [1.0], "SPDL": [9.0], "decord2": [8.0], "decoder alone": [0.5]},
    }
    sides = [peers.SideProcess(name, "", "-", None) for name in peers.ROWS["frames"].sides]
    found = peers.summary(peers.ROWS["frames"], peers.Measured(seconds), sides)
    assert found["best_peer"] == {"mean": 4.0, "least": 2.0, "most": 8.0} and found["reached"]
    assert found["sides"]["SPDL"]["ours_faster"]["mean"] == pytest.approx(18**0.5, abs=1e-3)
    assert found["sides"]["PyAV loop"]["ms"] is None
    assert "| SPDL () | 6500.00 | 4.24 | 2.00 to 9.00 - |" in peers.table({"frames": found})


@pytest.mark.slow
def test_a_table_in_a_slow_store_is_read_as_the_local_one(peers, tmp_path, monkeypatch):
    """``slow_store.py`` from the file to the ratio; its server is a process of its own."""
    pytest.importorskip("lance")
    import slow_store

    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "given back after the test")
    file = write_video(tmp_path / "a.mp4", numbered_frames(90, 120, 160), options={"g": "30"})
    options = ["--files", str(file), "--videos", "4", "--samples", "8", "--batch", "2"]
    options += ["--workers", "0", "--rounds", "1", "--delay", "0", "--json", str(tmp_path / "r")]
    assert slow_store.main([str(tmp_path), *options]) == 0
    found = json.loads((tmp_path / "r").read_text())
    assert found["local"] > 0 and found["store"] > 0 and found["batch"] == 2
