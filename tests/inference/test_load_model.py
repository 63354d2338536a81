"""The network that is built from a checkpoint, and checkpoints that are refused."""

import hashlib
import json

import numpy as np
import pytest
import torch
from helpers.tiny_encoder import (
    CLIP_DURATION,
    CONFIG,
    CROP_SIZE,
    FEATURE_SIZE,
    NUM_FRAMES,
    SHORT_SIDE,
    as_json,
    save_tiny,
    tiny_backbone,
)

from sce_video.engine.weights import checked_backbone
from sce_video.inference.embed import embed_videos
from sce_video.inference.model import load_model
from sce_video.inference.network_input import ModelSettings, settings_from_config
from sce_video.models import VisionTransformer3d
from sce_video.models.backbones.common import represent

BACKBONE = {"type": "ResNet3dSlowPath", "depth": 18, "base_channels": 4}


def config(train=(), test=(), **other):
    return {
        "model": {"backbone": BACKBONE},
        "train_dataloader": {"dataset": {"pipeline": list(train)}},
        "test_dataloader": {"dataset": {"pipeline": list(test)}},
        **other,
    }


RANDOM_CLIPS = {"type": "RandomClips", "clip_duration": 2.0, "num_frames": 8}
CROP = {"type": "CenterCropClips", "size": 32}


def training(size, kind="RandomResizedCropClips", clip=RANDOM_CLIPS):
    return [clip, {"type": kind, "size": size}]


def test_all_settings_come_from_the_checkpoint(tmp_path):
    backbone = tiny_backbone()
    path = save_tiny(tmp_path / "tiny.pth", backbone)
    model = load_model(path, device="cpu")
    settings = model.settings
    assert (settings.clip_duration, settings.num_frames) == (CLIP_DURATION, NUM_FRAMES)
    assert (settings.short_side, settings.crop_size) == (SHORT_SIDE, CROP_SIZE)
    assert model.feature_size == FEATURE_SIZE
    assert model.checkpoint == str(path.resolve())
    assert model.checkpoint_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert model.device == torch.device("cpu")
    assert not model.encoder.training
    assert not any(p.requires_grad for p in model.encoder.parameters())
    preprocessor = model.encoder.data_preprocessor
    torch.testing.assert_close(preprocessor.mean.flatten(), torch.tensor([0.4, 0.45, 0.5]))
    torch.testing.assert_close(preprocessor.std.flatten(), torch.tensor([0.2]))
    loaded = model.encoder.backbone.state_dict()
    assert loaded.keys() == backbone.state_dict().keys()
    for key, value in backbone.state_dict().items():
        assert torch.equal(loaded[key], value), key


@pytest.mark.parametrize(("position", "crop", "patch"), [("sincos", 32, 8), ("learned", 36, 12)])
def test_a_vision_transformer(tmp_path, position, crop, patch):
    options = dict(depth=2, embed_dims=8, num_heads=2, patch_size=patch, grid_size=(2, 2, 2))
    trained = {**options, "with_cp": True, "keep_tokens": 0.05, "token_pattern": "'tube'"}
    text = CONFIG.replace(
        "type='ResNet3dSlowPath', depth=18, base_channels=4, zero_init_residual=False",
        f"type='VisionTransformer3d', position={position!r}, "
        + ", ".join(f"{key}={value}" for key, value in trained.items()),
    ).replace("crop_size=32", f"crop_size={crop}")
    backbone = VisionTransformer3d(**options, position=position).eval()
    model = load_model(save_tiny(tmp_path / "vit.pth", backbone, text), device="cpu")
    frames = np.random.default_rng(0).integers(0, 255, (8, 48, 64, 3), dtype=np.uint8)
    h = embed_videos(model, [frames])
    assert model.feature_size == 8 and np.asarray(h).shape == (1, 8)
    clip = torch.rand(1, 3, 4, crop, crop)
    assert torch.equal(model.encoder.represent(clip), represent(backbone, clip))


def test_a_config_file_instead(tmp_path):
    path = save_tiny(tmp_path / "bare.pth", text=None, prefix="")
    with pytest.raises(ValueError, match=r"bare\.pth contains no config.*config="):
        load_model(path)
    (tmp_path / "own.py").write_text(CONFIG)
    model = load_model(path, tmp_path / "own.py")
    assert (model.settings.num_frames, model.settings.crop_size) == (NUM_FRAMES, CROP_SIZE)
    assert torch.equal(model.encoder.backbone.conv1.weight, tiny_backbone().conv1.weight)


