"""Import repacked videos into one table (Lance), to train from a local disk or object storage.

    sce-video import data/k400_256 data/k400.lance --workers 8
    sce-video import data/k400_256/k400_train.txt s3://bucket/k400.lance
    sce-video import more_videos_256 data/k400.lance       (adds rows)
    sce-video import LIST TABLE --ray auto                 (on a Ray cluster: docs/jobs.md)

SRC is a folder of videos that sce-video repack has made, or its annotation list (sce-video repack
SRC --to TABLE writes the same rows from the originals). A file that cannot become a row (damaged,
or not repacked) gets a row with the reason. The same command resumes an interrupted run and imports
files that have changed; several may write to one table at the same time. See docs/tables.md.
Exit status: 0 all done, 1 some files failed, 2 wrong usage or a table that cannot be written,
130 interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence

from sce_video.commands.arguments import chosen, command_line, number
from sce_video.datasets.named_files import check_source
from sce_video.datasets.sources import is_table
from sce_video.jobs import StorageError
from sce_video.utils.command import command, file_progress


@command(interrupted="interrupted; the same command resumes from here")
def main(argv: Sequence[str] | None = None) -> int:
    """Import and return the exit status."""
    parser, add = command_line(
        "Import repacked videos into one table (Lance).",
        epilog="exit status: 0 all done, 1 files failed, 2 wrong usage, 130 interrupted; "
        "credentials and endpoint of object storage come from the environment (AWS_...)",
    )
    add("source SRC", "folder of videos, or an annotation list")
    add("table TABLE", "path or URI: videos.lance, s3://bucket/videos.lance")
    add.shared("--data-root", "--all-files", "--workers", "--ray")
    seconds = number(float, above=0, most=1e6)
    add("--timeout SECONDS", "a file that takes longer fails (default: 60)", seconds, default=60.0)
    add("--retry-failed", "import files again that failed before", bool)
    args = parser.parse_args(argv)
    check_source(args.source, args.data_root)
    if not is_table(args.table):
        raise ValueError(f"a table has a name that ends with .lance, got {args.table!r}")
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.data_tools.tables import ImportOptions
    from sce_video.data_tools.tables.fill import import_videos
    from sce_video.data_tools.tables.writer import describe_import
    from sce_video.data_tools.verify import listed_videos

    options = chosen(ImportOptions, args)
    videos, root, _ = listed_videos(args.source, args.data_root)
    progress = file_progress("import", "importing")
    try:
        result = import_videos(videos, root, args.table, options, on_progress=progress)
    except StorageError as error:
        raise StorageError(f"{error}; the same command resumes from here") from error
    print(describe_import(result, args.table))
    return 0 if result.complete else 1
