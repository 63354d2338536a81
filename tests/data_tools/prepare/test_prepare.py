"""Lists, reports and notes, for videos that are not opened."""

from __future__ import annotations

import io
import os

import pytest

from sce_video.data_tools.prepare.lists import PrepareOptions, prepare
from sce_video.data_tools.prepare.official import (
    ClassMap,
    Entry,
    Located,
    OfficialLists,
    Split,
    read_lines,
)
from sce_video.datasets.video_list import read_annotation_list


def _official(names):
    entries = tuple(Entry(name, i % 2) for i, name in enumerate(names))
    return OfficialLists("x", (Split("a.txt", entries),), (ClassMap("classes.txt", ("p", "q"), 2),))


def _prepare(tmp_path, names, located, **options):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    agrees = prepare(
        _official(names), located, PrepareOptions(root=tmp_path, check=False, **options), stream
    )
    stream.seek(0)
    return agrees, stream.read()


def test_unusual_paths_can_be_read_from_the_list(tmp_path):
    names = ["two words.avi", "a\ttab.avi", "7 8.avi", "#&(;[!*?.avi", os.fsdecode(b"caf\xe9.avi")]
    for name in names:
        (tmp_path / name).touch()
    located = {name: Located(name, remark="of odd names") for name in reversed(names)}
    agrees, text = _prepare(tmp_path, names, located)
    assert agrees  # only the number of classes is published
    videos = read_annotation_list(str(tmp_path / "a.txt"))
    assert [videos.path(i) for i in range(5)] == names
    assert videos.labels.tolist() == [0, 1, 0, 1, 0]
    assert r"note: 5 files of odd names, for example caf?.avi" in text


def test_many_missing_files_are_counted_and_all_reported(tmp_path):
    names = [f"{i:02d}.avi" for i in range(12)]
    (tmp_path / "11.avi").touch()
    located = {
        name: Located(name, "no such file" if i < 7 else None) for i, name in enumerate(names)
    }
    _, text = _prepare(tmp_path, names, located)  # 07 to 10 stand for broken links
    assert "missing (missing_x.txt): 11 files, left out of the lists" in text
    assert "  04.avi: no such file\n  and 6 more\n" in text
    assert (tmp_path / "a.txt").read_text() == "11.avi 1\n"
    report = "".join(f"{i:02d}.avi\tno such file\n" for i in range(11))
    assert (tmp_path / "missing_x.txt").read_text() == report


def test_a_split_without_videos(tmp_path):
    located = {"a.avi": Located("a.avi", "no such file")}
    with pytest.raises(ValueError, match=r"none of the 1 videos of a\.txt"):
        _prepare(tmp_path, ["a.avi"], located)
    assert not list(tmp_path.iterdir())
    _prepare(tmp_path, ["a.avi"], located, keep_missing=True)
    assert (tmp_path / "a.txt").read_text() == "a.avi 0\n"


def test_two_names_of_one_file(tmp_path):
    located = {"a.avi": Located("x/a.avi"), "A.avi": Located("x/a.avi")}
    with pytest.raises(
        ValueError, match=r"'a\.avi' and 'A\.avi' of the lists are the same file, x/a"
    ):
        _prepare(tmp_path, ["a.avi", "A.avi"], located)


def test_text_files_of_all_systems(tmp_path):
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbf1 a\r\n\r\n  2 b \n3 \xe9")
    assert [line for _, line in read_lines(tmp_path / "list.txt")] == ["1 a", "2 b", "3 \udce9"]
    with pytest.raises(ValueError, match="is a folder"):
        read_lines(tmp_path)
