"""Networks of timm as backbones: features, layers, sizes and refused names."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from sce_video.models.backbones import TimmEncoder
from sce_video.models.backbones.timm_package import timm

# importorskip would import timm before the package does, which fails without torchvision.
pytestmark = pytest.mark.skipif(find_spec("timm") is None, reason="no timm")

#: Small networks with convolutions, with attention, and with both
NETWORKS = ("test_resnet", "test_efficientnet", "test_convnext", "test_vit", "test_coatnet")


def with_own_weights(name: str) -> tuple[torch.nn.Module, TimmEncoder]:
    """Return a timm network with random weights, and ours with the same weights."""
    torch.manual_seed(0)
    theirs = timm().create_model(name, num_classes=0).eval()
    for parameter in theirs.parameters():
        if parameter.ndim == 1:  # norms, which start as the identity
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    ours = TimmEncoder(name, frame_pool="mean+absdiff").eval()
    ours.network.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("name", NETWORKS)
def test_features_of_a_clip_are_those_of_its_frames(name):
    """The timm network receives one frame at a time."""
    theirs, ours = with_own_weights(name)
    view = torch.randn(2, 3, 3, 160, 160, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = ours(view).mean((2, 3, 4)).numpy()
        frames = [theirs(view[:, :, t]).numpy() for t in range(3)]
    steps = [np.abs(frames[t + 1] - frames[t]) for t in range(2)]
    expected = np.concatenate([np.mean(frames, axis=0), np.mean(steps, axis=0)], axis=1)
    assert found.shape == (2, ours.out_channels) and steps[0].max() > 1e-3
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", [*NETWORKS, "rdnet_tiny", "poolformerv2_s12", "levit_128s"])
def test_layers_are_all_parts_of_the_network_once(name):
    """For two of these networks, timm has no layer groups."""
    with torch.device("meta"):
        encoder = TimmEncoder(name)
    parts = [part for layer in encoder.layers() for part in layer]
    modules = [part for part in parts if isinstance(part, torch.nn.Module)]
    singles = [part for part in parts if not isinstance(part, torch.nn.Module)]
    found = [*singles, *(p for module in modules for p in module.parameters())]
    assert len(found) == len({*map(id, found)})
    assert {*map(id, found)} == {id(p) for p in encoder.parameters()}
    assert len(encoder.layers()) > 3


def test_the_blocks_of_a_transformer_are_frozen_from_the_first_one():
    encoder = TimmEncoder("test_vit", frozen_stages=2).train()
    frozen = {name for name, p in encoder.named_parameters() if not p.requires_grad}
    assert {"network.cls_token", "network.pos_embed"} < frozen
    assert any(name.startswith("network.blocks.2.") for name in frozen)
    assert not any(name.startswith(("network.blocks.3.", "network.norm.")) for name in frozen)


def test_checkpointing_changes_no_gradient():
    view, gradients = torch.randn(1, 3, 2, 160, 160), []
    for with_cp in (False, True):
        torch.manual_seed(0)
        encoder = TimmEncoder("test_vit", with_cp=with_cp).train()
        encoder(view).square().sum().backward()
        gradients.append([p.grad.clone() for p in encoder.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again)


def test_checkpointing_is_refused_for_batch_norm():
    """The second forward pass would change the running statistics again."""
    with pytest.raises(ValueError, match="with_cp is refused for timm's test_resnet"):
        TimmEncoder("test_resnet", with_cp=True)


def test_a_network_of_one_size_refuses_others():
    encoder = TimmEncoder("test_vit")
    assert encoder.takes_one_size and encoder.refused(4, 160, 160) is None
    with pytest.raises(ValueError, match="test_vit accepts frames of 160x160 pixels.*got 96x96"):
        encoder(torch.zeros(1, 3, 2, 96, 96))
    other = TimmEncoder("test_vit", model_args={"img_size": 96})
    assert other(torch.zeros(1, 3, 2, 96, 96)).shape == (1, 64, 2, 1, 1)
    assert not TimmEncoder("test_resnet").takes_one_size


@pytest.mark.parametrize(
    ("architecture", "model_args", "match"),
    [
        ("resnet18_of_mine", {}, "timm 1.* has no architecture 'resnet18_of_mine'"),
        ("hf-hub:evil/model", {}, "has no architecture 'hf-hub:evil/model'"),
        ("local-dir:/evil", {}, "has no architecture 'local-dir:/evil'"),
        ("resnet18.a1_in1k", {}, "has no architecture 'resnet18.a1_in1k'"),
        (["resnet18"], {}, "has no architecture"),
        ("test_vit", 3, "model_args must be a dict, got 3"),
        (
            "test_vit",
            {"checkpoint_path": "/evil.pth"},
            "model_args.checkpoint_path .* is not allowed",
        ),
        ("test_vit", {"pretrained": True}, "model_args.pretrained = True is not allowed"),
        ("test_vit", {"pretrained_cfg": "evil"}, "model_args.pretrained_cfg .* is not allowed"),
        ("test_vit", {"pretrained_cfg_overlay": {"file": "x"}}, "is not allowed"),
        ("test_vit", {"cache_dir": "/evil"}, "model_args.cache_dir .* is not allowed"),
        ("test_vit", {"features_only": True}, "model_args.features_only = True is not allowed"),
        ("test_vit", {"act_layer": "os.system"}, "model_args.act_layer .* is not allowed"),
        ("test_vit", {"embed_dim": 10**9}, "model_args.embed_dim = 1000000000 is not allowed"),
        ("test_vit", {"depth": [1] * 101}, "model_args.depth .* is not allowed"),
        ("test_vit", {"weird": 3}, "timm cannot build test_vit with .*weird"),
        ("test_vit", {"act_layer": "none_such"}, "timm cannot build test_vit"),
    ],
)
def test_what_is_no_network_of_timm(architecture, model_args, match):
    with pytest.raises(ValueError, match=match):
        TimmEncoder(architecture, model_args)


def test_no_stand_in_is_left_behind():
    assert timm() is sys.modules["timm"]
    for name in ("torchvision", "torchvision.ops", "torchvision.ops.misc", "timm.data"):
        module = sys.modules.get(name)
        assert module is None or getattr(module, "__file__", None), f"{name} is a stand-in"


_RESTORE = """
import pickle, sys
encoder = pickle.load(open(sys.argv[1], "rb"))
print(type(encoder.network).__name__, sum(p.numel() for p in encoder.parameters()))
"""


def test_another_process_restores_the_network(tmp_path):
    """A worker has not imported timm. ``pickle`` imports it for the classes of the layers."""
    encoder = TimmEncoder("test_resnet")
    (tmp_path / "encoder.pkl").write_bytes(pickle.dumps(encoder))
    words = [sys.executable, "-c", _RESTORE, str(tmp_path / "encoder.pkl")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ResNet", str(sum(p.numel() for p in encoder.parameters()))]


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is installed")
def test_timm_needs_no_torchvision():
    """Every fiftieth architecture is built on the meta device."""
    names = timm().list_models()
    assert len(names) > 1000
    for name in names[::50]:
        with torch.device("meta"):
            assert TimmEncoder(name).frame_channels > 0
