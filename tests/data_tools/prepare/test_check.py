"""The check of listed files: good files, bad files, and files that hang or crash the decoder."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest
from helpers import preparation_fakes
from helpers.videos import numbered_frames, write_video

from sce_video.data_tools.prepare.lists import CheckJob, check_files, first_frame_error
from sce_video.jobs import RecordStore, Workers, process_pool


def touch(folder, names):
    for name in names:
        (folder / name).touch()
    return list(names)


def check(folder, names, function, *, workers=2, limit=5.0, records=None):
    return check_files(names, CheckJob(folder, function), records, Workers(workers, limit))


@pytest.mark.parametrize("workers", [1, 3])
def test_crashes_and_hangs_affect_one_file_only(workers, tmp_path, monkeypatch):
    monkeypatch.setattr(process_pool, "_GRACE", 0.2)
    names = [f"good{i}" for i in range(20)]
    names[3:3] = ["bad", "crash1", "hang", "crash2", "exit", "error"]
    touch(tmp_path, names)
    start = time.monotonic()
    found = check(
        tmp_path, [*names, "gone"], preparation_fakes.fail_by_name, workers=workers, limit=2.0
    )
    assert time.monotonic() - start < 50  # the hanging check sleeps for 60
    assert list(found) == [*names, "gone"]  # in the order of the files
    assert {name: reason for name, reason in found.items() if reason is not None} == {
        "bad": "bad",
        "crash1": "the decoder crashed: the process was killed by SIGKILL",
        "hang": "not done after 2 s",
        "crash2": "the decoder crashed: the process was killed by SIGKILL",
        "exit": "the decoder crashed: the process exited with status 3",
        "error": "KeyError: 'error'",
        "gone": "there is no such file",
    }
    assert not multiprocessing.active_children()


def test_no_files(tmp_path):
    assert check(tmp_path, [], preparation_fakes.own_process) == {}


def test_files_are_checked_again_when_they_change_or_their_check_failed(tmp_path):
    """The number of the process tells which run has checked a file."""
    names, records = touch(tmp_path, "abcdef"), tmp_path / "records.sqlite"
    first = check(tmp_path, names, preparation_fakes.own_process, records=records)
    assert str(os.getpid()) not in first.values()  # one process may be quicker than the other
    (tmp_path / "b").write_text("changed")
    second = check(tmp_path, [*names, "gone"], preparation_fakes.own_process, records=records)
    assert [name for name in names if first[name] != second[name]] == ["b"]
    assert second["gone"] == "there is no such file"
    touch(tmp_path, ["gone"])
    third = check(tmp_path, [*names, "gone"], preparation_fakes.own_process, records=records)
    assert third["gone"].isdecimal() and third["b"] == second["b"]


def test_an_interrupt_leaves_no_process_and_keeps_what_is_checked(tmp_path, monkeypatch):
    names, records = touch(tmp_path, "abc"), tmp_path / "records.sqlite"

    def interrupt(self, failed=False):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("sce_video.utils.progress.Progress.advance", interrupt)
        check(tmp_path, names, preparation_fakes.slow_after_a, limit=30.0, records=records)
    assert not multiprocessing.active_children()
    with RecordStore(records, CheckJob.name) as store:
        assert [record.key for record in store] == ["a"]


@pytest.mark.parametrize(("workers", "limit"), [(-1, 1.0), (1, 0.0), (1, float("nan"))])
def test_bad_numbers(workers, limit, tmp_path):
    with pytest.raises(ValueError, match="must be"):
        check(tmp_path, ["a"], preparation_fakes.own_process, workers=workers, limit=limit)


def test_first_frame_error(tmp_path):
    good = write_video(tmp_path / "good.mp4", numbered_frames(20))
    assert first_frame_error(str(good)) is None
    data = good.read_bytes()
    for name, content in (("empty", b""), ("text", b"no video\n" * 50), ("cut", data[:200])):
        (tmp_path / f"{name}.mp4").write_bytes(content)
        assert first_frame_error(str(tmp_path / f"{name}.mp4"))
    assert first_frame_error(str(tmp_path / "empty.mp4")) == "is empty (0 bytes)"
    assert first_frame_error(str(tmp_path / "gone.mp4")) == (
        "cannot be opened: No such file or directory"
    )
    assert first_frame_error(str(tmp_path)) == "is not a regular file"
    os.mkfifo(tmp_path / "pipe.mp4")
    assert first_frame_error(str(tmp_path / "pipe.mp4")) == "is not a regular file"


def test_only_the_first_frame_is_decoded(tmp_path):
    """verify.py finds damage further on; this check is the fast one."""
    path = write_video(tmp_path / "v.avi", numbered_frames(40), codec="mpeg4", options={"g": "1"})
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 3000] = bytes(3000)
    path.write_bytes(data)
    assert first_frame_error(str(path)) is None
