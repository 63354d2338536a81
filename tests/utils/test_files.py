"""Atomic files are complete or absent."""

from __future__ import annotations

import errno
import json
import os
import pickle

import pytest
from helpers.disk_faults import contents, file_size_limit

from sce_video.utils.files import (
    WriteError,
    append_text,
    atomic_file,
    write_json,
    write_text,
)


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


def test_a_full_disk(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with file_size_limit(100), pytest.raises(WriteError) as raised:
        write_text(path, "x" * 101)
    assert contents(tmp_path) == {"file.txt": b"old"}
    error = pickle.loads(pickle.dumps(raised.value))  # it may come from another process
    assert (
        str(error) == f"cannot write {path}: File too large" and raised.value.errno == errno.EFBIG
    )


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_disk_that_fails_late(tmp_path, monkeypatch, failing):
    """Some file systems report only then that they are full or read-only."""
    write_text(tmp_path / "file.txt", "old")

    def fail(*args):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(WriteError, match=r"cannot write .*file.txt: Read-only file system$"):
        write_text(tmp_path / "file.txt", "new")
    assert contents(tmp_path) == {"file.txt": b"old"}


def test_appending_all_or_nothing(tmp_path):
    path = tmp_path / "log.jsonl"
    append_text(path, "first\n")
    with (
        file_size_limit(10),
        pytest.raises(WriteError, match=rf"^cannot write {path}: File too large$"),
    ):
        append_text(path, "second\n")  # four bytes of it still fit
    assert path.read_text() == "first\n"
    append_text(path, "third \u20ac\n")
    assert path.read_text(encoding="utf-8") == "first\nthird \u20ac\n"


def test_text_and_json(tmp_path):
    name = os.fsdecode(b"caf\xe9.mp4")
    write_text(tmp_path / "list.txt", f"{name}\n\u20ac\n")
    assert (tmp_path / "list.txt").read_bytes() == b"caf\xe9.mp4\n\xe2\x82\xac\n"
    write_json(tmp_path / "a.json", {"b": [1, 2.5, None]})
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text) == {"b": [1, 2.5, None]} and text.endswith("}\n")
