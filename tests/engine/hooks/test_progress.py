"""Schedules, target and queue with accumulation and fp16, logging and bad files."""

from __future__ import annotations

import json
import logging
import math
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import LoggerHook
from mmengine.logging import MessageHub
from mmengine.optim import OptimWrapper

from sce_video.datasets import TooManyBadFilesError
from sce_video.engine import (
    BadFileHook,
    LogReductionHook,
    MeanLogProcessor,
    MixedPrecisionOptimWrapper,
    OptimizerStepHook,
    ProgressHook,
    ScheduleHook,
)
from sce_video.engine.checkpoint import pack_message_hub, unpack_message_hub
from sce_video.engine.hooks import progress
from sce_video.models import SCE
from sce_video.registry import LOG_PROCESSORS
from sce_video.utils.tensors import DeferredNumber


def algorithm() -> SCE:
    torch.manual_seed(0)
    model = SCE(
        backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=4, zero_init_residual=False),
        projector=dict(
            type="MLP", hidden_channels=16, out_channels=8, num_layers=3, norm_output=True
        ),
        predictor=dict(type="MLP", hidden_channels=16, num_layers=2, norm_output=False),
        queue_size=64,
        momentum=0.9,
    )
    model.init_weights()
    return model.eval()  # BN evaluated: micro-batches and the joint batch agree


def run_steps(model, wrapper, batches):
    """The steps of the training loop with a model, an optimiser wrapper and the step hook."""
    runner = SimpleNamespace(model=model, optim_wrapper=wrapper)
    hook = OptimizerStepHook()
    hook.before_train(runner)
    wrapper.initialize_count_status(model, 0, len(batches))
    for views in batches:
        with wrapper.optim_context(model):
            loss = model(views, mode="loss")["loss"]
        wrapper.update_params(loss)
        hook.after_train_iter(runner, 0)
    hook.after_train(runner)


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def views(n, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(n, 3, 2, 32, 32, generator=generator) for _ in range(2)]


def test_accumulated_micro_batches_equal_the_joint_batch():
    joint = [views(8, seed) for seed in range(3)]
    micro = [[v[k : k + 4] for v in pair] for pair in joint for k in (0, 4)]
    one, many = algorithm(), algorithm()
    run_steps(one, OptimWrapper(torch.optim.SGD(trainable(one), lr=0.05)), joint)
    wrapper = OptimWrapper(torch.optim.SGD(trainable(many), lr=0.05), accumulative_counts=2)
    run_steps(many, wrapper, micro)
    for (name, a), (_, b) in zip(one.named_parameters(), many.named_parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=name)
    assert int(one.queue.pointer) == int(many.queue.pointer) == 48  # once per step
    order = [a[:, 0].sort().indices for a in (one.queue.keys, many.queue.keys)]
    torch.testing.assert_close(
        one.queue.keys[order[0]], many.queue.keys[order[1]], rtol=1e-4, atol=1e-5
    )


def test_an_fp16_overflow_changes_nothing():
    model = algorithm()
    queue, target = model.queue.keys.clone(), [p.clone() for p in model.target.parameters()]
    online = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(trainable(model), lr=0.05)
    wrapper = MixedPrecisionOptimWrapper(optimizer, dtype="float16", init_scale=2.0**100)
    scale = wrapper.loss_scaler.get_scale()
    runner = SimpleNamespace(model=model, optim_wrapper=wrapper)
    hook = OptimizerStepHook()
    hook.before_train(runner)
    wrapper.initialize_count_status(model, 0, 2)
    wrapper.update_params(model(views(4, 0), mode="loss")["loss"] * 1e10)  # overflows fp32 too
    hook.after_train_iter(runner, 0)
    assert wrapper.loss_scaler.get_scale() < scale
    assert torch.equal(model.queue.keys, queue)
    assert all(torch.equal(p, t) for p, t in zip(model.target.parameters(), target, strict=True))
    assert all(torch.equal(p, o) for p, o in zip(model.parameters(), online, strict=True))
    model.queue.commit()
    assert torch.equal(model.queue.keys, queue)  # the staged keys of the skipped step are discarded


def schedule_runner(lr=2.4, batch_size=64, accumulation=1, epochs=10, iters=20):
    model = algorithm()
    optimizer = torch.optim.SGD(trainable(model), lr=lr)
    hub = MessageHub.get_instance("test_training_hooks")
    return SimpleNamespace(
        model=model,
        optim_wrapper=OptimWrapper(optimizer, accumulative_counts=accumulation),
        train_loop=SimpleNamespace(iters_per_epoch=iters, planned_epochs=epochs, replans=()),
        train_dataloader=SimpleNamespace(batch_size=batch_size),
        logger=logging.getLogger("test"),
        message_hub=hub,
        log_processor=MeanLogProcessor(),
        iter=0,
    )


