"""Downstream recipes agree with their names, and optimisers and rates with tables written by hand.

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
DOWNSTREAM = sorted((REPO / "configs/downstream").rglob("*.py"))
TRAINED = [
    p
    for p in DOWNSTREAM
    if p.parent.name in ("linear", "finetune", "supervised")
    and "folder" not in p.name  # for data of one's own
    and not p.name.startswith(("r18_", "r50_"))  # of images: test_image_linear_configs.py
]
RETRIEVAL = [p for p in DOWNSTREAM if p.parent.name == "retrieval"]
DATASETS = {
    "ucf101": ("ucf101", 101),
    "hmdb51": ("hmdb51", 51),
    "ssv2": ("ssv2", 174),
    "k400": ("kinetics400", 400),
    "k200": ("kinetics200", 200),
}
IN_CHANNELS = {"r3d18": 512, "r3d50": 2048, "r2plus1d18": 512, "s3dg": 1024}  # of the head
#: Attentive probes, of which the paper has none.
PROBES = {
    "attentive_probe/r3d50_8xb32-8x224-20e_k400.py": (400, 20, 20, 256),
    "attentive_probe/r3d50_8xb32-16x224-20e_ssv2.py": (174, 20, 20, 256),
    "attentive_probe/r3d50_8xb16-16x224-100e_diving48.py": (48, 3, 100, 128),
}
NETWORK_TYPES = {
    "r3d18": ("ResNet3dSlowPath", 18),
    "r3d50": ("ResNet3dSlowPath", 50),
    "r2plus1d18": ("R2Plus1d", 18),
    "s3dg": ("S3D", None),
}


def identifier(path: Path) -> str:
    return str(path.relative_to(REPO / "configs/downstream"))


def parts(path: Path) -> tuple[str, ...]:
    """network, ranks, batch, frames, size, epochs, data of ``r3d18_1xb64-8x224-200e_ucf101``."""
    pattern = r"([a-z0-9]+)_(\d+)xb(\d+)-(\d+)x(\d+)-(\d+)e_(\w+)"
    return re.fullmatch(pattern, path.stem).groups()


def types(pipeline) -> list[str]:
    return [step["type"] for step in pipeline]


def step(pipeline, name: str):
    (found,) = [step for step in pipeline if step["type"] == name]
    return found


@pytest.mark.parametrize("path", TRAINED, ids=identifier)
def test_settings_match_the_name(path):
    network, ranks, batch, frames, size, epochs, data = parts(path)
    cfg = load_config(str(path))
    dataset, classes = DATASETS[data]
    assert cfg.model.type == "Recognizer3D" and cfg.model.cls_head.type == "I3DHead"
    backbone = cfg.model.backbone
    assert (backbone.type, backbone.get("depth")) == NETWORK_TYPES[network]
    assert cfg.model.cls_head.in_channels == IN_CHANNELS[network]
    assert cfg.model.cls_head.num_classes == classes
    assert cfg.train_dataloader.batch_size == int(batch)
    global_batch = {"finetune": 64, "linear": 512, "supervised": 1024}[path.parent.name]
    assert int(ranks) * int(batch) == global_batch
    assert cfg.train_cfg.max_epochs == int(epochs)
    bench = cfg.benchmark
    assert bench.protocol == path.parent.name and bench.dataset == dataset
    assert (bench.network, bench.frames, bench.size) == (network, int(frames), int(size))
    train, val, test = (
        cfg[name].dataset.pipeline
        for name in ("train_dataloader", "val_dataloader", "test_dataloader")
    )
    assert step(train, "RandomCropClips").size == int(size)
    short = {"224": 256, "112": 128, "128": 128}[size]
    assert step(test, "ResizeShortSide").size == step(test, "PackVideo").crop_size == short
    assert step(val, "CenterCropClips").size == short
    for pipeline in (train, val, test):
        clip = pipeline[1]
        assert clip.num_frames == int(frames)
        if data != "ssv2":
            assert clip.clip_duration == (1.28 if size == "112" else 2.56)
    assert test[1].get("num_clips", 1) == (1 if data == "ssv2" else 10)
    assert step(test, "PackVideo").num_crops == (1 if data == "ssv2" else 3)
    root = "kinetics400" if data.startswith("k") else data
    for name in ("train_dataloader", "val_dataloader", "test_dataloader"):
        assert cfg[name].dataset.data_root == f"data/{root}"
        assert cfg[name].dataset.ann_file.startswith(f"data/{root}/")
    assert "train" in cfg.train_dataloader.dataset.ann_file
    assert cfg.val_dataloader.dataset.ann_file == cfg.test_dataloader.dataset.ann_file
    assert ("pretrained" in cfg) and cfg.pretrained == (
        "random" if path.parent.name == "supervised" else None
    )


def assert_optimised_as(cfg, other: str):
    """As a recipe whose optimiser and rates are compared with their sources below."""
    same = load_config(str(REPO / "configs/downstream" / other))
    assert cfg.optim_wrapper == same.optim_wrapper and cfg.custom_hooks[0] == same.custom_hooks[0]
    assert cfg.train_cfg.max_epochs == same.train_cfg.max_epochs


@pytest.mark.parametrize("path", [p for p in TRAINED if p.parent.name == "linear"], ids=identifier)
def test_linear_protocol(path):
    cfg = load_config(str(path))
    size = int(parts(path)[4])
    assert cfg.model.backbone.frozen_stages == 4 and cfg.model.cls_head.dropout_ratio == 0
    assert_optimised_as(cfg, "linear/r3d18_8xb64-8x224-60e_k200.py")
    resize = step(cfg.train_dataloader.dataset.pipeline, "ResizeShortSide").size
    assert tuple(resize) == {224: (256, 320), 112: (128, 160), 128: (146, 183)}[size]
    view = views(cfg)[0]
    assert view.flip_prob == 0.5 and view.jitter_prob == view.grey_prob == view.blur_prob == 0


def views(cfg):
    return MODELS.build(cfg.data_preprocessor).views


@pytest.mark.parametrize(
    "path", [p for p in TRAINED if re.search("200e_(ucf|hmdb)", p.name)], ids=identifier
)
def test_finetuning_protocol(path):
    cfg = load_config(str(path))
    assert cfg.model.cls_head.dropout_ratio == 0.8
    assert cfg.model.backbone.get("frozen_stages", -1) == -1
    assert_optimised_as(cfg, "finetune/r3d18_1xb64-8x224-200e_ucf101.py")
    (view,) = views(cfg)
    jitter = (view.brightness, view.contrast, view.saturation, view.hue)
    assert jitter == pytest.approx((0.4, 0.4, 0.4, 0.1)) and view.jitter_prob == 0.8
    assert (view.grey_prob, view.flip_prob) == (0.2, 0.5)
    assert (view.blur_prob, view.solarise_prob) == (0, 0)
    for name in ("train_dataloader", "val_dataloader", "test_dataloader"):
        assert cfg[name].dataset.ann_file.endswith("_split1.txt")
    assert cfg.split == 1


@pytest.mark.parametrize("path", [p for p in TRAINED if "ssv2" in p.name], ids=identifier)
def test_ssv2_protocol(path):
    cfg = load_config(str(path))
    assert_optimised_as(cfg, "finetune/r3d50_8xb8-8x224-22e_ssv2.py")
    assert cfg.model.cls_head.dropout_ratio == 0.5
    train, val, test = (
        cfg[name].dataset.pipeline
        for name in ("train_dataloader", "val_dataloader", "test_dataloader")
    )
    assert "RandomSegmentClip" in types(train)
    assert "CenterSegmentClip" in types(val) and "CenterSegmentClip" in types(test)
    assert tuple(step(train, "ResizeShortSide").size) == (256, 320)
    assert step(train, "RandomSegmentClip").shared_ends
    assert step(val, "CenterSegmentClip").shared_ends
    assert step(test, "CenterSegmentClip").shared_ends
    assert_shown_as_filmed(cfg)


def assert_shown_as_filmed(cfg):
    """No view of a training is mirrored or recoloured: what the network gets is normalised only."""
    mirrors = {"FlipWithBoxes"} & set(types(cfg.train_dataloader.dataset.pipeline))
    assert not mirrors
    clips = torch.randint(0, 256, (64, 2, 6, 8, 3), dtype=torch.uint8)
    batch = {"inputs": [clips], "label": torch.zeros(64, dtype=torch.int64)}
    batch["seed"] = torch.arange(64)
    prepared = MODELS.build(cfg.data_preprocessor)(batch, training=True)["inputs"]
    prepared = prepared[0] if isinstance(prepared, list) else prepared.reshape(64, 3, 2, 6, 8)
    expected = (clips.permute(0, 4, 1, 2, 3).double() / 255 - 0.45) / 0.225
    torch.testing.assert_close(prepared.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", PROBES)
def test_attentive_protocol(name):
    """facebookresearch/vjepa2, configs/eval/vitl; the probe is selected on no tested list."""
    classes, points, epochs, batch = PROBES[name]
    cfg = load_config(str(REPO / "configs/downstream" / name))
    head, sets = cfg.model.cls_head, [cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader]
    assert cfg.model.backbone.frozen_stages == 4
    assert (head.type, head.num_heads, head.num_classes) == ("AttentiveProbeHead", 16, classes)
    assert len(head.lrs) * len(head.weight_decays) == points
    assert set(head.lrs) <= {5e-3, 3e-3, 1e-3, 3e-4, 1e-4}
    assert set(head.weight_decays) <= {0.01, 0.1, 0.4, 0.8}
    assert cfg.train_cfg.max_epochs == epochs and 8 * cfg.train_dataloader.batch_size == batch
    assert cfg.optim_wrapper.constructor == "ProbeGridConstructor"
    assert cfg.custom_hooks[0].base_batch_size is None
    selection = cfg.test_cfg.selection_dataloader.dataset
    lists = [loader.dataset.ann_file for loader in sets]
    assert len(set(lists)) == 3 and selection.ann_file == lists[1]
    assert all(file.startswith(f"{selection.data_root}/") for file in lists)
    assert len({loader.dataset.data_root for loader in sets} | {selection.data_root}) == 1
    assert selection.pipeline == cfg.val_dataloader.dataset.pipeline
    if "k400" not in name:  # labels tell left from right
        assert all(view.flip_prob == 0 for view in views(cfg))
        assert "FlipWithBoxes" not in types(cfg.train_dataloader.dataset.pipeline)


@pytest.mark.parametrize("path", RETRIEVAL, ids=identifier)
def test_retrieval_protocol(path):
    depth, frames, size, data = re.fullmatch(r"r3d(\d+)_(\d+)x(\d+)_(\w+)", path.stem).groups()
    cfg = load_config(str(path))
    assert cfg.model.type == "Encoder" and cfg.model.backbone.depth == int(depth)
    assert cfg.split == 1 and tuple(cfg.test_evaluator[0].ks) == (1, 5, 10)
    queries, gallery = cfg.test_dataloader.dataset, cfg.test_cfg.gallery_dataloader.dataset
    assert queries.ann_file == f"data/{data}/test_split1.txt"
    assert gallery.ann_file == f"data/{data}/train_split1.txt"
    short = {"224": 256, "112": 128}[size]
    for dataset in (queries, gallery):
        clip, pack = dataset.pipeline[1], step(dataset.pipeline, "PackVideo")
        assert (clip.num_frames, clip.num_clips) == (int(frames), 10)
        assert clip.clip_duration == (1.28 if size == "112" else 2.56)
        assert (pack.crop_size, pack.num_crops) == (short, 3)
        assert step(dataset.pipeline, "ResizeShortSide").size == short


@pytest.mark.parametrize(
    "path", [p for p in DOWNSTREAM if p.parent.name == "detection"], ids=identifier
)
def test_ava_protocol(path):
    frames, interval = map(int, re.search(r"8xb8-(\d+)x(\d+)-32e_ava", path.stem).groups())
    cfg = load_config(str(path))
    assert frames * interval == 64 and cfg.benchmark.frames == frames
    backbone, head = cfg.model.backbone, cfg.model.roi_head
    assert (backbone.depth, backbone.last_stage_stride, backbone.last_stage_dilation) == (50, 1, 2)
    assert (head.num_classes, head.roi_size, head.stride, head.dropout_ratio) == (80, 7, 16, 0.5)
    assert_optimised_as(cfg, "detection/r3d50_8xb8-8x8-32e_ava.py")
    assert cfg.train_dataloader.batch_size * 8 == 64
    train, test = (cfg[name].dataset.pipeline for name in ("train_dataloader", "test_dataloader"))
    for pipeline in (train, test):
        clip = step(pipeline, "KeyFrameClip")
        assert (clip.num_frames, clip.frame_interval) == (frames, interval)
    assert tuple(step(train, "ResizeShortSide").size) == (256, 320)
    assert step(train, "RandomCropClips").size == 224
    assert step(train, "FlipWithBoxes").prob == 0.5
    assert step(test, "ResizeShortSide").size == 256
    for name, training in (("train_dataloader", True), ("test_dataloader", False)):
        dataset = cfg[name].dataset
        assert dataset.get("training", False) is training and dataset.min_score == 0.9
    assert cfg.pretrained is None


# rate at the global batch, of which batch; epochs, warm-up epochs; milestones or end of the cosine
FACTS = {
    "linear": dict(batch=512, peak=4.0, decay=0, nesterov=False, epochs=60, warmup=8, end=0.0),
    "finetune": dict(batch=64, peak=0.025, decay=0, nesterov=False, epochs=200, warmup=0, end=0.0),
    "ssv2": dict(batch=64, peak=0.12, decay=1e-6, nesterov=True, epochs=22, warmup=0.19,
                 warmup_start=1e-4, milestones=(14, 18)),
    "ava": dict(batch=64, peak=0.3, decay=1e-7, nesterov=True, epochs=32, warmup=5.3,
                warmup_start=5e-4, milestones=(16, 24, 28)),
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
    """The model of a recipe, with few channels, and its optimiser."""
    cfg = load_config(REPO / "configs" / OF_PROTOCOL[protocol])
    cfg.model.setdefault("data_preprocessor", cfg.data_preprocessor)
    cfg.model.backbone.base_channels = 4
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
        return model, build_optim_wrapper(model, cfg.optim_wrapper).optimizer


@pytest.mark.parametrize("protocol", FACTS)
def test_optimizer(protocol):
    facts = FACTS[protocol]
    cfg = load_config(REPO / "configs" / OF_PROTOCOL[protocol])
    _, optimizer = built(protocol)
    assert type(optimizer) is torch.optim.SGD
    for group in optimizer.param_groups:
        assert (group["momentum"], group["dampening"]) == (0.9, 0)
        assert group["nesterov"] is facts["nesterov"]
    base = cfg.custom_hooks[0].base_batch_size or facts["batch"]  # None: the rate is not scaled
    # The authors' evaluations are in float32, their pretrainings in mixed precision.
    assert cfg.optim_wrapper.dtype == "float32"
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
        if step < warmup and "warmup_start" in facts:
            # slowfast/utils/lr_policy.py, but for a warm-up of whole steps
            alpha = (facts["peak"] - facts["warmup_start"]) / warmup
            rates[step] = facts["warmup_start"] + alpha * step
        elif step < warmup:
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
    cfg = load_config(REPO / "configs" / OF_PROTOCOL[protocol])
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
