"""Atomic files are complete or absent."""

from __future__ import annotations

import json
import os

import pytest

from sce_video.utils.atomic_file import atomic_file, write_json, write_text


def test_the_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "new" / "file.bin"
    with atomic_file(path) as temporary:
        temporary.write_bytes(b"half")
        assert not path.exists() and temporary.parent == path.parent
        assert temporary.name.startswith(".")
    assert path.read_bytes() == b"half" and os.listdir(path.parent) == ["file.bin"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_old_file_stays_when_the_block_fails(tmp_path, error):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(error), atomic_file(path) as temporary:
        temporary.write_text("new")
        raise error
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file.txt"]


def test_the_temporary_file_is_renamed_not_copied(tmp_path):
    """A copy could be interrupted halfway, and would change the file under its readers."""
    path = tmp_path / "file.txt"
    path.write_text("old")
    with open(path) as reader:
        with atomic_file(path) as temporary:
            temporary.write_text("new")
            inode = temporary.stat().st_ino
        assert reader.read() == "old"
    assert path.read_text() == "new" and path.stat().st_ino == inode


def test_a_block_that_writes_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_file(tmp_path / "file.txt"):
        pass


def test_text_and_json(tmp_path):
    name = os.fsdecode(b"caf\xe9.mp4")
    write_text(tmp_path / "list.txt", f"{name}\n\u20ac\n")
    assert (tmp_path / "list.txt").read_bytes() == b"caf\xe9.mp4\n\xe2\x82\xac\n"
    write_json(tmp_path / "a.json", {"b": [1, 2.5, None]})
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text) == {"b": [1, 2.5, None]} and text.endswith("}\n")
