"""Restarts that belong to one launch, and what is and is not requeued; scontrol is a fake."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.training import Recorder, make_videos, small_config, train

from sce_video.engine import restarts as restarts_module
from sce_video.engine.restarts import (
    append_row,
    continue_rows,
    describe_launch,
    is_restart,
    requeued_job,
)
from sce_video.pages.run_record import read_history
from sce_video.runs import configs, launch

LAUNCHERS = ("SLURM_", "TORCHELASTIC_", "GROUP_", "SCE_VIDEO_LAUNCH")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
        monkeypatch.delenv(name)
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def set_env(monkeypatch, **env):
    for name, value in env.items():
        monkeypatch.setenv(name, value)


def note_start(folder: Path, iteration: int = 0, **row) -> None:
    launched = {kind: asdict(record) for kind, record in describe_launch().items()}
    row = {"event": "start", "iter": iteration, "launch": launched, **row}
    with open(folder / "history.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")


def slurm(monkeypatch, job: str, restarts: int) -> None:
    set_env(monkeypatch, SLURM_JOB_ID=job, SLURM_RESTART_COUNT=str(restarts))


def torchrun(monkeypatch, run: str, restarts: int) -> None:
    set_env(monkeypatch, TORCHELASTIC_RUN_ID=run, TORCHELASTIC_RESTART_COUNT=str(restarts))


@pytest.mark.parametrize("launcher", [slurm, torchrun])
def test_only_a_later_start_of_the_same_launch_is_a_restart(monkeypatch, tmp_path, launcher):
    assert not is_restart(tmp_path)
    launcher(monkeypatch, "7", 1)
    assert not is_restart(tmp_path)  # the first start was refused: the folder is another's
    note_start(tmp_path, launch=None)
    assert not is_restart(tmp_path)
    launcher(monkeypatch, "7", 0)
    note_start(tmp_path)
    assert not is_restart(tmp_path)  # the same start trains twice
    launcher(monkeypatch, "7", 1)
    assert is_restart(tmp_path)
    launcher(monkeypatch, "8", 1)
    assert not is_restart(tmp_path)


def test_without_a_run_id_the_process_of_torchrun_identifies_it(monkeypatch):
    torchrun(monkeypatch, "none", 0)
    assert describe_launch()["torchrun"].id.endswith(f":{os.getppid()}")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")  # unknown to the other machines
    assert describe_launch() == {}


class Log:
    def __init__(self) -> None:
        self.text = ""

    def info(self, text: str) -> None:
        self.text += f"{text}\n"

    error = info


@pytest.fixture
def scontrol(monkeypatch, tmp_path):
    """Makes a fake scontrol with a script; returns its calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def install(script: str = "exit 0") -> None:
        path = folder / "scontrol"
        path.write_text(f'#!/bin/sh\necho "$*" >>"{tmp_path}/calls"\n{script}\n')
        path.chmod(0o755)

    def calls() -> list[str]:
        file = tmp_path / "calls"
        return file.read_text().splitlines() if file.exists() else []

    return SimpleNamespace(install=install, calls=calls)


def stopped(folder: Path, by: signal.Signals | None, iteration: int = 5) -> SimpleNamespace:
    loop = SimpleNamespace(stopped_by=by)
    return SimpleNamespace(train_loop=loop, work_dir=folder, iter=iteration, logger=Log())


@pytest.mark.parametrize("by", [None, signal.SIGTERM, signal.SIGINT])
def test_what_has_finished_or_was_cancelled_is_not_requeued(monkeypatch, tmp_path, scontrol, by):
    slurm(monkeypatch, "7", 0)
    scontrol.install()
    runner = stopped(tmp_path, by)
    assert requeued_job(runner) is None and runner.logger.text == ""
    assert launch.end_training(runner) == (0 if by is None else 128 + by)
    assert scontrol.calls() == []


def test_starts_without_a_step_are_requeued_three_times_at_most(monkeypatch, tmp_path, scontrol):
    scontrol.install()
    for restarts, iteration in enumerate([0, 5, 5, 5]):
        slurm(monkeypatch, "7", restarts)
        note_start(tmp_path, iteration)
        runner = stopped(tmp_path, signal.SIGUSR1)
        if restarts < 3:
            assert launch.end_training(runner) == 0, runner.logger.text
    assert launch.end_training(runner) == 128 + signal.SIGUSR1
    assert "job 7 is not requeued: its last 3 starts have done no step after iteration 5" in (
        runner.logger.text
    )
    assert requeued_job(stopped(tmp_path, signal.SIGUSR1, 6)) == "7"  # it has done one
    slurm(monkeypatch, "8", 0)  # starts of another job do not count
    assert requeued_job(stopped(tmp_path, signal.SIGUSR1)) == "8"
    assert scontrol.calls() == ["requeue 7"] * 4 + ["requeue 8"]


def test_a_job_that_slurm_does_not_requeue_is_said(monkeypatch, tmp_path, scontrol):
    slurm(monkeypatch, "7", 0)
    runner = stopped(tmp_path, signal.SIGUSR1)
    assert launch.end_training(runner) == 128 + signal.SIGUSR1
    assert "could not be requeued: there is no command scontrol on" in runner.logger.text
    scontrol.install("echo 'Requested operation is presently disabled' >&2; exit 1")
    assert requeued_job(runner) is None
    assert (
        "status 1: Requested operation is presently disabled. The checkpoint is written. Run "
        in (runner.logger.text)
    )


