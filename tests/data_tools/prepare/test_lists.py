"""Counts, checks of files, and lists that are written, for any official lists."""

from __future__ import annotations

import os

import pytest
from helpers import preparation_fakes
from helpers.videos import numbered_frames, write_video

from sce_video.data_tools.prepare import layout, prepare
from sce_video.data_tools.prepare.lists import (
    check_files,
    count_rows,
    first_frame_error,
    format_counts,
    write_lists,
    write_outputs,
)
from sce_video.data_tools.prepare.official import ClassMap, Entry, Located, OfficialLists, Split
from sce_video.datasets.video_list import read_annotation_list
from sce_video.options.data_commands import DATA_SETS, PrepareOptions

# -- data sets --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DATA_SETS)
def test_every_data_set_is_read_by_its_module_and_shows_its_layout(name, tmp_path):
    shown = layout(name)
    assert shown.startswith("  ")
    with pytest.raises(FileNotFoundError) as error:
        prepare(PrepareOptions(name=name, root=tmp_path))
    assert str(error.value).endswith(shown)


# -- counts -----------------------------------------------------------------------------------


def made_lists(published_files=None):
    train = tuple(Entry(f"t{i}", i % 2) for i in range(1200))
    val = tuple(Entry(f"v{i}", i % 2) for i in range(3))
    train_split = Split("train.txt", train, 1200, published_files)
    splits = (train_split, Split("val.txt", val, 4), Split("other.txt", val))
    return OfficialLists("x", splits, (ClassMap("classes.txt", ("a", "b"), 2),), 1203)


def test_rows_by_hand():
    rows = count_rows(made_lists(), missing={"t0", "t5", "v0"}, unreadable={"t1"})
    assert [row.cells() for row in rows] == [
        ["classes", "2", "", "", "", "2", "ok"],
        ["videos", "1,203", "1,200", "3", "1", "1,203", "differs"],
        ["train", "1,200", "1,198", "2", "1", "1,200", "differs"],
        ["val", "3", "2", "1", "0", "4", "differs"],
        ["other", "3", "2", "1", "0", "", ""],
    ]
    rows = count_rows(made_lists(), set(), set(), checked=False)
    assert {row.unreadable for row in rows[1:]} == {"not checked"}
    lines = format_counts(rows).splitlines()
    column = lines[0].index("in the list") + len("in the list")
    for line, listed in zip(lines[1:], ("2", "1,203", "1,200", "3", "3"), strict=True):
        assert line[:column].endswith(f" {listed}") and line == line.rstrip()


@pytest.mark.parametrize(("missing", "agrees"), [(["t0", "t1"], True), (["t0", "t1", "t2"], False)])
def test_videos_that_cannot_be_downloaded_may_be_missing(missing, agrees):
    """Kinetics: 1,198 of the 1,200."""
    row = count_rows(made_lists(1198), missing, [])[2]
    assert (row.title, row.published, row.agrees) == ("train", "1,200 (1,198)", agrees)


@pytest.mark.parametrize(
    ("labels", "listed", "agrees"),
    [([0, 0, 1, 1], "2", True), ([0, 0, 1, 1, 1], "2 to 3", False), ([0, 1], "1", False)],
)
def test_each_class_has_the_published_number(labels, listed, agrees):
    entries = tuple(Entry(f"{i}.avi", label) for i, label in enumerate(labels))
    split = Split("train_split1.txt", entries, published=4, per_class=2)
    row = count_rows(OfficialLists("hmdb51", (split,), ()), set(), set())[-1]
    assert row.cells()[:2] == ["train_split1, per class", listed]
    assert (row.published, row.agrees) == (2, agrees)


# -- the check --------------------------------------------------------------------------------


def touch(folder, names):
    for name in names:
        (folder / name).touch()
    return list(names)


def test_crashes_affect_one_file_only(tmp_path):
    names = touch(tmp_path, ["good1", "bad", "crash", "error", "good2"])
    options = PrepareOptions(name="ucf101", root=tmp_path, workers=1)
    function = preparation_fakes.fail_by_name
    found = check_files(tmp_path, [*names, "gone"], function, "x", options)
    assert list(found) == [*names, "gone"]  # in the order of the files
    assert {name: reason for name, reason in found.items() if reason is not None} == {
        "bad": "bad",
        "crash": "the decoder crashed: the process was killed by SIGKILL, like the process before "
        "it. Memory ran out, or somebody ended both",
        "error": "KeyError: 'error'",
        "gone": "there is no such file",
    }
    assert check_files(tmp_path, [], function, "x", options) == {}


def test_first_frame_error(tmp_path):
    """Only the first frame is decoded: verify finds damage further on."""
    good = write_video(tmp_path / "v.avi", numbered_frames(40), codec="mpeg4", options={"g": "1"})
    data = bytearray(good.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 3000] = bytes(3000)
    good.write_bytes(data)
    assert first_frame_error(str(good)) is None
    contents = {"empty.mp4": b"", "text.mp4": b"no video\n" * 50, "cut.avi": data[:200]}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        assert first_frame_error(str(tmp_path / name))
    assert first_frame_error(str(tmp_path / "empty.mp4")) == "is empty (0 bytes)"
    missing = "cannot be opened: No such file or directory"
    assert first_frame_error(str(tmp_path / "gone.mp4")) == missing
    os.mkfifo(tmp_path / "pipe.mp4")
    for path in (tmp_path, tmp_path / "pipe.mp4"):
        assert first_frame_error(str(path)) == "is not a regular file"


