"""A budget of time under a clock that the test moves: steps become slower or quicker."""

from __future__ import annotations

import json

import pytest
import torch
from helpers.training import clock_of_steps, small_config, train

from sce_video.engine import BudgetHook
from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.hooks.budget import CHECKS, Budget
from sce_video.engine.schedules import build_schedule, position
from sce_video.utils.run_files import HISTORY

SPEEDS = {
    "as measured": lambda share: 1.0,
    "x3 from the middle": lambda share: 1.0 if share < 0.5 else 3.0,
    "x10 from the start": lambda share: 10.0,
    "x0.3": lambda share: 0.3,
    "x10 in the last tenth": lambda share: 1.0 if share < 0.9 else 10.0,
    "x20, then x0.1": lambda share: 20.0 if share < 0.4 else 0.1,
}


def simulate(speed, *, planned=1000, setup=60.0, saving=7.0, reserved=40.0):
    """A command planned at 1 s a step; every 50 steps something is evaluated and saved."""
    seconds = setup + planned * (1 + saving / 50) + reserved
    budget, elapsed, step, total, changes = Budget(seconds, reserved), setup, 0, planned, []
    while step < total:
        elapsed += speed(elapsed / seconds) * (1 + saving * (step % 50 == 49))
        step += 1
        new = budget.plan(elapsed, step, total)
        if new != total:
            assert new >= step
            changes.append((step, new, elapsed / seconds, step / total))
            total = new
    return (elapsed + reserved) / seconds, step, changes


@pytest.mark.parametrize("name", SPEEDS)
def test_the_command_ends_within_its_budget(name):
    ended, steps, changes = simulate(SPEEDS[name])
    assert 0.85 < ended <= 1.15 and steps >= 1
    assert (not changes) == (name == "as measured")
    planned = [change for change in changes if change[0] < change[1]]
    quarters = [sum(max(change[2:]) >= check for check in CHECKS) for change in planned]
    assert len(set(quarters)) == len(quarters) and len(changes) - len(planned) <= 1
    values = [position(step, 1000, [change[:2] for change in changes]) for step in range(steps + 1)]
    if ended < 1.08:  # else it was ended before the schedule
        assert values[-1] == pytest.approx(1000)
    rate = build_schedule(dict(name="warmup_cosine", peak=1.0, warmup_steps=50), 1)
    rates = [rate(value, 1000) for value in values[:-1]]
    largest = max(b - a for a, b in zip(values[:-1], values[1:], strict=True))
    jumps = [abs(b - a) for a, b in zip(rates[:-1], rates[1:], strict=True)]
    assert max(jumps) <= largest / 50 + 1e-9  # no faster than the stretched warm-up


def test_a_resumed_training_equals_the_unbroken_one(videos, tmp_path, monkeypatch):
    """Planned: 15 epochs of 3 steps. 14 seconds after 3 of setup suffice for 11 steps."""

    slow_clock = clock_of_steps(monkeypatch)

    def config(folder):
        budget = dict(type="BudgetHook", hours=20 / 3600, spent=3.0, reserved=6.0)
        changes = dict(train_cfg__max_epochs=15, default_hooks__budget=budget)
        changes["default_hooks__checkpoint__max_keep_ckpts"] = -1
        return small_config(videos, folder, **changes)

    whole, expected = train(config(tmp_path / "whole"), recorder=slow_clock())
    assert whole.iter == 11 and whole.epoch == whole.max_epochs == 4
    rows = [json.loads(line) for line in (tmp_path / "whole" / HISTORY).read_text().splitlines()]
    (said,) = [row for row in rows if row["event"] == "replanned"]
    assert said["epochs"] == 4 and "11 steps fit into the budget, not 45" in said["message"]
    assert whole.model.momentum > 0.999  # its schedule ends at 1
    _, before = train(config(tmp_path / "run"), 5, slow_clock(5))
    cfg = config(tmp_path / "run")
    cfg.resume = True
    resumed, after = train(cfg, recorder=slow_clock())
    assert before.rows + after.rows == expected.rows and resumed.iter == 11
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name
    saved = load_checkpoint_file(tmp_path / "run/iter_11.pth")
    assert saved["budget"]["replans"] == [[2, 11]]
    again, recorder = train(cfg, recorder=slow_clock())
    assert again.iter == 11 and not recorder.rows  # finished


def test_wrong_budgets_are_refused():
    for wrong in (dict(hours=0), dict(hours=1, spent=-1), dict(hours=1, reserved=-1)):
        with pytest.raises(ValueError, match="hours of a budget must be positive"):
            BudgetHook(**wrong)
