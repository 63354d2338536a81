"""Which networks the text in a checkpoint may name, and how large they may be."""

import os

import pytest
import torch
from helpers.tiny_encoder import CONFIG, save_tiny
from torch import nn

from sce_video.engine.weights import (
    BACKBONES,
    LAYERS,
    bounded_network,
    checked_backbone,
)
from sce_video.inference.model import load_model
from sce_video.inference.network_input import ModelSettings, settings_from_config
from sce_video.registry import MODELS, is_own_part

THEIRS = {"type": "ResNet3d", "depth": 50}


def test_a_registered_class_that_writes_files_is_not_built(tmp_path):
    written = tmp_path / "written"
    ours = "type='ResNet3dSlowPath', depth=18, base_channels=4, zero_init_residual=False"
    assert ours in CONFIG
    text = CONFIG.replace(ours, f"type='LFBInferHead', lfb_prefix_path={str(written)!r}")
    with pytest.raises(ValueError, match=r"evil\.pth.*'LFBInferHead' is not a registered.*config"):
        load_model(save_tiny(tmp_path / "evil.pth", text=text))
    assert os.listdir(tmp_path) == ["evil.pth"]


def test_only_named_classes_of_the_installed_packages():
    for registry in MODELS.chain():
        named = BACKBONES.get(registry.scope, frozenset())
        layers = named | LAYERS.get(registry.scope, frozenset())
        for name, part in registry.module_dict.items():
            if is_own_part(part):
                continue  # of another test
            for scoped in (name, f"{registry.scope}.{name}"):
                for allowed, config in (
                    (named, {"type": scoped}),
                    (layers, {**THEIRS, "norm_cfg": {"type": scoped}}),
                ):
                    if name in allowed:
                        assert checked_backbone(config) == config
                    else:
                        with pytest.raises(ValueError, match="is not a registered"):
                            checked_backbone(config)


def test_the_names_exist():
    for registry in MODELS.chain():
        named = BACKBONES.get(registry.scope, frozenset()) | LAYERS.get(registry.scope, frozenset())
        assert named <= set(registry.module_dict), registry.scope


@pytest.fixture
def own_network():
    """A class that the user's own code has registered."""

    class OwnNetwork(nn.Module):
        pass

    MODELS.register_module(module=OwnNetwork)
    yield {"type": "OwnNetwork", "channels": 2**20}
    MODELS.module_dict.pop("OwnNetwork")


def test_a_network_of_the_users_own_code(own_network):
    assert checked_backbone(own_network, trusted=True) == own_network
    small = {**own_network, "channels": 64}
    assert checked_backbone(small) == small
    for config in (small, {"type": "sce_video.OwnNetwork"}):
        MODELS.get("OwnNetwork").__module__ = "mmaction.models.heads"
        with pytest.raises(ValueError, match="is not a registered"):
            checked_backbone(config)


def test_a_config_file_may_name_every_registered_network():
    config = {"type": "UniFormerV2", "clip_pretrained": False, "width": 2**20}
    assert checked_backbone(config, trusted=True) == config
    with pytest.raises(ValueError, match="give the config file"):
        checked_backbone(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**THEIRS, "base_channels": 2**40}, "base_channels of the backbone is 1099511627776"),
        ({**THEIRS, "stage_blocks": [10**6] * 4}, "stage_blocks of the backbone is 1000000"),
        ({**THEIRS, "depth": -(10**4000)}, "a number of 13288 bits"),
        ({**THEIRS, "conv1_kernel": (1, 99, 99)}, "conv1_kernel of the backbone is 99"),
        ({**THEIRS, "a": {"window_size": [17]}}, "window_size of the backbone is 17"),
        ({**THEIRS, "a": [0] * 3000}, "at most 2000 values"),
        ({**THEIRS, "a": b"bytes"}, "must contain only plain data, got a bytes"),
    ],
)
def test_large_values(config, message):
    with pytest.raises(ValueError, match=message):
        checked_backbone(config)


def test_deep_values():
    deep = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(ValueError, match="at most 20 levels"):
        checked_backbone({**THEIRS, "a": deep})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("base_channels=4", "base_channels=65536", "larger than the weights in the file"),
        ("base_channels=4", "base_channels=256", "larger than the weights in the file"),
        (
            "type='ResNet3dSlowPath', depth=18, base_channels=4, zero_init_residual=False",
            "type='ResNet3d', depth=50, base_channels=1, stage_blocks=(60000, 60000, 60000, 60000)",
            "larger than the weights in the file",
        ),
        ("num_frames=4", "num_frames=2000000000", "num_frames must be a whole number from 1"),
        ("num_frames=4", "num_frames=4096", "short side of 3000 has more than"),
        ("crop_size=32", "crop_size=40000", "short_side must be|crop_size must be"),
        ("mean=(0.4, 0.45, 0.5)", "mean=(0.4, 0.5)", "mean must be one number or three"),
        ("std=0.2", "std=inf", "std must be one number or three"),
    ],
)
def test_a_small_file_that_describes_a_large_network(tmp_path, old, new, message):
    text = CONFIG.replace(old, new)
    if "short side" in message:
        text = text.replace("size=40", "size=3000")
    if "40000" in new:
        text = text.replace("size=32, type", "size=40000, type")
    path = save_tiny(tmp_path / "evil.pth", text=text)
    with pytest.raises(ValueError, match=message):
        load_model(path, device="cpu")


def test_settings_of_an_index_are_bounded_too():
    cfg = {
        "model": {"backbone": {"type": "ResNet3dSlowPath", "depth": 18}},
        "test_pipeline": [
            {"type": "UniformClips", "clip_duration": 1.0, "num_frames": 4},
            {"type": "CenterCropClips", "size": 32},
        ],
    }
    stored = settings_from_config(cfg).to_dict()
    assert ModelSettings.from_dict(stored).num_frames == 4
    for wrong in (
        {"num_frames": 10**9},
        {"backbone": {"type": "LFBInferHead", "lfb_prefix_path": "x"}},
        {"backbone": {**stored["backbone"], "base_channels": 10**9}},
        {"mean": [0.1] * 1000},
    ):
        with pytest.raises(ValueError, match="must be|is not a registered|more than"):
            ModelSettings.from_dict({**stored, **wrong})


def test_the_limit_ends_with_the_block():
    with bounded_network({"a": torch.zeros(10)}):
        nn.Linear(8, 8)
        with pytest.raises(ValueError, match="40 bytes"):
            nn.Linear(2**12, 2**12)
    nn.Linear(2**12, 2**12, device="meta")
