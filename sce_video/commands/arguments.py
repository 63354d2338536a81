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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

from sce_video.datasets.clip_sampling import Windows, parse_seconds
from sce_video.datasets.labelled import NO_COLUMNS, GroupColumns, LabelledVideos
from sce_video.datasets.sources import (
    check_folder,
    describe_others,
    find_files,
    is_elsewhere,
    is_table,
    is_table_folder,
    listed_extensions,
    no_file,
)
from sce_video.datasets.video_list import ALL_FILES, video_of
from sce_video.utils.command import Progress, printable
from sce_video.utils.files import read_text
from sce_video.utils.run_files import MODEL_PREFIX, is_model, newest_checkpoint
from sce_video.utils.storage import is_url

#: Of :mod:`sce_video.engine.logs`, whose import takes seconds.
TRACKERS = ("mlflow", "wandb")
#: What a command takes as a trained network.
RUN = "run or checkpoint, also s3://...; or a model of transformers: hf:FOLDER, hf:OWNER/MODEL"
T = TypeVar("T")
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
    """The ``type`` of an option that takes a number of a range.

    The function returned parses the text as ``kind`` and refuses a value below ``least`` or above
    ``most``, both allowed themselves, or not larger than ``above``; NaN where there is a bound.
    :meth:`Parser.error` makes the refusal a ValueError, so the command ends with status 2.
    """

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(f"must be {what}, got {text!r}") from None
        tests = {
            f"at least {least}": least is None or value >= least,
            f"above {above}": above is None or value > above,
            f"at most {most}": most is None or value <= most,
        }
        if not all(tests.values()):  # of NaN nothing holds
            words = " and ".join(name for name in tests if not name.endswith("None"))
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


class _ListAllFiles(argparse.Action):
    """The switch ``--all-files``, which is no value of a command but of all listings."""

    def __call__(self, *_: Any) -> None:
        os.environ[ALL_FILES] = "1"


def add_columns(add: Options) -> None:
    """Add ``--group-column`` and ``--fold-column``, of which :func:`given_columns` makes one."""
    group = "column of the CSV file with groups (person, scene): a group is tested as a whole"
    add("--group-column NAME", group)
    fold = "column with folds, which are used as they are"
    add("--fold-column NAME", fold)


def given_columns(args: argparse.Namespace, source: str | None) -> GroupColumns:
    """The columns of the command line, which are taken out of it.

    Raises:
        ValueError: together with a pattern, or of something else than a CSV file.
    """
    columns = GroupColumns(args.group_column, args.fold_column)
    del args.group_column, args.fold_column
    if columns != NO_COLUMNS:
        if getattr(args, "group_pattern", None) is not None:
            raise ValueError("groups are named by --group-pattern or by columns. Remove one")
        columns.check(source)
    return columns


#: What ``--folds`` does.
FOLDS = (
    "with groups: number of folds, or loo for one of each group (default: loo below 20, else 10)"
)


def fold_count(text: str) -> int | str:
    """The ``type`` of ``--folds``."""
    if text == "loo":
        return text
    try:
        return int(number(int, 2)(text))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"must be loo or a whole number of at least 2, got {text!r}"
        ) from None


def output(kind: Callable[[str], T]) -> Callable[[str], T]:
    """The ``type`` of an option that takes a file or folder to be made, or a URL.

    A place where nothing can be written is refused before hours of work, not after them.
    """

    def read(text: str) -> T:
        path = Path(os.path.abspath(text))
        # Its own folder, or of those around it the first that there is.
        around = [path] * path.is_dir() + list(path.parents)
        nearest = next(folder for folder in around if os.path.lexists(folder))
        reason = "" if os.access(nearest, os.W_OK | os.X_OK) else f"no rights to write in {nearest}"
        reason = reason if nearest.is_dir() else f"{nearest} is not a folder"
        if reason and not is_url(text):
            must = f"must be a path that can be written, got {text}: {reason}"
            raise argparse.ArgumentTypeError(must)
        return kind(text)

    return read


