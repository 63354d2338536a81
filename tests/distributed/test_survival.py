"""One training unbroken, killed under torchrun, and moved by Slurm from 2 processes to 1."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers.run_tool import load, run_tool
from helpers.survival import STEPS, recorded, write_recipe
from helpers.training import REPO, make_videos

from sce_video.engine.checkpoint import load_checkpoint_file

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def free_port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def train_here(recipe: Path, folder: Path) -> None:
    """Train on one process, this one."""
    assert load("train").main([str(recipe), "--work-dir", str(folder), "--launcher", "none"]) == 0


def train_on_two(recipe: Path, folder: Path, **env: str) -> list[str]:
    """Train on two gloo processes; what each has printed."""
    command = [recipe, "--work-dir", folder, "--launcher", "pytorch"]
    env |= dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), WORLD_SIZE="2")
    env["OMP_NUM_THREADS"] = "1"
    ranks = [{**env, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda rank: run_tool("train.py", *command, env=rank), ranks))
    for one in done:
        assert one.returncode == 0, (one.stdout + one.stderr)[-3000:]
    return [one.stdout + one.stderr for one in done]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("survival")


@pytest.fixture(scope="module")
def recipe(root):
    return write_recipe(make_videos(root / "videos", 16), root)


@pytest.fixture(scope="module")
def unbroken(recipe, root):
    train_here(recipe, root / "unbroken")
    return root / "unbroken"


@pytest.fixture(scope="module")
def killed(recipe, root):
    """Rank 1 is killed once; torchrun starts both again with the options of the first start."""
    python = root / "python/python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    env = {**os.environ, "KILL_AT": "5", "MAX_RESTARTS": "1", "PORT": free_port()}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO / "tests")}
    env["PATH"] = f"{python.parent}:{env['PATH']}"
    command = ["bash", REPO / "tools/dist_train.sh", recipe, "2"]
    command += ["--work-dir", root / "killed", "--overwrite"]
    out = root / "killed.txt"
    with open(out, "w") as file:
        status = subprocess.run(command, env=env, stdout=file, stderr=file).returncode
    assert status == 0, out.read_text()
    return out.read_text()


@pytest.fixture(scope="module")
def moved(recipe, root):
    """Stopped by SIGUSR1 after 3 steps on two processes and requeued, then on one."""
    scontrol = root / "bin/scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$*" >>"{root}/requeued"\n')
    scontrol.chmod(0o755)
    job = dict(SLURM_JOB_ID="77", PATH=f"{scontrol.parent}:{os.environ['PATH']}")
    texts = train_on_two(recipe, root / "moved", **job, SLURM_RESTART_COUNT="0", STOP_AT="2")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**job, "SLURM_RESTART_COUNT": "1"}.items():
            patch.setenv(name, value)
        train_here(recipe, root / "moved")
    return texts


def assert_equal_runs(found: Path, expected: Path) -> None:
    """The same samples in the same order; losses and weights but for the order of sums."""
    steps, reference = recorded(found), recorded(expected)
    assert [samples for samples, _ in steps] == [samples for samples, _ in reference]
    losses, others = (torch.tensor([loss for _, loss in run]) for run in (steps, reference))
    assert len(set(others.tolist())) == STEPS
    torch.testing.assert_close(losses, others, rtol=1e-6, atol=0)
    states = [load_checkpoint_file(run / "iter_8.pth")["state_dict"] for run in (found, expected)]
    for name, value in states[1].items():
        torch.testing.assert_close(states[0][name], value, rtol=1e-5, atol=1e-7, msg=name)


def test_a_killed_rank_costs_nothing_but_time(unbroken, killed, root):
    assert "restarted: continuing the training" in killed and "iter_4.pth" in killed
    assert_equal_runs(root / "killed", unbroken)


def test_only_rank_0_of_a_stopped_training_requeues_its_job(moved, root):
    assert (root / "requeued").read_text().splitlines() == ["requeue 77"]
    assert "job 77 is requeued" in moved[0] and "requeued" not in moved[1]


def test_samples_and_losses_do_not_depend_on_the_number_of_processes(unbroken, moved, root):
    assert_equal_runs(root / "moved", unbroken)
