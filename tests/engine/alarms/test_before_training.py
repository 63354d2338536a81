"""Checks before training: the learning rate, and evaluated files in the training set."""

from __future__ import annotations

import pytest

from sce_video.engine import AlarmHook
from sce_video.engine.config.load import load_config
from sce_video.engine.recipes import recipe_names
from sce_video.engine.training_check import common_files, learning_rate

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
    alarm = learning_rate((rate, batch), optimizer, RANGES)
    assert (alarm and alarm.value) == (value and pytest.approx(value))
    assert learning_rate(None, optimizer, RANGES) is None


def test_the_rates_of_all_recipes_are_usual():
    checked = 0
    for name in recipe_names():
        cfg = load_config(name)
        optimizer = (cfg.get("optim_wrapper") or {}).get("optimizer")
        hooks = [h for h in cfg.get("custom_hooks") or () if h.get("type") == "ScheduleHook"]
        if not hooks or "cls_head" in cfg.model or optimizer.type not in RANGES:
            continue
        base = hooks[0].get("base_batch_size", 256)
        assert learning_rate((optimizer.lr, base), optimizer.type, RANGES) is None, name
        checked += 1
    assert checked > 10


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
