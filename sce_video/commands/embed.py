"""A feature of every video in a folder, in one .npz file.

    sce-video embed VIDEOS --checkpoint RUN --out features.npz

The file holds features (N, D) float32, paths, labels (N,) from sub-folders, and, as JSON, their
provenance. The same command resumes an interrupted run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from sce_video.apis import launch
from sce_video.engine.checkpoint import newest_checkpoint
from sce_video.engine.work_dir import config_of_run
from sce_video.utils.command import command


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="A feature of every video in a folder.")
    parser.add_argument("videos", help="folder; sub-folders are searched too")
    parser.add_argument(
        "--checkpoint", required=True, type=Path, help="folder of a run, or its checkpoint"
    )
    parser.add_argument("--out", required=True, metavar="FILE.npz", help="output file")
    parser.add_argument("--config", help="config (default: the one beside the checkpoint)")
    return parser.parse_args(argv)


@command(interrupted="interrupted; the same command resumes from here")
def main(argv: Sequence[str] | None = None) -> int:
    """Embed; returns the exit status."""
    args = parse_args(argv)
    config = args.config or config_of_run(args.checkpoint)
    checkpoint = newest_checkpoint(args.checkpoint)
    launch.test(launch.extraction_config(config, checkpoint, args.out, data_root=args.videos))
    return 0
