"""A resumed training equals the uninterrupted one bit for bit, also in the middle of an epoch."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.training import small_config as training_config
from helpers.training import train

from sce_video.engine.checkpoint import load_checkpoint_file

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


def test_weights_alone_and_those_of_another_network_cannot_be_resumed(
    videos, tmp_path, uninterrupted
):
    weights = {"state_dict": uninterrupted[1].model.state_dict()}
    other = {"state_dict": {"fc.weight": torch.ones(2)}}
    narrow = {"state_dict": {"backbone.conv1.weight": torch.ones(2, 3, 1, 7, 7)}}
    for resume, content, message in (
        (True, weights, "no training state.*load_from"),
        (True, narrow, r"weights\.pth is of another network than SCE .*of another shape"),
        (False, other, r"no weight of .*weights\.pth fits SCE"),
    ):
        torch.save(content, tmp_path / "weights.pth")
        cfg = small_config(videos, tmp_path / "new")
        cfg.resume, cfg.load_from = resume, str(tmp_path / "weights.pth")
        with pytest.raises(ValueError, match=message):
            train(cfg)


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