@pytest.mark.parametrize(("batch_size", "accumulation"), [(512, 1), (64, 8)])
def test_linear_scaling_from_the_actual_global_batch(batch_size, accumulation):
    """2.4 for 256 is 4.8 at 512, with or without accumulation."""
    runner = schedule_runner(batch_size=batch_size, accumulation=accumulation, iters=16)
    hook = ScheduleHook(lr=dict(name="warmup_cosine", warmup_steps=1), base_batch_size=256)
    hook.before_run(runner)
    hook.before_train(runner)
    hook.before_train_iter(runner, 0)
    assert runner.optim_wrapper.optimizer.param_groups[0]["lr"] == pytest.approx(4.8)


def test_micro_batches_share_the_values_of_their_step():
    runner = schedule_runner(batch_size=64, accumulation=4, epochs=2, iters=8)  # 4 steps in all
    hook = ScheduleHook(
        lr=dict(name="cosine", end=0.0),
        model=dict(momentum=dict(name="linear", start=0.0, end=1.0), tau_m=0.07),
    )
    hook.before_run(runner)
    hook.before_train(runner)
    momenta, rates = [], []
    for runner.iter in range(16):
        hook.before_train_iter(runner, 0)
        momenta.append(runner.model.momentum)
        rates.append(runner.optim_wrapper.optimizer.param_groups[0]["lr"])
    assert momenta == [0.0] * 4 + [0.25] * 4 + [0.5] * 4 + [0.75] * 4
    assert len(set(rates)) == 4 and rates[0] == pytest.approx(2.4)
    assert runner.model.tau_m == 0.07


def test_weight_decay_follows_its_schedule_where_there_is_some():
    runner = schedule_runner(epochs=1, iters=4)
    first, *others = trainable(runner.model)
    groups = [{"params": [first], "weight_decay": 0.0}, {"params": others, "weight_decay": 0.04}]
    runner.optim_wrapper.optimizer = torch.optim.SGD(groups, lr=0.1)
    hook = ScheduleHook(weight_decay=dict(name="cosine", start=0.04, end=0.4))
    hook.before_run(runner)
    hook.before_train(runner)
    # A checkpoint that is loaded now brings the values of its last step.
    for group in runner.optim_wrapper.optimizer.param_groups:
        group["weight_decay"] = 0.3
    for runner.iter in range(4):
        hook.before_train_iter(runner, 0)
        decays = [group["weight_decay"] for group in runner.optim_wrapper.optimizer.param_groups]
        expected = 0.4 - 0.36 * (1 + math.cos(math.pi * runner.iter / 4)) / 2
        assert decays == [0.0, pytest.approx(expected)]


STEPS = dict(name="steps", values=(0.5, 1.5, 0.5), milestone_epochs=(1, 2))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (dict(taum=0.1), "SCE has no number 'taum'"),
        (dict(lambda_=STEPS), "lambda_ must be from 0 to 1, got 1.5"),
    ],
)
def test_what_the_model_refuses_is_refused_before_training(model, message):
    runner, hook = schedule_runner(), ScheduleHook(model=model)
    hook.before_run(runner)
    with pytest.raises(ValueError, match=message):
        hook.before_train(runner)


def test_training_stops_on_nan_but_tolerates_a_few(tmp_path):
    hook = LogReductionHook(max_nonfinite=2)
    loader = SimpleNamespace(dataset=SimpleNamespace(path="v{}.mp4".format))
    runner = SimpleNamespace(iter=6, epoch=0, work_dir=str(tmp_path), train_dataloader=loader)
    bad, good = {"loss": torch.tensor(float("nan"))}, {"loss": torch.tensor(1.5)}
    for outputs in (bad, bad, good, bad, bad):
        hook.after_train_iter(runner, 0, outputs=dict(outputs))
    batch = {"index": torch.tensor([3, 1])}
    expected = r"3 iterations up to iteration 7.*no earlier checkpoint. .*: v3\.mp4, v1\.mp4$"
    with pytest.raises(FloatingPointError, match=expected):
        hook.after_train_iter(runner, 0, batch, dict(bad))
    (tmp_path / "epoch_2.pth").touch()
    with pytest.raises(FloatingPointError, match=r"is .*epoch_2\.pth .*v7\.mp4 and 12 more"):
        hook.after_train_iter(runner, 0, {"index": torch.arange(20)}, dict(bad))
    runner.train_dataloader = SimpleNamespace(dataset=[])  # names no files
    with pytest.raises(FloatingPointError, match=r"already be too large\)$"):
        hook.after_train_iter(runner, 0, batch, dict(bad))
    rows = [json.loads(line) for line in (tmp_path / "alarms.jsonl").read_text().splitlines()]
    assert [(row["alarm"], row["level"], row["iter"]) for row in rows] == 3 * [
        ("loss_not_finite", "error", 7)
    ]
    assert "v3.mp4, v1.mp4" in rows[0]["message"]


