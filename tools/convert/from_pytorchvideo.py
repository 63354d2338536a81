"""Convert pytorchvideo's ResNet3D (slow pathway), or the authors' encoder, to our names.

    python tools/convert/from_pytorchvideo.py SRC DST
    python tools/convert/from_pytorchvideo.py SRC DST --prefix trunk.model. --add-prefix backbone.

To load DST into a backbone, use init_cfg=dict(type="Pretrained", checkpoint=DST). With
"--add-prefix backbone.", DST has the names of a complete model, for tools/test.py CONFIG DST and
load_from. No code from SRC is executed. Depth and width are detected from the shapes. A key without
a counterpart is an error, unless it belongs to a head or another branch. Such keys are dropped and
listed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sce_video.interop.weights.convert import convert_file, summary
from sce_video.interop.weights.video_networks import from_video_layout
from sce_video.utils.command import command


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Convert a checkpoint of pytorchvideo's ResNet3D to sce_video's layout."
    )
    parser.add_argument("src", type=Path, help="checkpoint in pytorchvideo's layout")
    parser.add_argument("dst", type=Path, help="file to write")
    parser.add_argument("--prefix", help="prefix of the parameter names in SRC (default: detected)")
    parser.add_argument(
        "--add-prefix",
        default="",
        help="prefix of the names in DST, including the dot, e.g. 'backbone.'",
    )
    return parser.parse_args(argv)


@command
def main(argv: list[str] | None = None) -> int:
    """Convert, print a summary, and return the exit status."""
    args = parse_args(argv)
    conversion = convert_file(
        lambda weights, prefix: from_video_layout(weights, "pytorchvideo", prefix),
        *(args.src, args.dst, args.prefix, args.add_prefix),
    )
    print(summary(conversion, args.dst))
    return 0


if __name__ == "__main__":
    sys.exit(main())
