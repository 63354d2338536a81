"""The chosen settings for videos and machines of all kinds."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest
import torch

from sce_video.runs import choices
from sce_video.runs.choices import (
    Machine,
    choose_epochs,
    choose_settings,
    default_method,
    least_steps,
    notes,
    samples_of_epoch,
    warmup_and_momentum,
)
from sce_video.runs.folder_facts import FolderFacts

CPU = Machine(cores=2)
GPU = Machine(cores=16, gpu="A", gpu_memory=80, bfloat16=True)


def facts(**changes):
    counts = dict(folder="/v", num_videos=5000, num_classes=0, num_examined=48, unreadable=())
    videos = dict(duration=10.0, height=256, width=340, fps=25.0, key_distance=12.0, codec="h264")
    return FolderFacts(**{**counts, **videos, **changes})


def values(machine=CPU, given=None, **changes):
    found = choose_settings(facts(**changes), machine, given)
    return {name: choice.value for name, choice in found.items()}


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (CPU, dict(width=16, frames=4, size=64, batch=16, precision="float32", workers=1)),
        (GPU, dict(width=64, frames=8, size=224, batch=32, precision="bfloat16", workers=15)),
        (Machine(8, "B", 16.0), dict(width=64, size=112, precision="float16", workers=7)),
        (Machine(4, "C", 6.0), dict(width=32, size=112, batch=16)),
    ],
)
def test_network_and_clip_follow_the_machine(machine, expected):
    found = values(machine)
    assert {name: found[name] for name in expected} == expected


def test_reasons_name_the_machine():
    small = choose_settings(facts(), CPU)
    assert small["width"].reason == "channels of the stem: small, because there is no GPU"
    assert small["batch"].reason == "small, because there is no GPU"
    large = choose_settings(facts(), GPU)
    assert large["width"].reason == "channels of the stem: chosen for 80 GiB of GPU memory"


def test_activations_are_computed_again_where_a_gpu_cannot_hold_them():
    large = dict(frames=16, size=224, batch=64)
    assert not values()["memory"] and not values(given=large)["memory"]
    small = Machine(8, "D", 24.0, bfloat16=True)
    assert not values(small)["memory"] and not values(GPU, given=large)["memory"]
    found = choose_settings(facts(), small, large)["memory"]
    assert found.value is True and "about 80 GiB" in found.reason
    assert values(small, given={**large, "memory": False})["memory"] is False


@pytest.mark.parametrize("num_videos", [2, 3, 31, 36, 10**6])
@pytest.mark.parametrize("machine", [CPU, GPU])
def test_a_queue_is_of_whole_batches_and_shorter_than_the_data_set(num_videos, machine):
    found = values(machine, num_videos=num_videos)
    assert found["batch"] >= 2 and found["queue"] % found["batch"] == 0
    assert found["queue"] < num_videos or num_videos <= found["batch"] * 2
    samples = found["epoch_samples"]
    assert samples >= max(num_videos, 20 * found["batch"])
    assert samples == samples_of_epoch(num_videos, samples), "the number shown is the one trained"


def test_a_wider_network_trains_for_more_steps():
    for machine, videos, width, steps in (
        (CPU, 99, 8, 2000),
        (CPU, 100, 16, 8000),
        (GPU, 99, 64, 8000),
    ):
        assert values(machine, num_videos=videos)["width"] == width
        assert least_steps(width) == steps


def test_short_and_small_videos_get_clips_that_fit():
    found = values(duration=0.5, fps=6.0, height=48, width=64)
    assert found["clip_duration"] == 0.4 and found["frames"] == 2 and found["size"] == 32
    assert values(GPU, height=120, width=160)["size"] == 96
    assert values(GPU)["clip_duration"] == 2.56


def test_the_budget_makes_the_epochs():
    assert choose_epochs(20).value == 100  # 2000 steps
    assert choose_epochs(37, least_steps(16)).value == 217
    assert choose_epochs(20, hours=2.0, epoch_seconds=90.0).value == 80
    with pytest.raises(ValueError, match="do not suffice for one epoch"):
        choose_epochs(20, hours=2.0, epoch_seconds=7300.0)
    # 100,000 videos in batches of 16 are 6250 steps: 20 epochs would be 125,000 steps.
    for steps in (1, 999, 1001, 6250, 10**6):
        total = choose_epochs(steps).value * steps
        assert total >= 2000 and total < max(20_000 + steps, 2000 + steps)


@pytest.mark.parametrize("frames", [None, 16])
def test_no_frame_is_twice_in_a_clip_unless_asked_for(frames):
    for fps, duration in product((0.5, 2.0, 5.0, 60.0), (0.04, 0.5, 2.5, 3600.0)):
        found = values(given={"frames": frames}, fps=fps, duration=duration)
        assert found["clip_duration"] > 0
        if frames is None:
            assert 1 <= found["frames"] <= max(1, found["clip_duration"] * fps + 0.05)
        elif duration > 64:  # long enough for any rate
            assert found["frames"] == 16 <= found["clip_duration"] * fps + 0.05


def test_choices_follow_what_is_given():
    found = values(given={"batch": 24, "frames": 16, "width": None}, num_videos=100)
    assert found["queue"] == 96 and found["epoch_samples"] == 500 and found["width"] == 16
    assert found["clip_duration"] == 1.28  # the paper's: more frames, as far apart in all


def test_one_video_and_a_video_twice_in_a_batch_are_refused():
    with pytest.raises(ValueError, match="/v contains only one video.*ffmpeg"):
        values(num_videos=1)
    with pytest.raises(
        ValueError, match=r"at most 36, the number of videos, got 37\. Clips of one video"
    ):
        values(num_videos=36, given={"batch": 37})


def test_notes_name_what_is_unusual():
    assert not list(notes(facts(), 64, 1.0))
    for changes, size, loading, words in (
        ({"num_videos": 3}, 64, 1.0, "3 videos are few"),
        ({"num_videos": 49}, 64, 1.0, "49 videos are few"),
        ({"duration": 0.04}, 64, 1.0, "a single frame"),
        ({"duration": 1800.0}, 64, 1.0, "30 minutes"),
        ({}, 64, 5.0, "--short-side 128"),
        ({}, 224, 5.0, "--short-side 288"),
    ):
        assert words in "".join(notes(facts(**changes), size, loading))
    assert not list(notes(facts(num_videos=50), 64, 1.0))
    (taught,) = notes(facts(num_videos=32), 64, 1.0, has_teacher=True)
    assert "32 videos are few. A student learns the teacher's features only on these" in taught


def test_the_method_is_that_of_the_settings_and_of_the_machine():
    gpu = Machine(8, "H100", 80.0)
    assert [default_method(m, ())[0] for m in (Machine(2), gpu)] == ["simclr", "sce"]
    assert default_method(Machine(2), ())[1] == ", which learns the most in a few minutes on a CPU"
    for name in ("queue", "momentum"):
        method, why = default_method(Machine(2), {name: 8, "frames": 4})
        assert method == "sce" and "given" in why


def test_few_steps_have_a_quick_target():
    found = [warmup_and_momentum(9, steps)[1].value for steps in (600, 2000, 5001, 20_000, 100_000)]
    assert found == [0.9, 0.9, 0.97, 0.97, 0.99]


def test_a_gpu_that_emulates_bfloat16_does_not_compute_in_it(monkeypatch):
    """As on a T4, of which torch says that it supports bfloat16."""
    gpu = SimpleNamespace(name="Tesla T4", total_memory=16 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation
    )
    assert not choices.this_machine().bfloat16
