"""A resumed training equals the uninterrupted one bit for bit, also in the middle of an epoch."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.recognition import FINETUNE, make_splits, small_options
from helpers.training import small_config as training_config
from helpers.training import train
from mmengine.config import Config
from mmengine.registry import DefaultScope

from sce_video.engine import runner as runner_module
from sce_video.engine.checkpoint import describe_checkpoint_file, load_checkpoint_file
from sce_video.engine.runner import VideoRunner
from sce_video.runs import configs

WORKERS = dict(train_dataloader__num_workers=2, train_dataloader__persistent_workers=True)


def small_config(videos, folder, **changes):
    return training_config(videos, folder, **{"train_cfg__max_epochs": 2, **changes})


@pytest.fixture(scope="module")
def uninterrupted(videos, tmp_path_factory):
    """Folder, runner and records of the run that all others must equal; without workers."""
    folder = tmp_path_factory.mktemp("whole")
    runner, recorder = train(small_config(videos, folder))
    assert len(recorder.rows) == 6
    return folder, runner, recorder


def weights_equal(a, b) -> bool:
    assert set(a) == set(b)
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("stop_after", "options"),
    [(2, {}), (3, {}), pytest.param(5, WORKERS, marks=pytest.mark.slow)],
    ids=["mid-epoch", "epoch-end", "workers"],
)
def test_same_losses_weights_queue_and_optimizer(
    videos, tmp_path, uninterrupted, stop_after, options
):
    folder, whole, records = uninterrupted
    _, before = train(small_config(videos, tmp_path, **options), stop_after)
    resumed_cfg = small_config(videos, tmp_path, **options)
    resumed_cfg.resume = True
    resumed, after = train(resumed_cfg)

    # The checkpoint of the last iteration was written before the interruption.
    assert before.rows + after.rows == records.rows
    assert before.indices + after.indices == records.indices
    assert weights_equal(whole.model.state_dict(), resumed.model.state_dict())
    first = load_checkpoint_file(folder / "iter_6.pth")
    second = load_checkpoint_file(tmp_path / "iter_6.pth")
    assert first["meta"]["iter"] == second["meta"]["iter"] == 6
    for index, state in first["optimizer"]["state"].items():
        assert weights_equal(
            {k: torch.as_tensor(v) for k, v in state.items()},
            {k: torch.as_tensor(v) for k, v in second["optimizer"]["state"][index].items()},
        )
    history = first["message_hub"]["log_scalars"]["train/loss"]["values"]
    assert torch.equal(history, second["message_hub"]["log_scalars"]["train/loss"]["values"])


def test_the_order_of_the_samples_follows_from_the_seed_of_the_run(videos, tmp_path, uninterrupted):
    seeds = (uninterrupted[1].seed, 8, 9)
    orders = [uninterrupted[2].indices]
    for seed in seeds[1:]:
        cfg = small_config(videos, tmp_path / str(seed), randomness__seed=seed)
        runner, recorder = train(cfg, stop_after=3)
        assert runner.train_dataloader.sampler.seed == seed
        orders.append(recorder.indices)
    assert len({str(order[:3]) for order in orders}) == len(set(seeds)) == 3


def test_weights_alone_and_those_of_another_network_cannot_be_resumed(
    videos, tmp_path, uninterrupted
):
    weights = {"state_dict": uninterrupted[1].model.state_dict()}
    other = {"state_dict": {"fc.weight": torch.ones(2)}}
    narrow = {"state_dict": {"backbone.conv1.weight": torch.ones(2, 3, 1, 7, 7)}}
    for resume, content, message in (
        (True, weights, "no training state.*load_from"),
        (True, narrow, r"weights\.pth contains a different network .*SCE .*of a different shape"),
        (False, other, r"no weight in .*weights\.pth fits SCE"),
    ):
        torch.save(content, tmp_path / "weights.pth")
        cfg = small_config(videos, tmp_path / "new")
        cfg.resume, cfg.load_from = resume, str(tmp_path / "weights.pth")
        with pytest.raises(ValueError, match=message):
            train(cfg)


def test_epochs_of_checkpoints_that_count_iterations(uninterrupted):
    """Of two epochs of three iterations; a resumed training still does what follows an epoch."""
    folder = uninterrupted[0]
    found = [load_checkpoint_file(folder / f"iter_{done}.pth")["meta"] for done in range(1, 7)]
    assert [meta["trained_epochs"] for meta in found] == [0, 0, 1, 1, 1, 2]
    assert [meta["epoch"] for meta in found] == [0, 0, 0, 1, 1, 1]
    assert describe_checkpoint_file(folder / "iter_6.pth")["epoch"] == 2


def test_another_division_of_the_global_batch_continues_the_epoch(videos, tmp_path, uninterrupted):
    """2 micro-batches of 2 samples instead of one of 4: the same steps have the same samples."""
    train(small_config(videos, tmp_path), stop_after=2)
    cfg = small_config(
        videos,
        tmp_path,
        train_dataloader__batch_size=2,
        optim_wrapper__accumulative_counts=2,
        default_hooks__checkpoint__interval=2,
    )
    cfg.resume = True
    resumed, after = train(cfg)
    # iteration 2 was interrupted after its checkpoint; 4 of 6 steps are left, each of 2 iterations
    assert len(after.rows) == 8 and after.rows[0][0] == 4 and resumed.iter == 12
    halves = after.indices
    seen = [sum(halves[i : i + 2], []) for i in range(0, 8, 2)]
    whole = uninterrupted[2].indices
    assert [sorted(step) for step in seen] == [sorted(step) for step in whole[2:]]
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["iter"] for row in rows] == [2, 4, *range(5, 13)]


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    return make_splits(tmp_path_factory.mktemp("splits"))


def finetuning(splits, folder, workers: int) -> Config:
    """Two epochs of two steps with dropout of a half, validated after each."""
    options = small_options(splits, default_hooks__checkpoint__interval=1)
    options += [
        "default_hooks.checkpoint.by_epoch=False",
        "default_hooks.checkpoint.max_keep_ckpts=-1",
    ]
    options += [f"train_dataloader.num_workers={workers}", "train_dataloader.batch_size=3"]
    cfg = configs.training_config(
        FINETUNE, work_dir=folder, pretrained="random", amp="float32", cfg_options=options
    )
    assert cfg.model.cls_head.dropout_ratio > 0 and cfg.train_cfg.val_interval == 1
    return cfg


def dropping_transformer(splits, folder, workers: int) -> Config:
    """Two epochs of a transformer whose samples skip attention at random and lose patches."""
    cfg = training_config(splits, folder, train_cfg__max_epochs=2)
    backbone = dict(type="VisionTransformer3d", embed_dims=12, depth=3, num_heads=2)
    backbone |= dict(drop_path_rate=0.5, patch_size=16, grid_size=(1, 2, 2), keep_tokens=0.5)
    cfg.model.backbone = Config(backbone)
    cfg.train_dataloader.num_workers = workers
    return cfg


@pytest.mark.parametrize("make", [finetuning, dropping_transformer])
@pytest.mark.parametrize(
    ("stop_after", "workers"),
    [(1, 0), (2, 0), (3, 0), pytest.param(3, 1, marks=pytest.mark.slow)],
    ids=["mid-epoch", "epoch-end", "second-epoch", "workers"],
)
def test_dropout_of_a_resumed_training_draws_what_it_would_have_drawn(
    splits, tmp_path, make, stop_after, workers
):
    whole, expected = train(make(splits, tmp_path / "whole", workers))
    train(make(splits, tmp_path / "parts", workers), stop_after)
    cfg = make(splits, tmp_path / "parts", workers)
    cfg.resume = True
    resumed, rest = train(cfg)
    assert rest.rows == expected.rows[-len(rest.rows) :] and rest.rows
    assert weights_equal(whole.model.state_dict(), resumed.model.state_dict())


def test_loader_workers_follow_the_cores_of_the_process(monkeypatch):
    """A recipe of twelve workers runs on two cores, and says so; no worker stays none."""
    cfg = {"dataset": [{"inputs": 1}], "batch_size": 1, "persistent_workers": True}
    cfg |= {"sampler": {"type": "DefaultSampler", "shuffle": False}}
    told = []
    monkeypatch.setattr(runner_module, "cores_of_process", lambda: 2)
    monkeypatch.setattr(runner_module, "print_log", lambda text, *_: told.append(text))
    built = []
    for workers in (12, 2, 1, 0):
        built.append(VideoRunner.build_dataloader({**cfg, "num_workers": workers}, seed=0))
    assert [loader.num_workers for loader in built] == [2, 2, 1, 0]
    assert [loader.persistent_workers for loader in built] == [True, True, True, False]
    (text,) = told
    assert text.startswith("12 loader workers are more than the 2 cores of this process")


def test_no_loader_draws_from_the_global_generator(splits, tmp_path):
    """Else what is drawn after a loader is iterated over depends on how often it was."""
    cfg = finetuning(splits, tmp_path, 0).train_dataloader
    own = torch.utils.data.DataLoader([{"inputs": 1}])
    for loader in (cfg, own):
        with DefaultScope.overwrite_default_scope("sce_video"):  # as a runner sets it
            built = VideoRunner.build_dataloader(loader, seed=0)
        before = torch.get_rng_state()
        next(iter(built))
        assert torch.equal(torch.get_rng_state(), before)
