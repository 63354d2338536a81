"""Settings that a config takes from a checkpoint; its text may be that of a stranger."""

from __future__ import annotations

import pytest
import torch
from helpers.recognition import FINETUNE, RETRIEVAL
from helpers.tiny_encoder import as_json
from helpers.training import REPO

from sce_video.engine.config.load import load_config
from sce_video.registry import MODELS
from sce_video.runs import configs
from sce_video.runs.checkpoint_settings import adopted_config

FOLDER = REPO / "configs/sce/sce_r3d18_folder.py"
AVA = REPO / "configs/downstream/detection/r3d50_8xb8-8x8-32e_ava.py"
SMALL_IMAGES = REPO / "configs/downstream/linear/r18_1xb256-32-100e_cifar10.py"
TRAIN = "train_dataloader.dataset.pipeline"
SMALL = [
    "model.backbone.base_channels=16",
    "model.queue_size=512",
    f"{TRAIN}.RandomResizedCropClips.size=64",
    f"{TRAIN}.RandomClips.num_frames=4",
]
WIDTHS = (3, 4, 16, 64, 128, 256, 512, 1024, 65536)


def save(folder, cfg, widths=WIDTHS, **changes):
    """A checkpoint with the text of a config and weights of the given sizes."""
    text = cfg if isinstance(cfg, str) else cfg.pretty_text
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "some.pth"
    weights = {f"w{n}": torch.empty(n, 0) for n in widths}
    torch.save({"meta": {"config": as_json(text)}, "state_dict": weights}, path)
    return path


@pytest.fixture
def small(tmp_path):
    """A checkpoint of the folder recipe with a smaller network and smaller views."""
    return save(tmp_path, load_config(FOLDER, SMALL))


def steps(pipeline):
    return {step["type"]: step for step in pipeline}


def test_a_test_takes_network_and_views(small, monkeypatch):
    logged = []
    monkeypatch.setattr(configs, "print_log", lambda message, **_: logged.append(message))
    cfg = configs.testing_config(FOLDER, str(small))
    assert cfg.model.backbone.base_channels == 16 and cfg.model.queue_size == 512
    for loader in (cfg.test_dataloader, cfg.test_cfg.gallery_dataloader):
        pipeline = steps(loader.dataset.pipeline)
        assert pipeline["ResizeShortSide"]["size"] == 64
        assert pipeline["CenterCropClips"]["size"] == 64
        assert pipeline["UniformClips"]["num_frames"] == 4
        assert pipeline["UniformClips"]["num_clips"] == 4  # the recipe's
    settings = adopted_config(FOLDER, (), small, "test").settings
    assert "model.backbone.base_channels=16" in settings
    assert "test_dataloader.dataset.pipeline.CenterCropClips.size=64" in settings
    assert [*map(str, logged)] == [
        f"settings taken from {small}: {', '.join(settings)} (--cfg-options change them)"
    ]


def test_options_win_over_the_checkpoint(small):
    options = ["model.backbone.base_channels=64", "test_cfg.gallery_dataloader=None"]
    options += ["test_dataloader.dataset.pipeline.4.size=80"]
    options += ["test_dataloader.dataset.pipeline.ResizeShortSide.size=96"]
    cfg = configs.testing_config(FOLDER, str(small), cfg_options=options)
    assert cfg.model.backbone.base_channels == 64 and cfg.model.queue_size == 512
    pipeline = steps(cfg.test_dataloader.dataset.pipeline)
    assert (pipeline["ResizeShortSide"]["size"], pipeline["CenterCropClips"]["size"]) == (96, 80)
    assert pipeline["UniformClips"]["num_frames"] == 4
    assert cfg.test_cfg.gallery_dataloader is None
    settings = adopted_config(FOLDER, options, small, "test").settings
    assert not any("base_channels" in line for line in settings)


