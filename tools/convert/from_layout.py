"""Convert a ResNet of SlowFast, mmaction2 or pytorchvideo to our names.

    python tools/convert/from_layout.py SRC DST --layout slowfast
    python tools/convert/from_layout.py SRC DST --layout mmaction2 --add-prefix backbone.

SlowFast: a single slow pathway (ARCH: slow). mmaction2: ResNet3dSlowOnly, and ResNet for images.
DST loads into a backbone by init_cfg=dict(type="Pretrained", checkpoint=DST). With "--add-prefix
backbone." it has the names of a whole model, for tools/test.py CONFIG DST and load_from. No code
from SRC is executed. Depth and width are found from names and shapes. Every key without a
counterpart is an error, except those of heads and other branches, which are dropped and listed.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from sce_video.interop.weights.convert import convert_file, summary
from sce_video.interop.weights.videos import VIDEO_LAYOUTS, from_video_layout
from sce_video.utils.command import command


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Convert a ResNet of another code base.")
    parser.add_argument("src", type=Path, help="checkpoint of that code base")
    parser.add_argument("dst", type=Path, help="file to write")
    parser.add_argument("--layout", choices=VIDEO_LAYOUTS, required=True, help="code base of SRC")
    parser.add_argument("--prefix", help="prefix of the network's names in SRC (default: detected)")
    parser.add_argument(
        "--add-prefix", default="", help="prefix of the names in DST, e.g. backbone."
    )
    return parser.parse_args(argv)


@command
def main(argv: list[str] | None = None) -> int:
    """Convert and print a summary; returns the exit status."""
    args = parse_args(argv)
    read = partial(_read, args.layout)
    conversion = convert_file(read, args.src, args.dst, args.prefix, args.add_prefix)
    print(summary(conversion, args.dst))
    return 0


def _read(layout: str, checkpoint: dict, prefix: str | None):
    return from_video_layout(checkpoint, layout, prefix)


if __name__ == "__main__":
    sys.exit(main())
