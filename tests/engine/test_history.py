"""metrics.jsonl and history.jsonl of small trainings: interrupted, resumed, failed."""

from __future__ import annotations

import json
import os
import signal

import pytest
from helpers.training import Recorder, make_videos, small_config, train

from sce_video.engine.hooks.progress import NonFiniteLossError
from sce_video.pages.curves import read_history


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"))  # 12: 3 iterations per epoch


class Signals(Recorder):
    """Asks the training to stop after an iteration."""

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.rows.append((runner.iter, *outputs.values()))
        if runner.iter + 1 == self.stop_after:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_resumed_log_equals_the_uninterrupted_one(videos, tmp_path):
    """The first start logs two iterations more than its last checkpoint has."""
    whole = small_config(videos, tmp_path / "whole")
    train(whole)
    cfg = small_config(videos, tmp_path / "resumed", default_hooks__checkpoint__interval=2)
    train(cfg, stop_after=8)
    for newest in (6, 8):
        (tmp_path / f"resumed/iter_{newest}.pth").unlink(missing_ok=True)
    with open(tmp_path / "resumed/metrics.jsonl", "a") as file:
        file.write('{"kind": "tr')  # killed
    cfg.resume = True
    train(cfg)
    logs = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "resumed")]
    rows = [[json.loads(line) for line in log.splitlines()] for log in logs]
    clock = {"time", "step_seconds", "data_seconds", "data_wait", "videos_per_s"}
    a, b = ([{k: v for k, v in row.items() if k not in clock} for row in r] for r in rows)
    assert a == b and [row["iter"] for row in a] == list(range(1, 10))
    assert {row["kind"] for row in a} == {"train"} and [row["epoch"] for row in a][::3] == [1, 2, 3]
    assert clock < set(rows[0][0]) and rows[0][0]["time"] > 1e9

    history = read_history(tmp_path / "resumed")
    assert [(row["event"], row["iter"]) for row in history] == [
        ("start", 0),
        ("end", 7),
        ("start", 4),
        ("end", 9),
    ]
    first, interrupted, second, end = history
    assert first["resumed_from"] is None and second["resumed_from"].endswith("iter_4.pth")
    assert interrupted["status"] == "interrupted" and end["status"] == "finished"
    assert first["model"] == "SCE" and first["data"]["samples"] == 12
    assert first["ranks"] == 1 and first["versions"]["torch"] and first["command"]
    assert (tmp_path / "resumed" / first["log"]).is_dir()


def test_a_signal_and_a_failure_in_the_history(videos, tmp_path, monkeypatch):
    cfg = small_config(videos, tmp_path)
    monkeypatch.setattr("sys.argv", ["sce-video train", "train", "a b"])  # as its usage names it
    train(cfg, recorder=Signals(stop_after=2))
    start, end = read_history(tmp_path)
    assert start["command"] == ["sce-video", "train", "a b"]
    assert (end["status"], end["message"], end["iter"]) == ("interrupted", "SIGTERM", 2)
    cfg = small_config(videos, tmp_path, default_hooks__log_reduction__max_nonfinite=0)
    cfg.resume = True
    cfg.optim_wrapper.optimizer.lr = 1e30
    with pytest.raises(NonFiniteLossError):
        train(cfg)
    *_, end = read_history(tmp_path)
    assert end["status"] == "failed" and end["message"].startswith("NonFiniteLossError: the loss")
