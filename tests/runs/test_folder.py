"""Flat settings of configs, their differences, and the chance level of a config."""

from __future__ import annotations

import math

import pytest

from sce_video.engine.config.load import load_config
from sce_video.runs.folder import chance_level, different_settings, flattened

CONFIG = {
    "model": {"type": "SCE", "tau": 0.1, "views": (1, 2)},
    "pipeline": [{"type": "OpenVideo"}, {"type": "RandomClips", "num_frames": 8}],
    "stages": [{"type": "A", "n": 1}, {"type": "A", "n": 2}],
    "plan": ["not a setting"],
    "_helper": 3,
    "work_dir": "runs/a",
}


def test_settings_are_named_by_the_types_of_steps():
    assert flattened(CONFIG) == {
        "model.type": "SCE",
        "model.tau": "0.1",
        "model.views": "[1, 2]",
        "pipeline.OpenVideo.type": "OpenVideo",
        "pipeline.RandomClips.type": "RandomClips",
        "pipeline.RandomClips.num_frames": "8",
        "stages.0.type": "A",
        "stages.0.n": "1",
        "stages.1.type": "A",
        "stages.1.n": "2",
    }


def test_only_differences_are_listed():
    other = {**CONFIG, "model": {"type": "SCE", "tau": 0.2, "views": [1, 2]}, "seed": 1}
    assert different_settings([CONFIG, other]) == {
        "model.tau": ["0.1", "0.2"],
        "seed": ["not set", "1"],
    }
    assert different_settings([CONFIG, {**CONFIG, "work_dir": "b"}, CONFIG]) == {}


def test_the_chance_level_of_a_recipe():
    moco, byol = (load_config(f"{n}_r3d18_folder_small").to_dict() for n in ("moco", "byol"))
    assert chance_level(moco) == pytest.approx(math.log(moco["model"]["queue_size"] + 1))
    assert chance_level(byol) is None


@pytest.mark.parametrize(
    "model",
    [
        *(None, {"type": "NoSuchMethod"}, {"type": "Recognizer3D"}),
        {"type": "SCE", "projector": {"type": "Visualizer"}},
        {"type": "SCE", "queue_size": "many"},
    ],
)
def test_other_models_have_none(model):
    assert chance_level({"model": model}) is None
