"""Plot what a training logged: objective, similarity, collapse metric, kNN accuracy.

python tools/analysis/plot_run.py WORK_DIR [--out run.png] [--title TEXT]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sce_video.pages.curves import draw_run, read_online_evaluations, read_scalars
from sce_video.utils.command import command


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Plot what a training logged.")
    parser.add_argument("work_dir", type=Path, help="work directory of the training")
    parser.add_argument("--out", type=Path, help="image to write (default: WORK_DIR/run.png)")
    parser.add_argument("--title", default="")
    return parser.parse_args(argv)


@command
def main(argv: list[str] | None = None) -> int:
    """Draw; returns the exit status."""
    args = parse_args(argv)
    out = args.out or args.work_dir / "run.png"
    scalars, evaluations = read_scalars(args.work_dir), read_online_evaluations(args.work_dir)
    draw_run(scalars, evaluations, out, args.title)
    print(f"wrote {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
