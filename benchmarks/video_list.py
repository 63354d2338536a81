"""Start-up time and memory of a long training list.

    python benchmarks/video_list.py [--lines 2000000] [--workers 2] [--json OUT]

Writes a list of `path label` lines with paths as long as those of Kinetics. Then, in a new process
for each way of keeping it, builds the data set, and lets the loader's forked workers take path and
label of every sample of an epoch in the sampler's order. Printed are seconds to build, resident
memory of the parent before, at its peak, after, and after the epoch (with the sampler), and the
private memory of each worker at its first batch and at the end: pages that it does not share with
its parent (Linux).

- arrays: VideoDataset, whose list is three flat arrays;
- strings: the same entries as a list of Python tuples. Reading an object changes its reference
  count, so the pages of the list are copied into every worker;
- one line: VideoDataset with a single line, for what a worker takes without a
  list; as many samples.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset, get_worker_info
from worker_memory import private_mib

from sce_video.datasets import ResumableSampler, VideoDataset
from sce_video.utils.atomic_file import write_json

CLASSES = 400
VARIANTS = ("arrays", "strings", "one line")
_BATCH = 512


def write_list(folder: Path, lines: int) -> Path:
    """A list of so many lines; only its first video exists, and is empty."""
    path = folder / "train.txt"
    with open(path, "w", encoding="utf-8") as file:
        for i in range(lines):
            label = i * 7919 % CLASSES
            name = f"class_{label:03d}/{i:011x}_{i % 290:06d}_{i % 290 + 10:06d}.mp4"
            if i == 0:
                (folder / name).parent.mkdir(parents=True)
                (folder / name).touch()
            file.write(f"{name} {label}\n")
    return path


class Touched(Dataset):
    """Path length and label of a sample, without opening the file.

    Args:
        videos: The data set.
        entries: Paths and labels as Python objects; None: those of the data set's arrays.
        length: Samples of an epoch.
    """

    def __init__(self, videos: VideoDataset, entries: list | None, length: int) -> None:
        self.videos = videos
        self.entries = entries
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, request: Any) -> int:
        index = request[0] % len(self.videos)
        if self.entries is None:
            return len(self.videos.path(index)) + int(self.videos.labels[index])
        path, label = self.entries[index]
        return len(os.path.join(self.videos.data_root, path)) + label


def memory_of_worker(batch: list[int]) -> tuple[int, int, float]:
    """Collate function: worker, sum of the samples, private MiB of the worker."""
    worker = get_worker_info()
    return 0 if worker is None else worker.id, sum(batch), private_mib()


def resident_mib(field: str) -> float:
    """``VmRSS`` or ``VmHWM`` (its peak) of this process in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"the system states no {field}")


def measure(variant: str, ann_file: str, lines: int, workers: int) -> dict[str, Any]:
    """Seconds and MiB of one way of keeping the list; run in a process of its own."""
    before, start = resident_mib("VmRSS"), time.perf_counter()
    cpu = time.process_time()
    videos = VideoDataset(os.path.dirname(ann_file), ann_file)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    entries = None
    if variant == "strings":
        entries = [(videos.videos.path(i), int(videos.labels[i])) for i in range(len(videos))]
    dataset = Touched(videos, entries, lines)
    parent = {"before": before, "peak": resident_mib("VmHWM"), "after": resident_mib("VmRSS")}
    sampler = ResumableSampler(dataset, shuffle=True, seed=0)
    loader = DataLoader(
        dataset,
        _BATCH,
        sampler=sampler,
        num_workers=workers,
        collate_fn=memory_of_worker,
        multiprocessing_context="fork",
    )
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    touched, start = 0, time.perf_counter()
    for worker, total, mib in loader:
        first.setdefault(worker, mib)
        last[worker] = mib
        touched += total
    parent["after_epoch"] = resident_mib("VmRSS")
    return {
        "build_seconds": round(seconds, 2),
        "build_cpu_seconds": round(cpu, 2),
        "epoch_seconds": round(time.perf_counter() - start, 1),
        "parent_mib": {name: round(value) for name, value in parent.items()},
        "worker_first_mib": [round(first[i], 1) for i in sorted(first)],
        "worker_mib": [round(last[i], 1) for i in sorted(last)],
        "checksum": touched,
    }


def main(argv: list[str] | None = None) -> int:
    """Measure, print and write; returns the exit status."""
    parser = argparse.ArgumentParser(description="Start-up and memory of a long training list.")
    parser.add_argument("--lines", type=int, default=2_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", help="JSON file for the results")
    args = parser.parse_args(argv)
    result: dict[str, Any] = {"lines": args.lines, "workers": args.workers}
    with tempfile.TemporaryDirectory() as folder:
        long = write_list(Path(folder), args.lines)
        result["list_mib"] = round(long.stat().st_size / 2**20, 1)
        one = Path(folder, "one.txt")
        with open(long, encoding="utf-8") as file:
            one.write_text(file.readline(), encoding="utf-8")
        for variant in VARIANTS:
            path = str(one if variant == "one line" else long)
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                found = pool.submit(measure, variant, path, args.lines, args.workers).result()
            result[variant] = found
            print(f"{variant}: {json.dumps(found)}", flush=True)
    if result["arrays"]["checksum"] != result["strings"]["checksum"]:
        raise RuntimeError("the two ways of keeping the list differ in their entries")
    if args.json:
        write_json(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
