"""The table of counts."""

from __future__ import annotations

import pytest

from sce_video.data_tools.prepare.lists import count_rows, format_counts
from sce_video.data_tools.prepare.official import ClassMap, Entry, OfficialLists, Split


def _lists(published_files=None):
    train = tuple(Entry(f"t{i}", i % 2) for i in range(1200))
    val = tuple(Entry(f"v{i}", i % 2) for i in range(3))
    return OfficialLists(
        name="x",
        splits=(
            Split("train.txt", train, 1200, published_files),
            Split("val.txt", val, 4),
            Split("other.txt", val),
        ),
        class_maps=(ClassMap("classes.txt", ("a", "b"), 2),),
        published_videos=1203,
    )


def test_rows_by_hand():
    rows = count_rows(_lists(), missing={"t0", "t5", "v0"}, unreadable={"t1"})
    assert [row.cells() for row in rows] == [
        ("classes", "2", "", "", "", "2", "ok"),
        ("videos", "1,203", "1,200", "3", "1", "1,203", "differs"),
        ("train", "1,200", "1,198", "2", "1", "1,200", "differs"),
        ("val", "3", "2", "1", "0", "4", "differs"),
        ("other", "3", "2", "1", "0", "", ""),
    ]


def test_when_counts_agree():
    def result(missing, unreadable, published_files=None):
        rows = count_rows(_lists(published_files), missing, unreadable)
        return next(row.agrees for row in rows if row.title == "train")

    assert result(set(), set())
    assert not result({"t0"}, set())
    assert not result(set(), {"t0"})
    # Kinetics: 1,198 of the 1,200 can be downloaded.
    assert result({"t0", "t1"}, set(), 1198)
    assert not result({"t0", "t1", "t2"}, set(), 1198)
    assert not result({"t0", "t1"}, {"t2"}, 1198)
    rows = count_rows(_lists(1198), set(), set())
    assert rows[2].published == "1,200 (1,198)"


def test_without_a_check():
    rows = count_rows(_lists(), set(), set(), checked=False)
    assert {row.unreadable for row in rows[1:]} == {"not checked"}


def test_the_columns_of_the_table_are_aligned():
    lines = format_counts(count_rows(_lists(), {"t0"}, set())).splitlines()
    assert lines[0].split("  ")[-1].strip() == "result"
    column = lines[0].index("in the list") + len("in the list")
    for line, listed in zip(lines[1:], ("2", "1,203", "1,200", "3", "3"), strict=True):
        assert line[:column].endswith(f" {listed}")
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(
    ("labels", "listed", "agrees"),
    [
        ([0, 0, 1, 1], "2", True),
        ([0, 0, 1, 1, 1], "2 to 3", False),
        ([0, 1, 1], "1 to 2", False),
        ([0, 1], "1", False),
    ],
)
def test_each_class_has_the_published_number(labels, listed, agrees):
    entries = tuple(Entry(f"{i}.avi", label) for i, label in enumerate(labels))
    split = Split("train_split1.txt", entries, published=4, per_class=2)
    row = count_rows(OfficialLists("hmdb51", (split,), ()), set(), set())[-1]
    assert (row.title, row.listed, row.published) == ("train_split1, per class", listed, "2")
    assert row.agrees == agrees
