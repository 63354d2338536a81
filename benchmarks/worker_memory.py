"""Growth of the memory of loader workers over many samples.

    python benchmarks/worker_memory.py --videos DIR [--samples 10000] [--workers 2] [--json OUT]

Draws training samples from a folder of videos with the real data set, sampler and pipeline (two
clips of 8 frames, small crops, so that opening and decoding dominate) and samples the private
memory of each worker (resident pages not shared with other processes; Linux). The result is the
growth from the second tenth to the last tenth of the run; a leak of one kilobyte per sample would
show as 8 MiB.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from torch.utils.data import DataLoader, get_worker_info

from sce_video.datasets import ResumableSampler, VideoDataset, collate_views
from sce_video.utils.atomic_file import write_json

PIPELINE = [
    {"type": "OpenVideo"},
    {"type": "RandomClips", "clip_duration": 2.56, "num_frames": 8, "num_views": 2},
    {"type": "DecodeClips"},
    {"type": "RandomResizedCropClips", "size": 112},
    {"type": "PackClips"},
]


def private_mib() -> float:
    """Private resident memory of this process in MiB."""
    total = 0
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:")):
            total += int(line.split()[1])
    return total / 1024


class CollateAndMeasure:
    """Collate function that adds the worker's memory to every n-th batch (takes a millisecond)."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.count = 0

    def __call__(self, samples):
        batch = collate_views(samples)
        self.count += 1
        if self.count % self.every == 0:
            worker = get_worker_info()
            batch["private_mib"] = (0 if worker is None else worker.id, private_mib())
        return batch


def measure(videos: str, samples: int, workers: int, batch_size: int) -> dict[str, list[float]]:
    """Private MiB of every worker, by worker id, in the order of the run."""
    dataset = VideoDataset(videos, pipeline=PIPELINE, on_error="replace", max_tries=50)
    batches = samples // batch_size
    loader = DataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=workers,
        persistent_workers=True,
        sampler=ResumableSampler(dataset, shuffle=True, seed=0),
        collate_fn=CollateAndMeasure(max(1, batches // workers // 100)),
    )
    series: dict[str, list[float]] = {str(i): [] for i in range(workers)}
    done = epoch = 0
    while done < batches:
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            done += 1
            if "private_mib" in batch:
                worker, mib = batch["private_mib"]
                series[str(worker)].append(mib)
            if done % max(1, batches // 20) == 0:
                last = {w: round(values[-1], 1) for w, values in series.items() if values}
                print(f"{done * batch_size} samples, MiB {last}", file=sys.stderr, flush=True)
            if done == batches:
                break
        epoch += 1
    return series


def growth(values: list[float]) -> dict[str, float]:
    """Medians of the second tenth (the first warms up) and of the last tenth, and the growth."""
    if len(values) < 10:
        raise SystemExit(
            f"only {len(values)} measurements of a worker: raise --samples, and use at least "
            "--workers x --batch-size videos"
        )
    tenth = len(values) // 10
    early, late = (statistics.median(part) for part in (values[tenth : 2 * tenth], values[-tenth:]))
    return {
        "early_mib": round(early, 2),
        "late_mib": round(late, 2),
        "growth_mib": round(late - early, 2),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Memory of loader workers over many samples.")
    parser.add_argument("--videos", required=True, help="folder of videos")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--json", help="JSON file for the results")
    args = parser.parse_args(argv)
    series = measure(args.videos, args.samples, args.workers, args.batch_size)
    result = {
        "samples": args.samples,
        "workers": {worker: growth(values) for worker, values in series.items()},
        "series_mib": series,
    }
    for worker, values in result["workers"].items():
        print(f"worker {worker}: {values}")
    if args.json:
        write_json(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
