"""Optimisers, rates and headers of the downstream recipes against a table written down by hand.

Sources: the paper's appendix D.3 and tables; SSv2 and AVA: facebookresearch/SlowFast,
configs/contrastive_ssl and config/defaults.py; supervised: juliendenize/eztorch,
configs/run/supervised/resnet3d18/kinetics200.yaml; linear evaluation of images: appendices D.1
(steps) and D.2 (cosine).
"""

from __future__ import annotations

import math
import re
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


# Labels of tables and numbers after "Expected:", copied from the paper's tables.
HEADERS = {
    "downstream/transfer/r50_many_shot.py": (["many-shot"], ["80.4"]),
    "downstream/transfer/r50_voc07_svm.py": (["low-shot-voc"], []),
    "sce/sce_r3d18_8xb64-8x224-200e_k200.py": (
        ["video-best", "video-sota-action"], ["66.0", "88.4", "62.0"]),
    "sce/sce_r3d18_8xb64-8x224-200e_k200_baseline.py": (
        ["video-baseline", "video-time", "video-color"], ["63.9", "86.3", "57.0"]),
    "sce/sce_r3d18_8xb64-8x224-200e_k400.py": (
        ["video-sota-action", "video-sota-retrieval"],
        ["59.8", "90.9", "65.7", "74.4", "85.6", "90.0", "40.1", "63.3", "75.4"]),
    "sce/sce_r3d18_8xb64-16x112-200e_k400.py": (
        ["video-sota-action", "video-sota-retrieval"],
        ["56.6", "89.1", "66.6", "74.5", "85.9", "90.5", "37.8", "62.1", "73.8"]),
    "sce/sce_r3d50_8xb64-8x224-200e_k400.py": (
        ["video-sota-action", "video-sota-retrieval", "video-sota-generalization"],
        ["67.6", "94.1", "70.5", "20.3", "53.9", "81.5", "89.7", "92.8", "43.0", "67.0", "79.0"]),
    "sce/sce_r3d50_16xb32-16x224-200e_k400.py": (
        ["video-sota-action", "video-sota-retrieval", "video-sota-generalization"],
        ["69.6", "95.3", "74.7", "21.6", "57.2", "83.9", "92.2", "94.9", "45.9", "69.9", "80.5"]),
    "downstream/linear/r3d18_8xb64-8x224-60e_k200.py": (
        ["video-best", "video-baseline"], ["66.0", "63.9"]),
    "downstream/linear/r3d18_8xb64-8x224-60e_k400.py": (["video-sota-action"], ["59.8"]),
    "downstream/linear/r3d18_8xb64-16x112-60e_k400.py": (["video-sota-action"], ["56.6"]),
    "downstream/linear/r3d50_8xb64-8x224-60e_k400.py": (["video-sota-action"], ["67.6"]),
    "downstream/linear/r3d50_8xb64-16x224-60e_k400.py": (["video-sota-action"], ["69.6"]),
    # tab:baselines (SCE, ReSSL and MoCo v2 in the authors' reproduction), tab:sota.
    "downstream/linear/r18_1xb256-32-100e_cifar10.py": (
        ["baselines", "temperature-small"], ["90.3", "90.2", "87.6"]),
    "downstream/linear/r18_1xb256-32-100e_cifar100.py": (
        ["baselines", "temperature-small"], ["65.5", "64.0", "61.0"]),
    "downstream/linear/r18_1xb256-96-100e_stl10.py": (
        ["baselines", "temperature-small"], ["89.9", "89.1", "86.5"]),
    "downstream/linear/r18_1xb256-64-100e_tiny_imagenet.py": (
        ["baselines", "temperature-small"], ["51.9", "49.5", "45.9"]),
    "downstream/linear/r50_8xb64-224-100e_imagenet100.py": (
        ["lambda", "loss", "aug", "temperature", "baselines"], ["83.4", "81.6", "80.5"]),
    "downstream/linear/r50_8xb64-224-100e_imagenet.py": (
        ["baselines"], ["70.5", "70.2", "68.8"]),
    "downstream/linear/r50_8xb128-224-90e_imagenet.py": (
        ["sota", "sota-multi-crop"], ["72.1", "72.7", "73.3", "74.1", "75.4"]),
    "downstream/supervised/r3d18_8xb128-8x224-200e_k200.py": (
        ["video-baseline"], ["72.0", "87.5", "60.1"]),
    "downstream/finetune/r3d18_1xb64-8x224-200e_ucf101.py": (["video-sota-action"], ["90.9"]),
    "downstream/finetune/r3d18_1xb64-8x224-200e_hmdb51.py": (["video-sota-action"], ["65.7"]),
    "downstream/finetune/r3d18_1xb64-16x112-200e_ucf101.py": (["video-sota-action"], ["89.1"]),
    "downstream/finetune/r3d18_1xb64-16x112-200e_hmdb51.py": (["video-sota-action"], ["66.6"]),
    "downstream/finetune/r3d50_8xb8-8x224-200e_ucf101.py": (["video-sota-action"], ["94.1"]),
    "downstream/finetune/r3d50_8xb8-8x224-200e_hmdb51.py": (["video-sota-action"], ["70.5"]),
    "downstream/finetune/r3d50_8xb8-16x224-200e_ucf101.py": (["video-sota-action"], ["95.3"]),
    "downstream/finetune/r3d50_8xb8-16x224-200e_hmdb51.py": (["video-sota-action"], ["74.7"]),
    "downstream/finetune/r3d50_8xb8-8x224-22e_ssv2.py": (["video-sota-generalization"], ["53.9"]),
    "downstream/finetune/r3d50_8xb8-16x224-22e_ssv2.py": (["video-sota-generalization"], ["57.2"]),
    "downstream/detection/r3d50_8xb8-8x8-32e_ava.py": (["video-sota-generalization"], ["20.3"]),
    "downstream/detection/r3d50_8xb8-16x4-32e_ava.py": (["video-sota-generalization"], ["21.6"]),
    "downstream/retrieval/r3d18_8x224_ucf101.py": (
        ["video-sota-retrieval"], ["74.4", "85.6", "90.0"]),
    "downstream/retrieval/r3d18_8x224_hmdb51.py": (
        ["video-sota-retrieval"], ["40.1", "63.3", "75.4"]),
    "downstream/retrieval/r3d18_16x112_ucf101.py": (
        ["video-sota-retrieval"], ["74.5", "85.9", "90.5"]),
    "downstream/retrieval/r3d18_16x112_hmdb51.py": (
        ["video-sota-retrieval"], ["37.8", "62.1", "73.8"]),
    "downstream/retrieval/r3d50_8x224_ucf101.py": (
        ["video-sota-retrieval"], ["81.5", "89.7", "92.8"]),
    "downstream/retrieval/r3d50_8x224_hmdb51.py": (
        ["video-sota-retrieval"], ["43.0", "67.0", "79.0"]),
    "downstream/retrieval/r3d50_16x224_ucf101.py": (
        ["video-sota-retrieval"], ["83.9", "92.2", "94.9"]),
    "downstream/retrieval/r3d50_16x224_hmdb51.py": (
        ["video-sota-retrieval"], ["45.9", "69.9", "80.5"]),
    # Feichtenhofer et al. 2021: the README of SlowFast's projects/contrastive_ssl for the recipes
    # as released, the paper's table for three views.
    "moco/moco_rho4_r3d50_8xb64-8x224-200e_k400.py": (
        [], ["71.0", "94.5", "21.9", "54.0", "66.6", "91.3", "19.7", "52.7"]),
    "byol/byol_rho2_r3d50_8xb64-8x224-200e_k400.py": (
        [], ["67.4", "94.0", "22.8", "54.4", "70.1", "94.7", "71.1", "95.4"]),
    "simclr/simclr_rho2_r3d50_16xb32-8x224-200e_k400.py": (
        [], ["61.5", "88.3", "17.5", "51.4"]),
    "swav/swav_rho2_r3d50_16xb32-8x224-200e_k400.py": (
        [], ["62.6", "90.2", "19.2", "52.5"]),
    "moco/moco_rho3_r3d50_8xb64-8x224-200e_k400.py": (
        ["video-sota-generalization"], ["67.3", "92.8", "20.3", "54.4"]),
    "byol/byol_rho3_r3d50_8xb64-8x224-200e_k400.py": (
        ["video-sota-generalization"], ["68.3", "93.8", "23.4", "55.8"]),
    "simclr/simclr_rho3_r3d50_16xb32-8x224-200e_k400.py": (
        ["video-sota-generalization"], ["62.0", "87.9", "17.6", "52.0"]),
    "swav/swav_rho3_r3d50_16xb32-8x224-200e_k400.py": (
        ["video-sota-generalization"], ["62.7", "89.4", "18.2", "51.7"]),
}  # fmt: skip


def header(path: Path) -> str:
    return path.read_text().split("_base_ =")[0]


def test_numbers_in_the_headers_are_those_of_the_tables():
    for name, (tables, numbers) in HEADERS.items():
        text = header(RECIPES / name)
        assert re.findall(r"tab:([a-z0-9-]+)", text.split("# Run:")[0]) == tables, name
        expected = re.search(r"# Expected:(.*?)\n(?!#  )", text, re.S).group(1)
        assert re.findall(r"\d\d\.\d\b", expected) == numbers, name
