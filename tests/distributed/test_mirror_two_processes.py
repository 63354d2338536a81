"""A run of two processes is copied to an object store and continues on machines without it."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers.recognition import LINEAR, make_splits, small_options
from helpers.run_tool import free_port, run_ranks
from helpers.training import Recorder

from sce_video.engine.checkpoint import find_checkpoints, load_checkpoint_file
from sce_video.runs import launch

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def run(videos: Path, folder: Path, url: str, stop_after: int | None = None) -> list[list[int]]:
    """Train with the command that is requeued; returns the samples of every step."""
    cfg = launch.training_config(
        LINEAR,
        work_dir=folder,
        pretrained="random",
        amp="float32",
        seed=0,
        resume="auto",
        mirror=url,
        launcher="pytorch",
        cfg_options=[
            *small_options(videos, train_cfg__max_epochs=4, train_dataloader__batch_size=2),
            "split=1",
            "train_cfg.val_interval=100",
        ],
    )
    cfg.experiment_name = f"mirror_{folder.parent.name}_{folder.name}_{stop_after}"
    recorder = Recorder(stop_after)
    real = launch.VideoRunner.from_cfg

    def with_recorder(cfg):
        runner = real(cfg)
        runner.register_hook(recorder)
        return runner

    # mmengine formats the config several times per run, which takes longer than this training.
    unformatted = mock.patch("mmengine.config.config.FormatCode", lambda text, **_: (text, False))
    with unformatted, mock.patch.object(launch.VideoRunner, "from_cfg", with_recorder):
        with suppress(KeyboardInterrupt):
            launch.train(cfg)
    return recorder.indices


def on_two(rank: int, port: int, videos: Path, root: Path, url: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    whole = run(videos, root / "whole", f"{url}/whole")
    for name in ("both", "other"):
        # Each process on a machine of its own; it stops in the third of four epochs.
        before = run(videos, root / f"{name}_{rank}", f"{url}/{name}", stop_after=5)
        torch.distributed.barrier()
        if name == "both" or rank == 1:  # the machine is lost, or only the one of rank 1
            shutil.rmtree(root / f"{name}_{rank}")
        after = run(videos, root / f"{name}_{rank}", f"{url}/{name}")
        torch.save([whole, before, after], root / f"{name}_{rank}.pt")
        torch.distributed.barrier()
    os._exit(0)  # gloo's threads occasionally abort a process that ends in the usual way


@pytest.fixture
def root(tmp_path, bucket):
    """The folder in which the runs were made, and the bucket with their copies."""
    videos = make_splits(tmp_path / "videos", 13)  # 8 training videos: 2 steps of 4 an epoch
    run_ranks(on_two, free_port(), videos, tmp_path, bucket.url("runs"))
    return tmp_path


def test_the_continued_runs_equal_the_unbroken_one(root, bucket):
    expected = load_checkpoint_file(root / "whole/epoch_4.pth")["state_dict"]
    for name in ("both", "other"):
        for rank in range(2):
            whole, before, after = torch.load(root / f"{name}_{rank}.pt")
            assert len(whole) == 8 and before == whole[:5] and after == whole[4:]
        (newest, *_) = find_checkpoints(root / f"{name}_0")
        found = load_checkpoint_file(newest)["state_dict"]
        assert all(torch.equal(found[key], value) for key, value in expected.items())
        assert bucket.get(f"runs/{name}/epoch_4.pth") == newest.read_bytes()
        log = bucket.get(f"runs/{name}/metrics.jsonl")
        assert log == (root / f"{name}_0/metrics.jsonl").read_bytes()
