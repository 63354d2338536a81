"""Before the first step: what is refused, what is warned of, what is said first."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import pytest
from helpers.training import small_config, train

from sce_video.engine import AlarmHook, ChanceLevelHook
from sce_video.models.algorithms import SCE
from sce_video.pages.run_record import read_alarms
from sce_video.registry import LOOPS


@pytest.fixture
def tried(videos, tmp_path):
    """Trains one epoch with changes of the small config; returns the runner and the log's file."""

    def run(**changes):
        changes = {"train_cfg__max_epochs": 1, "default_hooks__checkpoint": None, **changes}
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        runner, _ = train(small_config(videos, folder, **changes))
        return runner, next(folder.rglob("*.log")).read_text()

    return run


STEP = "train_dataloader__dataset__pipeline__1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__lambda_": 2}, "lambda_ must be from 0 to 1, got 2"),
        ({f"{STEP}__num_views": 3}, "makes 3 views of a sample .* augments 2"),
        ({"train_dataloader__batch_size": 1}, "batch_size is 1, but BN in the MLP heads"),
        (
            {"train_dataloader__batch_size": 11, "train_dataloader__drop_last": False},
            "12 samples in batches of 11 leave a last batch with one sample",
        ),
        ({"train_dataloader__batch_size": 13}, "12 training samples do not fill one step"),
        ({"compile": "yes"}, "compile must be True, False or a dict"),
    ],
)
def test_a_setting_that_would_fail_in_a_step_is_refused_before(
    tried, monkeypatch, changes, message
):
    monkeypatch.setattr(SCE, "loss", lambda *_: pytest.fail("a step was run"))
    with pytest.raises(ValueError, match=message):
        tried(**changes)


def test_a_loop_refuses_fractions():
    with pytest.raises(ValueError, match=r"max_epochs must be a whole number .* got 1\.5"):
        LOOPS.build(dict(type="ResumableTrainLoop", runner=None, dataloader=None, max_epochs=1.5))


# -- what is said and warned of ------------------------------------------------------------------


def test_the_log_begins_with_data_device_and_steps(tried, capsys, videos):
    _, log = tried()
    shown = capsys.readouterr().out.splitlines()
    assert f"12 videos of 2 classes in {videos}" in shown[0]
    assert "CPU, 1 process. 1 epochs of 3 steps with 4 videos each. All details are in" in shown[1]
    text = "\n".join(shown)
    for detail in ("System environment", "optim_wrapper", "Hooks will be executed"):
        assert detail in log and detail not in text
    assert "Exp name" not in text and "FileClient" not in text
    assert len(shown) < 15 and "Epoch(train) [1][3/3]" in text


def test_data_that_do_not_suit_the_method_are_warned_of(tried):
    _, log = tried(model__queue_size=13, train_dataloader__batch_size=8)
    first_step = log.index("Epoch(train)")
    for warning in (
        "the queue holds 13 keys and there are 12 training samples",
        "every epoch leaves out 4 of 12 samples",
        "the whole training has 1 optimiser steps",
    ):
        assert 0 < log.find(f"WARNING - {warning}") < first_step
    _, log = tried(model__queue_size=12)
    assert "the queue holds" not in log and "left out" not in log


def test_a_loss_at_chance_level_is_warned_of(tried, monkeypatch):
    def fixed(self, views):
        one = sum(p.sum() for p in self.backbone.parameters()) * 0
        return {"loss": one + self.chance_level()}

    monkeypatch.setattr(SCE, "loss", fixed)
    hook = dict(type="ChanceLevelHook", share=0.5, min_steps=1)
    runner, log = tried(train_cfg__max_epochs=2, default_hooks__chance_level=hook)
    text = f"the loss is {math.log(21):.3f} and has been at chance level {math.log(21):.3f} for 3 "
    assert log.count(text) == log.count("at chance level") == 1
    (alarm,) = [a for a in read_alarms(runner.work_dir) if a["alarm"] == "chance_level"]
    assert alarm["iter"] == 3 and alarm["threshold"] == pytest.approx(math.log(21))


@pytest.mark.parametrize(
    ("hook", "wrong"),
    [
        (ChanceLevelHook, dict(share=2)),
        (ChanceLevelHook, dict(window=0)),
        (AlarmHook, dict(data_wait_steps=0)),
        (AlarmHook, dict(max_data_wait=2)),
    ],
)
def test_the_hooks_refuse_wrong_numbers(hook, wrong):
    with pytest.raises(ValueError, match="must be"):
        hook(**wrong)
