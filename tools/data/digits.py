"""Write the digits inside scikit-learn as PNG files: real images to try the codebase with.

    python tools/data/digits.py data/digits

writes data/digits/{train,val,test}/{0,...,9}/NUMBER.png: 1,797 images of 8x8, of every class three
fifths, one fifth and one fifth. No download: scikit-learn (extra "transfer") holds them. See
sce_video/data_tools/digits.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sce_video.data_tools.digits import write_digits
from sce_video.utils.command import command


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Write scikit-learn's digits as PNG files.")
    parser.add_argument("root", type=Path, help="folder to write to")
    return parser.parse_args(argv)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write; returns the exit status."""
    args = parse_args(argv)
    counts = write_digits(args.root)
    listed = ", ".join(f"{part} {count}" for part, count in counts.items())
    print(f"{args.root}: {sum(counts.values()):,} images of 10 classes ({listed})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
