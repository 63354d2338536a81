"""The input side on this machine's cores: samples per second, and workers that feed the step.

The videos are generated toy actions as large as a repacked Kinetics file, and every frame is a key
frame.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from peer_sides import our_clips
from step_process import Step

from gpu_parts.part import Part
from gpu_parts.training_step import BEST, job_of
from sce_video.data_tools.generated import generate_toy_actions
from sce_video.data_tools.repack.encode import repack_file
from sce_video.data_tools.repack.plan import EncoderLimits, Settings


def make_videos(part: Part) -> dict[str, Any]:
    """Generate and repack videos, and return the number of files and their size."""
    size, frames, count = (96, 45, 12) if part.smoke else (256, 96, 24)
    cores = os.cpu_count() or 1
    root = generate_toy_actions(
        part.folder / "input", {"train": count}, size=size, num_frames=frames, fps=30, workers=cores
    )
    target = part.folder / "repacked"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()

    def one(path: Path) -> None:
        made = target / f"{path.parent.name}_{path.name}"
        repack_file(str(path), str(made), Settings(), EncoderLimits(min_psnr=0.0))

    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(one, sorted((root / "train").rglob("*.mp4"))))
    files = list(target.iterdir())
    mib = sum(file.stat().st_size for file in files) / 2**20
    for file in files:  # under several names: an epoch of many batches
        for number in range(1, 16):
            os.link(file, target / f"{file.stem}_{number}.mp4")
    return dict(files=len(files), mib=mib)


def per_core(part: Part) -> dict[str, Any]:
    """Measure samples (two clips of 8 frames, 224 pixels) per second of processor time."""
    files = sorted(str(file) for file in (part.folder / "repacked").iterdir())
    seconds, seed = [], 0
    end = time.monotonic() + (1 if part.smoke else 4)
    while time.monotonic() < end or len(seconds) < 5:
        start = time.process_time()
        our_clips(files[seed % len(files)], seed)
        seconds.append(time.process_time() - start)
        seed += 1
    return dict(samples_per_core_s=1 / float(np.median(seconds[2:])), samples=len(seconds))


def workers_for_steps(part: Part, speed: float) -> dict[str, Any]:
    """Compute the workers that feed each measured step, at this machine's speed per core."""
    found = {}
    for name, result in part.others().get("step", {}).get("results", {}).items():
        if "videos_per_s" in result:
            found[name] = dict(
                videos_per_s=result["videos_per_s"],
                workers=math.ceil(result["videos_per_s"] / speed),
            )
    return dict(steps=found, cores=os.cpu_count())


def short_training(part: Part) -> dict[str, Any]:
    """Train R50 8x224 with the loader, and measure the share of time spent waiting."""
    job = job_of(part, "r50 8x224", BEST if part.on_gpu else "fp32")
    files = len(list((part.folder / "repacked").iterdir()))
    workers = max(1, min(16, (os.cpu_count() or 2) - 1))
    batch = job.batch if part.smoke else min(job.batch, files)
    videos = str(part.folder / "repacked")
    step = Step(replace(job, workers=workers, batch=batch, videos=videos))
    for _ in range(2):
        step()
    steps, end = [], time.monotonic() + (3 if part.smoke else min(15, part.left - 3))
    while time.monotonic() < end or len(steps) < 3:
        steps.append(step())
    wall = sum(s["wall"] for s in steps)
    return dict(
        batch=batch,
        workers=workers,
        steps=len(steps),
        videos_per_s=batch * len(steps) / wall,
        data_wait_share=sum(s["waited"] for s in steps) / wall,
    )


def main(argv: Sequence[str] | None = None) -> int:
    part = Part("input", argv)
    part.run("generated and repacked", lambda: make_videos(part))
    speed = part.run("one core", lambda: per_core(part))
    if speed:
        part.run("workers", lambda: workers_for_steps(part, speed["samples_per_core_s"]))
    part.run("training with the loader", lambda: short_training(part), 1.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
