"""Convert a network from another code base to our names.

    python tools/convert/from_layout.py SRC DST --layout slowfast
    python tools/convert/from_layout.py SRC DST --layout mmaction2 --add-prefix backbone.
    python tools/convert/from_layout.py r2plus1d_18-91a641e6.pth DST --layout torchvision
    python tools/convert/from_layout.py SRC.ckpt DST --layout eztorch

slowfast: a single slow pathway (ARCH: slow). mmaction2: ResNet3dSlowOnly, and ResNet for images.
torchvision: R(2+1)D-18, S3D and ResNet. eztorch: a complete image model of the authors, or of the
older SCE release, with backbone, heads, target and queue. Its video encoder has pytorchvideo's
layout.

To load DST into a backbone, use init_cfg=dict(type="Pretrained", checkpoint=DST), for eztorch also
with prefix="backbone.". With "--add-prefix backbone.", DST has the names of a complete model, for
tools/test.py CONFIG DST and load_from. No code from SRC is executed. Network, depth and width are
detected from names and shapes. A key without a counterpart is an error, unless it belongs to a
head or another branch. Such keys are dropped and listed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from sce_video.engine.checkpoint import load_checkpoint_file, load_third_party_checkpoint
from sce_video.interop.weights.convert import convert_file, summary
from sce_video.interop.weights.image_networks import from_eztorch, from_torchvision
from sce_video.interop.weights.video_networks import VIDEO_LAYOUTS, Conversion, from_video_layout
from sce_video.utils.command import command

_READERS = {"torchvision": from_torchvision, "eztorch": from_eztorch}


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Convert a network from another code base.")
    parser.add_argument("src", type=Path, help="checkpoint of that code base")
    parser.add_argument("dst", type=Path, help="file to write")
    parser.add_argument(
        "--layout", choices=[*VIDEO_LAYOUTS, *_READERS], required=True, help="code base of SRC"
    )
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

    def read(checkpoint: dict[str, Any], prefix: str | None) -> Conversion:
        if args.layout in _READERS:
            return _READERS[args.layout](checkpoint, prefix)
        return from_video_layout(checkpoint, args.layout, prefix)

    # Skip the hyper-parameters and callbacks in files of PyTorch Lightning.
    load = load_third_party_checkpoint if args.layout == "eztorch" else load_checkpoint_file
    conversion = convert_file(read, args.src, args.dst, args.prefix, args.add_prefix, load)
    print(summary(conversion, args.dst))
    return 0


if __name__ == "__main__":
    sys.exit(main())
