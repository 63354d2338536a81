"""Options of the commands that decode and embed files."""

from __future__ import annotations

import argparse
import os

from sce_video.commands.arguments import number


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
