"""How far a long job is: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_BAR = 24
_TERMINAL_SECONDS, _LOG_SECONDS = 0.1, 30.0


class Progress:
    """Counts videos, their rate and the time left.

    Args:
        stream: Where to write; None is the standard error.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.total = 0
        self.done = 0
        self.failed = 0
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._started = self._shown = time.monotonic()

    def update(self, done: int, total: int, reason: str = "") -> None:
        """``done`` of ``total`` videos are done; the last was unreadable if there is a reason."""
        self.done, self.total = done, total
        self.failed += bool(reason)
        pause = _TERMINAL_SECONDS if self._terminal else _LOG_SECONDS
        if time.monotonic() - self._shown >= pause:
            self._show()

    def close(self) -> None:
        """Show the end."""
        if self.total:
            self._show()
            if self._terminal:
                print(file=self._stream, flush=True)

    def text(self, seconds: float) -> str:
        """The line, when the job has run for some seconds."""
        share = self.done / max(1, self.total)
        rate = self.done / max(seconds, 1e-9)
        bar = "#" * round(_BAR * share) + "." * (_BAR - round(_BAR * share))
        left = _clock((self.total - self.done) / rate) if self.done else "?"
        bad = f", {self.failed} unreadable" if self.failed else ""
        return f"[{bar}] {self.done}/{self.total} videos, {rate:.1f}/s, {left} left{bad}"

    def _show(self) -> None:
        self._shown = time.monotonic()
        line = self.text(self._shown - self._started)
        if self._terminal:
            print(f"\r\x1b[2K{line}", end="", file=self._stream, flush=True)
        else:
            print(line, file=self._stream, flush=True)


def _clock(seconds: float) -> str:
    """65 as 1:05, 3700 as 1:01:40."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
