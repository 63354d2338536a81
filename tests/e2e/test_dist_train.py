"""tools/dist_train.sh on two nodes of one process each: resuming a killed run is bit-exact."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers.run_tool import free_port, run_tool_ranks
from helpers.training import make_videos

from sce_video.engine.checkpoint import load_checkpoint_file


def options(videos) -> list[str]:
    """Options of a training of 18 steps on two processes, with a checkpoint after each."""
    return [
        f"train_dataloader.dataset.data_root={videos}",
        "train_dataloader.batch_size=2",
        "train_dataloader.sampler.min_samples=0",
        "train_dataloader.num_workers=3",  # more than many a machine has cores
        "train_dataloader.dataset.pipeline.RandomClips.clip_duration=0.4",
        "train_dataloader.dataset.pipeline.RandomClips.num_frames=2",
        "train_dataloader.dataset.pipeline.RandomResizedCropClips.size=32",
        "model.backbone.base_channels=4",
        "model.projector.hidden_channels=16",
        "model.predictor.hidden_channels=16",
        "model.queue_size=20",
        "train_cfg.max_epochs=6",
        "default_hooks.logger.interval=1",
        "run_page=None",
        "default_hooks.checkpoint.by_epoch=False",
        "default_hooks.checkpoint.interval=1",
        "default_hooks.checkpoint.max_keep_ckpts=-1",
    ]


def start_nodes(repo, work_dir, videos, *extra) -> list[subprocess.Popen]:
    port = str(free_port())
    nodes = []
    for rank in range(2):
        env = {
            **os.environ,
            "NNODES": "2",
            "NODE_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "PORT": port,
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        command = [
            "bash",
            str(repo / "tools/dist_train.sh"),
            str(repo / "configs/sce/sce_r3d18_folder.py"),
            "1",
            "--work-dir",
            str(work_dir),
            *extra,
            "--cfg-options",
            *options(videos),
        ]
        nodes.append(
            subprocess.Popen(
                command,
                env=env,
                start_new_session=True,
                stdout=(work_dir / f"node{rank}{len(extra)}.log").open("w"),
                stderr=subprocess.STDOUT,
            )
        )
    return nodes


def finish(nodes, work_dir, timeout=240) -> None:
    for node in nodes:
        code = node.wait(timeout)
        logs = "".join(p.read_text()[-2000:] for p in sorted(work_dir.glob("node*.log")))
        assert code == 0, logs


def kill(nodes) -> None:
    """Kill all processes with SIGKILL, as when a machine is lost: no signal handler runs."""
    for node in nodes:
        children = subprocess.run(
            ["ps", "-o", "pid=", "-s", str(node.pid)], capture_output=True, text=True
        ).stdout.split()
        for pid in [*children, str(node.pid)]:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        node.wait(30)


@pytest.mark.slow
@pytest.mark.distributed
def test_killed_and_resumed_run_on_two_nodes_equals_an_uninterrupted_run(repo, tmp_path):
    videos = make_videos(tmp_path / "videos")  # 12 videos: 3 iterations an epoch, 18 in all
    uninterrupted, resumed = tmp_path / "uninterrupted", tmp_path / "resumed"
    uninterrupted.mkdir(), resumed.mkdir()
    nodes = start_nodes(repo, resumed, videos)
    deadline = time.monotonic() + 240
    while not (resumed / "iter_5.pth").exists():  # the middle of the second epoch
        assert time.monotonic() < deadline and all(n.poll() is None for n in nodes), (
            resumed / "node00.log"
        ).read_text()[-3000:]
        time.sleep(0.02)
    kill(nodes)
    assert not (resumed / "iter_18.pth").exists(), "the run had finished before it was killed"
    finish(start_nodes(repo, resumed, videos, "--resume"), resumed)
    # The same two processes, without the launcher.
    command = [repo / "configs/sce/sce_r3d18_folder.py", "--work-dir", uninterrupted]
    command += ["--launcher", "pytorch", "--cfg-options", *options(videos)]
    for done in run_tool_ranks("train.py", *command, env={"OMP_NUM_THREADS": "1"}):
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        assert not re.search("FutureWarning|DataLoader will create|NUM_THREADS", done.stderr)

    first, second = (load_checkpoint_file(d / "iter_18.pth") for d in (uninterrupted, resumed))
    for name, value in first["state_dict"].items():
        assert torch.equal(value, second["state_dict"][name]), name
    histories = [c["message_hub"]["log_scalars"]["train/loss"]["values"] for c in (first, second)]
    assert len(histories[0]) == 18
    assert torch.equal(*histories)
