"""Accumulation, mixed precision, compilation and memory layout in whole trainings."""

from __future__ import annotations

import math
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from helpers.training import make_videos, small_config, train

from sce_video.engine.compile import SmallConv3d
from sce_video.models.backbones import ResNet3dSlowPath


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"))


@pytest.fixture(scope="module")
def plain(videos, tmp_path_factory):
    return train(small_config(videos, tmp_path_factory.mktemp("plain"), train_cfg__max_epochs=1))


def losses(recorder):
    return [row[1] for row in recorder.rows]


def test_epochs_end_with_whole_steps(videos, tmp_path):
    cfg = small_config(
        videos,
        tmp_path,
        train_dataloader__batch_size=2,  # 6 batches an epoch: one step of 4, 2 left out
        optim_wrapper__accumulative_counts=4,
        default_hooks__checkpoint__interval=4,
        train_cfg__max_epochs=2,
    )
    runner, recorder = train(cfg)
    assert [row[0] for row in recorder.rows] == list(range(8))
    algorithm = runner.model
    assert int(algorithm.queue.pointer) == 2 * 4 * 2 * 2 % 20  # steps x batches x batch x views
    steps = {int(s["step"]) for s in runner.optim_wrapper.optimizer.state.values()}
    assert steps == {2}


def test_a_checkpoint_in_the_middle_of_a_step_is_refused(videos, tmp_path):
    cfg = small_config(
        videos,
        tmp_path,
        train_dataloader__batch_size=2,
        optim_wrapper__accumulative_counts=4,
        default_hooks__checkpoint__interval=6,
    )
    with pytest.raises(ValueError, match=r"interval 6 .* multiple of accumulative_counts=4"):
        train(cfg)


def test_too_few_videos_for_a_step(videos, tmp_path):
    with pytest.raises(ValueError, match="12 training samples do not fill one step"):
        train(small_config(videos, tmp_path, train_dataloader__batch_size=16))


@contextmanager
def float64():
    """Trainings have float64 weights: steps through batch norm over four samples amplify rounding.

    In float32 the loss of the third step differed by 0.04 after another order of summation.
    """
    forward = ResNet3dSlowPath.forward
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.object(
            ResNet3dSlowPath, "forward", lambda self, x: forward(self, x.double())
        ):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def plain_float64(videos, tmp_path_factory):
    with float64():
        return train(small_config(videos, tmp_path_factory.mktemp("f64"), train_cfg__max_epochs=1))


@pytest.mark.parametrize(
    "switch",
    [dict(model__backbone__channels_last=True), dict(conv_2d=True)],
    ids=["channels_last", "conv_2d"],
)
def test_switches_of_convolutions_change_speed_not_results(videos, tmp_path, plain_float64, switch):
    with float64():
        _, recorder = train(small_config(videos, tmp_path, train_cfg__max_epochs=1, **switch))
    assert losses(recorder) == pytest.approx(losses(plain_float64[1]), abs=1e-5)


@pytest.mark.parametrize(
    ("switch", "tolerance"),
    [
        (dict(compile=dict(backend="eager")), 1e-5),
        (
            dict(optim_wrapper__type="MixedPrecisionOptimWrapper", optim_wrapper__dtype="bfloat16"),
            0.3,
        ),
    ],
    ids=["compile", "bfloat16"],
)
def test_switches_change_speed_not_results(videos, tmp_path, plain, switch, tolerance, monkeypatch):
    begun = []  # steps that CUDA graphs would be told of, as they reuse the outputs of a step
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: begun.append(1))
    runner, recorder = train(small_config(videos, tmp_path, train_cfg__max_epochs=1, **switch))
    assert len(begun) == (3 if "compile" in switch else 0)
    in_bf16 = "optim_wrapper__dtype" in switch
    count = 1 if in_bf16 else 3  # in 16 bits steps differ from the second on
    assert losses(recorder)[:count] == pytest.approx(losses(plain[1])[:count], abs=tolerance)
    assert all(map(math.isfinite, losses(recorder)))
    guarded = any(isinstance(part, SmallConv3d) for part in runner.model.modules())
    assert guarded == in_bf16, "two frames, and kernels of three"
    if "compile" in switch:
        assert runner.model.backbone._compiled_call_impl is not None
        assert runner.model.target.backbone._compiled_call_impl is not None
        names = set(runner.model.state_dict())
        assert names == set(plain[0].model.state_dict())  # checkpoints can be exchanged


def test_lars_changes_every_weight(videos, tmp_path):
    cfg = small_config(videos, tmp_path, train_cfg__max_epochs=1)
    cfg.optim_wrapper.optimizer = dict(type="LARS", lr=2.4, weight_decay=1e-6)
    cfg.custom_hooks[0].base_batch_size = 256
    runner, _ = train(cfg)
    fresh, _ = train(small_config(videos, tmp_path / "x", train_cfg__max_epochs=1), stop_after=1)
    moved = [
        not torch.equal(p, q)
        for p, q in zip(
            runner.model.backbone.parameters(), fresh.model.backbone.parameters(), strict=True
        )
    ]
    assert all(moved)


def test_mmaction2_loads_the_backbone_of_a_checkpoint(videos, tmp_path):
    """As in README.md: a Recognizer3D of an mmaction2 config, ``prefix="backbone."``."""
    runner, _ = train(small_config(videos, tmp_path, train_cfg__max_epochs=1))
    from mmaction.registry import MODELS as MMACTION_MODELS
    from mmengine.registry import DefaultScope

    with DefaultScope.overwrite_default_scope("mmaction"):
        recogniser = MMACTION_MODELS.build(
            dict(
                type="Recognizer3D",
                backbone=dict(
                    type="sce_video.ResNet3dSlowPath",
                    depth=18,
                    base_channels=4,
                    init_cfg=dict(
                        type="Pretrained",
                        checkpoint=str(tmp_path / "iter_3.pth"),
                        prefix="backbone.",
                    ),
                ),
                cls_head=dict(type="I3DHead", num_classes=5, in_channels=32),
            )
        )
        recogniser.init_weights()
    pretrained = runner.model.backbone.state_dict()
    for name, value in recogniser.backbone.state_dict().items():
        assert torch.equal(value, pretrained[name]), name


def test_any_named_hook_can_be_removed(videos, tmp_path):
    cfg = small_config(videos, tmp_path, train_cfg__max_epochs=1)
    cfg.default_hooks.progress = None  # ours
    cfg.default_hooks.timer = None  # mmengine's
    runner, _ = train(cfg)
    names = {type(hook).__name__ for hook in runner.hooks}
    assert not names & {"ProgressHook", "IterTimerHook"} and "LoggerHook" in names
