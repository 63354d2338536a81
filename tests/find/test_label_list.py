"""Lists of labels and segments: finetuning reads them, and nothing of an existing list is lost."""

import os
import subprocess

import pytest
from helpers.disk_faults import file_size_limit

from sce_video.datasets import VideoDataset
from sce_video.datasets.segments import Segment, read_segments
from sce_video.find import label_list
from sce_video.find.label_list import LabelList, SegmentList
from sce_video.utils.files import WriteError

PATHS = ["a b.mp4", "x/tab\there.mp4", "x/ü.mp4", b"x/\xff.mp4".decode("utf-8", "surrogateescape")]


@pytest.fixture
def labels(tmp_path):
    return LabelList(tmp_path / "labels.txt")


def read(labels, tmp_path):
    """(path, name of its label) as the data set of finetuning reads them."""
    for path in PATHS:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    data = VideoDataset(str(tmp_path), str(labels.file), class_file=str(labels.class_file))
    names = data.metainfo["classes"]
    return {data.videos.path(i): names[label] for i, label in enumerate(data.labels.tolist())}


def test_the_data_set_reads_the_list(labels, tmp_path):
    assert labels.apply(PATHS[:3], "one") == (3, [])
    assert labels.apply(PATHS[2:], " number  two ") == (2, [])
    expected = dict(zip(PATHS, ["one", "one", "number two", "number two"], strict=True))
    assert read(labels, tmp_path) == expected
    again = LabelList(labels.file)
    assert (again.labels, again.classes) == (labels.labels, ["one", "number two"])
    assert again.apply(PATHS, "one") == (2, [])
    assert set(read(again, tmp_path).values()) == {"one"}


def test_undo_restores_every_state(labels):
    states = []
    changes = [(PATHS[:2], "one"), (PATHS[1:3], "two"), (PATHS[:1], None), (PATHS, "one")]
    for paths, name in changes:
        states.append((dict(labels.labels), list(labels.classes)))
        labels.apply(paths, name)
    assert labels.undo_depth == 4
    while states:
        labels.undo()
        assert (labels.labels, labels.classes) == states.pop()
        again = LabelList(labels.file)
        assert (again.labels, again.classes) == (labels.labels, labels.classes)
    assert labels.undo() == []


