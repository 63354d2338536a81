"""Import repacked videos into one table (Lance), to train from a local disk or object storage.

    sce-video import data/k400_256 data/k400.lance --workers 8
    sce-video import data/k400_256/k400_train.txt s3://bucket/k400.lance
    sce-video import more_videos_256 data/k400.lance       (adds rows)
    sce-video import LIST TABLE --ray auto                 (on a Ray cluster: docs/jobs.md)

SRC is a folder of videos that sce-video repack has made, or its annotation list (sce-video repack
SRC --to TABLE writes the same rows from the originals). One row per video: its stream, where each
frame is, its label and path. The same command resumes an interrupted run and imports files that
have changed. A file that cannot become a row (damaged, or not repacked) gets a row with the reason.
Several imports may write to one table at the same time. See docs/tables.md.
Exit status: 0 all done, 1 some files failed, 2 wrong usage or a table that cannot be written,
130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sce_video.commands.arguments import (
    FileProgress,
    Parser,
    add_options,
    check_source,
    number,
)
from sce_video.jobs import StorageError
from sce_video.utils.command import command


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        description="Import repacked videos into one table (Lance).",
        epilog="exit status: 0 all done, 1 files failed, 2 wrong usage, 130 interrupted; "
        "credentials and endpoint of object storage come from the environment (AWS_...)",
    )
    parser.add_argument("source", metavar="SRC", help="folder of videos, or an annotation list")
    parser.add_argument(
        "table", metavar="TABLE", help="path or URI: videos.lance, s3://bucket/videos.lance"
    )
    parser.add_argument(
        "--data-root",
        help="folder the paths of a list are relative to (default: the list's or the current one)",
    )
    parser.add_argument(
        "--workers",
        type=number(int, 1),
        help="processes (default: all cores, of the cluster with --ray)",
    )
    add_options(parser, "--ray")
    parser.add_argument(
        "--timeout",
        type=number(float, above=0, most=1e6),
        default=60.0,
        metavar="SECONDS",
        help="a file that takes longer fails (default: %(default)g)",
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="import files again that failed before"
    )
    return parser.parse_args(argv)


@command(interrupted="interrupted; the same command resumes from here")
def main(argv: Sequence[str] | None = None) -> int:
    """Import and return the exit status."""
    args = parse_args(argv)
    check_source(args.source, args.data_root)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.data_tools.tables.fill import import_videos
    from sce_video.data_tools.tables.writer import ImportOptions, describe_import
    from sce_video.data_tools.verify import read_videos

    options = ImportOptions(
        workers=args.workers,
        timeout=args.timeout,
        retry_failed=args.retry_failed,
        ray=args.ray,
    )
    videos, root, _ = read_videos(args.source, args.data_root)
    progress = FileProgress("import", "importing")
    try:
        result = import_videos(videos, root, args.table, options, on_progress=progress)
    except StorageError as error:
        raise StorageError(f"{error}; the same command resumes from here") from error
    print(describe_import(result, args.table))
    return 0 if result.complete else 1
