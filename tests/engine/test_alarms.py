"""Checks before training: the learning rate, and evaluated files in the training set."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from sce_video.engine import AlarmHook, ChanceLevelHook
from sce_video.engine.hooks.alarms import ChanceLevel, Collapse, DataWait
from sce_video.engine.training_check import common_files, unusual_rate

RANGES = AlarmHook().lr_per_256


@pytest.mark.parametrize(
    ("rate", "batch", "optimizer", "value"),
    [
        (0.03, 256, "SGD", None),
        (0.3, 16, "SGD", None),
        (0.5, 16, "SGD", 8.0),  # the rate of a batch of 256 at one of 16
        (1e-4, 512, "SGD", 5e-5),
        (2.4, 256, "LARS", None),
        (2.4, 16, "LARS", 38.4),
        (1.0, 16, "AdamW", None),  # no rule
    ],
)
def test_rates_far_from_the_linear_rule(rate, batch, optimizer, value):
    values = [alarm.value for alarm in unusual_rate(rate, batch, optimizer, RANGES)]
    assert values == ([] if value is None else [pytest.approx(value)])


def test_files_in_both_sets(tmp_path):
    train, other = tmp_path / "train", tmp_path / "test"
    for folder in (train, other):
        folder.mkdir()
    (train / "a.mp4").write_bytes(b"a" * 300_000)
    (train / "b.mp4").write_bytes(b"b" * 10)
    (train / "empty.mp4").touch()
    (other / "copy of a.mp4").write_bytes(b"a" * 300_000)
    (other / "as long as b.mp4").write_bytes(b"x" * 10)
    (other / "end.mp4").write_bytes(b"a" * 299_999 + b"z")
    (other / "empty.mp4").touch()
    (other / "link.mp4").symlink_to(train / "b.mp4")
    (tmp_path / "again").symlink_to(train)
    training = [str(path) for path in train.iterdir()]
    evaluated = [str(path) for path in other.iterdir()]
    found = common_files(training, evaluated, 100)
    assert found == [str(other / "copy of a.mp4"), str(other / "link.mp4")]
    assert common_files(training, evaluated, 3) == []  # paths alone
    by_link = [str(tmp_path / "again/a.mp4"), str(tmp_path / "nowhere.mp4")]
    for limit in (3, 100):
        assert common_files(training, by_link, limit) == by_link[:1]
    assert common_files(training, training[:1], 0) == training[:1]


# Detectors on made rows and on numbers of finished trainings.


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
