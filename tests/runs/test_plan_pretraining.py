"""The road of a pretraining: what the user gives decides, then what is installed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sce_video.options.training import PretrainOptions
from sce_video.runs import plan_pretraining
from sce_video.runs.choices import Machine
from sce_video.runs.folder_facts import FolderFacts
from sce_video.runs.plan_pretraining import Road, choose_road

FACTS = FolderFacts(
    folder="/videos",
    num_videos=500,
    num_classes=0,
    num_examined=48,
    unreadable=(),
    duration=4.0,
    height=240,
    width=320,
    fps=25.0,
    key_distance=12.0,
    codec="h264",
)
CPU = Machine(2)


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(plan_pretraining, "has_public_teacher", lambda: True)


@pytest.fixture
def not_installed(monkeypatch):
    monkeypatch.setattr(plan_pretraining, "has_public_teacher", lambda: False)


def road(facts: FolderFacts = FACTS, machine: Machine = CPU, **given) -> Road:
    options = PretrainOptions(videos="my videos", out="run", **given)
    names = {"width", "queue", "momentum", "hidden", "embedding"} & given.keys()
    return choose_road(options, facts, machine, names)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("given", "method", "teacher"),
    [
        ({}, "distill", "efficientnet-lite0"),
        ({"teacher": "RUN"}, "distill", "RUN"),
        ({"teacher": "RUN", "start": "OTHER"}, "distill", "RUN"),
        ({"method": "distill"}, "distill", "efficientnet-lite0"),
        ({"objective": "cosine"}, "distill", "efficientnet-lite0"),
        ({"teacher_clips": 2}, "distill", "efficientnet-lite0"),
        ({"start": "OTHER"}, "simclr", None),
        ({"method": "lejepa"}, "lejepa", None),
        ({"method": "lejepa", "start": "OTHER"}, "lejepa", None),
        ({"queue": 64}, "sce", None),
        ({"width": 16}, "simclr", None),
    ],
)
def test_what_is_given_decides(given, method, teacher):
    found = road(**given)
    assert (found.method, found.teacher) == (method, teacher)


@pytest.mark.usefixtures("not_installed")
def test_without_a_teacher_the_user_hears_what_scratch_gave_and_what_does_better():
    found = road()
    assert (found.method, found.teacher) == ("simclr", None)
    (text,) = found.remarks
    assert "J-HMDB" in text and "pip install 'sce-video[teacher]'" in text
    assert "sce-video pretrain 'my videos' --out run --teacher efficientnet-lite0" in text
    assert road(replace(FACTS, num_videos=10_000)).remarks == ()
    assert road(machine=Machine(8, "H100", 80.0, True)).method == "sce"


@pytest.mark.usefixtures("installed")
def test_small_frames_are_not_shown_to_an_image_network_unless_the_user_says_so():
    small = replace(FACTS, height=64, width=64)
    found = road(small)
    assert found.method == "simclr"
    assert "short side of 64 pixels" in found.remarks[0] and "needs 112" in found.remarks[0]
    (scratch,) = found.remarks[1:]
    assert "from scratch on 500 videos" in scratch and scratch.endswith("random weights reach 13 %")
    assert len(road(replace(small, num_videos=10_000)).remarks) == 1
    assert road(small, teacher="efficientnet-lite0").method == "distill"
    assert road(replace(small, height=112, width=200)).method == "distill"


@pytest.mark.usefixtures("installed")
def test_the_plan_states_what_a_teacher_from_a_hub_needs_and_promises_nothing():
    hub = road().remarks[0]
    assert "pip install 'sce-video[hf]'" in hub and "several times as long" in hub
    assert "DINOv3 (hf:facebook/dinov3-vits16-pretrain-lvd1689m)" in hub
    assert "an accepted licence and a Hugging Face login" in hub
    assert "V-JEPA 2 (hf:facebook/vjepa2-vitl-fpc64-256) trains a student from random w" in hub
    assert not any("better" in word for word in hub.split())
