"""Lists are written atomically and replace other content on demand only."""

from __future__ import annotations

import os

import pytest

from sce_video.data_tools.prepare.lists import write_outputs


def test_written_unchanged_replaced_removed(tmp_path):
    folder = tmp_path / "new/folder"
    contents = {"a.txt": "1\n", "b.txt": "2\n", "c.txt": None}
    assert write_outputs(folder, contents) == {"a.txt": "written", "b.txt": "written"}
    assert write_outputs(folder, contents) == {"a.txt": "unchanged", "b.txt": "unchanged"}
    changed = {"a.txt": "1\n", "b.txt": None, "c.txt": "3\n"}
    with pytest.raises(ValueError, match=r"differ from the new result: [^,]*b\.txt\. Nothing"):
        write_outputs(folder, changed)
    assert (folder / "b.txt").read_text() == "2\n"
    assert not (folder / "c.txt").exists()  # not in the result
    actions = write_outputs(folder, changed, force=True)
    assert actions == {"a.txt": "unchanged", "b.txt": "removed", "c.txt": "written"}
    with pytest.raises(ValueError, match=r"a\.txt.*c\.txt.*--force"):
        write_outputs(folder, {"a.txt": "x", "c.txt": "y"})
    assert write_outputs(folder, {"a.txt": "x"}, force=True) == {"a.txt": "replaced"}
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "a.txt": "x",
        "c.txt": "3\n",
    }


def test_unchanged_files_are_not_touched(tmp_path):
    write_outputs(tmp_path, {"a.txt": "1\n"})
    os.utime(tmp_path / "a.txt", (1, 1))
    write_outputs(tmp_path, {"a.txt": "1\n"}, force=True)
    assert (tmp_path / "a.txt").stat().st_mtime == 1


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    write_outputs(tmp_path, {"a.txt": "old"})

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_outputs(tmp_path, {"a.txt": "new"}, force=True)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a.txt": "old"}


def test_names_that_are_not_utf8_are_kept(tmp_path):
    name = os.fsdecode(b"caf\xe9.avi 0\n")
    write_outputs(tmp_path, {"a.txt": name})
    assert (tmp_path / "a.txt").read_bytes() == b"caf\xe9.avi 0\n"
    assert write_outputs(tmp_path, {"a.txt": name}) == {"a.txt": "unchanged"}