def test_files_without_bn_counters_and_with_ddp_names(tmp_path):
    weights = {
        f"module.backbone.{key}": value
        for key, value in tiny_backbone().state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    torch.save({"state_dict": weights, "meta": {"config": as_json(CONFIG)}}, tmp_path / "old.pth")
    model = load_model(tmp_path / "old.pth")
    assert torch.equal(model.encoder.backbone.bn1.running_var, tiny_backbone().bn1.running_var)


@pytest.mark.parametrize(
    ("depth", "channels", "prefix", "message"),
    [
        (50, 4, "backbone.", "a different backbone"),
        (18, 8, "backbone.", "of a different shape"),
        (18, 4, "encoder.", "no backbone weight"),
        (34, 4, "", "a different backbone.*too many"),
    ],
)
def test_other_weights_are_an_error(tmp_path, depth, channels, prefix, message):
    path = save_tiny(tmp_path / "other.pth", tiny_backbone(0, depth, channels), prefix=prefix)
    with pytest.raises(ValueError, match=rf"(?s)other\.pth.*({message})|({message}).*other\.pth"):
        load_model(path)


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.pth"):
        load_model(tmp_path / "nothing.pth")
    (tmp_path / "broken.pth").write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match=r"broken\.pth"):
        load_model(tmp_path / "broken.pth")
    with pytest.raises(FileNotFoundError, match=r"no\.py"):
        load_model(save_tiny(tmp_path / "tiny.pth"), tmp_path / "no.py")


def test_what_is_no_checkpoint_path_is_told_what_to_give(tmp_path):
    save_tiny(tmp_path / "tiny.pth")
    with pytest.raises(FileNotFoundError, match=r"other .pth files: .*tiny\.pth"):
        load_model(tmp_path)
    with pytest.raises(TypeError, match="checkpoint must be the path of a file, got int"):
        load_model(5)
    with pytest.raises(TypeError, match="config must be the path of a file, got dict"):
        load_model(tmp_path / "tiny.pth", {})


def test_an_unavailable_device(tmp_path):
    path = save_tiny(tmp_path / "tiny.pth")
    for device in ("nonsense", "cuda:99"):
        with pytest.raises(ValueError, match=device):
            load_model(path, device=device)


def test_code_in_the_config_of_a_checkpoint_is_not_executed(tmp_path, monkeypatch):
    mark = tmp_path / "ran"
    text = CONFIG + f"\nharmless = open({str(mark)!r}, 'w')\n"
    path = save_tiny(tmp_path / "evil.pth", text=text)
    with pytest.raises(ValueError, match=r"evil\.pth is not JSON data"):
        load_model(path)
    assert not mark.exists()


@pytest.fixture
def untrusted_module(tmp_path, monkeypatch):
    """A module that writes a file when it is imported: ``stranger.Net``, ``stranger.registry``."""
    package = tmp_path / "path" / "stranger"
    package.mkdir(parents=True)
    mark = tmp_path / "ran"
    for name in ("__init__.py", "registry.py"):
        (package / name).write_text(f"open({str(mark)!r}, 'w')\nNet = dict\n")
    monkeypatch.syspath_prepend(tmp_path / "path")
    return mark


@pytest.mark.parametrize(
    "replaced",
    [
        "type='stranger.Net'",
        "type='sce_video.stranger.Net'",
        "type='torch.nn.Linear'",
        "type='Conv3d'",
        "type=dict(type='ResNet3dSlowPath')",
        "type='ResNet3dSlowPath', norm_cfg=[dict(type='stranger.Net')]",
        "type='ResNet3dSlowPath', _scope_='stranger', unknown=1",
    ],
)
def test_types_that_are_not_registered_are_neither_built_nor_imported(
    tmp_path, untrusted_module, replaced
):
    text = CONFIG.replace("type='ResNet3dSlowPath'", replaced)
    assert text != CONFIG
    with pytest.raises(ValueError, match=r"evil\.pth"):
        load_model(save_tiny(tmp_path / "evil.pth", text=text))
    assert not untrusted_module.exists()


@pytest.mark.parametrize("name", ["stranger.Net", "stranger", "mmaction.stranger", "os", 7, None])
def test_layers_that_are_not_registered(untrusted_module, name):
    for inner in ({"type": name}, [{"a": ({"type": name},)}]):
        with pytest.raises(ValueError, match="not a registered"):
            checked_backbone({**BACKBONE, "norm_cfg": inner})
    assert not untrusted_module.exists()


