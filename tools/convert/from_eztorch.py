"""Convert an image model of the authors (eztorch, or the older SCE release) to our names.

    python tools/convert/from_eztorch.py SRC.ckpt DST.pth

DST has the names of a whole SCE model: backbone, heads, target and queue, as far as SRC has them.
Its backbone is loaded by tools/test.py, sce-video embed, --pretrained and
init_cfg=dict(type="Pretrained", checkpoint=DST, prefix="backbone."). No code from SRC is executed:
hyper-parameters and callbacks of PyTorch Lightning are passed over.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sce_video.engine.checkpoint import load_third_party_checkpoint
from sce_video.interop.weights.convert import convert_file, summary
from sce_video.interop.weights.images import from_eztorch
from sce_video.utils.command import command


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Convert the authors' image models to our names.")
    parser.add_argument("src", type=Path, help="checkpoint of eztorch or of the older SCE code")
    parser.add_argument("dst", type=Path, help="file to write")
    parser.add_argument("--prefix", help="prefix of trunk. in SRC (default: detected)")
    return parser.parse_args(argv)


@command
def main(argv: list[str] | None = None) -> int:
    """Convert and print a summary; returns the exit status."""
    args = parse_args(argv)
    conversion = convert_file(
        from_eztorch, args.src, args.dst, args.prefix, load=load_third_party_checkpoint
    )
    print(summary(conversion, args.dst))
    return 0


if __name__ == "__main__":
    sys.exit(main())
