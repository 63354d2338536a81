"""Alarms provoked in small trainings, and a training without any."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.training import Recorder, make_videos, small_config, train
from helpers.videos import write_video

from sce_video.engine.hooks.progress import NonFiniteLossError
from sce_video.pages.run_record import read_alarms, read_history


@pytest.fixture
def alarms_of(videos, tmp_path):
    """Trains with changes of the small config; the alarms by name, and the log."""

    def run(recorder=None, **changes):
        changes = {"default_hooks__checkpoint": None, "model__queue_size": 8, **changes}
        train(small_config(videos, tmp_path, **changes), recorder=recorder)
        (log,) = tmp_path.glob("*/*.log")
        return {alarm["alarm"]: alarm for alarm in read_alarms(tmp_path)}, log.read_text()

    return run


def test_a_healthy_training_has_none(alarms_of):
    alarms, log = alarms_of(train_cfg__max_epochs=1)
    assert alarms == {}
    assert "contains random vectors for" not in log  # a step makes 8 keys


def test_collapse_and_waiting_and_queue(alarms_of):
    hook = dict(
        type="AlarmHook",
        min_h_rank=1e9,
        collapse_share=2.0,
        collapse_steps=2,
        first_steps=0,
        max_data_wait=0.0,
        data_wait_steps=2,
    )
    alarms, log = alarms_of(default_hooks__alarms=hook, model__queue_size=1000)
    assert set(alarms) == {"collapse", "data_wait", "queue_fill", "queue_size"}
    assert alarms["collapse"]["level"] == "error" and alarms["collapse"]["iter"] == 3
    assert alarms["collapse"]["epoch"] == 1 and alarms["collapse"]["threshold"] == 1e9
    assert (alarms["queue_fill"]["value"], alarms["queue_fill"]["threshold"]) == (125, 9)
    assert (alarms["queue_size"]["value"], alarms["queue_size"]["threshold"]) == (1000, 12)
    for alarm in alarms.values():
        prefix = "" if alarm["alarm"] == "queue_size" else f"alarm {alarm['alarm']}: "
        assert log.count(f"WARNING - {prefix}{alarm['message']}\n") == 1


def test_clips_of_rgb_differences_in_which_frames_repeat(alarms_of, tmp_path):
    """Read from files, each frame of which is shown twice; the clips differ nevertheless."""
    seen = []

    def twice(path, clip):
        write_video(path, np.repeat(clip, 2, axis=0))

    class Watching(Recorder):
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            super().after_train_iter(runner, batch_idx, data_batch, outputs)
            seen.extend(view.flatten(2).float().std(dim=2) for view in data_batch["inputs"])

    alarms, _ = alarms_of(
        Watching(),
        train_dataloader__dataset__data_root=str(make_videos(tmp_path / "twice", write=twice)),
        train_dataloader__dataset__pipeline__1__diff_prob=1.0,
        train_dataloader__dataset__pipeline__2__skip_repeats=True,
        default_hooks__alarms=dict(type="AlarmHook", data_wait_steps=2, max_data_wait=1.0),
    )
    assert set(alarms) == {"repeated_frames"} and torch.cat(seen).min() > 5
    assert alarms["repeated_frames"]["value"] > 0.4 and " 0 % of the clips stay RGB" in str(alarms)


def test_a_rate_without_the_linear_rule_and_evaluated_training_files(alarms_of, videos):
    alarms, _ = alarms_of(
        train_cfg__max_epochs=1,
        optim_wrapper__optimizer=dict(type="SGD", lr=0.5, momentum=0.9, weight_decay=0.0),
        custom_hooks__0__base_batch_size=None,
        test_dataloader__dataset__data_root=str(videos),
    )
    assert set(alarms) == {"learning_rate", "evaluated_files"}
    assert alarms["learning_rate"]["value"] == pytest.approx(0.5 * 256 / 4)
    files = alarms["evaluated_files"]
    assert files["message"].startswith(
        "12 of 12 files of test_dataloader are also in the training set"
    )
    assert files["level"] == "warning" and files["iter"] == 0  # no labels are trained on


def test_a_loss_that_is_not_finite(videos, tmp_path):
    cfg = small_config(videos, tmp_path, default_hooks__log_reduction__max_nonfinite=0)
    cfg.optim_wrapper.optimizer.lr = 1e30
    with pytest.raises(NonFiniteLossError) as error:
        train(cfg)
    *_, alarm = read_alarms(tmp_path)
    assert alarm["alarm"] == "loss_not_finite" and alarm["level"] == "error"
    assert alarm["message"] == str(error.value) and ".mp4" in alarm["message"]
    *_, end = read_history(tmp_path)
    assert end["status"] == "failed" and end["message"].startswith("NonFiniteLossError: the loss")


def test_a_resumed_training_does_not_repeat_an_alarm(videos, tmp_path):
    hook = dict(type="AlarmHook", min_h_rank=1e9, collapse_share=2.0, collapse_steps=1)
    hook["first_steps"] = 0
    changes = dict(default_hooks__alarms=hook, train_cfg__max_epochs=2)
    cfg = small_config(videos, tmp_path, model__queue_size=20, **changes)
    train(cfg, stop_after=3)
    before = read_alarms(tmp_path)
    assert [alarm["alarm"] for alarm in before] == ["queue_size", "collapse"]
    cfg.resume = True
    train(cfg)
    assert read_alarms(tmp_path) == before
