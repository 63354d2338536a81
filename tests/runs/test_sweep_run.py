"""Running the steps of a sweep, with a small tool in place of the real ones."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from filelock import FileLock

from sce_video.commands import sweep as sweep_command
from sce_video.runs import sweep as sweep_function
from sce_video.runs.sweep import SweepRunner
from sce_video.runs.sweep_plan import Step, step_state

# Appends its name to OUT/calls.txt, then does what it is told; OUT/mended makes all succeed. A pipe
# "started" or "stopping" is opened when it has started, or got its first signal.
TOOL = """
import os, signal, sys
from pathlib import Path

folder, result, what = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
out = folder.parents[1]
with open(out / "calls.txt", "a") as file:
    file.write(folder.name + "\\n")
if (out / "mended").exists():
    what = "succeed"
if what in ("wait", "stubborn"):
    def stop(number, frame):
        with open(folder / "signals", "a") as file:
            file.write(f"{number}\\n")
        if what == "wait":
            sys.exit(128 + number)
        open(folder / "stopping", "w").close()
    signal.signal(signal.SIGTERM, stop)
    open(folder / "started", "w").close()
    while True:
        signal.pause()
if what.startswith("fail:"):
    print(what.removeprefix("fail:"))
    sys.exit(3)
(folder / result).write_text(what)
"""


class Sweep:
    """An output folder, the steps that run in it, and what was reported."""

    def __init__(self, root: Path) -> None:
        self.root, self.out = root, root / "out"
        (root / "tools").mkdir()
        (root / "tools/fake.py").write_text(TOOL)
        self.lines: list[str] = []

    def step(self, name, what="succeed", before=None):
        kind = "pretrain" if before is None else "evaluate"
        folder = f"{kind}/{name}"
        if what in ("wait", "stubborn"):
            (self.out / folder).mkdir(parents=True)
            os.mkfifo(self.out / folder / "started")
            os.mkfifo(self.out / folder / "stopping")
        command = ("tools/fake.py", str(self.out / folder), "result.txt", what)
        return Step(folder, (command,), "result.txt", before)

    def run(self, *chains, jobs=1, nproc=1):
        runner = SweepRunner(self.root, self.out, jobs, nproc, self.lines.append)
        return runner.run(chains)

    def calls(self):
        return (self.out / "calls.txt").read_text().split()


@pytest.fixture
def sweep(tmp_path):
    # A shell starts background commands with SIGINT ignored, and Python leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield Sweep(tmp_path)
    signal.signal(signal.SIGINT, before)


def test_finished_steps_are_not_run_again(sweep):
    first = sweep.step("a")
    chain = [first, sweep.step("b", before=first), sweep.step("c", before=first)]
    assert sweep.run(chain) == []
    assert sweep.calls() == ["a", "b", "c"]
    done = json.loads((sweep.out / "evaluate/b/done.json").read_text())
    tool, folder = "python tools/fake.py", f"{sweep.out}/evaluate/b"
    assert done["commands"] == [f"{tool} {folder} result.txt succeed"] and done["seconds"] >= 0
    (sweep.out / "evaluate/c/result.txt").unlink()
    assert [step_state(sweep.out, step) for step in chain] == ["done", "done", "interrupted"]
    assert sweep.run(chain) == []
    assert sweep.calls() == ["a", "b", "c", "c"]


def test_a_failed_step_leaves_out_what_needs_it_and_is_repeated(sweep):
    bad = sweep.step("bad", "fail:ValueError: no such value")
    needs = sweep.step("needs", before=bad)
    other = sweep.step("other")
    assert sweep.run([bad, needs], [other]) == [bad, needs]
    assert sweep.calls() == ["bad", "other"]
    why = "ValueError: no such value (status 3)"
    assert json.loads((sweep.out / "pretrain/bad/failed.json").read_text())["why"] == why
    states = [step_state(sweep.out, step) for step in (bad, needs, other)]
    assert states == [f"failed: {why}", "not run", "done"]
    assert any(line.startswith(f"FAILED  pretrain/bad: {why}, ") for line in sweep.lines)
    (sweep.out / "mended").touch()
    assert sweep.run([bad, needs], [other]) == []
    assert sweep.calls() == ["bad", "other", "bad", "needs"]
    assert not (sweep.out / "pretrain/bad/failed.json").exists()


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (
            "Traceback\n[rank0]: KeyError: 'x'\nx.ChildFailedError:\n  error_file: <N/A>\n==",
            "[rank0]: KeyError: 'x'",
        ),
        ("one\n\n two \n", "two"),
        ("", "its log is empty"),
    ],
)
def test_the_line_that_tells_the_error(sweep, output, why):
    """Of this command's output, not of an earlier attempt."""
    (sweep.out / "pretrain/a").mkdir(parents=True)
    (sweep.out / "pretrain/a/sweep.log").write_text("ValueError: of an earlier attempt\n")
    step = sweep.step("a", f"fail:{output}")
    sweep.run([step])
    assert step_state(sweep.out, step) == f"failed: {why} (status 3)"


