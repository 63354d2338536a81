"""Progress, with a clock set by the test."""

from __future__ import annotations

import io

from sce_video.utils.command import Progress


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


def test_the_bar_of_a_terminal_shows_rate_time_left_and_failures(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream, now = _Terminal(), [0.0]
    progress = Progress(10, "embedding [a]", stream, clock=lambda: now[0], unit="videos", begin=4)
    now[0] = 2.0
    progress.advance(failed=True)
    progress.finish()
    shown = "embedding [a] 5/10 (50%), 0.5 videos/s, 1 unreadable, 0:00:10 left"
    assert shown in stream.getvalue()