@pytest.fixture
def log_processor(repo):
    cfg = Config.fromfile(repo / "configs/_base_/default_runtime.py").log_processor
    return LOG_PROCESSORS.build(cfg)


def test_speed_and_data_wait_are_those_of_the_window(log_processor):
    """Videos over seconds, not a mean of rates; also after a round trip through a checkpoint."""
    hub = MessageHub.get_instance("test_progress")
    runner = SimpleNamespace(
        message_hub=hub, train_dataloader=SimpleNamespace(batch_size=16), iter=0
    )
    hook = ProgressHook()
    window = [(0.5, 0.25)] * 10 + [(1.5, 0.75), (0.5, 0.0)] * 5
    for seconds, waited in [(100.0, 100.0)] * 3 + window:  # the first are outside the window
        hub.update_scalar("train/time", seconds)
        hub.update_scalar("train/data_time", waited)
        hook.after_train_iter(runner, 0)
    hub.load_state_dict(unpack_message_hub(pack_message_hub(hub.state_dict()), "."))
    tag = log_processor._collect_scalars([], runner, "train")
    assert tag["time"] == pytest.approx(0.75)
    assert tag["videos_per_s"] == pytest.approx(16 / 0.75)
    assert tag["data_wait"] == pytest.approx(6.25 / 15)


def bad_file_runner(tmp_path, files=100, iteration=0):
    return SimpleNamespace(
        work_dir=str(tmp_path),
        iter=iteration,
        train_dataloader=SimpleNamespace(dataset=range(files)),
        train_loop=SimpleNamespace(failure=None),
        logger=logging.getLogger("test"),
    )


def test_bad_files_are_reported_once_and_stop_above_the_share(tmp_path, caplog):
    caplog.set_level(logging.INFO, "test")
    runner = bad_file_runner(tmp_path)
    hook = BadFileHook(max_bad_share=0.02)
    hook.before_train(runner)
    for path in ("a.mp4", "b.mp4", "a.mp4"):
        hook.after_train_iter(runner, 0, data_batch=dict(failures=[(path, "broken")]))
    hook.after_train_epoch(runner)
    hook.after_train_epoch(runner)  # nothing new: no second line in the log
    assert caplog.text.count("2 of 100 files could not be decoded") == 1
    lines = (tmp_path / "bad_files.jsonl").read_text().splitlines()
    assert len(lines) == 2 and '"a.mp4"' in lines[0] and '"count": 2' in lines[0]
    assert runner.train_loop.failure is None
    hook.after_train_iter(runner, 0, data_batch=dict(failures=[("c.mp4", "broken")]))
    with pytest.raises(TooManyBadFilesError, match=r"3 of 100[\s\S]*a\.mp4[\s\S]*c\.mp4"):
        raise runner.train_loop.failure


# Values of several iterations that are read together: means over ranks, values of the host.


def make_runner(name):
    return SimpleNamespace(
        model=torch.nn.Linear(1, 1),
        hooks=[LoggerHook(interval=4)],
        message_hub=MessageHub.get_instance(name),
        train_loop=SimpleNamespace(iters_per_epoch=10),
        iter=0,
    )


def run(hook, runner, iterations):
    """The outputs that later hooks get, by iteration."""
    hook.before_train(runner)
    found = []
    for iteration in range(iterations):
        runner.iter = iteration
        outputs = {"loss": torch.tensor(float(iteration)), "other": torch.tensor(-1.0)}
        outputs["rank"] = DeferredNumber(torch.full((2,), float(iteration)), torch.sum)
        hook.after_train_iter(runner, iteration % 10, {"index": torch.arange(2)}, outputs)
        found.append(outputs)
    return found


def test_two_ranks(monkeypatch):
    """The other rank has 10 more of everything."""
    calls = []

    def mean(values, op):
        assert op == "mean"
        calls.append(tuple(values.shape))
        values += 5

    monkeypatch.setattr(progress, "get_world_size", lambda: 2)
    monkeypatch.setattr(progress, "all_reduce", mean)
    runner = make_runner("two_ranks")
    found = run(LogReductionHook(interval=4), runner, 4)
    assert found == [{}, {}, {}, {"loss": 8.0, "other": 4.0, "rank": 11.0}]
    assert calls == [(4, 3)], "one exchange for all iterations"
    history = runner.message_hub.get_scalar("train/loss").data[0]
    assert history.tolist() == [5.0, 6.0, 7.0], "RuntimeInfoHook adds the last"
    # that of the last iteration, for all
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
