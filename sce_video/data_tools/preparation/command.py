"""Options and main function shared by tools/data/ that write lists."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sce_video.data_tools.preparation.files import Located
from sce_video.data_tools.preparation.official import OfficialLists
from sce_video.data_tools.preparation.prepare import Options, prepare
from sce_video.data_tools.preparation.subsets import class_balanced

Read = Callable[[], tuple[OfficialLists, dict[str, Located]]]


def add_common_options(
    parser: argparse.ArgumentParser, layout: str, other_folders: bool = True
) -> None:
    """Add the options that all data sets share.

    Args:
        parser: Of the command.
        layout: Of the unpacked downloads, for the help text.
        other_folders: Whether videos and lists may be in folders of their own.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"ROOT holds the unpacked official downloads:\n{layout}"
    parser.add_argument("root", type=Path, metavar="ROOT", help="folder of the data set")
    if other_folders:
        parser.add_argument("--videos", type=Path, metavar="DIR", help="folder of the videos")
        parser.add_argument(
            "--annotations", type=Path, metavar="DIR", help="folder of the official lists"
        )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="write the lists here instead of ROOT; paths in them stay relative to ROOT",
    )
    parser.add_argument(
        "--workers",
        type=int,
        help="processes that check files (default: all cores, of the cluster with --ray)",
    )
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="check files on a Ray cluster: its address, or 'auto'"
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="a file that takes longer counts as unreadable (default: %(default)s)",
    )
    parser.add_argument(
        "--no-check",
        action="store_true",
        help="only check that files exist, do not decode their first frame (images: all of it)",
    )
    parser.add_argument(
        "--keep-missing",
        action="store_true",
        help="keep missing and unreadable files in the lists",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit status 1 if a count differs from the published one",
    )
    parser.add_argument("--force", action="store_true", help="replace existing lists that differ")


def add_samples_option(parser: argparse.ArgumentParser, list_name: str) -> None:
    """Add ``--samples``, which :func:`with_samples` reads."""
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help=f"also write a list of about N videos of {list_name}, as many of every class",
    )


def with_samples(official: OfficialLists, list_name: str, samples: int | None) -> OfficialLists:
    """The lists and, if a number of samples is given, a smaller one: :func:`class_balanced`."""
    if samples is None:
        return official
    split = next(split for split in official.splits if split.list_name == list_name)
    return replace(official, splits=(*official.splits, class_balanced(split, samples)))


def run_command(tool: str, args: argparse.Namespace, read: Read) -> int:
    """Read and prepare.

    Args:
        tool: Name of the command, for messages.
        args: Of a parser with :func:`add_common_options`.
        read: Returns the official lists and the locations of the videos.

    Returns:
        The exit status: 1 if, with ``--strict``, a count differs, else 0.
    """
    official, located = read()
    agrees = prepare(
        official,
        located,
        Options(
            root=args.root,
            out=args.out,
            workers=args.workers,
            time_limit=args.time_limit,
            ray=args.ray,
            check=not args.no_check,
            keep_missing=args.keep_missing,
            force=args.force,
        ),
    )
    if not agrees:
        print(
            f"{tool}.py: counts differ from the published ones, see the table"
            + ("" if args.strict else " (an error with --strict only)"),
            file=sys.stderr,
        )
    return 1 if args.strict and not agrees else 0