def test_a_restart_resumes_whatever_the_first_start_was_told(monkeypatch, tmp_path):
    """The second start is told to overwrite, and continues nevertheless."""
    formatter = "mmengine.config.config.FormatCode"
    monkeypatch.setattr(formatter, lambda text, **options: (text, False), raising=False)
    videos, work_dir = make_videos(tmp_path / "videos"), tmp_path / "run"
    cfg = small_config(videos, work_dir, train_cfg__max_epochs=1, run_page=None)
    for key in ("work_dir", "launcher"):
        cfg.pop(key)
    cfg.dump(tmp_path / "c.py")

    def start(restarts: int, epochs: int, overwrite: bool) -> str:
        restarts_module._started.clear()  # as in a new process
        torchrun(monkeypatch, "run", restarts)
        options = [f"train_cfg.max_epochs={epochs}"]
        cfg = configs.training_config(tmp_path / "c.py", work_dir=work_dir, cfg_options=options)
        cfg.experiment_name = f"restart_{tmp_path.name}_{restarts}_{epochs}"
        return launch.run_training(cfg, overwrite).resumed_from

    assert start(0, 1, False) is None
    with pytest.raises(ValueError, match="contains an earlier training run"):
        start(0, 1, False)
    assert start(1, 2, True).endswith("iter_3.pth")
    for path in work_dir.glob("*.pth"):
        path.unlink()
    assert start(2, 1, False) is None  # killed before its first checkpoint
    assert len((work_dir / "metrics.jsonl").read_text().splitlines()) == 3


# metrics.jsonl and history.jsonl: rows are kept over a resumption.


def resumed_at(folder: Path, iteration: int, accumulated: int = 1) -> SimpleNamespace:
    wrapper = SimpleNamespace(_accumulative_counts=accumulated)
    return SimpleNamespace(
        work_dir=folder, log_dir=folder / "now", iter=iteration, optim_wrapper=wrapper
    )


def test_rows_after_the_checkpoint_are_removed(tmp_path):
    """A damaged line stays; a half-written last one does not, nor do numbers JSON does not have."""
    path = tmp_path / "a.jsonl"
    continue_rows(resumed_at(tmp_path, 5), "a.jsonl")
    assert not path.exists()
    for i in range(1, 5):
        append_row(path, {"iter": i, "loss": 1.0 / i, "a": math.nan, "b": -math.inf})
    assert json.loads(path.read_text().splitlines()[1]) == {
        "iter": 2,
        "loss": 0.5,
        "a": None,
        "b": None,
    }
    before = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*before, b"what\xff\n[]\n", b'{"it']))
    continue_rows(resumed_at(tmp_path, 2), "a.jsonl")
    assert path.read_bytes() == b"".join([*before[:2], b"what\xff\n[]\n"])
    continue_rows(resumed_at(tmp_path, 0), "a.jsonl")
    assert not path.exists()


def test_rows_get_the_numbers_that_their_steps_have_now(tmp_path):
    """From 2 iterations a step to 1 and to 3."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"iter": {i}}}\n' for i in range(1, 7)))
    note_start(tmp_path, accumulated=2, log="before")
    continue_rows(resumed_at(tmp_path, 2), "a.jsonl")
    assert path.read_text() == '{"iter": 1}\n{"iter": 1}\n{"iter": 2}\n{"iter": 2}\n'
    note_start(tmp_path, accumulated=1, log="before")
    note_start(tmp_path, accumulated=9, log="now")
    continue_rows(resumed_at(tmp_path, 3, 3), "a.jsonl")
    assert path.read_text() == '{"iter": 3}\n{"iter": 3}\n'


class Signals(Recorder):
    """Asks the training to stop after an iteration."""

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.rows.append((runner.iter, *outputs.values()))
        if runner.iter + 1 == self.stop_after:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_resumed_log_equals_the_uninterrupted_one(videos, tmp_path, monkeypatch):
    """The first start logs two iterations more than its last checkpoint has."""
    whole = small_config(videos, tmp_path / "whole")
    train(whole)
    cfg = small_config(videos, tmp_path / "resumed", default_hooks__checkpoint__interval=2)
    monkeypatch.setattr("sys.argv", ["sce-video train", "train", "a b"])  # as its usage names it
    train(cfg, recorder=Signals(stop_after=8))
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
        ("end", 8),
        ("start", 4),
        ("end", 9),
    ]
    first, interrupted, second, end = history
    assert first["resumed_from"] is None and second["resumed_from"].endswith("iter_4.pth")
    assert (interrupted["status"], interrupted["message"]) == ("interrupted", "SIGTERM")
    assert end["status"] == "finished" and first["command"] == ["sce-video", "train", "a b"]
    assert first["model"] == "SCE" and first["data"]["samples"] == 12
    assert first["ranks"] == 1 and first["versions"]["torch"]
    assert (tmp_path / "resumed" / first["log"]).is_dir()
