"""Printable text, progress, errors and exit statuses of all command-line tools."""

from __future__ import annotations

import atexit
import errno
import gc
import logging
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import timedelta
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, cast

from sce_video.options.command_line import parse
from sce_video.options.declare import Options
from sce_video.utils.errors import UserError, message_from_worker
from sce_video.utils.own_parts import own_imports

#: Control sequences that a log may send to a terminal, namely line ends, tabs and colours
_KEPT = re.compile(r"(\n|\t|\x1b\[[0-9;]*m)")


def printable(text: str, stream: TextIO | None = None) -> str:
    r"""Replace characters that a terminal would act on, or that a stream cannot show.

    Control characters, such as escape sequences and line breaks inside a name, are written as in
    Python (``\x1b``). Characters that the stream cannot encode become question marks. By default,
    the stream is stdout.
    """
    encoding = (stream or sys.stdout).encoding or "utf-8"
    return _escape_controls(text).encode(encoding, "replace").decode(encoding)


def printable_lines(text: str, stream: TextIO | None = None) -> str:
    """Make text printable like :func:`printable`, but keep its line breaks."""
    return "\n".join(printable(line, stream) for line in text.split("\n"))


def printable_utf8(text: str) -> str:
    """Make text printable in UTF-8. Bytes of file names that are not UTF-8 become U+FFFD."""
    return _escape_controls(text).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def printable_values(value: Any) -> Any:
    """Return a copy of JSON data in which all keys and texts are :func:`printable_utf8`."""
    if isinstance(value, dict):
        return {printable_utf8(str(k)): printable_values(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [printable_values(item) for item in value]
    return printable_utf8(value) if isinstance(value, str) else value


@contextmanager
def printable_stdout() -> Iterator[None]:
    """Make all output of a block :func:`printable`, but keep line breaks, tabs and colours."""
    with redirect_stdout(cast(TextIO, _PrintableStream(sys.stdout))):
        yield


class _PrintableStream:
    """A stream that makes everything printable before it is written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        parts = _KEPT.split(text)
        # The split returns text and kept sequences in turn, so change only every second part.
        parts[::2] = [printable(part, self._stream) for part in parts[::2]]
        self._stream.write("".join(parts))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _escape_controls(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        # Keep surrogates that stand for bytes of file names.
        c if c.isprintable() or 0xDC80 <= ord(c) <= 0xDCFF else ascii(c)[1:-1]
        for c in text
    )


#: Exit status after an error. argparse uses it for wrong command lines, too. 0 means success, 1
#: means that the work was done but found problems in the data, and 128 + n means that signal n
#: ended the process.
ERROR = 2
#: Exit status after Ctrl-C, which is 128 plus the number of SIGINT
INTERRUPTED = 130
#: Message after Ctrl-C for commands that record their results one by one
RESUMABLE = "interrupted; the same command resumes from here"
#: Exit status if nobody reads the output any more, which is 128 plus the number of SIGPIPE
BROKEN_PIPE = 141

Main = Callable[..., int]

#: Errors about paths, including those that our functions raise with their own messages
_PATH_ERRORS = (
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
    PermissionError,
)
#: System errors that a user can fix, even if they name no file
_SYSTEM_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
#: Packages that report wrong settings by ``assert``, and unknown names in registries by KeyError
_ASSERTING = ("mmengine", "mmcv", "mmaction")


def command(
    main: Main | None = None,
    *,
    options: type[Options] | None = None,
    interrupted: str = "interrupted",
) -> Callable:
    """Decorate the ``main`` function of a tool, so that errors become one line and an exit status.

    Errors that a user can fix (:func:`explain`) are printed to stderr, as ``TOOL.py: error:
    MESSAGE`` or, for a command, ``sce-video NAME: error: MESSAGE``. All other errors keep their
    traceback. The modules of ``--import`` are imported first, and this option is removed from the
    command line. ``main`` receives its other words, or with ``options`` an object of this class.
    ``interrupted`` is printed after Ctrl-C, unless the KeyboardInterrupt has its own text. It
    explains how to continue.
    """

    def decorate(function: Main) -> Main:
        file = Path(function.__code__.co_filename).name

        @wraps(function)
        def run(argv: Sequence[str] | None = None) -> int:
            tool = sys.argv[0] if sys.argv[0].startswith("sce-video ") else file
            received: list[int] = []
            try:
                # Escape the output, because printed names of files and classes may be untrusted.
                with (
                    _ended_as_by_interrupt(received),
                    printable_stdout(),
                    own_imports(argv) as words,
                ):
                    status = function(words if options is None else parse(options, words))
                return 128 + received[0] if received and status == INTERRUPTED else status
            except BrokenPipeError:  # the reader has stopped, as in sce-video ... | head
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return BROKEN_PIPE
            except KeyboardInterrupt as error:
                with suppress(OSError):  # the terminal may be closed
                    text = printable(str(error) or interrupted, sys.stderr)
                    print(f"\n{tool}: {text}", file=sys.stderr)
                return 128 + received[0] if received else INTERRUPTED
            except Exception as error:
                message = explain(error)
                if message is None:
                    raise
                print(printable_lines(f"{tool}: error: {message}", sys.stderr), file=sys.stderr)
                return ERROR

        return run

    return decorate if main is None else decorate(main)


@contextmanager
def _ended_as_by_interrupt(received: list[int]) -> Iterator[None]:
    """Let SIGTERM and SIGHUP (a closed terminal) end the block like Ctrl-C, and record them.

    Signals that are ignored, such as SIGHUP under ``nohup``, or handled already are not changed.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != owner:  # this is a forked child
            os.kill(os.getpid(), number)
        received.append(number)
        raise KeyboardInterrupt

    owner, changed = os.getpid(), []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, end)
                changed.append(number)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect cyclic garbage after a million new objects instead of a thousand, in a short command.

    Imports make half a million objects that are never freed. Checking them again and again takes a
    third of the processor time of a search.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(1_000_000)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


@contextmanager
def without_log_messages() -> Iterator[None]:
    """Suppress log messages up to the level of warnings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def explain(error: BaseException) -> str | None:
    """Return the message for an error that a user can fix, or None if the traceback matters.

    The type of the error decides. Users can fix wrong values, files that are missing or cannot be
    read or written, a full disk, and every :class:`~sce_video.utils.errors.UserError`.
    """
    if isinstance(error, OSError) and not isinstance(error, UserError):
        fixable = isinstance(error, _PATH_ERRORS) or error.filename is not None
        fixable = fixable or error.errno in _SYSTEM_ERRORS
        text = str(error)
        # If the system raised the error, its message contains only a number and a name.
        if text.startswith("[Errno") and error.errno == errno.ENOENT and error.filename:
            text = f"there is no file or folder {os.fsdecode(error.filename)}"
        return text if fixable else None
    if isinstance(error, AssertionError | KeyError):
        frames = traceback.extract_tb(error.__traceback__)
        names = Path(frames[-1].filename).parts if frames else ()
        return str(error.args[0]) if error.args and set(names) & set(_ASSERTING) else None
    if isinstance(error, ValueError | UserError):
        return message_from_worker(str(error), type(error))
    if type(error).__name__ == "OutOfMemoryError":  # recognised without importing torch
        return f"the GPU's memory is full ({str(error).splitlines()[0]}). Lower the batch size"
    return None


_REDRAW_SECONDS = 0.1  # seconds between two updates of a bar


class Progress:
    """Progress display with count, rate, remaining time and failures.

    Args:
        total: Number to count to.
        title: First words of the line.
        stream: Stream to write to; stderr by default.
        clock: Function that returns the time in seconds, for tests.
        every: Seconds between two lines in a log file.
        unit: Name of what is counted, in the plural.
        begin: Number that an earlier run has done, which is not part of the rate.
        write: Function that receives the lines of a log, even on a terminal, instead of a bar.
        quiet: Whether a log gets no final line if the work took less than ``every`` seconds.
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
        from rich.console import Console  # imported here because log files do not need it
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = TextColumn("{task.description}", markup=False), BarColumn(20)
        # Turn auto_refresh off, because a forked loader worker would inherit its thread's locks.
        bar = Bar(*columns, console=Console(file=self._stream), auto_refresh=False)
        bar.add_task(self.line(), total=self.total, completed=self.count)
        bar.start()
        atexit.register(bar.stop)  # an interrupt must not leave the cursor hidden
        return bar

    def advance(self, failed: int = 0, count: int = 1) -> None:
        """Add to the count, and to the number of failures."""
        self.count += count
        self.failed += failed
        every = self._every if self._bar is None else _REDRAW_SECONDS
        if self._clock() - self._shown >= every and self.count < self.total:
            self._show()

    def finish(self) -> None:
        """Show the final count and the total time."""
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
        """Return the text to show, ``checking 1,200/13,320 (9%), 240 files/s, 0:00:50 left``."""
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


#: Maximum number of failures that a command prints. Further failures are only counted.
_SHOWN = 20


def shown_failures(
    failures: Sequence[tuple[str, str]], where: str = "", most: int = _SHOWN
) -> list[str]:
    """Return a line for each of the first failures, and one that counts the rest.

    Args:
        failures: Path and reason of each failure.
        where: Place where the rest is listed, which ends the last line.
        most: Maximum number of failures with a line of their own.
    """
    lines = [printable_utf8(f"  {path}: {reason}") for path, reason in failures[:most]]
    rest = len(failures) - most
    return [*lines, f"  and {rest:,} more{where}"] if rest > 0 else lines


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, bool], None]]:
    """Show a progress bar for videos, and yield a function of (total, failed) that counts one."""
    bar: Progress | None = None

    def count(total: int, failed: bool) -> None:
        nonlocal bar
        bar = bar or Progress(total, title, unit="videos")
        bar.advance(failed)

    try:
        yield count
    finally:
        if bar is not None:
            bar.finish()


def file_progress(name: str, title: str) -> Callable[[int, int, bool], None]:
    """Return a function of (done, total, failed) that shows the progress over files.

    Args:
        name: Name of the command.
        title: First words of the progress line.
    """
    bar: Progress | None = None

    def show(done: int, total: int, failed: bool) -> None:
        nonlocal bar
        if bar is None:
            print(f"{name}: {total - done} of {total} files to do", file=sys.stderr)
            bar = Progress(total, title, begin=done)
        else:
            bar.advance(failed)
            if done == total:
                bar.finish()

    return show