@pytest.mark.parametrize("recipe", [FOLDER, AVA, SMALL_IMAGES], ids=lambda p: p.stem)
def test_nothing_is_taken_from_a_training_of_the_same_settings(recipe, tmp_path):
    path = save(tmp_path, load_config(recipe), widths=(*WIDTHS, 80, 101, 400))
    assert adopted_config(recipe, (), path, "test").settings == ()


def test_test_views_of_ones_own_config_file_stay(tmp_path):
    """The file tests at 288 what it trains at 224; the training was done with it."""
    config = tmp_path / "own.py"
    config.write_text(
        f'_base_ = "{FOLDER}"\n'
        "test_dataloader = dict(dataset=dict(pipeline=dict(\n"
        "    ResizeShortSide=dict(size=288), CenterCropClips=dict(size=288))))\n"
    )
    path = save(tmp_path, load_config(config, ["model.backbone.base_channels=16"]))
    for own in (config, RETRIEVAL):  # another protocol takes the backbone only
        adopted = adopted_config(own, (), path, "test")
        assert adopted.settings == ("model.backbone.base_channels=16",)


def test_a_finetuning_takes_depth_and_width_and_the_classifier_follows(small):
    cfg = configs.training_config(FINETUNE, pretrained=str(small))
    assert cfg.model.backbone.base_channels == 16 and cfg.model.cls_head.in_channels == 128
    assert adopted_config(FINETUNE, (), small, "finetune").settings == (
        "model.backbone.base_channels=16",
        "model.cls_head.in_channels=128",
    )
    assert steps(cfg.train_dataloader.dataset.pipeline)["RandomCropClips"]["size"] == 224
    options = ["model.backbone.base_channels=32"]
    adopted = adopted_config(FINETUNE, options, small, "finetune")
    assert adopted.settings == ("model.cls_head.in_channels=256",)


def test_resuming_takes_network_and_training_views(small, tmp_path):
    small.rename(tmp_path / "epoch_1.pth")
    cfg = configs.training_config(FOLDER, work_dir=tmp_path, resume="auto")
    assert cfg.model.backbone.base_channels == 16 and cfg.model.queue_size == 512
    pipeline = steps(cfg.train_dataloader.dataset.pipeline)
    assert pipeline["RandomResizedCropClips"]["size"] == 64
    assert pipeline["RandomClips"]["num_frames"] == 4 and cfg.load_from is None
    kept = [f"{TRAIN}.RandomClips.num_frames=16"]
    cfg = configs.training_config(FOLDER, work_dir=tmp_path, resume="auto", cfg_options=kept)
    assert steps(cfg.train_dataloader.dataset.pipeline)["RandomClips"]["num_frames"] == 16
    new = configs.training_config(FOLDER, work_dir=tmp_path / "new", resume="auto")
    assert new.model == load_config(FOLDER).model


def test_a_setting_that_the_training_left_at_its_default_is_taken_too(tmp_path):
    recipe = tmp_path / "own.py"
    recipe.write_text(f'_base_ = "{FOLDER}"\nmodel = dict(backbone=dict(base_channels=8))\n')
    cfg = configs.testing_config(recipe, str(save(tmp_path, load_config(FOLDER))))
    assert cfg.model.backbone.base_channels == 64


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("base_channels=16", "base_channels=1024"),  # no weight of this size
        ("base_channels=16", "base_channels=65536"),
        ("base_channels=16", "base_channels=True"),
        ("base_channels=16", "base_channels=[16, 16]"),
        ("base_channels=16", "base_channels='__import__'"),
        ("base_channels=16", "base_channels=-1"),
        ("base_channels=16", "zero_init_residual=True"),  # not a named setting
        ("type='ResNet3dSlowPath'", "type='ResNet2d'"),
        ("type='ResNet3dSlowPath'", "type='os.system'"),
        ("type='SCE'", "type=['SCE']"),
        ("model=dict(", "model=print("),
        ("queue_size=512", "queue_size=512, init_cfg=dict(type='Pretrained', checkpoint='x')"),
    ],
)
def test_a_text_of_a_stranger_gives_checked_values_only(tmp_path, old, new):
    trained = load_config(FOLDER, ["model.backbone.base_channels=16", "model.queue_size=512"])
    path = save(tmp_path, trained, widths=(16, 512, 65536), **{old: new})
    adopted = adopted_config(FOLDER, [], path, "test")
    cfg = adopted.config
    out_of_bounds = new.startswith("base_channels=")
    assert adopted.refused == ("model.backbone.base_channels",) * out_of_bounds
    plain = load_config(FOLDER)
    width = cfg.model.backbone.pop("base_channels", 64)
    assert width == (16 if old in ("queue_size=512", "type='SCE'") else 64)
    assert cfg.model.pop("queue_size") in (512, plain.model.pop("queue_size"))
    assert cfg.model == plain.model
    assert cfg.test_dataloader == plain.test_dataloader