#: Options that several commands take, by name: the settings of ``add_argument``.
_SHARED: dict[str, dict[str, Any]] = {
    "--device": dict(type=device, help="cuda:1, cpu, ... (default: a GPU if there is one)"),
    "--config": dict(help="config file, if the checkpoint contains none"),
    "--backend": dict(
        help="decoder of all videos: av, decord or torchcodec (default: the config's)"
    ),
    "--launcher": dict(choices=["none", "pytorch", "slurm"], default="none"),
    "--labels": dict(metavar="LIST", help="list with 'path label' on every line"),
    "--timeout": dict(
        type=number(float, above=0), default=60.0, help="time limit for decoding a file, s"
    ),
    "--max-views": dict(
        type=number(int, 1), default=32, help="largest batch of views (default: 32)"
    ),
    "--ray": dict(
        metavar="ADDRESS",
        help="run on a Ray cluster: its address, or 'auto' for the one that this machine belongs "
        "to; --workers then limits the files in progress (default: on this machine)",
    ),
    "--processes-per-gpu": dict(
        type=number(int, 1),
        default=4,
        metavar="N",
        help="with --ray, processes that share a GPU of the cluster (default: %(default)s)",
    ),
    "--workers": dict(
        type=number(int, 1), help="processes (default: all cores, of the cluster with --ray)"
    ),
    "--data-root": dict(
        help="folder the paths of a list are relative to (default: the list's or the current one)"
    ),
    "--windows": dict(
        metavar="TIME",
        help="divide every video into windows of this length, 5s or 0:30 (default: whole videos, "
        "or those of an index that exists)",
    ),
    "--stride": dict(metavar="TIME", help="from one window to the next (default: their length)"),
    "--shots": dict(action="store_true", help="find cuts first: no window reaches across one"),
    "--all-files": dict(
        action=_ListAllFiles,
        nargs=0,
        dest=argparse.SUPPRESS,
        help="of folders: also read files of unknown extensions, if they hold a video",
    ),
    "--track": dict(
        action="append",
        default=[],
        choices=TRACKERS,
        help="log to Weights & Biases or MLflow, too; may be given twice (docs/logging.md)",
    ),
    "--mirror": dict(
        metavar="URL",
        help="copy checkpoints and logs to this folder of an object store, s3://BUCKET/RUN; with "
        "--resume a newer run there is restored first (docs/object_storage.md)",
    ),
}


class More(TypedDict, total=False):
    """Settings of ``add_argument`` that an option may have, besides help, type and metavar."""

    default: Any
    choices: Sequence[Any]
    nargs: str | int
    const: Any
    required: bool
    dest: str
    metavar: tuple[str, ...]


class Options:
    """Adds options to a parser, or to a group of one, with less to write than argparse asks for.

    A name may be followed by a metavar, ``"--keep LIST"``; the type ``bool`` makes a switch, and
    ``BooleanOptionalAction`` one that ``--no-`` turns off.
    """

    def __init__(self, container: argparse._ActionsContainer) -> None:
        self._container = container

    def __call__(
        self, name: str, text: str | None, kind: Any = None, **settings: Unpack[More]
    ) -> None:
        """Add an option or, without dashes, an argument."""
        name, _, metavar = name.partition(" ")
        given: dict[str, Any] = {"action": "store_true"} if kind is bool else {"type": kind}
        if kind is argparse.BooleanOptionalAction:
            given = {"action": kind}
        given |= {"metavar": metavar} if metavar else {}
        self._container.add_argument(name, help=text, **given | {**settings})

    def shared(self, *names: str) -> None:
        """Add options that several commands take, each with its one type, default and text."""
        for name in names:
            self._container.add_argument(name, **_SHARED[name])

    def changes(self, example: str) -> None:
        """Add ``--cfg-options``."""
        text = f"change the config, for example {example}; unknown keys are refused"
        self("--cfg-options KEY=VALUE", text, nargs="+", default=[])

    def group(self, title: str, text: str | None = None) -> Options:
        """For the options of a group with a title."""
        return Options(self._container.add_argument_group(title, text))

    def exclusive(self, required: bool = False) -> Options:
        """For options of which one may be given."""
        return Options(self._container.add_mutually_exclusive_group(required=required))


def command_line(
    description: str | None = None,
    epilog: str | None = None,
    *,
    prog: str | None = None,
    usage: str | None = None,
    as_written: bool = False,
    allow_abbrev: bool = True,
) -> tuple[Parser, Options]:
    """A parser, whose texts may keep their line breaks, and what adds its options."""
    kind = argparse.RawDescriptionHelpFormatter if as_written else argparse.HelpFormatter
    parser = Parser(
        prog, usage, description, epilog, formatter_class=kind, allow_abbrev=allow_abbrev
    )
    return parser, Options(parser)


