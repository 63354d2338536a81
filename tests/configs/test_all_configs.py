"""Every file in configs/ loads, every recipe builds, and its settings match its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from mmengine.registry import DefaultScope

from sce_video.datasets.transforms import LoadImage, OneOfClips, RandomClips, RandomFrame
from sce_video.engine.config.load import check_config, load_config
from sce_video.registry import HOOKS, LOOPS, MODELS, OPTIMIZERS, TRANSFORMS

REPO = Path(__file__).resolve().parents[2]
ALL = sorted(p for p in (REPO / "configs").rglob("*.py") if "sweeps" not in p.parts)
SWEEPS = sorted((REPO / "configs/sweeps").glob("*.py"))
ALL_RECIPES = [p for p in ALL if "_base_" not in p.parts]
RECIPES = [p for p in ALL_RECIPES if "downstream" not in p.parts]  # pretraining
PAPER = [p for p in RECIPES if re.search(r"_k[24]00", p.name)]
RHO = [p for p in PAPER if "_rho" in p.name]  # Feichtenhofer et al. 2021


def identifier(path: Path) -> str:
    return str(path.relative_to(REPO / "configs"))


@pytest.fixture
def no_random_weights(monkeypatch):
    """All are zero: to draw them takes most of the time."""
    for name in ("normal_", "uniform_", "random_"):
        monkeypatch.setattr(torch.Tensor, name, lambda weight, *_, **__: weight.zero_())


@pytest.mark.parametrize("path", ALL, ids=identifier)
def test_has_no_unknown_key_and_builds(path, no_random_weights):
    cfg = load_config(str(path))
    check_config(cfg)
    if "_base_" in path.parts:
        return
    cfg.model.setdefault("data_preprocessor", cfg.get("data_preprocessor"))
    if "queue_size" in cfg.model:
        cfg.model.queue_size = 16
    head = cfg.model.get("cls_head", {})
    if "folder" in path.name and head:  # counted, in a training
        head.update(num_classes=2, in_channels=512)
    if "lrs" in head:  # 270 M weights; test_attentive_protocol counts the points
        head.update(lrs=head.lrs[:1], weight_decays=(0.0,))
    with DefaultScope.overwrite_default_scope(cfg.get("default_scope")):  # as the runner does
        model = MODELS.build(cfg.model)
    if cfg.get("optim_wrapper") is not None:
        parameters = [p for p in model.parameters() if p.requires_grad]
        OPTIMIZERS.build({**cfg.optim_wrapper.optimizer, "params": parameters})
    for hook in [*cfg.default_hooks.values(), *cfg.get("custom_hooks", [])]:
        HOOKS.build(hook)
    loaders = ("train_dataloader", "val_dataloader", "test_dataloader")
    found = {name: cfg[name] for name in loaders if cfg.get(name) is not None}
    if "gallery_dataloader" in cfg.test_cfg:
        found["gallery"] = cfg.test_cfg.gallery_dataloader
    steps = {n: [TRANSFORMS.build(t) for t in one.dataset.pipeline] for n, one in found.items()}
    for loop in filter(None, (cfg.get("train_cfg"), cfg.test_cfg)):
        assert LOOPS.get(loop.type) is not None
    if path in RECIPES:
        samplers = (RandomClips, RandomFrame, LoadImage, OneOfClips)
        (views,) = [t.num_views for t in steps["train_dataloader"] if isinstance(t, samplers)]
        assert len(model.data_preprocessor.views) == views
    elif "optim_wrapper" in cfg:
        assert len(model.data_preprocessor.views) <= 1  # downstream training sees one view


@pytest.mark.parametrize("path", [*ALL_RECIPES, *SWEEPS], ids=identifier)
def test_header_has_paper_run_hardware_and_expected(path):
    header = re.split("_base_ =|title =", path.read_text())[0]
    words = ["# Paper:", "# Run:", "# Hardware:"] + ["# Expected:"] * (path not in SWEEPS)
    for word in words:
        assert word in header, f"{path.name}: no {word!r} in the header"
    for mentioned in re.findall(r"(?<![\w/])configs/\S+\.py", header):
        assert (REPO / mentioned).is_file(), f"{path.name} names {mentioned}"


@pytest.mark.parametrize("path", [p for p in PAPER if p not in RHO], ids=identifier)
def test_settings_match_the_name(path):
    """sce_r3d18_8xb64-8x224-200e_k400: network, ranks x batch, frames x size, epochs, data."""
    network = "r3d18|r3d50|r3d101|r2plus1d18|s3dg"
    pattern = rf"([a-z0-9_]+?)_({network})_(\d+)xb(\d+)-(\d+)x(\d+)-(\d+)e_k(\d+)(_baseline)?"
    method, network, ranks, batch, frames, size, epochs, data, baseline = re.fullmatch(
        pattern, path.stem
    ).groups()
    cfg = load_config(str(path))
    clips, crop = cfg.train_dataloader.dataset.pipeline[1], cfg.train_dataloader.dataset.pipeline[3]
    backbone = cfg.model.backbone
    kinds = {"r2plus1d18": ("R2Plus1d", 18), "s3dg": ("S3D", None)}
    kind = kinds.get(network, ("ResNet3dSlowPath", int(network[3:]) if network[:3] == "r3d" else 0))
    assert (backbone.type, backbone.get("depth")) == kind
    assert cfg.benchmark.network == network
    assert (cfg.benchmark.frames, cfg.benchmark.size) == (int(frames), int(size))
    assert int(ranks) * int(batch) == 512
    assert cfg.train_dataloader.batch_size == int(batch)
    assert (clips.num_frames, crop.size) == (int(frames), int(size))
    assert cfg.train_cfg.max_epochs == int(epochs)
    assert f"k{data}_train" in cfg.train_dataloader.dataset.ann_file
    # Tables tab:specific-hyper-pretrain-video and tab:video-best, appendix D.3.
    hidden = {"r3d18": 1024, "r2plus1d18": 1024, "s3dg": 2048}.get(network, 4096)
    # Heads of their own: SimCLR (arXiv 2002.05709), SwAV (facebookresearch/swav).
    layers, out = {"simclr": (2, 128), "swav": (3, 128)}.get(method, (3, 256))
    assert cfg.model.projector.hidden_channels == hidden
    assert (cfg.model.projector.num_layers, cfg.model.projector.out_channels) == (layers, out)
    assert cfg.model.type.lower() == method.replace("_", "")
    if "predictor" in cfg.model:
        assert (cfg.model.predictor.hidden_channels, cfg.model.predictor.num_layers) == (hidden, 2)
    settings = {  # of the papers and the authors' code
        "moco": dict(queue_size=32768, tau=0.2, momentum=0.999),
        "ressl": dict(queue_size=32768, tau=0.1, tau_m=0.04, momentum=0.999),
        "simclr": dict(tau=0.1),
        "swav": dict(num_prototypes=1000, tau=0.1, epsilon=0.05, frozen_prototype_steps=156),
    }.get(method, {})
    assert {key: cfg.model.get(key) for key in settings} == settings
    assert ("predictor" in cfg.model) == (method in ("sce", "byol", "moco_v3"))
    if method == "sce":
        assert cfg.model.queue_size == (32768 if data == "200" else 65536)
        assert (cfg.model.lambda_, cfg.model.tau) == (0.5, 0.1)
        assert cfg.model.tau_m == (0.07 if baseline else 0.05)
    assert clips.clip_duration == (1.28 if size == "112" else 2.56)
    assert clips.diff_prob == (0.0 if baseline else 0.2)
    assert "skip_repeats" not in str(cfg.train_dataloader)  # the paper's difference
    assert tuple(crop.area) == (0.2, 0.766)
    strength = 0.5 if baseline else 1.0
    views = [
        dict(name="strong-alpha", strength=strength),
        dict(name="strong-beta", strength=strength),
    ]
    if method == "ressl":
        views = [dict(name="strong", strength=1.0), dict(name="weak")]
    assert cfg.data_preprocessor.views == views
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.momentum) == ("LARS", 2.4, 0.9)
    assert (optimizer.weight_decay, optimizer.trust_coefficient) == (1e-6, 0.001)
    schedule = cfg.custom_hooks[0]
    assert schedule.base_batch_size == 256
    assert schedule.lr == dict(name="warmup_cosine", warmup_epochs=35)
    if method in ("sce", "byol", "moco_v3"):
        assert schedule.model.momentum == dict(name="cosine", start=0.99, end=1.0)
    else:  # a constant target, or none
        assert schedule.model is None


RHO_RATES = {2: 0.5, 3: 0.75, 4: 1.0}  # of the rate for rho 4, per 64 videos
RHO_METHODS = {  # type, rate for rho 4, projector, other settings, momentum of the target
    "moco": (
        "MoCo",
        0.1,
        dict(hidden_channels=2048, out_channels=128, num_layers=3, norm_hidden=False, bias=True),
        dict(queue_size=65536, tau=0.1, symmetric=True, sum_queries=True, shuffle_bn_splits=1),
        0.994,
    ),
    "byol": (
        "BYOL",
        1.2,
        dict(hidden_channels=4096, out_channels=256, num_layers=2, bias_output=True),
        dict(symmetric=True, target_views=None),  # the defaults
        0.996,
    ),
    "simclr": (
        "SimCLR",
        1.2,
        dict(hidden_channels=2048, out_channels=128, num_layers=3, norm_hidden=False, bias=True),
        dict(tau=0.1, consecutive=True),
        None,
    ),
    "swav": (
        "SwAV",
        1.2,
        dict(hidden_channels=2048, out_channels=128, num_layers=3, bias_output=True),
        dict(num_prototypes=1000, tau=0.1, epsilon=0.05, queue_size=0, target_views=(0, 1)),
        None,
    ),
}


@pytest.mark.parametrize("path", RHO, ids=identifier)
def test_rho_settings_are_those_of_slowfast(path):
    """moco_rho4_r3d50_8xb64-8x224-200e_k400: as SCE's names, with the number of clips.

    facebookresearch/SlowFast, configs/contrastive_ssl, slowfast/config/defaults.py.
    """
    pattern = r"([a-z]+)_rho(\d)_r3d50_(\d+)xb(\d+)-8x224-200e_k400"
    method, rho, ranks, batch = re.fullmatch(pattern, path.stem).groups()
    kind, rate, projector, settings, momentum = RHO_METHODS[method]
    cfg = load_config(path)
    model = cfg.model
    assert (model.type, model.backbone.depth) == (kind, 50)
    assert model.backbone.zero_init_residual is False  # RESNET.ZERO_INIT_FINAL_BN
    assert {key: model.projector.get(key) for key in projector} == projector
    assert not model.projector.norm_output
    defaults = dict(symmetric=True, target_views=None, queue_size=0)
    if method == "swav":
        defaults["target_views"] = (0, 1)
        assert model.frozen_prototype_steps == 239_975 // 512
    assert {key: model.get(key, defaults.get(key)) for key in settings} == settings
    predictor = dict(hidden_channels=4096, num_layers=2, norm_output=False, bias_output=True)
    predictor["init_cfg"] = model.projector.init_cfg  # as every head: c2_xavier_fill
    assert model.projector.init_cfg == dict(type="Caffe2Xavier", layer="Linear")
    assert model.get("predictor") == (dict(type="MLP", **predictor) if method == "byol" else None)
    assert model.get("backward_per_query", False) == (method in ("moco", "byol"))

    assert int(ranks) * int(batch) == 512
    assert cfg.train_dataloader.batch_size == int(batch)
    assert "k400_train" in cfg.train_dataloader.dataset.ann_file
    clips, crop = cfg.train_dataloader.dataset.pipeline[1], cfg.train_dataloader.dataset.pipeline[3]
    assert clips == dict(
        type="RandomClips",
        clip_duration=8 * 8 / 30,
        num_frames=8,
        num_views=int(rho),
        ordered=True,
    )
    assert (crop.size, tuple(crop.area)) == (224, (0.2, 0.766))
    view = dict(brightness=0.6, contrast=0.6, saturation=0.6, hue=0.15, jitter_prob=0.8,
                grey_prob=0.2, blur_prob=0.5, flip_prob=0.5)  # fmt: skip
    assert cfg.data_preprocessor.views == [view] * int(rho)

    optimizer = cfg.optim_wrapper.optimizer
    assert optimizer.lr == pytest.approx(rate * RHO_RATES[int(rho)])
    assert (optimizer.momentum, optimizer.nesterov) == (0.9, True)
    if method == "moco":
        assert (optimizer.type, optimizer.weight_decay) == ("SGD", 1e-4)
        assert cfg.optim_wrapper.constructor == "NoNormDecayConstructor"
        assert (cfg.optim_wrapper.dtype, cfg.get("sync_bn")) == ("bfloat16", None)
    else:
        assert (optimizer.type, optimizer.weight_decay) == ("LARS", 1e-6)
        assert (optimizer.trust_coefficient, optimizer.separate_norms) == (0.001, True)
        assert (cfg.optim_wrapper.dtype, cfg.sync_bn) == ("float32", "functional")
    assert cfg.train_cfg.max_epochs == 200
    schedule = cfg.custom_hooks[0]
    assert schedule.base_batch_size == 64
    assert schedule.lr == dict(name="warmup_cosine", warmup_epochs=35, warmup_start=0.001)
    scheduled = None if momentum is None else dict(
        momentum=dict(name="cosine", start=momentum, end=1.0)
    )  # fmt: skip
    assert schedule.get("model") == scheduled
    assert model.get("momentum") == momentum


@pytest.mark.parametrize("path", PAPER, ids=identifier)
def test_evaluation_uses_the_clips_of_training(path):
    """All evaluation pipelines have the recipe's clip; crops are 256 (128 for 112)."""
    cfg = load_config(str(path))
    clips, crop = cfg.train_dataloader.dataset.pipeline[1], cfg.train_dataloader.dataset.pipeline[3]
    pipelines = [
        cfg.test_dataloader.dataset.pipeline,
        cfg.test_cfg.gallery_dataloader.dataset.pipeline,
        cfg.default_hooks.online_evaluation.gallery.dataset.pipeline,
    ]
    for pipeline in pipelines:
        assert pipeline[1].num_frames == clips.num_frames
        assert pipeline[1].clip_duration == clips.clip_duration
        assert pipeline[3].size == pipeline[4].size == {224: 256, 112: 128, 128: 128}[crop.size]
