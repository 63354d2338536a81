"""Write the ResNet of one of our checkpoints for another code base.

    python tools/convert/to_layout.py SRC.pth DST.pth --layout slowfast
    python tools/convert/to_layout.py SRC.pth DST.pth --layout torchvision

Video networks (ResNet3dSlowPath) can be written for slowfast (TRAIN.CHECKPOINT_FILE_PATH DST with
TRAIN.CHECKPOINT_EPOCH_RESET True), mmaction2 (load_from=DST, also ResNet2d), pytorchvideo and
eztorch (the encoder). Image networks (ResNet2d) can be written for these code bases:

torchvision, timm: a state dict without the classifier (load_state_dict with strict=False, or
                   num_classes=0)
mmdet: init_cfg=dict(type="Pretrained", checkpoint=DST) for the backbone and the shared head
detectron2: MODEL.WEIGHTS DST
eztorch: the authors' code, with heads, target and queue
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sce_video.interop.weights.convert import LAYOUTS, export_file
from sce_video.utils.command import command


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Convert a ResNet for another code base.")
    parser.add_argument("src", type=Path, help="checkpoint, or folder with a pretrained network")
    parser.add_argument("dst", type=Path, help="file to write")
    parser.add_argument("--layout", choices=LAYOUTS, required=True, help="code base to write for")
    return parser.parse_args(argv)


@command
def main(argv: list[str] | None = None) -> int:
    """Convert, print what was written, and return the exit status."""
    args = parse_args(argv)
    written = export_file(args.src, args.dst, args.layout)
    print(f"{len(written.state_dict)} tensors in the layout of {args.layout} to {args.dst}")
    print(f"  left out, without a counterpart there: {len(written.dropped)}")
    for name in written.dropped:
        print(f"  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
