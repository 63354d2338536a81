"""Schedules against values computed by hand."""

from __future__ import annotations

import math

import pytest

from sce_video.engine import ScheduleHook
from sce_video.engine.schedules import build_schedule, multistep


def test_warmup_then_cosine():
    f = build_schedule(
        dict(name="warmup_cosine", peak=4.8, warmup_epochs=35, end=0.0), steps_per_epoch=10
    )
    total = 2000
    assert f(0, total) == pytest.approx(4.8 / 350)
    assert f(174, total) == pytest.approx(4.8 / 2)
    assert f(349, total) == f(350, total) == pytest.approx(4.8)
    assert f(350 + 825, total) == pytest.approx(2.4)
    assert 0 < f(1999, total) < 1e-4
    assert max(f(s, total) for s in range(total)) == pytest.approx(4.8)


def test_steps_and_lines():
    f = build_schedule(
        dict(name="multistep", start=0.12, milestone_epochs=[14, 18]), steps_per_epoch=5
    )
    assert [f(s, 110) for s in (0, 69, 70, 89, 90, 109)] == pytest.approx(
        [0.12, 0.12, 0.012, 0.012, 0.0012, 0.0012]
    )
    warm = [multistep(i, 9, start=0.4, milestones=(4,), warmup_steps=2) for i in (0, 1, 2, 3, 4)]
    assert warm == pytest.approx([0.2, 0.4, 0.4, 0.4, 0.04])
    assert build_schedule(0.05, 10)(7, 9) == 0.05


def test_steps_with_values_against_a_loop():
    """milestone_epochs (2, 5) of 3 steps an epoch: epochs 0-1, 2-4 and 5 on."""
    spec = dict(name="steps", values=(0.0, 0.5, 0.2), milestone_epochs=(2, 5))
    f = build_schedule(spec, steps_per_epoch=3)
    expected = []
    for epoch in range(7):
        expected += [0.0 if epoch < 2 else 0.5 if epoch < 5 else 0.2] * 3
    assert [f(step, 21) for step in range(21)] == expected
    direct = build_schedule(dict(name="steps", values=[1, 2], milestones=[4]), 3)
    assert [direct(step, 9) for step in (0, 3, 4, 8)] == [1, 1, 2, 2]


def test_lines_and_cosines_against_a_loop():
    line = build_schedule(dict(name="linear", start=0.2, end=0.8), 5)
    half = build_schedule(dict(name="cosine", start=0.2, end=0.8), 5)
    value = 0.2
    for step in range(50):
        assert line(step, 50) == pytest.approx(value)
        assert half(step, 50) == pytest.approx(0.5 - 0.3 * math.cos(math.pi * step / 50))
        value += 0.6 / 50


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("cosine", "a number or a dict with a name, got 'cosine'"),
        (True, "got True"),
        (dict(name="cosine", start="0", end=1), "start must be a finite number"),
        (
            dict(name="multistep", start=1, milestone_epochs=1),
            r"milestone_epochs must be a list in .*. Write milestone_epochs=\[1\]",
        ),
        (dict(name="multistep", start=1, milestones="3"), "milestones must be a list"),
        (
            dict(name="multistep", start=1, milestone_epochs=[math.nan]),
            "must contain only finite numbers",
        ),
        (dict(name="steps", values=1, milestones=(3,)), "values must be a list"),
        (
            dict(name="warmup_cosine", peak=1, warmup_epochs="5"),
            "warmup_epochs must be a number of at least 0",
        ),
        (dict(name="warmup_cosine", peak=1, warmup_epochs=math.nan), "a number of at least 0"),
        (dict(name="steps", values=(1, None), milestones=(3,)), "values must contain only finite"),
        (
            dict(name="steps", values=(1, 2), milestones=(3, 4)),
            "2 values need 1 milestones, but there are 2",
        ),
        (dict(name="steps", values=(1, 2), milestone_epochs=(0,)), "lie after step 0"),
        (dict(name="cosin", start=0, end=1), "cosin"),
        (dict(name="cosine", start=0), r"missing \['end'\]"),
        (dict(name="cosine", start=0, end=1, stop=2), r"unknown arguments \['stop'\]"),
    ],
)
def test_unknown_names_and_arguments_are_refused(spec, match):
    with pytest.raises(ValueError, match=match):
        build_schedule(spec, 10)


def test_durations_of_another_type_are_refused_when_the_hook_is_built():
    milestones = dict(name="multistep", milestone_epochs=1)
    for options in ({"lr": milestones}, {"model": {"tau": milestones}}):
        with pytest.raises(ValueError, match=r"Write milestone_epochs=\[1\]"):
            ScheduleHook(**options)
