"""Detectors on made rows and on numbers of finished trainings."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sce_video.engine import AlarmHook, ChanceLevelHook
from sce_video.engine.alarms import ChanceLevel, Collapse, DataWait, QueueFill, RepeatedFrames

#: One short training of every method on few videos and one that collapsed: every second or fourth
#: logged row.
RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())
HEALTHY = sorted(set(RECORDED) - {"collapsed"})


def rows_of(values, name="loss", every=10):
    return [{"iter": every * (i + 1), name: value} for i, value in enumerate(values)]


def raised(detector, rows):
    """Iterations at which the detector raised its alarm."""
    return [row["iter"] for row in rows if detector.update(row) is not None]


def recorded(name):
    run = RECORDED[name]
    rows = [dict(zip(run["columns"], row, strict=True)) for row in run["rows"]]
    return run, [{k: v for k, v in row.items() if v is not None} for row in rows]


def detectors_of(run):
    hook, chance = AlarmHook(), ChanceLevelHook()
    steps = max(chance.min_steps, math.ceil(chance.share * run["iterations"]))
    return [
        Collapse(hook.minima, hook.collapse_share, hook.collapse_steps, hook.first_steps),
        ChanceLevel(lambda: run["chance_level"], steps, chance.margin, chance.window),
        DataWait(0.7, hook.data_wait_steps, on_gpu=False),
    ]


@pytest.mark.parametrize("name", HEALTHY)
def test_no_alarm_in_a_finished_training(name):
    run, rows = recorded(name)
    assert len(rows) >= 15
    for detector in detectors_of(run):
        assert raised(detector, rows) == [], detector.name


def test_the_collapsed_training_is_called_collapsed():
    """The embeddings collapse; h, which the loss no longer changes, keeps its spread."""
    run, rows = recorded("collapsed")
    collapse, *_ = detectors_of(run)
    alarms = [alarm for row in rows if (alarm := collapse.update(row))]
    (alarm,) = alarms
    assert alarm.level == "error" and alarm.value < 0.05 and alarm.threshold == 0.15
    assert "the network has collapsed: z_std 0.0" in alarm.message
    assert min(row["h_std"] for row in rows) > 0.4


def test_collapse_must_last_and_not_be_the_start():
    def collapse(first=0):
        return Collapse({"z_std": 0.15, "h_rank": 1.5}, share=0.5, steps=30, first=first)

    low = rows_of([0.9] + [0.1] * 5, "z_std")
    assert raised(collapse(), low) == [50]
    assert raised(collapse(first=20), low) == [60]
    assert raised(collapse(), rows_of([0.9, 0.1, 0.1, 0.1] * 3, "z_std")) == []
    assert raised(collapse(), rows_of([9.0] + [1.2] * 5, "h_rank")) == [50]
    assert raised(collapse(), rows_of([0.1] * 6, "z_std")) == []  # untrained, no fall
    assert raised(collapse(), rows_of([0.9] + [math.nan] * 6, "z_std")) == []
    assert raised(collapse(), rows_of([0.9] + [0.1] * 6, "loss")) == []


def test_an_alarm_comes_again_only_after_it_has_ended():
    detector = Collapse({"z_std": 0.15}, share=0.5, steps=10, first=0)
    values = [0.9, *[0.1] * 5, *[0.9] * 5, *[0.1] * 5, *[0.9] * 10, *[0.1] * 5]
    assert raised(detector, rows_of(values, "z_std")) == [30, 280]
    assert detector.active


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([5.0] * 8, [50]),  # at chance level from the start
        ([5.04, 4.97] * 4, [50]),  # about it
        ([7.0, 6.0, 5.5, 5.01, 4.99, 4.5, 4.0, 3.5], []),  # passes it
        ([7.0] * 8, []),  # above it, as at the start of many trainings
        ([4.0] * 3 + [5.0] * 6, [80]),
        ([math.nan] * 8, []),
    ],
)
def test_a_loss_that_stays_at_chance_level(losses, expected):
    detector = ChanceLevel(lambda: 5.0, steps=50, margin=0.01, window=10)
    assert raised(detector, rows_of(losses)) == expected
    assert raised(ChanceLevel(lambda: None, 50, 0.01, 10), rows_of(losses)) == []


def test_waiting_for_data_over_a_window():
    def wait():
        return DataWait(0.3, steps=40, on_gpu=True)

    assert raised(wait(), rows_of([0.9] * 4 + [0.1] * 8, "data_wait")) == []  # at the start
    assert raised(wait(), rows_of([0.1] * 5 + [0.8] + [0.1] * 5, "data_wait")) == []  # one row
    assert raised(wait(), rows_of([0.1] * 4 + [0.4] * 8, "data_wait")) == [80]
    detector = wait()
    alarm = next(a for row in rows_of([0.5] * 9, "data_wait") if (a := detector.update(row)))
    assert alarm.message.startswith("50 % of the time of the last 40 iterations")
    assert alarm.value == pytest.approx(0.5) and "num_workers" in alarm.message


def test_a_queue_that_does_not_fill():
    rows = rows_of([1.0] * 3)
    assert raised(QueueFill(lambda: 100, lambda: 30), rows) == [10]
    assert raised(QueueFill(lambda: 30, lambda: 30), rows) == []
    assert raised(QueueFill(lambda: None, lambda: 30), rows) == []


def test_frames_that_repeat_in_clips_of_differences():
    rows = [{"iter": 20 * i, "diff_repeats": 0.8, "diff_as_rgb": 0.1} for i in range(1, 5)]
    detector = RepeatedFrames(0.25, steps=100)
    alarms = [alarm for row in rows if (alarm := detector.update(row))]
    assert [a.value for a in alarms] == [pytest.approx(0.8)] and "and 10 %" in alarms[0].message
    assert raised(RepeatedFrames(0.25, 100), rows) == [60]  # the first rows are few clips
    assert raised(RepeatedFrames(0.9, 100), rows) == []
    assert raised(RepeatedFrames(0.25, 100), rows_of([1.0] * 9)) == []  # no differences
