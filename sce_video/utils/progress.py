"""Progress of a long count, on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO


class Progress:
    """Says how far a count is, with rate and time left.

    On a terminal one line is written over and over; elsewhere (a log file) a line now and then.

    Args:
        total: What is counted to.
        title: First words of the line.
        stream: Where to write, stderr unless given.
        clock: Seconds, for tests.
        every: Seconds between two lines where there is no terminal.
        unit: What is counted.
        begin: What an earlier run has done; no part of the rate.
    """

    def __init__(
        self,
        total: int,
        title: str,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        every: float = 30.0,
        unit: str = "files",
        begin: int = 0,
    ) -> None:
        self.total = total
        self.title = title
        self.unit = unit
        self.count = self._begin = begin
        self.failed = 0
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._terminal = self._stream.isatty()
        self._every = 0.1 if self._terminal else every
        self._start = self._shown = clock()

    def advance(self, failed: bool = False) -> None:
        """One more is done, or has failed."""
        self.count += 1
        self.failed += failed
        now = self._clock()
        if now - self._shown >= self._every and self.count < self.total:
            self._shown = now
            self._write(self.line())

    def finish(self) -> None:
        """Say how it ended."""
        self._write(self.line())
        if self._terminal:
            self._stream.write("\n")
            self._stream.flush()

    def line(self) -> str:
        """The line to show: ``checking 1,200/13,320 (9%), 240 files/s, 0:00:50 left``."""
        seconds = max(self._clock() - self._start, 1e-9)
        rate = (self.count - self._begin) / seconds
        share = 100 * self.count // self.total if self.total else 100
        shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
        text = f"{self.title} {self.count:,}/{self.total:,} ({share}%), {shown} {self.unit}/s"
        text += f", {self.failed} unreadable" if self.failed else ""
        if self.count >= self.total:
            return f"{text}, took {_duration(seconds)}"
        return f"{text}, {_duration((self.total - self.count) / rate) if rate else '?'} left"

    def _write(self, line: str) -> None:
        self._stream.write(f"\r{line}\x1b[K" if self._terminal else f"{line}\n")
        self._stream.flush()


def _duration(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
