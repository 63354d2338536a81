"""What all command-line tools share: how errors are shown, and the exit status."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from types import FrameType

from sce_video.utils.errors import UserError, message_from_worker
from sce_video.utils.printable import printable_lines, printable_stdout

#: Exit status after an error, that of argparse for a wrong command line. 0 is success, 1 that the
#: work was done and has found problems in the data, 128 + n that signal n has ended it.
ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

Main = Callable[..., int]

#: Errors of a path, also those that our functions raise with a message of their own.
_PATH_ERRORS = (
    FileNotFoundError,
    FileExistsError,
    NotADirectoryError,
    IsADirectoryError,
    PermissionError,
)
#: Errors of the system that a user can mend, even where they name no file.
_SYSTEM_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
#: These packages state wrong settings by ``assert`` and their registries by KeyError.
_ASSERTING = ("mmengine", "mmcv", "mmaction")


def command(main: Main | None = None, *, interrupted: str = "interrupted") -> Callable:
    """Decorator of a tool's ``main(argv) -> exit status``: errors become one line and a status.

    The line is ``TOOL.py: error: MESSAGE`` (``sce-video NAME: error: ...`` for its commands) on
    stderr, for errors that a user can mend (:func:`explain`); all others keep their traceback.
    ``interrupted`` is printed after Ctrl-C; it says how to continue.
    """

    def decorate(function: Main) -> Main:
        file = Path(function.__code__.co_filename).name

        @wraps(function)
        def run(argv: Sequence[str] | None = None) -> int:
            tool = sys.argv[0] if sys.argv[0].startswith("sce-video ") else file
            received: list[int] = []
            try:
                # Names of files and classes, which are printed, are those of strangers.
                with _ended_as_by_interrupt(received), printable_stdout():
                    status = function(argv)
                return 128 + received[0] if received and status == INTERRUPTED else status
            except BrokenPipeError:  # the reader has enough: sce-video ... | head
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return BROKEN_PIPE
            except KeyboardInterrupt:
                with suppress(OSError):  # the terminal is closed
                    print(f"\n{tool}: {interrupted}", file=sys.stderr)
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
    """Let SIGTERM and SIGHUP (a closed terminal) end the block as Ctrl-C does; notes which came.

    Where they are ignored, as SIGHUP under ``nohup``, or handled already, nothing changes.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != owner:  # a forked child
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


def explain(error: BaseException) -> str | None:
    """The message to show for an error that a user can mend; None where the traceback matters.

    The type decides: wrong values, files that are missing or cannot be read or written, a full
    disk, and every :class:`~sce_video.utils.errors.UserError`.
    """
    if isinstance(error, OSError) and not isinstance(error, UserError):
        mendable = isinstance(error, _PATH_ERRORS) or error.filename is not None
        mendable = mendable or error.errno in _SYSTEM_ERRORS
        return str(error) if mendable else None
    if isinstance(error, AssertionError | KeyError):
        frames = traceback.extract_tb(error.__traceback__)
        names = Path(frames[-1].filename).parts if frames else ()
        return str(error.args[0]) if error.args and set(names) & set(_ASSERTING) else None
    if isinstance(error, ValueError | UserError):
        return message_from_worker(str(error), type(error))
    if type(error).__name__ == "OutOfMemoryError":  # of torch, which need not be imported here
        return f"the GPU's memory is full ({str(error).splitlines()[0]}): lower the batch size"
    return None