def test_lines_of_other_videos_are_kept(tmp_path):
    (tmp_path / "labels.txt").write_text("elsewhere/a.mp4 1\nx/b.mp4 0\n")
    (tmp_path / "labels_classes.txt").write_text("walk\nrun\nunused\n")
    labels = LabelList(tmp_path / "labels.txt")
    labels.apply(["x/c.mp4"], "run")
    assert (tmp_path / "labels.txt").read_text() == "elsewhere/a.mp4 1\nx/b.mp4 0\nx/c.mp4 1\n"
    assert (tmp_path / "labels_classes.txt").read_text() == "walk\nrun\nunused\n"
    (tmp_path / "numbers.txt").write_text("a.mp4 0\nb.mp4 2\n")  # which become names
    numbered = LabelList(tmp_path / "numbers.txt")
    numbered.apply(["c.mp4"], "new")
    assert numbered.class_file.read_text() == "0\n1\n2\nnew\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.mp4\nb.mp4\n", "without labels"),
        ("a.mp4 0\na.mp4 1\n", "two labels"),
        ("a.mp4,0\n", "table with commas"),
    ],
)
def test_other_lists_are_refused(tmp_path, text, message):
    (tmp_path / "labels.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        LabelList(tmp_path / "labels.txt")
    assert (tmp_path / "labels.txt").read_text() == text


@pytest.mark.parametrize("path", ["a\nb.mp4", " a.mp4", "x" * 9000 + ".mp4", "\ud800.mp4", "a,b,c"])
def test_a_name_that_a_list_cannot_hold_refuses_one_label(labels, path):
    with pytest.raises(ValueError, match="a list cannot contain"):
        labels.apply([path], "one")
    assert not labels.file.exists() and labels.classes == []
    good = [f"{i}.mp4" for i in range(1000)]
    assert labels.apply([*good[:500], path, *good[500:]], "one") == (1000, [path])
    assert LabelList(labels.file).labels == dict.fromkeys(good, 0)
    assert labels.apply([path, *good], "one") == (0, [path])
    assert labels.apply([path, *good], None) == (1000, [])


def test_a_full_disk_changes_nothing(labels):
    labels.apply(["a.mp4"], "one")
    before = labels.file.read_bytes(), labels.class_file.read_bytes()
    with file_size_limit(20), pytest.raises(WriteError, match="cannot write"):
        labels.apply([f"video{i}.mp4" for i in range(9)], "one")
    assert labels.labels == {"a.mp4": 0} and labels.undo_depth == 1
    assert (labels.file.read_bytes(), labels.class_file.read_bytes()) == before
    assert labels.apply(["b.mp4"], "one") == (1, [])


@pytest.mark.parametrize("change", ["a new class", "undo"])
def test_killed_between_the_two_files_every_label_has_a_name(labels, tmp_path, monkeypatch, change):
    labels.apply(PATHS[:1], "one")
    if change == "undo":
        labels.apply(PATHS[1:], "two")
    write, written = label_list.write_text, []

    def only_once(file, text):
        if written:
            raise KeyboardInterrupt
        written.append(file)
        write(file, text)

    monkeypatch.setattr(label_list, "write_text", only_once)
    with pytest.raises(KeyboardInterrupt):
        labels.undo() if change == "undo" else labels.apply(PATHS[1:], "two")
    assert len(written) == 1
    assert read(LabelList(labels.file), tmp_path) == {PATHS[0]: "one"}


def test_what_a_killed_page_was_writing_is_removed(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    kept = [f".labels.txt.{os.getppid()}-0123abcd.part", ".labels.txt.part", ".other.txt.1-x.part"]
    left = [
        f".labels{name}.txt.{pid}-0123abcd.part"
        for name in ("", "_classes")
        for pid in (ended.pid, os.getpid())
    ]
    for name in [*kept, *left]:
        (tmp_path / name).touch()
    LabelList(tmp_path / "labels.txt")
    assert sorted(os.listdir(tmp_path)) == sorted(kept)


def test_a_list_that_another_program_changed_is_not_overwritten(labels):
    labels.apply(["a.mp4"], "one")
    labels.file.write_text("a.mp4 0\nby_hand.mp4 0\n")
    with pytest.raises(ValueError, match="another program has changed"):
        labels.apply(["b.mp4"], "two")
    with pytest.raises(ValueError, match="another program has changed"):
        labels.undo()
    assert labels.file.read_text() == "a.mp4 0\nby_hand.mp4 0\n"
    assert (labels.labels, labels.classes) == ({"a.mp4": 0}, ["one"])


def test_the_split_has_all_classes_on_both_sides(labels, tmp_path):
    labels.apply(["single/0.mp4"], "single")
    with pytest.raises(ValueError, match="to at least two videos"):
        labels.split()
    for name, count in (("one", 9), ("two", 2)):
        labels.apply([f"{name}/{i}.mp4" for i in range(count)], name)
    train, test = labels.split()
    parts = [
        dict(line.rsplit(" ", 1) for line in p.read_text().splitlines()) for p in (train, test)
    ]
    assert not parts[0].keys() & parts[1].keys()
    assert {**parts[0], **parts[1]} == {p: str(i) for p, i in labels.labels.items()}
    assert set(parts[0].values()) == {"0", "1", "2"} and set(parts[1].values()) == {"1", "2"}
    assert list(parts[1].values()).count("1") == 2
    labels.apply(["one/new.mp4"], "one")
    assert labels.split()[1].read_text().count("\n") in (3, 4)
    # Of segments finetuning holds out whole recordings, from one list.
    labels.apply([f"a.mp4@{i}-{i + 1}" for i in range(4)], "two")
    assert labels.split() == (labels.file,)


# -- segments ------------------------------------------------------------------------------


def test_every_change_of_segments_is_in_the_file(tmp_path):
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


def test_mistakes_change_no_segment(tmp_path):
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


def test_segments_that_another_program_changed_are_not_written_over(tmp_path):
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
