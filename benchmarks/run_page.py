"""Time and size of the page of a long run: 100,000 log lines, 20,000 embeddings.

    python benchmarks/run_page.py [--lines 100000] [--features 20000]

Makes a run folder of 200 epochs with random numbers in it, and measures ``sce-video report RUN
--videos 0 --features FILE.npz`` as a command, with all imports.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from sce_video.evaluation.npz_files import write_npz

_EPOCHS, _DIM, _CLASSES = 200, 512, 40


def write_log(folder: Path, lines: int) -> None:
    """A log of ``lines`` rows with the values of an SCE training, and an online evaluation."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(lines, 4)) / 20
    with open(folder / "metrics.jsonl", "w", encoding="utf-8") as file:
        for i in range(lines):
            loss = 9 - 4 * i / lines + noise[i, 0]
            row = {
                "kind": "train",
                "iter": 10 * (i + 1),
                "epoch": 1 + _EPOCHS * i // lines,
                "time": 1.7e9 + 5 * i,
                "loss": loss,
                "infonce": loss + noise[i, 1],
                "ressl": loss - 0.5 + noise[i, 2],
                "ceil": 0.1,
                "target_entropy": 2 + noise[i, 3],
                "positive_similarity": i / lines,
                "h_std": 0.5 + noise[i, 1],
                "h_rank": 40 + noise[i, 2],
                "z_std": 0.9 + noise[i, 3],
                "lr": 0.5 + 0.5 * math.cos(math.pi * i / lines),
                "momentum": 1 - 0.004 * (1 - i / lines),
                "step_seconds": 0.5 + noise[i, 0] / 5,
                "data_seconds": 0.01,
                "data_wait": 0.02,
                "videos_per_s": 1000 + 100 * noise[i, 1],
                "memory": 40000,
            }
            file.write(json.dumps(row) + "\n")
    with open(folder / "online_evaluation.jsonl", "w", encoding="utf-8") as file:
        for epoch in range(0, _EPOCHS + 1, 5):
            row = {"epoch": epoch, "iter": 10 * lines * epoch // _EPOCHS, "knn_top1": epoch / 400}
            file.write(json.dumps(row) + "\n")


def write_features(folder: Path, count: int) -> Path:
    """Features of ``count`` videos in clusters, of the checkpoint in the folder."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, _CLASSES, count)
    centres = rng.normal(size=(_CLASSES, _DIM))
    features = (centres[labels] + rng.normal(size=(count, _DIM))).astype(np.float32)
    checkpoint = folder / f"epoch_{_EPOCHS}.pth"
    checkpoint.write_bytes(b"weights")
    digest = hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    paths = np.array([f"/data/class{c:03d}/video_{i:06d}.mp4" for i, c in enumerate(labels)])
    arrays = {"features": features, "labels": labels.astype(np.int64), "paths": paths}
    out = folder / "features.npz"
    write_npz(out, arrays, {"checkpoint": {"sha256": digest}, "num_views": 1, "failures": []})
    return out


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=20_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_log(folder, args.lines)
        features = write_features(folder, args.features)
        command = [sys.executable, "-m", "sce_video", "report", name, "--videos", "0"]
        started = time.perf_counter()
        subprocess.run([*command, "--features", str(features)], check=True)
        seconds = time.perf_counter() - started
        size = (folder / "run.html").stat().st_size / 1e6
    print(f"{args.lines} lines, {args.features} features: {seconds:.1f} s, {size:.2f} MB")


if __name__ == "__main__":
    main()
