"""Write generated images in the layout of CIFAR10's archive, to measure a training of its size.

    python benchmarks/make_cifar10.py DIR

writes DIR/cifar-10-batches-py: 50,000 + 10,000 images of 32x32 random bytes in the official
batches. Nothing can be learned from them; time and memory of a training are those of CIFAR10.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from pathlib import Path

import numpy as np

from sce_video.utils.atomic_file import write_bytes

BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()
IMAGES_OF_A_BATCH = 10_000


def write_cifar10(root: Path, seed: int = 0) -> Path:
    """Write the six batches and their meta file; returns the folder."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for name in BATCHES:
        content = {
            "batch_label": name,
            "labels": [number % len(CLASSES) for number in range(IMAGES_OF_A_BATCH)],
            "data": rng.integers(0, 256, (IMAGES_OF_A_BATCH, 3 * 32 * 32), dtype=np.uint8),
            "filenames": [f"{name}_{number}.png" for number in range(IMAGES_OF_A_BATCH)],
        }
        write_bytes(folder / name, pickle.dumps(content, protocol=2))
    meta = {"num_cases_per_batch": IMAGES_OF_A_BATCH, "label_names": CLASSES, "num_vis": 3072}
    write_bytes(folder / "batches.meta", pickle.dumps(meta, protocol=2))
    return folder


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root", type=Path, metavar="DIR", help="folder to write to")
    print(write_cifar10(parser.parse_args(argv).root))
    return 0


if __name__ == "__main__":
    sys.exit(main())
