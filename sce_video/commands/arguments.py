"""What the command lines share: the parser, types of values, and checks of what is named.

Nothing here needs torch: a wrong command line is answered before the libraries are imported, which
takes seconds.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sce_video.datasets.sources import is_table, is_table_folder, split_row_path
from sce_video.datasets.video_list import VIDEO_EXTENSIONS, check_folder
from sce_video.utils.progress import Progress
from sce_video.utils.run_files import MODEL_PREFIX, is_model, newest_checkpoint
from sce_video.utils.storage import is_url, walk_files

_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|npu|hpu|mlu|musa|xla|meta)(:\d{1,4})?")


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and name the option that an unknown one resembles."""

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """The arguments; ends the process with status 2 for others than the parser's."""
        given, rest = self.parse_known_args(args, namespace)
        if rest:
            word = next((word for word in rest if word.startswith("-")), rest[0]).partition("=")[0]
            near = difflib.get_close_matches(word, self._option_string_actions, 1)
            what = "no option" if word.startswith("-") else "one argument too many,"
            self.error(f"{what} {word}{f', meant {near[0]}?' if near else ''}")
        return given

    def error(self, message: str) -> Any:
        """Print the message, after the usage only where something is missing, and exit.

        Raises:
            ValueError: a number out of its range, as for any other wrong value.
        """
        found = re.fullmatch(r"argument (\S+): (must .+)", message, re.DOTALL)
        if found:
            raise ValueError(f"{found[1]} {found[2]}")
        if message.startswith("the following arguments are required"):
            self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message} ({self.prog} --help)\n")


def number(
    kind: type[int] | type[float],
    least: float | None = None,
    *,
    above: float | None = None,
    most: float | None = None,
) -> Callable[[str], float]:
    """The ``type`` of an option that takes a number of a range."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"must be {what}, got {text!r}") from None
        bounds = [
            (f"at least {least}", least is None or value >= least),
            (f"above {above}", above is None or value > above),
            (f"at most {most}", most is None or value <= most),
        ]
        if not all(holds for _, holds in bounds):  # of NaN nothing holds
            words = " and ".join(name for name, _ in bounds if not name.endswith("None"))
            raise argparse.ArgumentTypeError(f"must be {words}, got {text}")
        return value

    return read


def device(text: str) -> str:
    """The ``type`` of ``--device``; whether this machine has it, torch knows."""
    if _DEVICE.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"give cpu, cuda or cuda:1, got {text!r}")
    return text


def pattern(text: str) -> str:
    """The ``type`` of an option that takes a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None
    return text


def add_device_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--device``."""
    parser.add_argument(
        "--device", type=device, help="cuda:1, cpu, ... (default: a GPU if there is one)"
    )


def check_run(run: str | Path) -> None:
    """See that RUN names a checkpoint, as far as this can be seen without reading or downloading.

    Raises:
        FileNotFoundError: a folder without checkpoints, or no such file.
        ValueError: ``hf:`` and neither a folder nor a name.
    """
    if is_model(run):
        name = str(run).removeprefix(MODEL_PREFIX)
        if not os.path.isdir(name) and name.count("/") != 1:
            raise ValueError(f"{name} is neither a folder nor a name on the hub (owner/model)")
    elif not is_url(run) and not os.path.isfile(path := newest_checkpoint(run)):
        raise FileNotFoundError(f"no checkpoint at {path} (local files, s3:// and gs:// are read)")


def check_videos(root: str, extensions: Sequence[str] = VIDEO_EXTENSIONS) -> None:
    """See that there is a table, or a folder with a video in it.

    Raises:
        FileNotFoundError: no such table.
        ValueError: no such folder, or none in it.
    """
    if is_table(root):
        check_exists(root, "table")
        return
    check_folder(root)
    if next(walk_files(root, extensions), None) is None:
        raise ValueError(f"no video in {root!r}; searched for {' '.join(extensions)}")


def check_exists(path: str | os.PathLike[str], what: str) -> None:
    """Raise FileNotFoundError for a missing local path; a URL or a row of a table is not asked."""
    name = os.fspath(path)
    if not is_url(name) and split_row_path(name) is None and not os.path.exists(name):
        raise FileNotFoundError(f"no {what} at {name}")


def check_index(folder: str) -> None:
    """Raise FileNotFoundError unless a folder holds an index, or is a table."""
    if is_table_folder(folder):
        return
    if not any(file for kind in ("features*", "records*") for file in Path(folder).glob(kind)):
        raise FileNotFoundError(
            f"there is no index in {folder}: sce-video index VIDEOS --checkpoint RUN --out {folder}"
        )


def check_source(
    source: str, data_root: str | None, extensions: Sequence[str] = VIDEO_EXTENSIONS
) -> None:
    """See that there is an annotation list or a folder with a video.

    Raises:
        FileNotFoundError: no such list, or folder that its paths are relative to.
        ValueError: no video in the folder, or a folder with a ``data_root``.
    """
    if os.path.isdir(source) and data_root is None:
        check_videos(source, extensions)
    elif os.path.isdir(source):
        raise ValueError(f"{source} is a folder: --data-root goes with an annotation list")
    else:
        check_exists(source, "list or folder")
        if data_root is not None:
            check_exists(data_root, "folder")


def add_decoding_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--workers``, ``--timeout`` and ``--max-views``."""
    parser.add_argument(
        "--workers",
        type=number(int, 0),
        default=min(8, len(os.sched_getaffinity(0))),
        help="decoding processes (default: one per core, at most 8)",
    )
    parser.add_argument(
        "--timeout",
        type=number(float, above=0),
        default=60.0,
        help="time limit for decoding a file, s",
    )
    parser.add_argument(
        "--max-views", type=number(int, 1), default=32, help="largest batch of views (default: 32)"
    )


def add_ray_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--ray``."""
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run on a Ray cluster: its address, or 'auto' for the one that this machine belongs "
        "to; --workers then limits the files in progress (default: on this machine)",
    )


def add_gpu_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--processes-per-gpu``."""
    parser.add_argument(
        "--processes-per-gpu",
        type=number(int, 1),
        default=4,
        metavar="N",
        help="with --ray, processes that share a GPU of the cluster (default: %(default)s)",
    )


class FileProgress:
    """Prints the number of files to do, then the progress, to stderr.

    Args:
        name: Of the command.
        title: What it does.
    """

    def __init__(self, name: str, title: str) -> None:
        self._name, self._title = name, title
        self._progress: Progress | None = None

    def __call__(self, done: int, total: int, failed: bool) -> None:
        """Show that ``done`` of ``total`` files are done, of which the last one may have failed."""
        if self._progress is None:
            print(f"{self._name}: {total - done} of {total} files to do", file=sys.stderr)
            self._progress = Progress(total, self._title, begin=done)
            if done == total:
                return
        else:
            self._progress.advance(failed)
        if done == total:
            self._progress.finish()
