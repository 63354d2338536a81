"""Average pooling and representations of any backbone."""

from __future__ import annotations

import copy
import pickle
from importlib.util import find_spec
from inspect import signature

import pytest
import torch
from helpers.query_methods import NEEDED, QUERY_METHODS, SMALL, build_method
from torch import nn

from sce_video.engine.compile import guard_small_convolutions
from sce_video.engine.optimizers import NoNormDecayConstructor
from sce_video.engine.weights import BACKBONES
from sce_video.models.backbones import common
from sce_video.models.backbones.common import average_pool, map_tokens, represent
from sce_video.registry import MODELS


@pytest.mark.parametrize(
    ("features", "got"), [(torch.zeros(2, 5), r"\(2, 5\)"), ((torch.zeros(1, 2, 3),), "tuple")]
)
def test_what_cannot_be_pooled_is_named(features, got):
    with pytest.raises(ValueError, match=rf"\(N, C, \.\.\.\), got {got}"):
        average_pool(features)


class MaxPooling(nn.Conv3d):
    def pool(self, features):
        return features.amax(dim=(2, 3, 4))


def test_represent_uses_the_backbones_own_pool_or_the_mean():
    torch.manual_seed(0)
    view = torch.rand(2, 3, 2, 4, 4)
    own, plain = MaxPooling(3, 5, 1), nn.Conv3d(3, 5, 1)
    assert torch.equal(represent(own, view), own(view).amax(dim=(2, 3, 4)))
    assert torch.equal(represent(plain, view), plain(view).mean(dim=(2, 3, 4)))
    plain.pool = nn.MaxPool3d(2)  # a layer with this name is not the method
    assert torch.equal(represent(plain, view), plain(view).mean(dim=(2, 3, 4)))


# Every registered backbone of this package works with every method.


def registered() -> list[str]:
    """Return the names of all backbones in sce_video/models/backbones."""
    package = "sce_video.models.backbones."
    return sorted(n for n, c in MODELS.module_dict.items() if c.__module__.startswith(package))


def skip_without_package(name: str) -> None:
    """Skip the test of a backbone whose package is not installed."""
    if (package := NEEDED.get(name)) and find_spec(package) is None:
        pytest.skip(f"{name} needs {package}")


def build(name: str, **options) -> torch.nn.Module:
    assert name in SMALL, f"add a small variant of {name} to SMALL"
    torch.manual_seed(0)
    skip_without_package(name)
    return MODELS.build({"type": name, **SMALL[name], **options})


def test_a_checkpoint_may_name_each():
    assert BACKBONES["sce_video"] == set(registered())


@pytest.mark.parametrize("name", registered())
def test_can_be_sent_to_another_process(name):
    backbone = build(name).eval()
    view = torch.rand(2, 3, 4, 32, 32)
    with torch.no_grad():
        assert torch.equal(pickle.loads(pickle.dumps(backbone))(view), backbone(view))


def test_a_network_that_drops_tokens_can_be_sent_to_another_process():
    backbone = build("VisionTransformer3d", keep_tokens=0.5).train()
    view = torch.rand(2, 3, 4, 32, 32)
    features = []
    for network in (backbone, pickle.loads(pickle.dumps(backbone))):
        with network.token_dropping.step([0, 1]):
            features.append(network(view))
    assert torch.equal(*features)
    assert features[0].shape[2:] != build("VisionTransformer3d")(view).shape[2:]  # some are dropped


