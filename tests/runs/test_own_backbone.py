"""A registered backbone of the user works in every step that starts from its checkpoint."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from helpers.recognition import FINETUNE
from helpers.tiny_encoder import CONFIG, save_tiny
from helpers.training import REPO, make_videos
from torch import nn

from sce_video.commands.main import main
from sce_video.engine.config.load import load_config
from sce_video.inference.model import load_model
from sce_video.registry import MODELS
from sce_video.runs.checkpoint_settings import adopted_config
from sce_video.runs.planned_config import planned_config
from sce_video.runs.start_weights import find_source

FOLDER = REPO / "configs/sce/sce_r3d18_folder.py"
MODULE = '''
from typing import Annotated

from mmengine.model import BaseModule
from torch import nn

from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import Channels, Stored


class _Convolutions(BaseModule):
    def __init__(self, channels, blocks, stride, init_cfg=None):
        super().__init__(init_cfg)
        layers = [nn.Conv3d(3, channels, 3, stride=stride, padding=1)]
        layers += [nn.Conv3d(channels, channels, 1) for _ in range(blocks)]
        self.layers = nn.Sequential(*layers)
        self.out_channels = channels

    def forward(self, view):
        return self.layers(view)


@MODELS.register_module()
class OwnPlain(_Convolutions):
    """A backbone as a newcomer writes it."""

    def __init__(self, channels=32, blocks: int = 1, stride: int = 2, frozen_stages=-1):
        super().__init__(channels, blocks, stride)


@MODELS.register_module()
class OwnDeclared(_Convolutions):
    """A backbone that declares what a later step takes from a checkpoint."""

    def __init__(
        self,
        channels: Channels = 32,
        blocks: Annotated[int, Stored(4, least=0)] = 1,
        stride: Annotated[int, Stored(4)] = 2,
        frozen_stages: int = -1,
    ):
        super().__init__(channels, blocks, stride)
'''
#: What the training was changed to, and how each class takes it.
TRAINED = {"channels": 8, "blocks": 2, "stride": 1, "frozen_stages": 4}
TAKEN = {"OwnPlain": ("channels", "blocks"), "OwnDeclared": ("channels", "blocks", "stride")}


@pytest.fixture(scope="module", autouse=True)
def own_module(tmp_path_factory):
    """The user's module, imported as ``--import`` and a config file import it."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_backbones.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    import own_backbones

    yield own_backbones
    sys.path.remove(str(folder))
    sys.modules.pop("own_backbones")
    for name in TAKEN:
        MODELS.module_dict.pop(name)


@pytest.fixture(params=sorted(TAKEN))
def trained(request, tmp_path):
    """Name of the class, and a checkpoint whose network has other arguments than its defaults."""
    network = MODELS.build({"type": request.param, **TRAINED})
    given = ", ".join(f"{key}={value}" for key, value in TRAINED.items())
    ours = "type='ResNet3dSlowPath', depth=18, base_channels=4, zero_init_residual=False"
    assert ours in CONFIG
    text = CONFIG.replace(ours, f"type='{request.param}', {given}")
    path = save_tiny(tmp_path / "epoch_1.pth", network, text)
    return request.param, path


@pytest.mark.parametrize("use", ["resume", "test", "finetune"])
def test_later_steps_take_the_network(use, trained):
    """Without the tables of names: also arguments that no class of the package has."""
    kind, path = trained
    recipe = load_config(FINETUNE if use == "finetune" else FOLDER)
    recipe.model.backbone = {"type": kind}
    adopted = adopted_config(recipe, (), path, use)
    expected = {name: TRAINED[name] for name in TAKEN[kind]}
    assert dict(adopted.config.model.backbone) == {"type": kind, **expected}
    assert not any(name.startswith("model.backbone") for name in adopted.refused)
    if use == "finetune":
        assert adopted.config.model.cls_head.in_channels == TRAINED["channels"]


