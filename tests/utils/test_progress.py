"""The progress line, with a clock of its own."""

from __future__ import annotations

import io

from sce_video.utils.progress import Progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _run(stream, seconds_each, total, every=30.0):
    now = [0.0]
    progress = Progress(total, "checking", stream, clock=lambda: now[0], every=every)
    for _ in range(total):
        now[0] += seconds_each
        progress.advance()
    progress.finish()
    return stream.getvalue()


def test_a_log_file_gets_a_line_now_and_then():
    text = _run(io.StringIO(), 0.5, 200)  # 100 s: after 30, 60 and 90 s, and at the end
    assert text.splitlines() == [
        "checking 60/200 (30%), 2.0 files/s, 0:01:10 left",
        "checking 120/200 (60%), 2.0 files/s, 0:00:40 left",
        "checking 180/200 (90%), 2.0 files/s, 0:00:10 left",
        "checking 200/200 (100%), 2.0 files/s, took 0:01:40",
    ]


def test_a_terminal_gets_one_line_over_and_over():
    text = _run(_Terminal(), 0.05, 4)
    assert text.count("\n") == 1 and text.endswith("\n")
    assert text.split("\r")[1:] == [
        "checking 2/4 (50%), 20 files/s, 0:00:00 left\x1b[K",
        "checking 4/4 (100%), 20 files/s, took 0:00:00\x1b[K\n",
    ]


def test_nothing_to_count():
    stream = io.StringIO()
    Progress(0, "checking", stream, clock=lambda: 0.0).finish()
    assert stream.getvalue() == "checking 0/0 (100%), 0.0 files/s, took 0:00:00\n"


def test_what_an_earlier_run_has_done_is_no_part_of_the_rate():
    stream, now = io.StringIO(), [0.0]
    progress = Progress(
        10, "embedding", stream, clock=lambda: now[0], every=1.0, unit="videos", begin=4
    )
    for failed in (False, True, False):
        now[0] += 2.0
        progress.advance(failed)
    assert stream.getvalue().splitlines() == [
        "embedding 5/10 (50%), 0.5 videos/s, 0:00:10 left",
        "embedding 6/10 (60%), 0.5 videos/s, 1 unreadable, 0:00:08 left",
        "embedding 7/10 (70%), 0.5 videos/s, 1 unreadable, 0:00:06 left",
    ]
