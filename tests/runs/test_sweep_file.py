"""Sweep files: what is read, and the message for every wrong entry."""

from __future__ import annotations

import pytest

from sce_video.runs.sweep_plan import Column, Point, read_sweep

GOOD = """
title = "lambda"
source = "tab:x"
_config = "c.py"  # a helper of the file
pretrain = dict(config=_config, options={"model.tau": 0.1})
points = [
    dict(name="a", options={"model.lambda_": 0.5}, published={"K200": 64}, note="base"),
    dict(name="c", columns=["K200"]),
    dict(name="r", checkpoint="random", config=None),
]
columns = [
    dict(name="K200", config="e.py", training="one", metric="top1", options={"a.b": (1, 2)}),
    dict(name="kNN", metric="knn_top1"),
]
seeds = [3, 4]
notes = ["one", "two"]
"""


@pytest.fixture
def sweep_of(tmp_path):
    """A function: the text of a sweep file -> the sweep."""

    def read(text):
        (tmp_path / "mine.py").write_text(text)
        return read_sweep(tmp_path / "mine.py")

    return read


def test_a_file_with_every_entry(sweep_of):
    sweep = sweep_of(GOOD)
    assert (sweep.name, sweep.title, sweep.source) == ("mine", "lambda", "tab:x")
    assert (sweep.pretrain.config, sweep.pretrain.options) == ("c.py", {"model.tau": 0.1})
    assert sweep.points == (
        Point("a", None, {"model.lambda_": 0.5}, None, {"K200": 64}, "base"),
        Point("c", columns=("K200",)),
        Point("r", checkpoint="random"),
    )
    found = [[c.name for c in sweep.columns if point.has(c)] for point in sweep.points]
    assert found == [["K200", "kNN"], ["K200"], ["K200", "kNN"]]
    assert sweep.columns == (
        Column("K200", "top1", "e.py", {"a.b": (1, 2)}, "one"),
        Column("kNN", "knn_top1", None, {}, "none"),
    )
    assert (sweep.seeds, sweep.notes) == ((3, 4), ("one", "two"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "title",
            "titel",
            r"mine\.py: it has the unknown field 'titel'\. The known fields are points, columns, ",
        ),
        ('"lambda"', "1 / 0", r"cannot read the sweep .*mine\.py: "),
        ('    dict(name="r"', '    "r", dict(name="r"', r"points\[2\] must be an object, got 'r'"),
        (
            'note="base"',
            'not_="base"',
            r"points\[0\] has the unknown field 'not_'\. The known fields are name, config, ",
        ),
        ('name="a"', 'name=""', "an entry of points has no name"),
        ('name="a"', "name=0.5", r"points\[0\]\.name must be text, got 0\.5"),
        ('name="r"', 'name="a"', "two entries of points have the name 'a'"),
        ('["K200"]', '["UCF"]', r"point 'c' has columns=\['UCF'\], but 'UCF' is not one"),
        ('{"K200": 64}', '{"UCF": 64}', "point 'a' has a published 'UCF', which is not a column"),
        ('{"K200": 64}', '{"K200": "64"}', "point 'a': published K200 must be a number, got '64'"),
        ("config=_config, ", "", "neither point 'a' nor pretrain has a config"),
        (', metric="knn_top1"', "", r"columns\[1\] lacks the field 'metric'"),
        ('training="one"', 'training="two"', "training='two', not one of none, one, splits"),
        ('config="e.py", ', "", "column 'K200' trains, so it needs a config"),
        ("[3, 4]", "3", "seeds must be a list of values .a whole number., got 3"),
        ("[3, 4]", "[3, 3]", r"seeds must be one or more different numbers, got \[3, 3\]"),
        ('["one", "two"]', '"one"', "notes must be a list of values .text., got 'one'"),
    ],
)
def test_what_is_wrong_is_named(sweep_of, old, new, message):
    assert old in GOOD
    with pytest.raises(ValueError, match=message):
        sweep_of(GOOD.replace(old, new, 1))
