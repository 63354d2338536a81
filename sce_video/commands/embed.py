"""A feature of every video in a folder or a table, in one .npz file.

    sce-video embed VIDEOS --checkpoint RUN --out features.npz

The file holds features (N, D) float32, paths, labels (N,) from sub-folders or the table, and, as
JSON, their provenance. The same command resumes an interrupted run. With --windows, which also
takes one video, a row is a window, and `starts` and `ends` hold its seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sce_video.commands.arguments import (
    Parser,
    add_device_option,
    check_exists,
    check_run,
    check_videos,
    number,
)
from sce_video.commands.index import add_window_options, given_windows
from sce_video.datasets.windows import Windows
from sce_video.engine.recipes import find_recipe
from sce_video.utils.command import command
from sce_video.utils.files import output_file
from sce_video.utils.printable import printable
from sce_video.utils.run_files import newest_checkpoint
from sce_video.utils.storage import path_or_url


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(description="A feature of every video in a folder or a table.")
    parser.add_argument(
        "videos",
        help="folder, sub-folders too; or a table (v.lance); with --windows also a video",
    )
    parser.add_argument(
        "--checkpoint",
        required=True,
        type=path_or_url,
        help="folder of a run, or its checkpoint; may be in an object store (s3://...); or a model "
        "of transformers: hf:FOLDER, hf:OWNER/MODEL",
    )
    parser.add_argument("--out", required=True, metavar="FILE.npz", help="output file or URL")
    parser.add_argument(
        "--config", help="config to run (default: the one inside the checkpoint, as data)"
    )
    add_window_options(parser, "default: whole videos")
    windows = parser.add_argument_group("with --windows")
    windows.add_argument("--clips", type=number(int, 1), default=4, help="per window (default: 4)")
    windows.add_argument("--crops", type=int, choices=(1, 3), default=1, help="per clip")
    add_device_option(windows)
    return parser.parse_args(argv)


@command(interrupted="interrupted; the same command resumes from here")
def main(argv: Sequence[str] | None = None) -> int:
    """Embed; returns the exit status."""
    args = parse_args(argv)
    windows = given_windows(args)
    if windows is None:
        check_videos(args.videos)
    else:
        check_exists(args.videos, "video, folder or table")
    check_run(args.checkpoint)
    if args.config is not None:
        find_recipe(args.config)
    if windows is not None:
        return run_windows(args, windows)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.inference.encoders.run import run_of_model
    from sce_video.inference.stored_test import stored_test
    from sce_video.runs import launch

    run = run_of_model(args.checkpoint)
    checkpoint = newest_checkpoint(run)
    config = args.config or stored_test(checkpoint)
    with output_file(args.out) as out:
        launch.test(launch.extraction_config(config, checkpoint, out, data_root=args.videos))
    return 0


def run_windows(args: argparse.Namespace, windows: Windows) -> int:
    """Embed windows; returns 1 if some of them are missing."""
    from sce_video.inference.embed import EmbedOptions
    from sce_video.inference.model import load_model
    from sce_video.inference.windows import embed_to_file

    model = load_model(args.checkpoint, args.config, args.device)
    options = EmbedOptions(num_clips=args.clips, num_crops=args.crops)
    with output_file(args.out) as out:
        count, problems = embed_to_file(model, args.videos, out, windows, options)
    print(printable(f"{args.out}: {count} {windows}"))
    for problem in problems:
        print(printable(f"  {problem}"))
    return 1 if problems else 0