def when(pipes, action):
    """Call an action in a thread as soon as all pipes have been opened by the tool."""

    def wait():
        for pipe in pipes:
            open(pipe).close()
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_running_commands_once_and_the_next_run_continues(sweep, number):
    done, waiting, later = sweep.step("done"), sweep.step("x", "wait"), sweep.step("later")
    needs = sweep.step("needs", before=waiting)
    work, before = ([done, waiting, needs], [later]), signal.getsignal(signal.SIGTERM)
    folder = sweep.out / waiting.folder
    thread = when([folder / "started"], lambda: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt):
        sweep.run(*work)
    thread.join()
    assert (folder / "signals").read_text().split() == [str(signal.SIGTERM.value)]
    assert signal.getsignal(signal.SIGTERM) == before
    states = [step_state(sweep.out, step) for step in (done, waiting, needs, later)]
    assert states == ["done", "interrupted", "not run", "not run"]
    (sweep.out / "mended").touch()
    assert sweep.run(*work) == []
    assert sorted(sweep.calls()) == sorted(["done", "x", "x", "needs", "later"])


def test_a_sweep_that_runs_out_of_time_is_requeued(sweep, monkeypatch, capsys):
    """The trainings get SIGTERM, so that they do not requeue the job too."""
    step, calls = sweep.step("x", "wait"), []
    folder = sweep.out / step.folder
    monkeypatch.setattr("sce_video.engine.restarts.slurm_job", lambda: "7_2")
    monkeypatch.setattr("sce_video.engine.restarts.call_scontrol", calls.append)
    monkeypatch.setattr(sweep_function, "read_sweep", lambda file: None)
    monkeypatch.setattr(sweep_function, "_selected", lambda sweeps, options: [])
    monkeypatch.setattr(sweep_function, "find_sweep", Path)
    monkeypatch.setattr(sweep_function, "plan", lambda *args: [])
    monkeypatch.setattr(sweep_function, "chains", lambda cells: [[step]])
    monkeypatch.setattr(sweep_function, "shipped_folder", lambda: sweep.root)

    def end():
        (folder / "iter_3.pth").touch()
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = when([folder / "started"], end)
    assert sweep_command.main(["a.py", "--out", str(sweep.out)]) == 130
    thread.join()
    assert (folder / "signals").read_text().split() == [str(signal.SIGTERM.value)]
    assert "job 7_2 is requeued" in capsys.readouterr().err and calls == ["7_2"]
    assert "no step has advanced since it started" in sweep_function._requeue("7_2", False)
    monkeypatch.setattr("sce_video.engine.restarts.call_scontrol", lambda job: "status 1")
    assert "could not be requeued: status 1" in sweep_function._requeue("7_2", True)


def test_a_second_signal_kills_what_does_not_end(sweep):
    step = sweep.step("x", "stubborn")
    folder = sweep.out / step.folder
    before = signal.getsignal(signal.SIGTERM)
    threads = [
        when([folder / name], lambda: os.kill(os.getpid(), signal.SIGTERM))
        for name in ("started", "stopping")
    ]
    with pytest.raises(KeyboardInterrupt):
        sweep.run([step])
    for thread in threads:
        thread.join()
    assert signal.getsignal(signal.SIGTERM) == before
    assert not (folder / step.result).exists() and step_state(sweep.out, step) == "interrupted"


def test_a_step_of_another_run_is_running_and_waited_for(sweep, monkeypatch):
    monkeypatch.setattr(sweep_function, "_LOCK_SECONDS", 0.01)
    step = sweep.step("a")
    folder = sweep.out / step.folder
    folder.mkdir(parents=True)
    lines = []

    def report(line):
        lines.append(line)
        os.kill(os.getpid(), signal.SIGTERM)

    with FileLock(folder / "step.lock"):
        assert step_state(sweep.out, step) == "running"
        with pytest.raises(KeyboardInterrupt):
            SweepRunner(sweep.root, sweep.out, report=report).run([[step]])
        assert lines == ["wait    pretrain/a: another run is working on it"]
        assert not (sweep.out / "calls.txt").exists()
    assert step_state(sweep.out, step) == "not run"


@pytest.mark.parametrize("name", ["step.lock", "sweep.log"])
def test_a_step_writes_through_no_link(sweep, name):
    step, target = sweep.step("a"), sweep.out / "target"
    folder = sweep.out / step.folder
    folder.mkdir(parents=True)
    (folder / name).symlink_to(target)
    with pytest.raises(OSError, match=rf"a/{name} is a symbolic link, and nothing is written"):
        sweep.run([step])
    assert not target.exists()


def test_several_processes_start_through_torchrun(sweep, monkeypatch):
    python = sweep.root / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    step = sweep.step("a")
    sweep.run([step], nproc=3)
    words = (sweep.out / "pretrain/a/sweep.log").read_text().splitlines()
    tool = [f"{sweep.root}/tools/fake.py", f"{sweep.out}/pretrain/a", "result.txt", "succeed"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=3"]
    assert words == [*launcher, *tool, "--launcher", "pytorch"]


@pytest.mark.parametrize(
    ("jobs", "nproc", "visible", "gpus", "expected"),
    [
        (1, 2, "4,5", 2, ["4,5"]),  # as it was
        (2, 2, None, 4, ["0,1", "2,3"]),
        (3, 1, "GPU-a,GPU-b", 2, ["GPU-a", "GPU-b", "GPU-a"]),
        (2, 1, None, 0, ["", ""]),
    ],
)
def test_every_job_has_its_gpus(monkeypatch, jobs, nproc, visible, gpus, expected):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    runner = SweepRunner(Path(), Path(), jobs, nproc)
    found = [runner.environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(jobs)]
    assert found == expected