@pytest.mark.parametrize(
    "content", [{}, {"meta": {}}, {"meta": 3}, {"meta": {"config": "import os"}}]
)
def test_files_without_a_config_give_nothing(tmp_path, content):
    torch.save({"state_dict": {}, **content}, tmp_path / "bare.pth")
    adopted = adopted_config(FOLDER, [], tmp_path / "bare.pth", "test")
    assert (adopted.settings, adopted.refused) == ((), ())


VIT = REPO / "configs/sce/sce_vit_folder_small.py"
TRANSFORMER = dict(
    depth=3, embed_dims=64, num_heads=16, patch_size=4, tubelet_size=4, grid_size=[1, 16, 16]
)


def test_a_transformer_is_that_of_the_checkpoint(tmp_path):
    options = [f"model.backbone.{key}={value}" for key, value in TRANSFORMER.items()]
    trained = load_config(VIT, [*options, "model.backbone.position=learned"])
    cfg = adopted_config(VIT, [], save(tmp_path, trained), "resume").config
    assert dict(cfg.model.backbone) == dict(trained.model.backbone)
    assert cfg.model.backbone.num_heads == 16 and cfg.model.backbone.position == "learned"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("embed_dims", 8192),  # no weight of this size
        ("patch_size", 33),
        ("num_heads", [4, 4]),
        ("num_heads", 257),
        ("grid_size", [1, 65, 1]),
        ("grid_size", [1, 1, 1, 1]),
        ("position", "__import__('os')"),
    ],
)
def test_a_transformer_of_a_stranger_gives_checked_values_only(tmp_path, key, value):
    trained = load_config(VIT)
    trained.model.backbone[key] = value
    cfg = adopted_config(VIT, [], save(tmp_path, trained), "test").config
    assert dict(cfg.model.backbone) == dict(load_config(VIT).model.backbone)


def test_a_network_of_mmaction2_that_declares_nothing(tmp_path):
    """Numbers and switches that shape the weights, those of the parents' constructors included."""
    pytest.importorskip("mmaction")
    own, given = {"type": "ResNet3dSlowOnly", "depth": 50}, {"depth": 18, "base_channels": 8}
    trained = load_config(FINETUNE)
    trained.model.backbone = {**own, **given, "norm_eval": True}
    trained.model.cls_head.num_classes = 7
    network = MODELS.build(dict(trained.model.backbone))
    weights = {f"backbone.{name}": value for name, value in network.state_dict().items()}
    weights["cls_head.fc_cls.weight"] = torch.zeros(7, 64)
    content = {"meta": {"config": as_json(trained.pretty_text)}, "state_dict": weights}
    cfg = load_config(FINETUNE)
    cfg.model.backbone = {**own, "norm_eval": False}
    for use in ("test", "finetune"):
        adopted = adopted_config(cfg, (), tmp_path / "epoch_1.pth", use, content).config
        assert dict(adopted.model.backbone) == {**own, **given, "norm_eval": False}
        assert adopted.model.cls_head.num_classes == (7 if use == "test" else 101)
