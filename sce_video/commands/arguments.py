"""What the command lines share: the parser, types of values, and checks of what is named.

Nothing here needs torch: a wrong command line is answered before the libraries are imported, which
takes seconds.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, TypeVar, Unpack

from sce_video.datasets.clip_sampling import Windows, parse_seconds
from sce_video.datasets.labelled import NO_COLUMNS, GroupColumns
from sce_video.datasets.named_files import write_problem
from sce_video.datasets.video_list import ALL_FILES
from sce_video.options.command_line import Parser

#: What a command takes as a trained network.
RUN = "run or checkpoint, also s3://...; or a model of transformers: hf:FOLDER, hf:OWNER/MODEL"
T = TypeVar("T")
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu|npu|hpu|mlu|musa|xla|meta)(:\d{1,4})?")


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
    """The switch ``--all-files``, which applies to every listing of a command."""

    def __call__(self, *_: Any) -> None:
        os.environ[ALL_FILES] = "1"


def add_columns(add: ArgumentAdder) -> None:
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
        if problem := write_problem(text):
            raise argparse.ArgumentTypeError(problem)
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


class ArgumentAdder:
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

    def group(self, title: str, text: str | None = None) -> ArgumentAdder:
        """For the options of a group with a title."""
        return ArgumentAdder(self._container.add_argument_group(title, text))

    def exclusive(self, required: bool = False) -> ArgumentAdder:
        """For options of which one may be given."""
        return ArgumentAdder(self._container.add_mutually_exclusive_group(required=required))


def command_line(
    description: str | None = None,
    epilog: str | None = None,
    *,
    prog: str | None = None,
    usage: str | None = None,
    as_written: bool = False,
    allow_abbrev: bool = True,
) -> tuple[Parser, ArgumentAdder]:
    """A parser, whose texts may keep their line breaks, and what adds its options."""
    kind = argparse.RawDescriptionHelpFormatter if as_written else argparse.HelpFormatter
    parser = Parser(
        prog, usage, description, epilog, formatter_class=kind, allow_abbrev=allow_abbrev
    )
    return parser, ArgumentAdder(parser)


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