def chosen(kind: type[T], args: argparse.Namespace) -> T:
    """A dataclass of the options that have the names of its fields."""
    names = [field.name for field in fields(kind) if hasattr(args, field.name)]  # type: ignore[arg-type]
    return kind(**{name: getattr(args, name) for name in names})


def given_windows(args: argparse.Namespace, stored: Windows | None = None) -> Windows | None:
    """The windows of the command line, or the stored ones.

    Raises:
        ValueError: a stride or shots without windows, or a time that cannot be read.
    """
    if args.windows is None:
        if args.stride is not None or args.shots:
            raise ValueError("--stride and --shots need --windows: --windows 5s --stride 2.5s")
        return stored
    stride = None if args.stride is None else parse_seconds(args.stride)
    return Windows(parse_seconds(args.windows), stride, args.shots)


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


def check_videos(root: str, extensions: Sequence[str] | None = None) -> None:
    """See that there is a table, or a folder with a video; print what of the folder is left out.

    Raises:
        FileNotFoundError: no such table.
        ValueError: no such folder, a file in its place, or no video in it.
    """
    if is_table(root):
        check_exists(root, "table")
        return
    if os.path.isfile(root):
        raise ValueError(f"{root} is a file: give a folder of videos, or a table (v.lance)")
    check_folder(root)
    tell_others(root, extensions)


def tell_others(root: str, extensions: Sequence[str] | None = None) -> None:
    """Print how many files of a folder are no videos by their names, and so left out.

    Raises:
        ValueError: no video in the folder.
    """
    extensions = listed_extensions() if extensions is None else extensions
    found, others = find_files(root, extensions)
    if not found:
        raise ValueError(no_file(root, extensions, others))
    if others and os.environ.get("RANK", "0") == "0":  # of a launch with several processes one
        count = f"{len(found)} video{'s' * (len(found) != 1)}"
        text = f"{root}: {count}, and {describe_others(others, extensions)}"
        print(printable(text, sys.stderr), file=sys.stderr, flush=True)


def tell_repeated(*sets: LabelledVideos | None) -> None:
    """Print which videos of labelled sets are listed several times, or with several labels."""
    for line in (line for one in sets if one is not None for line in one.repeated()):
        print(printable(line, sys.stderr), file=sys.stderr, flush=True)


def check_exists(path: str | os.PathLike[str] | None, what: str) -> None:
    """Raise FileNotFoundError for a missing local path; a URL or a row of a table is not asked."""
    if path is None:
        return
    name = os.fspath(path)
    if not is_elsewhere(name) and not os.path.exists(video_of(name)):
        raise FileNotFoundError(f"no {what} at {name}")


def check_index(folder: str) -> None:
    """Raise FileNotFoundError unless a folder holds an index, or is a table."""
    files = (file for kind in ("features*", "records*") for file in Path(folder).glob(kind))
    if not is_table_folder(folder) and next(files, None) is None:
        raise FileNotFoundError(
            f"there is no index in {folder}: sce-video index VIDEOS --checkpoint RUN --out {folder}"
        )


def check_source(
    source: str, data_root: str | None, extensions: Sequence[str] | None = None
) -> None:
    """See that there is an annotation list or a folder with a video.

    Raises:
        FileNotFoundError: no such list, or folder that its paths are relative to.
        ValueError: no video in the folder, or a folder with a ``data_root``.
    """
    if os.path.isdir(source):
        if data_root is not None:
            raise ValueError(f"{source} is a folder: --data-root goes with an annotation list")
        check_videos(source, extensions)
    check_exists(source, "list or folder")
    check_exists(data_root, "folder")


def class_names_of(path: str | None) -> list[str] | None:
    """The lines of a file of class names (``--classes``); None without a file.

    The first is that of label 0; an empty file gives ``[""]``.
    """
    if path is None:
        return None
    return read_text(path).rstrip("\n").split("\n")


#: Problems that a command prints; the number of the others follows.
_SHOWN = 20


def shown_failures(failures: Sequence[tuple[str, str]], where: str = "") -> list[str]:
    """A line for each of the first failures (path, reason), and one that counts the others."""
    lines = [f"  {path}: {reason}" for path, reason in failures[:_SHOWN]]
    rest = len(failures) - _SHOWN
    return [*lines, f"  and {rest} more{where}"] if rest > 0 else lines


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, bool], None]]:
    """A function that counts a video of a total, which may have failed; the bar begins with it."""
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
    """A function of (done, total, failed) that prints the number of files to do, then a progress.

    Args:
        name: Of the command.
        title: First words of the progress.
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
