"""Segments labelled by hand: the file after each change, undo, mistakes, other programs."""

import pytest

from sce_video.datasets.segments import Segment, read_segments
from sce_video.find.label_list import SegmentList


def test_every_change_is_in_the_file(tmp_path):
    file = tmp_path / "s.csv"
    found = SegmentList(file)
    first = found.add("a.mp4", 1.00049, 2.5, " jump   high ")
    found.add("a.mp4", 2.0, 3.0, "run")  # overlaps
    found.add("b.mp4", 0.0, 1.0, "run")
    found.add("b.mp4", 0.0, 1.0, "run")  # is there
    assert first == Segment("a.mp4", 1.0, 2.5, "jump high")
    assert read_segments(str(file)) == found.segments and len(found.segments) == 3
    assert [s.label for s in found.of("a.mp4")] == ["jump high", "run"]
    assert found.classes() == ["jump high", "run"] and found.undo_depth == 3
    found.remove(first)
    assert [s.path for s in read_segments(str(file))] == ["a.mp4", "b.mp4"]
    for left in (3, 2, 1, 0, 0):
        found.undo()
        assert len(read_segments(str(file))) == left
    again = SegmentList(file)
    assert again.segments == [] and again.undo_depth == 0


def test_mistakes_change_nothing(tmp_path):
    found = SegmentList(tmp_path / "s.csv")
    kept = found.add("a.mp4", 1.0, 2.0, "run")
    for path, start, end, label, message in (
        ("a.mp4", 2.0, 2.0, "run", "has no length: it starts and ends at 2 s. Give a"),
        ("a.mp4", 1.0001, 1.0004, "run", "has no length: it starts and ends at 1 s"),
        ("a.mp4", 2.0, 1.0, "run", "ends at 1 s, before its start at 2 s"),
        ("a.mp4", float("nan"), 2.0, "run", "in seconds"),
        ("a.mp4", -1.0, 2.0, "run", "in seconds"),
        ("a.mp4", 1.0, 2.0, " ", "a label must have 1 to 100 printable"),
        (" a.mp4", 1.0, 2.0, "run", "list of segments cannot contain"),
    ):
        with pytest.raises(ValueError, match=message):
            found.add(path, start, end, label)
    with pytest.raises(ValueError, match="no longer exists"):
        found.remove(Segment("a.mp4", 1.0, 3.0, "run"))
    assert read_segments(str(tmp_path / "s.csv")) == found.segments == [kept]


def test_a_file_that_another_program_changed_is_not_written_over(tmp_path):
    file = tmp_path / "s.csv"
    found = SegmentList(file)
    found.add("a.mp4", 1.0, 2.0, "run")
    text = file.read_text() + "c.mp4,0,1,other\n"
    file.write_text(text)
    for change in (lambda: found.add("a.mp4", 3.0, 4.0, "run"), found.undo):
        with pytest.raises(ValueError, match="another program has changed"):
            change()
    assert file.read_text() == text
    file.write_text("no table")
    with pytest.raises(ValueError, match="must begin with the columns"):
        SegmentList(file)
