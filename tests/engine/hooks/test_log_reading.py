"""Values of several iterations that are read together: means over ranks, values of the host."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import LoggerHook
from mmengine.logging import MessageHub

from sce_video.engine import LogReductionHook
from sce_video.engine.hooks import progress
from sce_video.models.losses import effective_rank
from sce_video.models.losses.collapse import _gram_and_norm, _rank_of
from sce_video.utils.tensors import HostValue


def make_runner(name, interval=4):
    return SimpleNamespace(
        model=torch.nn.Linear(1, 1),
        hooks=[LoggerHook(interval=interval)],
        message_hub=MessageHub.get_instance(name),
        train_loop=SimpleNamespace(iters_per_epoch=10),
        iter=0,
    )


def run(hook, runner, iterations, on_host=True):
    """The outputs that later hooks get, by iteration."""
    hook.before_train(runner)
    found = []
    for iteration in range(iterations):
        runner.iter = iteration
        outputs = {"loss": torch.tensor(float(iteration)), "other": torch.tensor(-1.0)}
        if on_host:
            outputs["rank"] = HostValue(torch.full((2,), float(iteration)), torch.sum)
        hook.after_train_iter(runner, iteration % 10, {"index": torch.arange(2)}, outputs)
        found.append(outputs)
    return found


@pytest.mark.parametrize("on_host", [True, False])
def test_two_ranks(monkeypatch, on_host):
    """The other rank has 10 more of everything."""
    calls = []

    def mean(values, op):
        assert op == "mean"
        calls.append(tuple(values.shape))
        values += 5

    monkeypatch.setattr(progress, "get_world_size", lambda: 2)
    monkeypatch.setattr(progress, "all_reduce", mean)
    runner = make_runner(f"two_ranks{on_host}")
    found = run(LogReductionHook(interval=4), runner, 4, on_host)
    assert found[:3] == [{}, {}, {}]
    expected = {"loss": 8.0, "other": 4.0, **({"rank": 11.0} if on_host else {})}
    assert found[3] == expected
    assert calls == [(4, len(expected))], "one exchange for all iterations"
    history = runner.message_hub.get_scalar("train/loss").data[0]
    assert history.tolist() == [5.0, 6.0, 7.0], "RuntimeInfoHook adds the last"
    if on_host:  # that of the last iteration, for all
        assert runner.message_hub.get_scalar("train/rank").data[0].tolist() == [11.0] * 3


def test_an_epoch_and_a_checkpoint_read_what_waits():
    runner = make_runner("epoch")
    hook = LogReductionHook(interval=100)
    found = run(hook, runner, 12)
    read = [number for number, outputs in enumerate(found, start=1) if outputs]
    assert read == [4, 8, 10], "lines of the log, end of the epoch"
    hook.before_checkpoint(runner)
    assert runner.message_hub.get_scalar("train/loss").data[0].tolist()[-2:] == [10.0, 11.0]
    hook.after_train(runner)  # nothing is left
    assert len(runner.message_hub.get_scalar("train/loss").data[0]) == 9 - 2 + 2


def test_on_a_cpu_every_iteration_is_read():
    found = run(LogReductionHook(), make_runner("cpu"), 3)
    assert [outputs["loss"] for outputs in found] == [0.0, 1.0, 2.0]
    assert [outputs["rank"] for outputs in found] == [0.0, 2.0, 4.0]


def test_wrong_interval():
    with pytest.raises(ValueError, match="interval must be at least 1 or None, got 0"):
        LogReductionHook(interval=0)


@pytest.mark.parametrize("shape", [(12, 5), (5, 12)])
def test_the_rank_of_a_device_is_that_of_a_cpu(shape):
    h = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert HostValue(_gram_and_norm(h), _rank_of).item() == float(effective_rank(h))
    h[0, 0] = float("nan")
    assert math.isnan(HostValue(_gram_and_norm(h), _rank_of).item())
