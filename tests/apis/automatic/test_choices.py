"""The chosen settings for videos and machines of all kinds."""

from __future__ import annotations

import pytest

from sce_video.apis.automatic import FolderFacts, Machine, choose
from sce_video.apis.automatic.choices import choose_epochs, choose_momentum

CPU = Machine(cores=2)
GPU = Machine(cores=16, gpu="A", gpu_memory=80, bfloat16=True)


def facts(**changes):
    values = dict(
        folder="/v",
        num_videos=5000,
        num_classes=0,
        num_examined=48,
        unreadable=(),
        duration=10.0,
        height=256,
        width=340,
        fps=25.0,
        key_distance=12.0,
        codec="h264",
    )
    return FolderFacts(**{**values, **changes})


def values(machine=CPU, **changes):
    return {name: choice.value for name, choice in choose(facts(**changes), machine).items()}


def test_every_choice_has_a_reason():
    assert all(choice.reason for choice in choose(facts(), CPU).values())


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (CPU, dict(width=8, frames=4, size=64, batch=16, precision="float32", workers=1)),
        (GPU, dict(width=64, frames=8, size=224, batch=32, precision="bfloat16", workers=15)),
        (Machine(8, "B", 16.0), dict(width=64, size=112, precision="float16", workers=7)),
        (Machine(4, "C", 6.0), dict(width=32, size=112, batch=16)),
    ],
)
def test_network_and_clip_follow_the_machine(machine, expected):
    found = values(machine)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("num_videos", [2, 3, 16, 17, 31, 36, 300, 5000, 10**6])
@pytest.mark.parametrize("machine", [CPU, GPU])
def test_a_queue_is_of_whole_batches_and_shorter_than_the_data_set(num_videos, machine):
    found = values(machine, num_videos=num_videos)
    assert 2 <= found["batch"] and found["queue"] % found["batch"] == 0
    assert found["queue"] < num_videos or num_videos <= found["batch"] * 2
    assert found["epoch_samples"] >= max(num_videos, 20 * found["batch"])


def test_short_and_small_videos_get_clips_that_fit():
    found = values(duration=0.5, fps=6.0, height=48, width=64)
    assert found["clip_duration"] == 0.4 and found["frames"] == 3 and found["size"] == 32
    assert values(GPU, height=120, width=160)["size"] == 96
    assert values(GPU)["clip_duration"] == 2.56


def test_the_budget_makes_the_epochs():
    assert choose_epochs(320, 16, None, None).value == 100  # 2000 steps
    assert choose_epochs(64_000, 16, None, None).value == 20
    assert choose_epochs(320, 16, 90.0, 2.0).value == 80
    with pytest.raises(ValueError, match="do not suffice for one epoch"):
        choose_epochs(320, 16, 7300.0, 2.0)
    with pytest.raises(ValueError, match="positive, got 0"):
        choose_epochs(320, 16, 7300.0, 0)


def test_few_steps_have_a_quick_target():
    found = [choose_momentum(steps).value for steps in (600, 2000, 20_000, 100_000)]
    assert found == [0.9, 0.97, 0.97, 0.99]