# -- the lists --------------------------------------------------------------------------------


def prepared(root, located, **options):
    entries = tuple(Entry(name, i % 2) for i, name in enumerate(sorted(located)))
    class_map = ClassMap("classes.txt", ("p", "q"), 2)
    official = OfficialLists("x", (Split("a.txt", entries),), (class_map,))
    options = PrepareOptions(name="ucf101", root=root, no_check=True, **options)
    return write_lists(official, located, options)


def test_unusual_paths_can_be_read_from_the_list(tmp_path, capsys):
    names = ["two words.avi", "a\ttab.avi", "7 8.avi", "#&(;[!*?.avi", os.fsdecode(b"caf\xe9.avi")]
    touch(tmp_path, names)
    located = {name: Located(name, remark="of odd names") for name in sorted(names)[::-1]}
    assert prepared(tmp_path, located)  # only the number of classes is published
    videos = read_annotation_list(str(tmp_path / "a.txt"))
    assert [videos.path(i) for i in range(5)] == sorted(names)
    assert videos.labels.tolist() == [0, 1, 0, 1, 0]
    assert "note: 5 files of odd names, for example two words.avi" in capsys.readouterr().out


def test_missing_files_are_counted_and_all_reported(tmp_path, capsys):
    names = [f"{i:02d}.avi" for i in range(12)]
    touch(tmp_path, ["11.avi"])
    located = {n: Located(n, "no such file" if i < 7 else None) for i, n in enumerate(names)}
    prepared(tmp_path, located)  # 07 to 10 stand for broken links
    text = capsys.readouterr().out
    assert "missing (missing_x.txt): 11 files, left out of the lists" in text
    assert "  04.avi: no such file\n  and 6 more\n" in text
    assert (tmp_path / "a.txt").read_text() == "11.avi 1\n"
    report = "".join(f"{i:02d}.avi\tno such file\n" for i in range(11))
    assert (tmp_path / "missing_x.txt").read_text() == report


def test_a_missing_path_with_a_tab_remains_one_cell(tmp_path, capsys):
    touch(tmp_path, ["here.avi"])
    located = {"here.avi": Located("here.avi"), "a\tb.avi": Located("a\tb.avi", "no such file")}
    prepared(tmp_path, located)
    assert (tmp_path / "missing_x.txt").read_text() == "a\\tb.avi\tno such file\n"


def test_lists_that_are_refused(tmp_path, capsys):
    located = {"a.avi": Located("a.avi", "no such file")}
    with pytest.raises(ValueError, match=r"none of the 1 videos of a\.txt"):
        prepared(tmp_path, located)
    assert "a.avi: no such file" in capsys.readouterr().out and not list(tmp_path.iterdir())
    prepared(tmp_path, located, keep_missing=True)
    assert (tmp_path / "a.txt").read_text() == "a.avi 0\n"
    located = {"a.avi": Located("x/a.avi"), "A.avi": Located("x/a.avi")}
    with pytest.raises(ValueError, match=r"'a\.avi' and 'A\.avi' of the lists are the same file"):
        prepared(tmp_path, located)


def test_written_unchanged_replaced_removed(tmp_path, capsys):
    folder = tmp_path / "new/folder"

    def written(contents, force=False):
        options = PrepareOptions(name="ucf101", root=tmp_path, out=folder, force=force)
        write_outputs(contents, options)
        lines = capsys.readouterr().out.splitlines()
        return dict(line.removeprefix(f"{folder}/").split(": ") for line in lines)

    contents = {"a.txt": "1\n", "b.txt": "2\n", "c.txt": None}
    assert written(contents) == {"a.txt": "written", "b.txt": "written"}
    os.utime(folder / "a.txt", (1, 1))
    assert written(contents) == {"a.txt": "unchanged", "b.txt": "unchanged"}
    changed = {"a.txt": "1\n", "b.txt": None, "c.txt": "3\n"}
    with pytest.raises(ValueError, match=r"differ from the new result: [^,]*b\.txt\. Nothing"):
        written(changed)
    assert (folder / "b.txt").read_text() == "2\n"
    assert not (folder / "c.txt").exists()  # not in the result
    actions = written(changed, force=True)
    assert actions == {"a.txt": "unchanged", "b.txt": "removed", "c.txt": "written"}
    assert (folder / "a.txt").stat().st_mtime == 1
    odd = os.fsdecode(b"caf\xe9.avi 0\n")  # a name that is not UTF-8 is kept
    assert written({"a.txt": odd}, force=True) == {"a.txt": "replaced"}
    assert (folder / "a.txt").read_bytes() == b"caf\xe9.avi 0\n"
