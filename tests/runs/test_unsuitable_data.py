"""Every method with data or settings that do not suit it, from the command line to the first step.

What cannot train is an error before the first step, what will not learn is a warning.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from helpers.training import REPO, make_videos

from sce_video.engine.train_loop import ResumableTrainLoop
from sce_video.runs import launch

BATCH = 4


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"), 12)


class _BegunError(Exception):
    """The first step would come now."""


@pytest.fixture
def log(videos, tmp_path, monkeypatch):
    """Launches the small recipe of a method up to its first step; returns what was logged."""

    def begin(self):
        raise _BegunError

    monkeypatch.setattr(ResumableTrainLoop, "run_epoch", begin)

    def run(method, *options):
        folder = Path(tempfile.mkdtemp(dir=tmp_path)) / "run"
        basics = (
            f"train_dataloader.dataset.data_root={videos}",
            f"train_dataloader.batch_size={BATCH}",
            "train_dataloader.num_workers=0",
            "train_dataloader.persistent_workers=False",
            "visualizer=None",
        )
        if method == "swav" and not any("num_prototypes" in option for option in options):
            basics += ("model.num_prototypes=8",)
        recipe = REPO / f"configs/{method}/{method}_r3d18_folder_small.py"
        cfg = launch.training_config(recipe, work_dir=folder, cfg_options=[*basics, *options])
        with pytest.raises(_BegunError):
            launch.train(cfg)
        return next(folder.rglob("*.log")).read_text()

    return run


@pytest.mark.parametrize("method", ["byol", "sce", "swav"])
def test_suitable_data_are_not_warned_of(log, method):
    warnings = [line for line in log(method).splitlines() if " - WARNING - " in line]
    ours = [line for line in warnings if "deprecated in future" not in line]  # mmengine's
    assert ours == []


COEFFICIENTS = "lambda_=0.5 and mu=1 (eta=0.5) add up to 1.5, not 1"


@pytest.mark.parametrize(
    ("method", "options", "warning"),
    [
        ("ressl", ["model.tau_m=0.1"], "tau_m=0.1 is not below tau=0.1: the relations are then"),
        ("sce", ["model.lambda_=[0.5,1.0,0.5]"], COEFFICIENTS),
        ("sce", ["model.queue_size=10"], "model.queue_size=10 is no multiple of the 4 "),
        ("swav", ["model.num_prototypes=12", "model.queue_size=4"], "less than a sample for each"),
    ],
)
def test_what_will_not_learn_is_warned_of(log, method, options, warning):
    assert warning in log(method, *options)


ONE_VIEW = [
    "train_dataloader.dataset.pipeline.RandomClips.num_views=1",
    "data_preprocessor.views=None",
]


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("byol", ONE_VIEW, "at least two views, got 1"),
        ("swav", ["model.num_prototypes=13"], "12 training samples are fewer than the 13 proto"),
        ("sce", ["model.lambda_=[0.5,0.5]"], r"one number or the three \(lambda, mu, eta\)"),
        ("sce", ["model.lambda_=[1.5,-0.5,0]"], "coefficient mu must be .* got -0.5"),
    ],
)
def test_what_cannot_train_is_refused(log, method, options, message):
    with pytest.raises(ValueError, match=message):
        log(method, *options)