def test_registered_names_with_and_without_scope(tmp_path):
    for name in ("ResNet3dSlowPath", "sce_video.ResNet3dSlowPath"):
        text = CONFIG.replace("'ResNet3dSlowPath'", repr(name))
        assert load_model(save_tiny(tmp_path / "tiny.pth", text=text)).feature_size == FEATURE_SIZE
    theirs = {"type": "mmaction.ResNet3dSlowOnly", "depth": 50, "norm_cfg": {"type": "BN3d"}}
    given = {**theirs, "pretrained": "http://nowhere/x.pth", "strides": [1, 2, 2, 2]}
    assert checked_backbone(given) == {**theirs, "strides": (1, 2, 2, 2)}


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        # The clip of the training pipeline, the crop of the test pipeline.
        (
            training(224),
            [
                {"type": "UniformClips", "clip_duration": 9.0, "num_frames": 9},
                {"type": "sce_video.ResizeShortSide", "size": 300},
                {"type": "sce_video.CenterCropClips", "size": 250},
            ],
            (2.0, 8, 300, 250),
        ),
        # Without a test pipeline: 224 -> 256, 112 -> 128, other sizes unchanged.
        (training(224), [], (2.0, 8, 256, 256)),
        (training(112, "RandomCropClips"), [], (2.0, 8, 128, 128)),
        (training(64), [], (2.0, 8, 64, 64)),
        # Images: 224 is cut from a short side of 256, smaller ones are taken as they are.
        (training(224, clip={"type": "LoadImage"}), [], (1.0, 1, 256, 224)),
        (training(32, clip={"type": "LoadImage"}), [], (1.0, 1, 32, 32)),
        # A test crop that was not changed with the training crop.
        (
            training(64),
            [{"type": "ResizeShortSide", "size": 256}, {"type": "CenterCropClips", "size": 256}],
            (2.0, 8, 64, 64),
        ),
        # Segment sampling: the clip is the whole video.
        (
            [{"type": "RandomSegmentClip", "num_frames": 16}],
            [{"type": "PackVideo", "crop_size": 256}],
            (None, 16, 256, 256),
        ),
        # A config for testing alone.
        (
            [],
            [{"type": "UniformClips", "clip_duration": 1.5, "num_frames": 4}, CROP],
            (1.5, 4, 32, 32),
        ),
    ],
)
def test_clip_and_crop_of_a_config(train, test, expected):
    s = settings_from_config(config(train, test))
    assert (s.clip_duration, s.num_frames, s.short_side, s.crop_size) == expected


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({}, "no model.backbone"),
        (config([], [CROP]), "sample no clips"),
        (config([RANDOM_CLIPS], []), "no crop"),
        (config([{**RANDOM_CLIPS, "clip_duration": -1}], [CROP]), "clip_duration"),
        (config([{**RANDOM_CLIPS, "num_frames": 0}], [CROP]), "num_frames"),
        (config([RANDOM_CLIPS], [{"type": "ResizeShortSide", "size": 16}, CROP]), "does not fit"),
        (
            config([RANDOM_CLIPS], [CROP], data_preprocessor={"type": "ActionDataPreprocessor"}),
            "ActionDataPreprocessor",
        ),
        (config([RANDOM_CLIPS], [CROP], data_preprocessor={"mean": "x"}), "mean"),
        (config([RANDOM_CLIPS, {"type": "RandomCropClips", "size": []}]), "no crop"),
        (config([7, {"type": 7}, {"type": "RandomClips"}], "text"), "sample no clips"),
    ],
)
def test_incomplete_configs(cfg, message):
    with pytest.raises(ValueError, match=message):
        settings_from_config(cfg)


def test_settings_survive_json():
    cfg = config([RANDOM_CLIPS], [CROP], data_preprocessor={"mean": [0.1, 0.2, 0.3]})
    cfg["model"]["backbone"] = {**BACKBONE, "things": [1, (2, 3)]}
    settings = settings_from_config(cfg)
    stored = json.loads(json.dumps(settings.to_dict()))
    assert stored == settings.to_dict()
    assert ModelSettings.from_dict(stored) == settings
    for wrong in ({}, [], {**stored, "more": 1}, {**stored, "backbone": {"type": "os.path"}}):
        with pytest.raises(ValueError, match="settings|registered"):
            ModelSettings.from_dict(wrong)
