"""``sce-video verify`` on generated data sets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers.videos import numbered_frames, write_video

import sce_video
from sce_video.commands import verify

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A prepared data set: four good videos of two classes."""
    root = tmp_path_factory.mktemp("original") / "data"
    names = ["One/a b.avi", "One/c.avi", "Two/d.avi", "Two/e.avi"]
    for name in names:
        write_video(root / name, numbered_frames(12), codec="mpeg4")
    lines = [f"{name} {int(name.startswith('Two'))}\n" for name in names]
    (root / "list.txt").write_text("".join(lines))
    (root / "classes.txt").write_text("One\nTwo\n")
    return root


@pytest.fixture
def data(original, tmp_path):
    """A copy of the data set."""
    return Path(shutil.copytree(original, tmp_path / "data"))


def rows(path):
    head, *lines = path.read_text().splitlines()
    return [dict(zip(head.split("\t"), line.split("\t"), strict=True)) for line in lines]


def test_all_problems_are_in_the_table(data, capsys, monkeypatch):
    (data / "Two/e.avi").unlink()
    (data / "One/c.avi").write_bytes(b"")
    write_video(data / "Two/short.avi", numbered_frames(5), codec="mpeg4")
    write_video(data / "x.mp4", numbered_frames(12)).rename(data / "Two/mislabelled.avi")
    with (data / "list.txt").open("a") as file:
        file.write("\nTwo/short.avi 1\nTwo/mislabelled.avi 2\nOne/a b.avi 0\n")
    command = [str(data / "list.txt"), "--classes", str(data / "classes.txt"), "--workers", "2"]
    assert verify.main(command) == 1
    out = capsys.readouterr().out
    expected = [
        ("bad", "One/c.avi", "2"),
        ("missing", "Two/e.avi", "4"),
        ("short", "Two/short.avi", "6"),
        ("container", "Two/mislabelled.avi", "7"),
        ("label", "Two/mislabelled.avi", "7"),
        ("duplicate", "One/a b.avi", "8"),
    ]
    table = data / "list.verify.tsv"
    assert [(r["problem"], r["path"], r["line"]) for r in rows(table)] == expected
    assert "7 files, 2 good, 5 with problems" in out and str(table) in out
    # with other limits and a longer list, known files are not decoded again
    assert verify.main([*command, "--min-frames", "5", "--min-duration", "0"]) == 1
    assert "0 of 6 files to do" in capsys.readouterr().err
    assert "short" not in [r["problem"] for r in rows(table)]
    assert verify.main([*command, "--restart"]) == 1
    assert "5 of 6 files to do" in capsys.readouterr().err


def test_python_does_what_the_command_does(data):
    """The same table, and the problems as data; an option of one call does not outlive it."""
    (data / "Two/e.avi").write_bytes(b"no video")
    shutil.copy(data / "One/c.avi", data / "One/c.film")
    assert verify.main([str(data), "--all-files", "--workers", "2"]) == 1
    table = data.with_name("data.verify.tsv")
    written = table.read_text()
    result = sce_video.verify(data, all_files=True, workers=2, restart=True)
    assert table.read_text() == written and result.table == table and result.files == 5
    assert [(p.kind, p.path) for p in result.problems] == [("bad", "Two/e.avi")]
    assert sce_video.verify(data, workers=2).files == 4
    with pytest.raises(FileNotFoundError, match="no list or folder at"):
        sce_video.verify(data / "none")


def test_a_folder_and_a_table_elsewhere(data, tmp_path, capsys):
    assert verify.main([str(data)]) == 0
    assert (tmp_path / "data.verify.tsv").is_file() and (tmp_path / "data.verify.sqlite").is_file()
    (data / "Two/e.avi").write_bytes(b"no video")
    assert verify.main([str(data), "--out", str(tmp_path / "new/report.md")]) == 1
    lines = (tmp_path / "new/report.md").read_text().splitlines()
    assert len(lines) == 3 and "| bad | Two/e.avi |" in lines[2]
    assert (tmp_path / "new/report.sqlite").is_file()


def test_wrong_lists(data, tmp_path, capsys):
    for name, text in (("absent", None), ("empty", "\n"), ("mixed", "One/c.avi 0\nTwo/d.avi\n")):
        listed = data / f"{name}.txt"
        if text is not None:
            listed.write_text(text)
        assert verify.main([str(listed)]) == 2
        assert name in capsys.readouterr().err
    (data / "no_names.txt").touch()
    arguments = [str(data / "list.txt"), "--classes", str(data / "no_names.txt")]
    assert verify.main(arguments) == 2 and "no_names.txt" in capsys.readouterr().err
    # with this --out the records would have the path of another file, which stays
    (data / "list.sqlite").write_text("keep me\n")
    assert verify.main([str(data / "list.txt"), "--out", str(data / "list.tsv")]) == 2
    assert "list.sqlite" in capsys.readouterr().err
    assert (data / "list.sqlite").read_text() == "keep me\n"
