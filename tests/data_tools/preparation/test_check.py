"""check_files: good files, bad files, and files that hang or crash the decoder."""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest
from helpers import preparation_fakes
from helpers.videos import numbered_frames, write_video

from sce_video.data_tools import process_pool
from sce_video.data_tools.preparation.check import check_files, first_frame_error


@pytest.mark.parametrize("workers", [1, 3])
def test_crashes_and_hangs_affect_one_file_only(workers, monkeypatch):
    monkeypatch.setattr(process_pool, "_GRACE", 0.2)
    paths = [f"good{i}" for i in range(20)]
    paths[3:3] = ["bad", "crash1", "hang", "crash2", "exit", "error"]
    done = []
    start = time.monotonic()
    found = check_files(
        paths,
        workers=workers,
        time_limit=0.5,
        check=preparation_fakes.fail_by_name,
        advance=lambda: done.append(1),
    )
    assert time.monotonic() - start < 20
    assert found == {
        "bad": "bad",
        "crash1": "the decoder crashed: the process was killed by SIGKILL",
        "hang": "not done after 0.5 s",
        "crash2": "the decoder crashed: the process was killed by SIGKILL",
        "exit": "the decoder crashed: the process exited with status 3",
        "error": "KeyError: 'error'",
    }
    assert list(found) == paths[3:9]  # in the order of the files
    assert len(done) == 26
    assert not multiprocessing.active_children()


def test_no_files():
    assert check_files([], workers=2, time_limit=1.0) == {}


def test_files_are_spread_over_the_processes():
    found = check_files(
        list("abcdefghijkl"), workers=3, time_limit=5.0, check=preparation_fakes.own_process
    )
    assert len(set(found.values())) == 3
    assert str(os.getpid()) not in found.values()


def test_an_interrupt_leaves_no_process():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_files(
            ["a", "b", "c"],
            workers=2,
            time_limit=30.0,
            check=preparation_fakes.slow_after_a,
            advance=interrupt,
        )
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("workers", "limit"), [(0, 1.0), (1, 0.0), (1, float("nan"))])
def test_bad_numbers(workers, limit):
    with pytest.raises(ValueError, match="must be"):
        check_files(["a"], workers=workers, time_limit=limit)


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
