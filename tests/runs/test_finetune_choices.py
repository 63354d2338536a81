"""The chosen settings of a finetuning, for networks, videos and machines of all kinds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from runs.test_choices import CPU, GPU, facts

from sce_video.inference.views import ModelSettings
from sce_video.runs.finetune_choices import choose_finetuning, finetuning_notes, layer_decay
from sce_video.runs.source import Source

SETTINGS = ModelSettings({"type": "ResNet3dSlowPath"}, 0.45, 0.225, 2.56, 8, 128, 128)
R3D = Source("/r/epoch_1.pth", SETTINGS, "r", "convolution", False, False, 112, 33_000_000)
VIT = replace(
    R3D,
    settings=replace(SETTINGS, backbone={"type": "VisionTransformer3d", "patch_size": 16}),
    family="vit",
    parameters=22_000_000,
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
    with pytest.raises(ValueError, match=r"r takes clips of 8 frames, and the videos .* have 5"):
        values(R3D, duration=0.2)
    with pytest.raises(ValueError, match="width is that of r"):
        values(R3D, given={"width": 8})


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
    assert found["dropout"] == (0.5 if frozen == -1 and source in (None, R3D) else 0.0)
    decayed = layer_decay(source, frozen)
    assert (decayed is not None) == (frozen == -1 and getattr(source, "family", "") == "vit")
    assert values(source, machine, per_class, {"frozen": 2})["frozen"] == 2


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
        (([20, 30], 40, 3, 112, 1.0), "3 videos are trained on and tested"),
        (([2, 30], 40, 0, 112, 1.0), "the largest class has 30 videos, the smallest 2"),
        (([20, 30], 12, 0, 112, 1.0), "12 test videos are few"),
        (([20, 30], 40, 0, 112, 5.0), "--short-side 160"),
    ):
        (note,) = finetuning_notes(*arguments)
        assert words in note