def test_values_of_a_stranger_are_bounded(trained, tmp_path):
    kind, path = trained
    recipe = load_config(FOLDER)
    recipe.model.backbone = {"type": kind}
    content = torch.load(path, weights_only=True)
    for old, new in (('"blocks": 2', '"blocks": 5000'), ('"channels": 8', '"channels": 9999')):
        changed = {**content["meta"], "config": content["meta"]["config"].replace(old, new)}
        assert changed != content["meta"]
        adopted = adopted_config(recipe, (), path, "test", {**content, "meta": changed})
        name = new.split('"')[1]
        assert name not in adopted.config.model.backbone
        if kind == "OwnDeclared":
            assert f"model.backbone.{name}" in adopted.refused


def test_networks_and_sources_are_read(trained):
    """As ``index``, ``embed``, ``predict`` and ``finetune`` do."""
    kind, path = trained
    model = load_model(path, device="cpu")
    assert model.settings.backbone == {"type": kind, **TRAINED}
    assert model.feature_size == TRAINED["channels"]
    source = find_source(path)
    assert (source.settings.backbone["type"], source.channels) == (kind, TRAINED["channels"])
    assert source.family == "convolution"


def test_a_transformer_is_found_by_its_layers(tmp_path):
    """Learning rates and adapters depend on it; no list names the classes."""

    @MODELS.register_module(force=True)
    class OwnTransformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv3d(3, 8, 4, stride=4)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    ours = "type='ResNet3dSlowPath', depth=18, base_channels=4, zero_init_residual=False"
    text = CONFIG.replace(ours, "type='OwnTransformer'")
    try:
        source = find_source(save_tiny(tmp_path / "epoch_1.pth", OwnTransformer(), text))
    finally:
        MODELS.module_dict.pop("OwnTransformer")
    assert (source.family, source.channels) == ("vit", 0)


def test_evaluate_index_and_embed(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sce-video"])
    _, path = trained
    videos = make_videos(tmp_path / "videos", count=8)
    out, given = tmp_path / "results.json", ["--test", str(videos), "--gallery", str(videos)]
    assert main(["evaluate", str(path), *given, "--no-random", "--out", str(out)]) == 0
    metrics = json.loads(out.read_text())["metrics"]
    assert metrics["retrieval_r1"] == 1.0  # each query is in the gallery
    for command, name in (("index", "index"), ("embed", "features.npz")):
        words = ["--checkpoint", str(path), "--out", str(tmp_path / name), "--workers", "0"]
        assert main([command, str(videos), *words]) == 0
    for file in (tmp_path / "features.npz", tmp_path / "index/features.npz"):
        with np.load(file) as arrays:
            assert arrays["features"].shape == (8, TRAINED["channels"])


def test_a_finetuning_is_planned_and_resumed(trained, tmp_path, monkeypatch):
    """A planned run names the class, and is resumed only where the module is imported."""
    kind, path = trained
    monkeypatch.setattr(sys, "argv", ["sce-video"])
    videos, run = make_videos(tmp_path / "videos", count=12), tmp_path / "run"
    words = "--epochs 1 --batch 2 --workers 0 --clips 1 --crops 1 --size 32 --plan".split()
    source = ["finetune", str(path), "--train", str(videos), "--out", str(run)]
    assert main([*source, *words]) == 0
    config = planned_config(run)
    backbone = config.model.backbone
    assert (backbone.type, backbone.channels, config.model.cls_head.in_channels) == (kind, 8, 8)
    with unregistered(kind), pytest.raises(ValueError, match=f"type '{kind}' is not a registered"):
        planned_config(run)


@contextmanager
def unregistered(kind):
    part = MODELS.module_dict.pop(kind)
    try:
        yield
    finally:
        MODELS.register_module(name=kind, module=part)


def test_an_unregistered_network_is_refused(trained):
    """Nothing is imported because a file names it."""
    kind, path = trained
    message = f"type '{kind}' is not a registered"
    with unregistered(kind), pytest.raises(ValueError, match=message):
        load_model(path, device="cpu")
