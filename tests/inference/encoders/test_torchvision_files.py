"""State dicts of torchvision's image networks, against timm's networks with other names."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import pytest
import torch
from helpers.torchvision_names import as_torchvision

from sce_video import load_model
from sce_video.inference.encoders.encoder_folder import import_encoder, run_of_weights
from sce_video.inference.encoders.transformers_files import EncoderError
from sce_video.models.backbones.timm_package import timm
from sce_video.runs.start_weights import find_source

pytestmark = pytest.mark.skipif(find_spec("timm") is None, reason="no timm")


@dataclass(frozen=True)
class Case:
    """A network of torchvision: its counterpart in timm, and the input that torchvision states."""

    family: str
    architecture: str
    model_args: dict
    short_side: int
    interpolation: str


#: Epsilon of torchvision's batch norm in MobileNetV3.
_EPS = {"bn_eps": 1e-3}
CASES = {
    "resnext50_32x4d": Case("resnet", "resnext50_32x4d", {}, 232, "bilinear"),
    "resnet18": Case("resnet", "resnet18", {}, 256, "bilinear"),
    "efficientnet_b0": Case("efficientnet", "efficientnet_b0", {}, 256, "bicubic"),
    "mobilenet_v3_small": Case("mobilenet", "mobilenetv3_small_100", _EPS, 256, "bilinear"),
    "convnext_tiny": Case("convnext", "convnext_tiny", {}, 236, "bilinear"),
    "swin_t": Case("swin", "swin_tiny_patch4_window7_224", {}, 232, "bicubic"),
}


def save_torchvision(name: str, path) -> torch.nn.Module:
    """Write a state dict, and return timm's network without its classifier."""
    case = CASES[name]
    torch.manual_seed(0)
    network = timm().create_model(case.architecture, num_classes=7, **case.model_args)
    for value in network.state_dict().values():
        if value.ndim == 1 and value.is_floating_point():  # norms, which begin as the identity
            value.uniform_(0.5, 1.5)
    torch.save(as_torchvision(network.state_dict(), case.family), path)
    network.reset_classifier(0)
    return network.eval()


@pytest.mark.parametrize("name", CASES)
def test_features_equal_the_network_with_these_weights(name, tmp_path):
    file = tmp_path / f"{name}.pth"
    network = save_torchvision(name, file)
    model = load_model(f"{file}:mean+absdiff")
    settings = model.settings
    assert (settings.crop_size, settings.short_side) == (224, CASES[name].short_side)
    side = 224 if name == "swin_t" else 96  # Swin takes frames of one size only
    view = torch.randn(1, 3, 2, side, side, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = model.encoder.backbone(view).mean((2, 3, 4))[0]
        frames = network(view[0].transpose(0, 1))
    expected = torch.cat([frames.mean(0), (frames[1] - frames[0]).abs()])
    assert frames.std() > 1e-3
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def test_a_state_dict_is_a_source_with_a_classifier(tmp_path):
    file = tmp_path / "m.pth"
    save_torchvision("mobilenet_v3_small", file)
    source = find_source(file)
    assert source.kind == "mobilenetv3_small_100" and source.is_classifier and source.per_frame
    written = import_encoder(str(file), tmp_path / "run", pool="concat", frames=8)
    assert written.unused == 2 and written.settings.interpolation == "bilinear"
    assert load_model(tmp_path / "run").feature_size == 4 * 1024


@pytest.mark.parametrize("wrapped", [{"model": "state_dict"}, {"model": None}])
def test_a_checkpoint_of_a_training_is_read_too(wrapped, tmp_path):
    """Of DistributedDataParallel, with epochs beside the weights."""
    file = tmp_path / "m.pth"
    save_torchvision("mobilenet_v3_small", file)
    weights = {f"module.{name}": value for name, value in torch.load(file).items()}
    torch.save({"state_dict": weights, "epoch": 3} if wrapped["model"] else weights, file)
    assert find_source(file).kind == "mobilenetv3_small_100"


@pytest.mark.parametrize(
    "edit",
    [
        lambda w: w.pop("features.12.0.weight"),
        lambda w: w.update({"features.12.0.weight": torch.zeros(576, 97, 1, 1)}),
        lambda w: w.update({"features.0.0.weight": torch.zeros(17, 3, 3, 3)}),
        lambda w: w.update({"features.12.1.weird": w.pop("features.12.1.weight")}),
    ],
)
def test_other_names_and_shapes_are_not_guessed(edit, tmp_path):
    file = tmp_path / "m.pth"
    save_torchvision("mobilenet_v3_small", file)
    weights = torch.load(file)
    edit(weights)
    torch.save(weights, file)
    with pytest.raises(EncoderError, match="does not contain a supported torchvision network"):
        import_encoder(str(file), tmp_path / "run")
    for find in (load_model, find_source):
        with pytest.raises(ValueError, match="m.pth"):
            find(file)


def test_other_files_are_left_to_other_readers(tmp_path):
    torch.save(
        {"state_dict": {"backbone.conv1.weight": torch.zeros(4, 3, 3, 7, 7)}}, tmp_path / "a"
    )
    assert run_of_weights(tmp_path / "a") is None
    assert run_of_weights(tmp_path / "missing.pth") is None
    assert run_of_weights("s3://bucket/resnet18.pth") is None
