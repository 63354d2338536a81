"""How often a training makes the host wait for the device: only where the log is read."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.host_waits import host_waits
from helpers.run_tool import run_gloo
from helpers.training import train
from mmengine.hooks import Hook

from sce_video.engine.config.load import load_config
from sce_video.models.losses import collapse

#: With a queue, shuffled groups of BN, several backward passes, codes, and no target.
CONFIGS = {"SCE": "sce", "MoCo": "moco", "BYOL": "byol", "SwAV": "swav", "LeJEPA": "lejepa"}
INTERVAL = 3
#: What could wait and is off in the quickstart's recipes or on a CPU.
CHANGES = {
    "SCE": dict(data_preprocessor__fused=True),
    "MoCo": dict(model__shuffle_bn_splits=2),
    "BYOL": dict(model__backward_per_query=True),
    # A queue that fills while it trains, few prototypes for few videos.
    "SwAV": dict(model__queue_size=8, model__num_prototypes=4, model__queue_start_steps=1),
}
#: In an iteration that is logged: the values, and the matrix of which the host takes the rank.
READS = ["cpu", "tolist"]
#: With several processes, what the host has computed is copied to the device to be averaged.
AVERAGED = "device"


class CountWaits(Hook):
    """Counts the waits of every iteration, from before its step until after all other hooks."""

    priority = "LOWEST"

    def __init__(self) -> None:
        self.found: list[dict[str, int]] = []

    def before_train_iter(self, runner, *_, **__):
        self._context = host_waits([*runner.model.parameters(), *runner.model.buffers()])
        self._counts = self._context.__enter__()

    def after_train_iter(self, runner, *_, **__):
        self._context.__exit__(None, None, None)
        self.found.append(dict(self._counts))


def config(repo: Path, videos: Path, work_dir: Path, name: str, **changes):
    clips = "train_dataloader.dataset.pipeline"
    options = {
        "train_dataloader.dataset.data_root": str(videos),
        "train_dataloader.batch_size": 4,
        "train_dataloader.num_workers": 0,
        "train_dataloader.persistent_workers": False,
        f"{clips}.RandomClips.clip_duration": 0.4,
        f"{clips}.RandomClips.num_frames": 2,
        f"{clips}.RandomResizedCropClips.size": 32,
        "model.backbone.base_channels": 4,
        "default_hooks.logger.interval": INTERVAL,
        "default_hooks.log_reduction.interval": INTERVAL,
        "default_hooks.online_evaluation": None,
        "default_hooks.checkpoint": None,
        "train_cfg.max_epochs": 1,
        "visualizer": None,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    cfg = load_config(repo / f"configs/quickstart/{CONFIGS[name]}_toy_actions.py", options)
    # As in the recipes of the papers; AdamW counts its steps in tensors of the host.
    cfg.optim_wrapper.optimizer = dict(type="LARS", lr=0.1, weight_decay=1e-6)
    cfg.work_dir, cfg.launcher = str(work_dir), "none"
    return cfg


def waits(cfg) -> list[dict[str, int]]:
    counter = CountWaits()
    train(cfg, recorder=counter)
    return counter.found


def check_waits(found: list[dict[str, int]], reads: list[str]) -> None:
    """Check that only the logged one of three iterations waits, and exactly for these reads."""
    assert len(found) == 3
    for iteration, sites in enumerate(found, start=1):
        if iteration % INTERVAL:
            assert sites == {}, f"iteration {iteration} waits for the device: {sites}"
        else:
            assert sorted(site.split()[-1] for site in sites) == reads, sites
            assert set(sites.values()) == {1}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_training_waits_only_where_it_logs(repo, videos, tmp_path, monkeypatch, name):
    """Preprocessing, loss, backward, optimiser, target, queue and all hooks of three iterations."""
    monkeypatch.setattr(collapse, "_is_on_host", lambda h: False)
    check_waits(waits(config(repo, videos, tmp_path, name, **CHANGES.get(name, {}))), READS)


def waits_of_a_rank(repo: Path, videos: Path, folder: Path, rank: int, world: int) -> dict:
    """Return the waits of three iterations of every method, with batch norm over all ranks."""
    collapse._is_on_host = lambda h: False
    found = {}
    for name in CONFIGS:
        changes = {"train_dataloader__batch_size": 4 // world, **CHANGES.get(name, {})}
        # Groups of batch norm divide the samples of a rank.
        changes |= {key: 1 for key in changes if key == "model__shuffle_bn_splits"}
        cfg = config(repo, videos, folder / name, name, sync_bn="functional", **changes)
        cfg.launcher = "pytorch"
        found[name] = waits(cfg)
    return found


@pytest.mark.distributed
def test_two_processes_wait_no_more_than_one(repo, videos, tmp_path):
    """Keys, candidates, the sums of batch norm and gradients are exchanged without waiting."""
    for ranks in run_gloo(partial(waits_of_a_rank, repo, videos, tmp_path), tmp_path):
        assert list(ranks) == list(CONFIGS)
        for found in ranks.values():
            check_waits(found, sorted([*READS, AVERAGED]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_torch_reports_no_other_waits(repo, videos, tmp_path):
    found = waits(config(repo, videos, tmp_path, "SCE"))
    quiet = [sites for i, sites in enumerate(found, start=1) if i % INTERVAL and i > 1]
    assert quiet == [{}] * len(quiet), f"an iteration waits for the device: {quiet}"
    # Two reads, and two of mmengine for the memory.
    assert all(sum(sites.values()) <= 6 for sites in found[INTERVAL - 1 :: INTERVAL]), found
