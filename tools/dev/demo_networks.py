"""Train the two small networks that the package contains, "demo" and "demo-sce".

    python tools/dev/demo_networks.py [--smoke] [--out sce_video/published/networks]

The script generates the toy actions of the quickstart and pretrains with SimCLR (demo) and SCE
(demo-sce). It writes each network as a folder of float16 weights, config and card, evaluates what
was written, and adds ``SHA256SUMS``. This takes about half an hour on two CPU cores.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import sce_video
from sce_video.data_tools.generated import generate_toy_actions
from sce_video.engine.checkpoint import file_sha256
from sce_video.engine.weights import CONFIG
from sce_video.inference.model import load_model
from sce_video.interop.pretrained import model_card, save_pretrained
from sce_video.utils.command import command
from sce_video.utils.cores import usable_cores
from sce_video.utils.files import write_bytes, write_text
from sce_video.utils.run_files import CARD, WEIGHTS

NETWORKS = {"demo": "simclr", "demo-sce": "sce"}
LICENCE = "license: other  # to be filled in before publication"


def build(name: str, folder: Path, work: Path, settings: dict[str, int]) -> None:
    """Train one network on ``work/videos/train`` and write it to ``folder``."""
    train, test = work / "videos/train", work / "videos/test"
    sce_video.pretrain(train, out=work / name, method=NETWORKS[name], overwrite=True, **settings)
    network = load_model(work / name, device="cpu")
    network.encoder.half()
    exported = work / "exported" / name
    shutil.rmtree(exported, ignore_errors=True)
    save_pretrained(network, exported)
    # Evaluate the rounded weights that are read back, so that the card describes the file itself.
    sce_video.evaluate(exported, test, gallery=train)
    card = model_card(load_model(exported, device="cpu"))
    assert LICENCE in card
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CARD, card.replace(LICENCE, "license: apache-2.0"))
    for file in (CONFIG, WEIGHTS):
        write_bytes(folder / file, (exported / file).read_bytes())


@command
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("sce_video/published/networks"))
    parser.add_argument("--work-dir", type=Path, default=Path("work_dirs/demo_networks"))
    parser.add_argument("--smoke", action="store_true", help="a few videos and steps")
    args = parser.parse_args(argv)
    numbers = dict(train=32, test=24) if args.smoke else dict(train=480, test=240)
    generate_toy_actions(args.work_dir / "videos", numbers, workers=usable_cores())
    settings = dict(width=8, epochs=2) if args.smoke else dict(width=16, epochs=68)
    lines = []
    for name in NETWORKS:
        build(name, args.out / name, args.work_dir, settings)
        lines.append(f"{file_sha256(args.out / name / WEIGHTS)}  {name}/{WEIGHTS}\n")
    write_text(args.out / "SHA256SUMS", "".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
