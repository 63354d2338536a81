"""Progress of a long count on stderr: a bar on a terminal, a line now and then in a log file."""

from __future__ import annotations

import atexit
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TextIO

_REDRAW_SECONDS = 0.1  # of a bar


class Progress:
    """Shows count, rate, time left and failures.

    Args:
        total: Number to count to.
        title: First words of the line.
        stream: Stream to write to, stderr by default.
        clock: Gives the time in seconds, for tests.
        every: Seconds between two lines of a log file.
        unit: Name of what is counted.
        begin: Number done by an earlier run, which the rate leaves out.
        write: Gets the lines of a log, also on a terminal, where there is no bar then.
        quiet: A log gets no line at the end of a count that took less than ``every``.
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
        write: Callable[[str], None] | None = None,
        quiet: bool = False,
    ) -> None:
        self.total, self.title, self.unit = total, title, unit
        self.count = self._begin = begin
        self.failed = 0
        self._stream = stream if stream is not None else sys.stderr
        self._write, self._quiet = write, quiet
        self._clock, self._every = clock, every
        self._start = self._shown = clock()
        self._bar = self._start_bar() if write is None and self._stream.isatty() else None

    def _start_bar(self) -> Any:
        from rich.console import Console  # here: log files need not pay for the import
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = TextColumn("{task.description}", markup=False), BarColumn(20)
        # Without a thread, whose locks a forked loader worker would inherit.
        bar = Bar(*columns, console=Console(file=self._stream), auto_refresh=False)
        bar.add_task(self.line(), total=self.total, completed=self.count)
        bar.start()
        atexit.register(bar.stop)  # shows the cursor again after an interrupt
        return bar

    def advance(self, failed: int = 0, count: int = 1) -> None:
        """Count one more, or several, of which some may have failed."""
        self.count += count
        self.failed += failed
        every = self._every if self._bar is None else _REDRAW_SECONDS
        if self._clock() - self._shown >= every and self.count < self.total:
            self._show()

    def finish(self) -> None:
        """Show the final count and the time taken."""
        if self._bar is not None:
            self._show()
            self._bar.stop()
        elif not self._quiet or self._clock() - self._start >= self._every:
            self._show()

    def _show(self) -> None:
        self._shown = self._clock()
        if self._bar is not None:
            shown = {"completed": self.count, "description": self.line()}
            self._bar.update(self._bar.task_ids[0], refresh=True, **shown)
        elif self._write is not None:
            self._write(self.line())
        else:
            print(self.line(), file=self._stream, flush=True)

    def line(self) -> str:
        """The text to show: ``checking 1,200/13,320 (9%), 240 files/s, 0:00:50 left``."""
        seconds = max(self._clock() - self._start, 1e-9)
        rate = (self.count - self._begin) / seconds
        share = 100 * self.count // self.total if self.total else 100
        shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
        text = f"{self.title} {self.count:,}/{self.total:,} ({share}%), {shown} {self.unit}/s"
        text += f", {self.failed} unreadable" if self.failed else ""
        if self.count >= self.total:
            return f"{text}, took {timedelta(seconds=round(seconds))}"
        left = timedelta(seconds=round((self.total - self.count) / rate)) if rate else "?"
        return f"{text}, {left} left"
