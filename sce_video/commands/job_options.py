"""Options of the commands that run a batch job."""

from __future__ import annotations

import argparse

from sce_video.commands.arguments import number


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


def add_shard_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--shard``."""
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="part I of N of the files")
