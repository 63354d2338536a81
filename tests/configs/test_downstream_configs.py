"""Downstream recipes build, and agree with their names and with the paper (appendix D.3)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mmengine.registry import DefaultScope

from sce_video.engine.config.load import load_config
from sce_video.engine.schedules import build_schedule
from sce_video.registry import HOOKS, LOOPS, MODELS, OPTIMIZERS, TRANSFORMS

REPO = Path(__file__).resolve().parents[2]
DOWNSTREAM = sorted((REPO / "configs/downstream").rglob("*.py"))
FOLDER = "finetune/r3d18_folder.py"  # for data of one's own, see tests/apis/test_classifier.py
TRAINED = [
    p
    for p in DOWNSTREAM
    if p.parent.name in ("linear", "finetune", "supervised")
    and p.name != Path(FOLDER).name
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
FOLDERS = {FOLDER, "attentive_probe/attentive_r3d18_folder.py"}
NETWORK_TYPES = {
    "r3d18": ("ResNet3dSlowPath", 18),
    "r3d50": ("ResNet3dSlowPath", 50),
    "r2plus1d18": ("R2Plus1d", 18),
    "s3dg": ("S3D", None),
}
NETWORKS = [("18", "8", "224"), ("18", "16", "112"), ("50", "8", "224"), ("50", "16", "224")]


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


@pytest.mark.parametrize("path", DOWNSTREAM, ids=identifier)
def test_builds(path):
    cfg = load_config(str(path))
    cfg.model.setdefault("data_preprocessor", cfg.data_preprocessor)
    if identifier(path) in FOLDERS:  # counted, in a training
        cfg.model.cls_head.update(num_classes=2, in_channels=512)
    if identifier(path) in PROBES:  # 270 M weights; test_attentive_protocol counts the points
        cfg.model.cls_head.update(lrs=cfg.model.cls_head.lrs[:1], weight_decays=(0.0,))
    if cfg.model.backbone.type.startswith("ResNet"):
        cfg.model.backbone.base_channels = 4  # weights of other sizes take longer to draw
    with DefaultScope.overwrite_default_scope(cfg.default_scope):  # as the runner does
        model = MODELS.build(cfg.model)
    for name in ("train_dataloader", "val_dataloader", "test_dataloader"):
        if cfg.get(name) is not None:
            [TRANSFORMS.build(t) for t in cfg[name].dataset.pipeline]
    for hook in [*cfg.default_hooks.values(), *cfg.get("custom_hooks", [])]:
        HOOKS.build(hook)
    assert LOOPS.get(cfg.test_cfg.type) is not None
    if cfg.get("optim_wrapper") is not None:
        OPTIMIZERS.build({**cfg.optim_wrapper.optimizer, "params": model.parameters()})
        assert len(model.data_preprocessor.views) <= 1  # downstream training sees one view


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


def schedule(cfg, steps_per_epoch: int, lr: float):
    """The learning rate as a function of the epoch, for a scaled base rate ``lr``."""
    spec = dict(cfg.custom_hooks[0].lr)
    spec["peak" if spec["name"] == "warmup_cosine" else "start"] = lr
    function = build_schedule(spec, steps_per_epoch)
    total = steps_per_epoch * cfg.train_cfg.max_epochs
    return lambda epoch: function(round(epoch * steps_per_epoch), total)


@pytest.mark.parametrize("path", [p for p in TRAINED if p.parent.name == "linear"], ids=identifier)
def test_linear_protocol(path):
    cfg = load_config(str(path))
    size = int(parts(path)[4])
    assert cfg.model.backbone.frozen_stages == 4 and cfg.model.cls_head.dropout_ratio == 0
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.momentum) == ("SGD", 2.0, 0.9)
    assert optimizer.weight_decay == 0 and cfg.custom_hooks[0].base_batch_size == 256
    rate = schedule(cfg, 100, 4.0)
    assert rate(0) == pytest.approx(4 / 800) and rate(8) == 4.0 and rate(34) == pytest.approx(2.0)
    longer = load_config(str(path), ["custom_hooks.ScheduleHook.lr.warmup_epochs=35"])
    assert schedule(longer, 100, 4.0)(34.99) == 4.0 > schedule(longer, 100, 4.0)(17)
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
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.momentum) == ("SGD", 0.1, 0.9)
    assert optimizer.weight_decay == 0 and cfg.custom_hooks[0].base_batch_size == 256
    rate = schedule(cfg, 10, 0.025)
    assert rate(0) == 0.025 and rate(100) == pytest.approx(0.0125) and rate(199.9) < 1e-5
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
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.weight_decay) == ("SGD", 0.12, 1e-6)
    assert cfg.model.cls_head.dropout_ratio == 0.5 and cfg.custom_hooks[0].base_batch_size == 64
    rate = schedule(cfg, 100, 0.12)
    assert rate(0) == pytest.approx(0.12 / 19) and rate(0.19) == rate(13.99) == 0.12
    assert rate(14) == rate(17.99) == pytest.approx(0.012) and rate(18) == pytest.approx(0.0012)
    train, val, test = (
        cfg[name].dataset.pipeline
        for name in ("train_dataloader", "val_dataloader", "test_dataloader")
    )
    assert "RandomSegmentClip" in types(train)
    assert "CenterSegmentClip" in types(val) and "CenterSegmentClip" in types(test)
    assert tuple(step(train, "ResizeShortSide").size) == (256, 320)


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
    assert schedule(cfg, 10, 1e-3)(0) == 1e-3 > schedule(cfg, 10, 1e-3)(epochs / 2)
    selection = cfg.test_cfg.selection_dataloader.dataset
    lists = [loader.dataset.ann_file for loader in sets]
    assert len(set(lists)) == 3 and selection.ann_file == lists[1]
    assert all(file.startswith(f"{selection.data_root}/") for file in lists)
    assert len({loader.dataset.data_root for loader in sets} | {selection.data_root}) == 1
    assert selection.pipeline == cfg.val_dataloader.dataset.pipeline
    if "k400" not in name:
        assert all(view.flip_prob == 0 for view in views(cfg))


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
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.weight_decay) == ("SGD", 0.3, 1e-7)
    assert cfg.train_cfg.max_epochs == 32 and cfg.train_dataloader.batch_size * 8 == 64
    assert cfg.custom_hooks[0].base_batch_size == 64
    rate = schedule(cfg, 100, 0.3)
    assert rate(0) == pytest.approx(0.3 / 530) and rate(5.3) == rate(15.99) == 0.3
    assert rate(16) == rate(23.99) == pytest.approx(0.03) and rate(24) == pytest.approx(0.003)
    assert rate(28) == rate(31.99) == pytest.approx(0.0003)
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


#: Epochs as a multiple of the clips per video that the benchmark's code draws in one, milestones,
#: classes (fmthoker/SEVERE-BENCHMARK, action_recognition/configs/benchmark/*/112x112x*.yaml).
SEVERE = {
    "gym99": (16, 10, (6, 10, 14), 99),
    "gym99_1000": (16, 10, (6, 10, 14), 99),
    "ucf101_1000": (16, 10, (6, 10, 14), 101),
    "diving48": (16, 10, (6, 10, 14), 48),
    "epic_verb": (16, 10, (6, 10, 14), 97),
    "gym99_fx_s1": (18, 10, (7, 12, 16), 11),
    "gym99_ub_s1": (18, 10, (7, 12, 16), 15),
    "ntu60": (18, 10, (9, 14, 16), 60),
    "ssv2": (22, 2, (12, 17, 20), 174),
}