@pytest.mark.parametrize("name", registered())
@pytest.mark.parametrize("frames", [1, 4])  # an image is a clip of one frame
def test_features_and_representation(name, frames):
    backbone = build(name).eval()
    view = torch.rand(2, 3, frames, 32, 32)
    with torch.no_grad():
        features = backbone(view)
        assert features.ndim == 5 and features.shape[:2] == (2, backbone.out_channels)
        h = backbone.pool(features)
        assert h.shape == (2, backbone.out_channels)
        assert torch.equal(h, average_pool(features))
        assert torch.equal(represent(backbone, view), h)
        if features[0, 0].numel() > 1:
            tokens = map_tokens(features)
            assert torch.equal(tokens[1, -1], features[1, :, -1, -1, -1])
            torch.testing.assert_close(tokens.mean(dim=1), h)
        # A sample's features do not depend on other samples.
        torch.testing.assert_close(backbone(view[:1]), features[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", registered())
def test_gradients_reach_every_parameter(name):
    backbone = build(name).train()
    for module in backbone.modules():  # blocks that start as the identity hide their gradients
        if (norm := getattr(module, "last_norm", None)) is not None:
            torch.nn.init.ones_(norm.weight)
    represent(backbone, torch.rand(4, 3, 4, 32, 32)).square().sum().backward()
    without = [n for n, p in backbone.named_parameters() if p.grad is None or not p.grad.any()]
    # Temporal convolutions with few channels may die in ReLU, but are part of the graph.
    assert not [n for n, p in backbone.named_parameters() if p.grad is None and p.requires_grad]
    assert len(without) < 0.05 * len(list(backbone.parameters())), without


def checkpointed_and_plain(name: str) -> list[torch.nn.Module]:
    """Build a network with activation checkpointing and one without, both in training mode."""
    random = {"VisionTransformer3d": dict(drop_path_rate=0.5)}
    made = [build(name, with_cp=with_cp, **random.get(name, {})) for with_cp in (True, False)]
    made[1].load_state_dict(made[0].state_dict())
    for network in made:  # otherwise, bf16 is wrong for few frames, and differently each time
        guard_small_convolutions(network.train())
    return made


def step(network: torch.nn.Module, view: torch.Tensor) -> dict[str, torch.Tensor]:
    """Run two steps with the same random numbers, and return gradients, statistics and loss."""
    torch.manual_seed(1)
    for _ in range(2):
        loss = represent(network, view).float().square().sum()
        loss.backward()
    found = {f"gradient of {n}": p.grad for n, p in network.named_parameters() if p.requires_grad}
    return {**found, **network.state_dict(), "loss": loss.detach(), "next": torch.rand(1)}


@pytest.mark.parametrize("name", registered())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_checkpointing_changes_no_bit(name, dtype):
    networks = checkpointed_and_plain(name)
    view = torch.rand(4, 3, 4, 32, 32)
    if dtype == torch.float64:
        networks, view = [network.double() for network in networks], view.double()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        found, expected = (step(network, view) for network in networks)
    assert found.keys() == expected.keys() and found["loss"] > 0
    for key, value in expected.items():
        assert torch.equal(found[key], value), key  # including num_batches_tracked


@pytest.mark.parametrize("name", ["ResNet2d", "R2Plus1d"])  # no random numbers
def test_a_compiled_network_may_be_checkpointed(name):
    network, _ = checkpointed_and_plain(name)
    compiled = copy.deepcopy(network)
    compiled.compile(backend="aot_eager")
    view = torch.rand(4, 3, 2, 32, 32)
    expected = step(network, view)
    for key, value in step(compiled, view).items():
        torch.testing.assert_close(value, expected[key], rtol=1e-4, atol=1e-5, msg=key)


def test_nothing_is_checkpointed_without_gradient(monkeypatch):
    network, _ = checkpointed_and_plain("ResNet3dSlowPath")
    monkeypatch.setattr(common, "checkpoint", None)
    with torch.no_grad():  # a target network, in training mode
        network(torch.rand(2, 3, 2, 32, 32))
    with pytest.raises(TypeError):
        network(torch.rand(2, 3, 2, 32, 32))


def with_channels_last() -> list[str]:
    """Test the memory format of convolutional backbones."""
    return [n for n in registered() if "channels_last" in signature(MODELS.get(n)).parameters]


@pytest.mark.parametrize("name", with_channels_last())
def test_channels_last_gives_the_same(name):
    plain, last = build(name).eval(), build(name, channels_last=True).eval()
    last.load_state_dict(plain.state_dict())
    view = torch.rand(2, 3, 2, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(last(view), plain(view), rtol=1e-4, atol=1e-4)
    formats = (torch.channels_last, torch.channels_last_3d)
    convolution = next(p for p in last.parameters() if p.ndim >= 4 and p.shape[-1] > 1)
    assert convolution.is_contiguous(memory_format=formats[convolution.ndim - 4])


@pytest.mark.parametrize("name", registered())
def test_bf16_autocast_and_bad_views(name):
    backbone = build(name)
    with torch.autocast("cpu", torch.bfloat16):
        assert represent(backbone, torch.rand(2, 3, 4, 32, 32)).isfinite().all()
    with pytest.raises(ValueError, match=r"\(1, 3, 32, 32\)"):
        backbone(torch.rand(1, 3, 32, 32))


#: Names in a backbone with ``frozen_stages=2`` that are frozen, and a layer that is not.
FROZEN = {
    "EfficientNetLite": (("stem.", "blocks.0.", "blocks.1."), "blocks.5."),
    "HFEncoder": (("network.embeddings.", "network.encoder.layer.0."), "network.encoder.layer.1."),
    "R2Plus1d": (("stem.", "layer1.", "layer2."), "layer3."),
    "ResNet2d": (("conv1.", "bn1.", "layer1.", "layer2."), "layer3."),
    "ResNet3dSlowPath": (("conv1.", "bn1.", "layer1.", "layer2."), "layer3."),
    "S3D": (tuple(f"features.{i}." for i in range(7)), "features.8."),
    "TimmEncoder": (
        ("network.stem.", "network.stages.0.", "network.stages.1."),
        "network.stages.3.",
    ),
    "VisionTransformer3d": (("position_", "patch_embed.", "blocks.0."), "blocks.1."),
}


@pytest.mark.parametrize("name", registered())
@pytest.mark.parametrize("method", [*QUERY_METHODS, "SimCLR", "SwAV", "LeJEPA"])
def test_frozen_stages_do_not_change(name, method):
    """With any method, gradients, weight decay, the target's average and BN leave it unchanged."""
    options = {"position": "learned"} if name == "VisionTransformer3d" else {}
    backbone = {"type": name, **SMALL[name], **options, "frozen_stages": 2}
    skip_without_package(name)
    prototypes = {"num_prototypes": 4} if method == "SwAV" else {}
    model = build_method(method, backbone=backbone, **prototypes).train()
    if has_target := method in QUERY_METHODS:
        model.target.copy_from(model.backbone, model.projector)
    optimizer = NoNormDecayConstructor(
        dict(type="OptimWrapper", optimizer=dict(type="LARS", lr=1.0, weight_decay=0.1))
    )(model).optimizer
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for _ in range(2):
        optimizer.zero_grad()
        model.loss(list(torch.rand(2, 4, 3, 4, 32, 32)))["loss"].backward()
        model.before_optimizer_step()
        optimizer.step()
        model.after_optimizer_step()
    frozen, trained = FROZEN[name]
    for branch in ["backbone."] + ["target.backbone."] * has_target:
        same = {}
        for key, value in model.state_dict(keep_vars=True).items():
            if key.startswith(branch):
                same[key.removeprefix(branch)] = torch.equal(value, before[key])
                if key.startswith(tuple(branch + part for part in frozen)):
                    assert same[key.removeprefix(branch)], f"{key} is frozen and has changed"
                    assert not value.requires_grad and value.grad is None, key
        assert any(key.startswith(frozen) for key in same)
        assert not all(equal for key, equal in same.items() if key.startswith(trained))


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("ResNet2d", dict(depth=20), r"\[18, 34, 50, 101\], got 20"),
        ("ResNet2d", dict(stem="cifar"), "stem must be one of imagenet, small, got 'cifar'"),
        ("ResNet3dSlowPath", dict(base_channels=0), "base_channels.*got 0"),
        ("ResNet3dSlowPath", dict(last_stage_stride=3), "must be 1 or 2, got 3"),
        ("ResNet3dSlowPath", dict(last_stage_dilation=0), "at least 1, got 0"),
        ("R2Plus1d", dict(depth=50), r"depth of R2Plus1d must be one of \[18, 34\], got 50"),
        ("S3D", dict(frozen_stages=5), "frozen_stages.*got 5"),
        ("HFEncoder", dict(frozen_stages=5), "frozen_stages.*got 5"),
        ("VisionTransformer3d", dict(frozen_stages=5), "frozen_stages.*got 5"),
        ("VisionTransformer3d", dict(keep_tokens=0), "must be above 0 and at most 1, got 0"),
        ("VisionTransformer3d", dict(keep_tokens=float("nan")), "and at most 1, got nan"),
        ("VisionTransformer3d", dict(token_pattern="a"), "one of random, tube, got 'a'"),
        ("HFEncoder", dict(keep_tokens=0.5), "keep_tokens of dinov2 must be 1, got 0.5"),
    ],
)
def test_bad_values(name, bad, message):
    with pytest.raises(ValueError, match=message):
        build(name, **bad)
