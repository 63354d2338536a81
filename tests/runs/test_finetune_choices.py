"""The chosen settings of a finetuning, for networks, videos and machines of all kinds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from runs.test_choices import CPU, GPU, facts
from torch import nn

from sce_video.evaluation.functional.linear_probe import fit_linear_probe
from sce_video.inference.network_input import ModelSettings
from sce_video.runs.finetune_choices import choose_finetuning, finetuning_notes, layer_decay
from sce_video.runs.start_weights import Source

SETTINGS = ModelSettings({"type": "ResNet3dSlowPath"}, 0.45, 0.225, 2.56, 8, 128, 128)
R3D = Source("/r/epoch_1.pth", SETTINGS, "r", "convolution", False, False, 112, 33_000_000, 512)
VIT = replace(
    R3D,
    settings=replace(SETTINGS, backbone={"type": "VisionTransformer3d", "patch_size": 16}),
    family="vit",
    parameters=22_000_000,
    channels=384,
)
IMAGES = replace(R3D, settings=replace(SETTINGS, num_frames=1, clip_duration=1.0), per_frame=True)


def values(source=None, machine=GPU, per_class=50, given=None, classes=(), **changes):
    found = choose_finetuning(facts(**changes), machine, source, per_class, given or {}, classes)
    return {name: choice.value for name, choice in found.items()}


def test_the_clip_is_that_of_the_network():
    found = values(R3D)
    assert {k: found[k] for k in ("frames", "clip_duration", "size")} == dict(
        frames=8, clip_duration=2.56, size=112
    )
    assert "width" not in found and values(machine=CPU)["width"] == 16
    assert values(R3D, duration=1.0)["clip_duration"] == 0.8
    assert values(R3D, given={"frames": 4})["frames"] == 4
    found = values(IMAGES, machine=CPU)  # several frames, as long as a network of one's own sees
    assert found["frames"] == 4 and found["clip_duration"] == 1.28
    with pytest.raises(ValueError, match=r"r needs clips of 8 frames, but the videos .* have 5"):
        values(R3D, duration=0.2)


@pytest.mark.parametrize(
    ("source", "machine", "per_class", "frozen"),
    [
        (None, CPU, 1, -1),
        (R3D, CPU, 1, 4),
        (R3D, CPU, 2, -1),
        (VIT, GPU, 19, 4),
        (VIT, GPU, 20, -1),
        (VIT, CPU, 20, -1),
        (replace(VIT, parameters=300_000_000), CPU, 1000, 4),
        (replace(VIT, parameters=300_000_000), GPU, 1000, -1),
    ],
)
def test_few_videos_and_large_networks_freeze_it(source, machine, per_class, frozen):
    found = values(source, machine, per_class)
    assert found["frozen"] == frozen
    assert found["lr"] > 1e-3 if frozen == 4 else found["lr"] <= 1e-3
    assert found["weight_decay"] == (0.0 if frozen == 4 else 0.05)
    assert found["dropout"] == (0.5 if frozen == -1 and source in (None, R3D) else 0.0)
    decayed = layer_decay(source, frozen)
    assert (decayed is not None) == (frozen == -1 and getattr(source, "family", "") == "vit")
    assert values(source, machine, per_class, {"frozen": 2})["frozen"] == 2


@pytest.mark.parametrize(("channels", "spread"), [(64, 0.15), (512, 0.3), (1024, 0.5)])
def test_a_head_on_frozen_features_reaches_the_linear_probe(channels, spread):
    """In 600 steps; 1e-2 with a decay of 0.05, as of 512 channels, stays behind with 64 (0.83)."""
    found = values(replace(R3D, channels=channels), per_class=1)
    torch.manual_seed(0)
    # Positive features with a common mean, whose classes differ where they vary least.
    basis, labels = torch.randn(16, channels) / 4, torch.arange(96) % 4
    stds = spread * torch.logspace(0, -1.5, 16)
    means = 2 * torch.randn(4, 16)[labels] * stds * (torch.arange(16) >= 8)
    train, test = (F.relu(0.8 + (means + stds * torch.randn(96, 16)) @ basis) for _ in range(2))
    head = nn.Linear(channels, 4)
    nn.init.normal_(head.weight, std=0.01)
    rates = dict(lr=found["lr"], weight_decay=found["weight_decay"])
    optimizer = torch.optim.AdamW(head.parameters(), **rates)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, found["lr"], 600, pct_start=0.05)
    for _ in range(600):
        rows = torch.randint(96, (16,))
        optimizer.zero_grad()
        F.cross_entropy(head(train[rows]), labels[rows]).backward()
        optimizer.step()
        schedule.step()
    probe = fit_linear_probe(train, labels).scores(test)
    accuracy, of_probe = ((s.argmax(1) == labels).float().mean() for s in (head(test), probe))
    assert of_probe > 0.9 and accuracy > of_probe - 0.08


def test_positions_of_a_frozen_transformer_are_attended_to():
    backbone = {**VIT.settings.backbone, "pool": "mean"}
    jepa = replace(VIT, settings=replace(SETTINGS, backbone=backbone), family="vjepa2")
    frozen = {"frozen": 4}
    found = values(jepa, given=frozen)
    assert [found[k] for k in ("head", "lr", "weight_decay")] == ["attentive", 1e-3, 0.01]
    pooled = replace(jepa, settings=replace(SETTINGS, backbone={**backbone, "pool": "attentive"}))
    for source in (VIT, R3D, None, pooled, replace(jepa, channels=40)):
        assert values(source, given=frozen)["head"] == "linear"
    assert values(jepa)["head"] == "linear"  # all of it is trained
    assert values(jepa, per_class=19)["head"] == "linear"  # too few for so many weights
    assert values(VIT, given={**frozen, "head": "attentive"})["lr"] == 1e-3
    for given, message in (
        ({"head": "attentive"}, "needs a frozen network"),
        ({"head": "attentive", "dropout": 0.5, **frozen}, "has no dropout"),
    ):
        with pytest.raises(ValueError, match=message):
            values(VIT, given=given)


def test_the_rate_of_a_transformer_grows_with_the_batch():
    rates = [values(VIT, given={"batch": batch})["lr"] for batch in (8, 32, 256)]
    assert rates == pytest.approx([1.6e-5, 6.2e-5, 5e-4], rel=0.03)


def test_left_and_right_are_not_mirrored():
    for name in ("turn left", "Right_turn", "go-right"):
        assert values(classes=("a", name))["flip"] == 0.0
    assert values(classes=("bright", "cleft", "upright"))["flip"] == 0.5
    assert values(classes=("left",), given={"flip": 0.2})["flip"] == 0.2


def test_test_views_follow_the_videos():
    assert values(R3D)["clips"] == 8 and values(R3D, duration=60.0)["clips"] == 10
    assert values(R3D, CPU, duration=60.0)["clips"] == 5
    assert values(R3D, duration=2.0)["clips"] == 3
    assert values(R3D)["crops"] == 3 and values(R3D, width=256)["crops"] == 1
    squashed = replace(R3D, settings=replace(SETTINGS, resize="square"))
    assert values(squashed)["crops"] == 1


def test_notes_name_what_is_unusual():
    assert not list(finetuning_notes([20, 30], 40, 0, 112, 1.0))
    for arguments, words in (
        (([20, 30], 40, 3, 112, 1.0), "3 videos are in both the training and the test set"),
        (([2, 30], 40, 0, 112, 1.0), "the largest class has 30 videos and the smallest 2"),
        (([20, 30], 12, 0, 112, 1.0), "only 12 test videos"),
        (([20, 30], 40, 0, 112, 5.0), "--short-side 160"),
    ):
        (note,) = finetuning_notes(*arguments)
        assert words in note
