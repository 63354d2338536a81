"""tools/dist_train.sh on two nodes of one process each trains as two processes do without it.

Killed and resumed trainings: tests/distributed/test_survival.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.run_tool import free_port, run_tool_ranks
from helpers.training import make_videos

from sce_video.engine.checkpoint import load_checkpoint_file

OPTIONS = [
    "train_dataloader.batch_size=2",
    "train_dataloader.sampler.min_samples=0",
    "train_dataloader.num_workers=3",  # more than many a machine has cores
    "train_dataloader.dataset.pipeline.RandomClips.clip_duration=0.4",
    "train_dataloader.dataset.pipeline.RandomClips.num_frames=2",
    "train_dataloader.dataset.pipeline.RandomResizedCropClips.size=32",
    "model.backbone.base_channels=4",
    "model.projector.hidden_channels=16",
    "model.predictor.hidden_channels=16",
    "model.queue_size=8",
    "train_cfg.max_epochs=2",
    "default_hooks.logger.interval=1",
    "run_page=None",
    "default_hooks.checkpoint.by_epoch=False",
    "default_hooks.checkpoint.interval=2",
]


@pytest.mark.slow
@pytest.mark.distributed
def test_two_nodes_train_as_two_processes(repo, tmp_path):
    videos = make_videos(tmp_path / "videos", 8)  # 2 steps an epoch
    command = [repo / "configs/sce/sce_r3d18_folder.py", "--work-dir", tmp_path / "nodes"]
    options = ["--cfg-options", *OPTIONS, f"train_dataloader.dataset.data_root={videos}"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "NNODES": "2", "MASTER_ADDR": "127.0.0.1", "PORT": str(free_port())}
    env |= {"OMP_NUM_THREADS": "1", "PATH": path}
    script = ["bash", repo / "tools/dist_train.sh", command[0], "1", *command[1:], *options]
    nodes = []
    for rank in range(2):
        with open(tmp_path / f"node{rank}.log", "w") as log:
            own = {**env, "NODE_RANK": str(rank)}
            nodes.append(subprocess.Popen(script, env=own, stdout=log, stderr=log))
    for rank, node in enumerate(nodes):
        assert node.wait(300) == 0, (tmp_path / f"node{rank}.log").read_text()[-3000:]

    command[2] = tmp_path / "ranks"
    given = [*command, "--launcher", "pytorch", *options]
    for done in run_tool_ranks("train.py", *given, env={"OMP_NUM_THREADS": "1"}):
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        assert not re.search("FutureWarning|DataLoader will create|NUM_THREADS", done.stderr)
    first, second = (load_checkpoint_file(tmp_path / n / "iter_4.pth") for n in ("nodes", "ranks"))
    for name, value in first["state_dict"].items():
        assert torch.equal(value, second["state_dict"][name]), name
