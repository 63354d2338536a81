"""One training unbroken, killed under torchrun, and moved by Slurm from 2 to 1 to 2 processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers.run_tool import run_tool
from helpers.survival import STEPS, recorded, write_recipe
from helpers.training import REPO, make_videos

from sce_video.engine.checkpoint import load_checkpoint_file

pytestmark = [pytest.mark.distributed, pytest.mark.slow]
NAMES = ["unbroken", "killed", "moved"]


def free_port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def train(recipe: Path, folder: Path, processes: int, *options: str, **env: str) -> list[str]:
    """Train on so many gloo processes; what each has printed."""
    command = [recipe, "--work-dir", folder, "--launcher", "none", *options]
    if processes > 1:
        command[4] = "pytorch"
        env |= dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), WORLD_SIZE=str(processes))
    env["OMP_NUM_THREADS"] = "1"
    ranks = [{**env, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(processes)]
    with ThreadPoolExecutor(processes) as pool:
        done = list(pool.map(lambda rank: run_tool("train.py", *command, env=rank), ranks))
    for one in done:
        assert one.returncode == 0, (one.stdout + one.stderr)[-3000:]
    return [one.stdout + one.stderr for one in done]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("survival")


@pytest.fixture(scope="module")
def recipe(root):
    # 15: epochs of 4 steps on two processes, of 3 on one, where nothing is rounded up
    return write_recipe(make_videos(root / "videos", 15), root)


@pytest.fixture(scope="module")
def unbroken(recipe, root):
    train(recipe, root / "unbroken", 2)
    return recorded(root / "unbroken")


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
    """Stopped by SIGUSR1 after 3 and after 6 steps, each time requeued: 2, 1, 2 processes."""
    scontrol = root / "bin/scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$*" >>"{root}/requeued"\n')
    scontrol.chmod(0o755)
    job = dict(SLURM_JOB_ID="77", PATH=f"{scontrol.parent}:{os.environ['PATH']}")
    texts = []
    for count, (processes, stop) in enumerate([(2, "2"), (1, "5"), (2, "")]):
        job |= dict(SLURM_RESTART_COUNT=str(count), STOP_AT=stop)
        texts.append(train(recipe, root / "moved", processes, **job))
    return texts


def test_a_killed_rank_costs_nothing_but_time(unbroken, killed, root):
    assert "restarted: continuing the training" in killed and "iter_4.pth" in killed
    assert len(unbroken) == STEPS and recorded(root / "killed") == unbroken
    states = [load_checkpoint_file(root / n / "iter_8.pth")["state_dict"] for n in NAMES[:2]]
    assert all(torch.equal(states[1][name], value) for name, value in states[0].items())


def test_only_rank_0_of_a_stopped_training_requeues_its_job(moved, root):
    assert (root / "requeued").read_text().splitlines() == ["requeue 77"] * 2
    assert "job 77 is requeued" in moved[0][0] and "job 77 is requeued" in moved[1][0]
    assert "requeued" not in moved[2][0]  # it has finished


def test_samples_and_losses_do_not_depend_on_the_number_of_processes(unbroken, moved, root):
    found = recorded(root / "moved")
    assert [samples for samples, _ in found] == [samples for samples, _ in unbroken]
    losses, expected = (torch.tensor([loss for _, loss in steps]) for steps in (found, unbroken))
    assert len(set(expected.tolist())) == STEPS
    torch.testing.assert_close(losses, expected, rtol=1e-6, atol=0)
    states = [load_checkpoint_file(root / n / "iter_8.pth") for n in ("unbroken", "moved")]
    for name, value in states[0]["state_dict"].items():
        other = states[1]["state_dict"][name]
        torch.testing.assert_close(other, value, rtol=1e-5, atol=1e-7, msg=name)
