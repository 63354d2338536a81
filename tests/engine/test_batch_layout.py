"""Where a checkpoint continues with another number of processes."""

from __future__ import annotations

import logging
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from mmengine.config import Config

from sce_video.engine.batch_layout import BatchLayout, divide_global_batch, resumed_iteration

BEFORE = BatchLayout(processes=2, batch_size=4, accumulated=3, iters_per_epoch=12, samples=100)


def resume(
    monkeypatch, processes, batch_size, accumulated, epoch=2, iteration=24, samples=100, **more
):
    """The iteration and the accumulation of a run that resumes a checkpoint of ``BEFORE``."""
    monkeypatch.setattr("sce_video.engine.batch_layout.get_world_size", lambda: processes)
    wrapper = SimpleNamespace(_accumulative_counts=accumulated)
    sampler = SimpleNamespace(num=-(-samples // processes))
    sampler.set_total_size = lambda total: setattr(sampler, "num", total // processes)
    loader = SimpleNamespace(
        batch_size=batch_size, dataset=range(samples), drop_last=True, sampler=sampler
    )

    class Loop:
        @property
        def iters_per_epoch(self):
            count = wrapper._accumulative_counts
            return sampler.num // batch_size // count * count

    runner = SimpleNamespace(
        optim_wrapper=wrapper,
        train_loop=Loop(),
        train_dataloader=loader,
        cfg=more.get("cfg", {}),
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
        ((5, 4, 3), "a number of processes that divides 24"),
    ],
)
def test_settings_that_keep_the_global_batch_are_named(monkeypatch, now, advice):
    message = rf"a\.pth was written with a global batch of 24 \(2 processes x 4 x 3 .*{advice}"
    with pytest.raises(ValueError, match=message):
        resume(monkeypatch, *now)


@pytest.mark.parametrize(("samples", "iters"), [(119, 4), (121, 5), (119, 5)])
def test_an_epoch_keeps_its_steps_where_only_rounding_changes_them(monkeypatch, samples, iters):
    """119 samples are 4 steps of 24 on one process and, rounded up to 120, 5 on two."""
    layout = asdict(BatchLayout(2, 12, 1, iters, samples))
    found = resume(
        monkeypatch, 1, 24, 1, epoch=2, iteration=2 * iters + 3, samples=samples, layout=layout
    )
    assert found == (2 * iters + 3, 1)


def test_another_global_batch_is_accepted_where_that_is_asked_for(monkeypatch, caplog):
    """20 of 100 samples, in steps of 24, are none of 40; 72 are one."""
    cfg = {"keep_global_batch": False}
    assert resume(monkeypatch, 1, 40, 1, cfg=cfg) == (4, 1)
    assert resume(monkeypatch, 1, 40, 1, iteration=27, cfg=cfg) == (4 + 0, 1)
    assert resume(monkeypatch, 1, 40, 1, iteration=33, cfg=cfg) == (4 + 1, 1)
    assert resume(monkeypatch, 1, 40, 1, iteration=36, cfg=cfg) == (4 + 2, 1)
    assert "has 40 (1 process x 40 x 1 accumulated) (keep_global_batch=False)" in caplog.text
    assert resume(monkeypatch, 1, 4, 3, cfg=cfg)[1] == 3  # not 6
    with pytest.raises(ValueError, match="a param_scheduler counts iterations"):
        resume(monkeypatch, 1, 40, 1, cfg=cfg, param_schedulers=[1])


def test_a_global_batch_is_divided_over_the_processes():
    cfg = Config(dict(train_dataloader=dict(batch_size=7), optim_wrapper={}))
    divide_global_batch(cfg, 3)
    assert cfg.train_dataloader.batch_size == 7
    cfg.global_batch = 24
    divide_global_batch(cfg, 3)
    assert cfg.train_dataloader.batch_size == 8
    cfg.optim_wrapper.accumulative_counts = 2
    divide_global_batch(cfg, 3)
    assert cfg.train_dataloader.batch_size == 4
    for processes in (5, 24):
        with pytest.raises(
            ValueError, match=f"global_batch=24 is not divisible by {processes} processes"
        ):
            divide_global_batch(cfg, processes)
    cfg.global_batch = "24"
    with pytest.raises(ValueError, match="must be a whole number of at least 1, got '24'"):
        divide_global_batch(cfg, 1)


def test_another_number_of_samples_is_resumed_at_the_end_of_an_epoch_only(monkeypatch):
    assert resume(monkeypatch, 2, 4, 3, samples=150) == (36, 3)
    with pytest.raises(ValueError, match="epoch of 100 samples, but an epoch now has 150"):
        resume(monkeypatch, 2, 4, 3, samples=150, iteration=27)
