"""Convert pytorchvideo's ResNet3D (slow pathway), or the authors' encoder, to our names.

    python tools/convert/from_pytorchvideo.py SRC DST
    python tools/convert/from_pytorchvideo.py SRC DST --prefix trunk.model. --add-prefix backbone.

DST loads into a backbone by init_cfg=dict(type="Pretrained", checkpoint=DST). With "--add-prefix
backbone." it has the names of a whole model, for tools/test.py CONFIG DST and load_from. No code
from SRC is executed. Depth and width are found from the shapes. Every key without a counterpart is
an error, except those of heads and other branches, which are dropped and listed.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from sce_video.engine.checkpoint import load_checkpoint_file, save_checkpoint_file
from sce_video.models.checkpoint_conversion import Conversion, from_pytorchvideo
from sce_video.utils.command import command
from sce_video.version import __version__


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Convert pytorchvideo's ResNet3D to our names.")
    parser.add_argument("src", type=Path, help="checkpoint in pytorchvideo's layout")
    parser.add_argument("dst", type=Path, help="file to write")
    parser.add_argument("--prefix", help="prefix of blocks.0 in SRC (default: detected)")
    parser.add_argument(
        "--add-prefix", default="", help="prefix of the names in DST, e.g. backbone."
    )
    return parser.parse_args(argv)


def convert(src: Path, dst: Path, prefix: str | None = None, add_prefix: str = "") -> Conversion:
    """Read ``src`` and write ``dst``; nothing is written after an error.

    Raises:
        FileNotFoundError: no file ``src``.
        ValueError: ``src`` is unsafe, damaged or another network, or is ``dst`` itself.
    """
    if dst.exists() and src.exists() and dst.samefile(src):
        raise ValueError(f"{dst} is the source itself: give another file to write")
    checkpoint = load_checkpoint_file(src)
    try:
        conversion = from_pytorchvideo(checkpoint, prefix)
    except ValueError as error:
        raise ValueError(f"{src}: {error}") from error
    meta = {
        "backbone": "ResNet3dSlowPath",
        "depth": conversion.depth,
        "base_channels": conversion.base_channels,
        "in_channels": conversion.in_channels,
        "source": src.name,
        "source_sha256": hashlib.sha256(src.read_bytes()).hexdigest(),
        "source_prefix": conversion.prefix,
        "dropped": conversion.dropped,
        "sce_video_version": __version__,
    }
    state_dict = {add_prefix + name: value for name, value in conversion.state_dict.items()}
    save_checkpoint_file({"state_dict": state_dict, "meta": meta}, dst)
    return conversion


@command
def main(argv: list[str] | None = None) -> int:
    """Convert and print a summary; returns the exit status."""
    args = parse_args(argv)
    conversion = convert(args.src, args.dst, args.prefix, args.add_prefix)
    print(
        f"ResNet3dSlowPath(depth={conversion.depth}, base_channels={conversion.base_channels}, "
        f"in_channels={conversion.in_channels}): {len(conversion.state_dict)} tensors "
        f"from prefix {conversion.prefix!r} to {args.dst}"
    )
    print(f"dropped, not part of the backbone: {len(conversion.dropped)}")
    for name in conversion.dropped:
        print(f"  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
