"""Optimisers, rates and headers of the downstream recipes against a table written down by hand.

Sources: the paper's appendix D.3 and tables; SSv2 and AVA: facebookresearch/SlowFast,
configs/contrastive_ssl and config/defaults.py; supervised: juliendenize/eztorch,
configs/run/supervised/resnet3d18/kinetics200.yaml; linear evaluation of images: appendices D.1
(steps) and D.2 (cosine).
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper, build_optim_wrapper
from mmengine.registry import DefaultScope
from torch import nn

from sce_video.engine import ScheduleHook
from sce_video.engine.config.load import load_config
from sce_video.engine.optimizers import NoNormDecayConstructor
from sce_video.registry import HOOKS, MODELS

REPO = Path(__file__).resolve().parents[2]
RECIPES = REPO / "configs"
# rate at the global batch, of which batch; epochs, warm-up epochs; milestones or end of the cosine
FACTS = {
    "linear": dict(batch=512, peak=4.0, decay=0, nesterov=False, epochs=60, warmup=8, end=0.0),
    "finetune": dict(batch=64, peak=0.025, decay=0, nesterov=False, epochs=200, warmup=0, end=0.0),
    "ssv2": dict(batch=64, peak=0.12, decay=1e-6, nesterov=True, epochs=22, warmup=0.19,
                 milestones=(14, 18)),
    "ava": dict(batch=64, peak=0.3, decay=1e-7, nesterov=True, epochs=32, warmup=5.3,
                milestones=(16, 24, 28)),
    "supervised": dict(batch=1024, peak=1.6, decay=1e-4, nesterov=False, epochs=200, warmup=34,
                       end=0.04),
    "steps of images": dict(batch=512, peak=30, decay=0, nesterov=False, epochs=100, warmup=0,
                            milestones=(60, 80)),
    "cosine of images": dict(batch=1024, peak=0.4, decay=0, nesterov=False, epochs=90, warmup=0,
                             end=0.0),
}  # fmt: skip
OF_PROTOCOL = {
    "linear": "downstream/linear/r3d18_8xb64-8x224-60e_k200.py",
    "finetune": "downstream/finetune/r3d18_1xb64-8x224-200e_ucf101.py",
    "ssv2": "downstream/finetune/r3d50_8xb8-8x224-22e_ssv2.py",
    "ava": "downstream/detection/r3d50_8xb8-8x8-32e_ava.py",
    "supervised": "downstream/supervised/r3d18_8xb128-8x224-200e_k200.py",
    "steps of images": "downstream/linear/r50_8xb64-224-100e_imagenet100.py",
    "cosine of images": "downstream/linear/r50_8xb128-224-90e_imagenet.py",
}


@lru_cache
def built(protocol):
    """The real model of a recipe and its optimiser."""
    cfg = load_config(RECIPES / OF_PROTOCOL[protocol])
    cfg.model.setdefault("data_preprocessor", cfg.data_preprocessor)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
        return model, build_optim_wrapper(model, cfg.optim_wrapper).optimizer


@pytest.mark.parametrize("protocol", FACTS)
def test_optimizer(protocol):
    facts = FACTS[protocol]
    cfg = load_config(RECIPES / OF_PROTOCOL[protocol])
    _, optimizer = built(protocol)
    assert type(optimizer) is torch.optim.SGD
    for group in optimizer.param_groups:
        assert (group["momentum"], group["dampening"]) == (0.9, 0)
        assert group["nesterov"] is facts["nesterov"]
    base = cfg.custom_hooks[0].base_batch_size or facts["batch"]  # None: the rate is not scaled
    assert cfg.optim_wrapper.optimizer.lr * facts["batch"] / base == pytest.approx(facts["peak"])
    assert cfg.train_cfg.max_epochs == facts["epochs"]
    assert optimizer.param_groups[0]["weight_decay"] == facts["decay"]


@pytest.mark.parametrize("protocol", ["ssv2", "ava"])
def test_bn_has_no_weight_decay(protocol):
    """ResNet3D-50: 53 convolutions, each with a BN, and a classifier with weight and bias."""
    model, optimizer = built(protocol)
    decayed, norms = optimizer.param_groups
    assert norms["weight_decay"] == 0 and len(norms["params"]) == 2 * 53
    assert len(decayed["params"]) == 53 + 2
    of_bn = [
        p
        for m in model.modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm)
        for p in m.parameters()
    ]
    assert {id(p) for p in norms["params"]} == {id(p) for p in of_bn}
    assert any(p.ndim == 1 for p in decayed["params"])  # SlowFast decays the classifier's bias


def test_constructor_leaves_out_frozen_weights_and_refuses_paramwise_settings():
    model = nn.Sequential(nn.Conv3d(1, 2, 1), nn.SyncBatchNorm(2), nn.LayerNorm(3), nn.Linear(2, 2))
    model[0].bias.requires_grad_(False)
    settings = dict(type="OptimWrapper", optimizer=dict(type="SGD", lr=0.1, weight_decay=0.1))
    optimizer = NoNormDecayConstructor(settings)(model).optimizer
    assert [len(g["params"]) for g in optimizer.param_groups] == [3, 4]
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.1, 0.0]
    optimizer = NoNormDecayConstructor(settings, {"no_decay": ["bias"]})(model).optimizer
    assert [len(g["params"]) for g in optimizer.param_groups] == [2, 5]
    for wrong in ({"bias_lr_mult": 2}, {"no_decay": "bias"}):
        with pytest.raises(ValueError, match=r"paramwise_cfg=dict\(no_decay.*(lr_mult|'bias'})"):
            NoNormDecayConstructor(settings, wrong)


def expected_rates(facts, per_epoch: int) -> np.ndarray:
    """The rate of every step, one after the other."""
    total, warmup = facts["epochs"] * per_epoch, round(facts["warmup"] * per_epoch)
    rates = np.empty(total)
    for step in range(total):
        if step < warmup:
            rates[step] = facts["peak"] * (step + 1) / warmup
        elif "milestones" in facts:
            passed = sum(step >= milestone * per_epoch for milestone in facts["milestones"])
            rates[step] = facts["peak"] / 10**passed
        else:
            half = 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
            rates[step] = facts["end"] + (facts["peak"] - facts["end"]) * half
    return rates


@pytest.mark.parametrize("protocol", FACTS)
def test_learning_rate_of_every_step(protocol):
    facts, per_epoch = FACTS[protocol], 20
    cfg = load_config(RECIPES / OF_PROTOCOL[protocol])
    parameters = [{"params": [nn.Parameter(torch.zeros(1))]} for _ in range(2)]
    optimizer = torch.optim.SGD(parameters, lr=cfg.optim_wrapper.optimizer.lr)
    runner = SimpleNamespace(
        optim_wrapper=OptimWrapper(optimizer),
        train_loop=SimpleNamespace(
            iters_per_epoch=per_epoch, planned_epochs=cfg.train_cfg.max_epochs, replans=()
        ),
        train_dataloader=SimpleNamespace(batch_size=facts["batch"]),
        model=nn.Identity(),
        logger=MMLogger.get_instance("rates"),
        log_processor=None,
    )
    hook = HOOKS.build(cfg.custom_hooks[0])
    assert isinstance(hook, ScheduleHook)
    hook.before_run(runner)
    hook.before_train(runner)
    rates = []
    for runner.iter in range(per_epoch * facts["epochs"]):
        hook.before_train_iter(runner, 0)
        rates.append([group["lr"] for group in optimizer.param_groups])
    expected = expected_rates(facts, per_epoch)
    np.testing.assert_allclose(rates, np.stack([expected, expected], axis=1), rtol=1e-9, atol=1e-12)
