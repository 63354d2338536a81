"""Atomic files, which are complete or absent, and damaged or untrusted JSON."""

from __future__ import annotations

import errno
import json
import os
import pickle
import subprocess

import pytest
from helpers.disk_faults import contents, file_size_limit

from sce_video.utils.files import (
    IrregularFileError,
    WriteError,
    append_text,
    atomic_file,
    parse_json,
    read_json,
    read_json_lines,
    read_text,
    regular_file,
    remove_unfinished,
    unfinished_path,
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
    """Some file systems report only at this point that they are full or read-only."""
    write_text(tmp_path / "file.txt", "old")

    def fail(*args):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(WriteError, match=r"cannot write .*file.txt: Read-only file system$"):
        write_text(tmp_path / "file.txt", "new")
    assert contents(tmp_path) == {"file.txt": b"old"}


@pytest.mark.parametrize("target", ["there", "missing"])
def test_nothing_is_written_through_a_link(tmp_path, target):
    """An unpacked folder may contain a link to a start-up file of the shell."""
    (tmp_path / "there").write_text("own\n")
    link = tmp_path / "history.jsonl"
    link.symlink_to(tmp_path / target)
    refused = rf"^cannot write {link}: it is a symbolic link, and nothing is written through a link"
    with pytest.raises(WriteError, match=refused):
        append_text(link, "$(touch X)\n")
    for mode in ("a", "w", "r+"):
        with pytest.raises(IrregularFileError, match="is a symbolic link"):
            open(link, mode, opener=regular_file)
    assert (tmp_path / "there").read_text() == "own\n" and not (tmp_path / "missing").exists()
    write_text(link, "new")  # replaces the link
    assert (tmp_path / "there").read_text() == "own\n" and link.read_text() == "new"


def test_a_link_is_read(tmp_path):
    (tmp_path / "there").write_text("\ufeffown\n", encoding="utf-8")
    (tmp_path / "link").symlink_to("there")
    assert read_text(tmp_path / "link") == "own\n"


@pytest.mark.parametrize("kind", ["pipe", "device", "link to a pipe"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path, kind):
    path = tmp_path / "x.json"
    pipe = path if kind == "pipe" else tmp_path / "pipe"
    os.mkfifo(pipe)
    if kind != "pipe":
        path.symlink_to("/dev/zero" if kind == "device" else pipe)
    for read in (read_text, read_json, lambda p: list(read_json_lines(p))):
        with pytest.raises(IrregularFileError, match=rf"^{path} is not a regular file \(a FIFO, "):
            read(path)
    with pytest.raises(WriteError, match=f"cannot write {path}: it is "):
        append_text(path, "x")


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(tmp_path, monkeypatch):
    """The file may change between the check and the opening."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    monkeypatch.setattr("sce_video.utils.files.check_regular", lambda *_: None)
    with pytest.raises(OSError, match=f"Invalid argument: '{tmp_path}/pipe'"):
        read_text(tmp_path / "pipe")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        open(tmp_path / "link", "a", opener=regular_file)


def test_what_killed_processes_left_is_removed(tmp_path):
    """Files and folders are removed, but not those of running processes or behind a link."""
    ended = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True).stdout.strip()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    own = unfinished_path(tmp_path / "a")  # another part of this process is writing it
    earlier = tmp_path / f".a.{os.getpid()}-0123abcd.part"  # of a killed process with this id
    running = tmp_path / f".a.{os.getppid()}-0123abcd.part"
    for name in (f".a.{ended}-01234567.part", f".b.{ended}-01234567.part", ".a.part", "a"):
        (tmp_path / name).touch()
    folder, link = (tmp_path / f".a.{ended}-{n}1234567.part" for n in "89")
    folder.mkdir()
    (folder / "inside").touch()
    link.symlink_to(tmp_path / "elsewhere")
    for path in (own, earlier, running):
        path.touch()
    remove_unfinished(tmp_path, "a")
    left = {".a.part", "a", "elsewhere", running.name, own.name}
    assert set(os.listdir(tmp_path)) == left | {f".b.{ended}-01234567.part"}
    remove_unfinished(tmp_path)
    assert set(os.listdir(tmp_path)) == left
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_appending_all_or_nothing(tmp_path):
    path = tmp_path / "log.jsonl"
    append_text(path, "first\n")
    with (
        file_size_limit(10),
        pytest.raises(WriteError, match=rf"^cannot write {path}: File too large$"),
    ):
        append_text(path, "second\n")  # its first four bytes still fit
    assert path.read_text() == "first\n"
    append_text(path, "third \u20ac\n")
    assert path.read_text(encoding="utf-8") == "first\nthird \u20ac\n"


def test_text_and_json(tmp_path):
    name = os.fsdecode(b"caf\xe9.mp4")
    write_text(tmp_path / "list.txt", f"{name}\n\u20ac\n")
    assert (tmp_path / "list.txt").read_bytes() == b"caf\xe9.mp4\n\xe2\x82\xac\n"
    rows = [{"path": name, "n": [1, 2.5, None], "none": {}}, 7, "a\nb"]
    for content in ({}, {"a": [], "b": rows}, {"b": {"c": rows}, "d": [], "e": 1}):
        given = {k: iter(v) if isinstance(v, list) else v for k, v in content.items()}
        write_json(tmp_path / "a.json", given)
        assert (tmp_path / "a.json").read_text() == json.dumps(content, indent=2) + "\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "Expecting property name"),
        (b"\xff{}", "invalid start byte"),
        (b"[" * 100_000, "recursion"),
        (b"[" * 60 + b"]" * 60, "nested more than 50 levels deep"),
        (b'{"a":' * 60 + b"1" + b"}" * 60, "nested more than 50 levels deep"),
        (b"1" * 5000, "limit"),
    ],
)
def test_the_file_and_the_reason_are_named(tmp_path, content, reason):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.json is not JSON: .*{reason}"):
        read_json(tmp_path / "a.json")
    with pytest.raises(ValueError, match=r"a\.json.* is not JSON"):
        list(read_json_lines(tmp_path / "a.json") if b"\xff" in content else [parse(content)])


def parse(content):
    return parse_json(content.decode(), "a.json, line 3")


def test_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n\n{"a": 2}\n{"a": ')
    assert [row for _, row in read_json_lines(path)] == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n{"a": \n{"a": 2}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2 is not JSON"):
        list(read_json_lines(path))
    path.write_text("[1]\n")
    with pytest.raises(ValueError, match=r"a\.jsonl, line 1 is not an object"):
        list(read_json_lines(path))
