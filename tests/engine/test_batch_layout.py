"""Where a checkpoint continues with another number of processes."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from sce_video.engine.batch_layout import BatchLayout, resumed_iteration

BEFORE = BatchLayout(processes=2, batch_size=4, accumulated=3, iters_per_epoch=12, samples=100)


def resume(
    monkeypatch, processes, batch_size, accumulated, epoch=2, iteration=24, samples=100, **more
):
    """The iteration and the accumulation of a run that resumes a checkpoint of ``BEFORE``."""
    monkeypatch.setattr("sce_video.engine.batch_layout.get_world_size", lambda: processes)
    wrapper = SimpleNamespace(_accumulative_counts=accumulated)
    batches = samples // processes // batch_size

    class Loop:
        @property
        def iters_per_epoch(self):
            count = wrapper._accumulative_counts
            return batches // count * count

    runner = SimpleNamespace(
        optim_wrapper=wrapper,
        train_loop=Loop(),
        train_dataloader=SimpleNamespace(batch_size=batch_size, dataset=range(samples)),
        logger=logging.getLogger("test"),
        param_schedulers=more.get("param_schedulers"),
    )
    meta = {"epoch": epoch, "iter": iteration, "batch_layout": more.get("layout", asdict(BEFORE))}
    return resumed_iteration(runner, meta, "a.pth"), wrapper._accumulative_counts


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ((2, 4, 3), (24, 3)),  # as it was
        ((1, 4, 3), (48, 6)),  # accumulation adapted; 24 of 25 batches, 4 steps an epoch
        ((1, 8, 3), (24, 3)),
        ((1, 24, 1), (8, 1)),
        ((3, 4, 3), (16, 2)),
        ((6, 4, 3), (8, 1)),
    ],
)
def test_the_global_batch_is_kept(monkeypatch, now, expected):
    assert resume(monkeypatch, *now) == expected


def test_the_middle_of_an_epoch_is_found(monkeypatch):
    """Epoch 2 and one of its 4 steps."""
    assert resume(monkeypatch, 2, 4, 3, iteration=27) == (27, 3)
    assert resume(monkeypatch, 1, 4, 3, iteration=27) == (48 + 6, 6)
    assert resume(monkeypatch, 1, 24, 1, iteration=27) == (8 + 1, 1)
    # written after the last step, before the end of the epoch
    assert resume(monkeypatch, 1, 24, 1, iteration=36) == (8 + 4, 1)


@pytest.mark.parametrize(
    ("now", "advice"),
    [
        ((4, 4, 3), r"train_dataloader\.batch_size=3 optim_wrapper\.accumulative_counts=2"),
        ((8, 4, 1), r"train_dataloader\.batch_size=3 optim_wrapper\.accumulative_counts=1"),
        ((1, 5, 1), r"train_dataloader\.batch_size=4 optim_wrapper\.accumulative_counts=6"),
        ((2, 8, 3), r"train_dataloader\.batch_size=4 optim_wrapper\.accumulative_counts=3"),
        ((5, 4, 3), "a number of processes that divides 24"),
        ((25, 1, 1), "a number of processes that divides 24"),
    ],
)
def test_settings_that_keep_the_global_batch_are_named(monkeypatch, now, advice):
    message = rf"a\.pth was written with a global batch of 24 \(2 processes x 4 x 3 .*{advice}"
    with pytest.raises(ValueError, match=message):
        resume(monkeypatch, *now)


def test_another_number_of_samples_is_resumed_at_the_end_of_an_epoch_only(monkeypatch):
    assert resume(monkeypatch, 2, 4, 3, samples=150) == (36, 3)
    with pytest.raises(ValueError, match="epoch of 100 samples, there are 150 now"):
        resume(monkeypatch, 2, 4, 3, samples=150, iteration=27)


def test_a_scheduler_of_iterations_is_refused(monkeypatch):
    assert resume(monkeypatch, 1, 8, 3, param_schedulers=[1]) == (24, 3)
    with pytest.raises(ValueError, match="a param_scheduler counts iterations"):
        resume(monkeypatch, 1, 4, 3, param_schedulers=[1])


@pytest.mark.parametrize("layout", [None, {}, {**asdict(BEFORE), "processes": "2"}])
def test_a_checkpoint_without_a_layout_continues_as_it_counts(monkeypatch, layout):
    assert resume(monkeypatch, 1, 4, 3, layout=layout) == (24, 3)


def test_one_process_is_singular():
    assert str(replace(BEFORE, processes=1)) == "12 (1 process x 4 x 3 accumulated)"
