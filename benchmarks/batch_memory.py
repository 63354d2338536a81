"""What using the memory of batches again saves: a loader worker with and without it.

    python benchmarks/batch_memory.py --videos DIR [--batches 25] [--rounds 5] [--json OUT]

One worker makes batches of 16 samples (two 8-frame clips of 224) of all videos in DIR; the process
that gets them reads one pixel of each view. Without: every batch gets new shared memory. The two
alternate. Prints wall time, processor time of the worker and its page faults, for each sample.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from data_pipeline import BATCH, pipeline
from torch.utils.data import DataLoader

from sce_video.datasets import SampleRequest, VideoDataset, collate_views
from sce_video.datasets.loading import batch_memory
from sce_video.utils.atomic_file import write_json
from sce_video.utils.reused_memory import ReusedMemory


class NewMemory(ReusedMemory):
    """Forgets every block, so that each batch gets a new one."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Any:
        """See :class:`ReusedMemory`."""
        self._blocks = []
        return super().empty(shape, dtype)


def measure(dataset: VideoDataset, batches: int, memory: type[ReusedMemory]) -> Any:
    """Milliseconds of wall and processor time and page faults of one sample."""
    count = BATCH * batches
    requests = [SampleRequest(number % len(dataset), number) for number in range(count)]

    def prepare(worker: int) -> None:
        torch.set_num_threads(1)
        batch_memory._memory = memory(batch_memory._new_block)

    loader = DataLoader(
        dataset, BATCH, sampler=requests, num_workers=1,
        collate_fn=collate_views, worker_init_fn=prepare, multiprocessing_context="fork",
    )  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    for batch in loader:
        for view in batch["inputs"]:
            int(view[0, 0, 0, 0, 0])
    wall = time.perf_counter() - start
    del loader  # the times of children count when they have ended
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "wall_ms": 1e3 * wall / count,
        "cpu_ms": 1e3 * used / count,
        "page_faults": (after.ru_minflt - before.ru_minflt) / count,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--videos", required=True, metavar="DIR")
    parser.add_argument("--batches", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="OUT", type=Path)
    args = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    dataset = VideoDataset(args.videos, pipeline=pipeline("av"))
    kinds = {"new": NewMemory, "used again": ReusedMemory}
    runs: dict[str, list[Any]] = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        for kind, memory in kinds.items():
            runs[kind].append(measure(dataset, args.batches, memory))
    results: dict[str, Any] = {
        kind: {name: statistics.median(run[name] for run in found) for name in found[0]}
        for kind, found in runs.items()
    }
    for kind, values in results.items():
        print(kind.ljust(12), {name: round(value, 2) for name, value in values.items()})
    new, again = (results[kind] for kind in kinds)
    results["ratio"] = {name: new[name] / again[name] for name in ("wall_ms", "cpu_ms")}
    print(
        "samples/s, used again against new: {wall_ms:.3f} x, of a CPU second {cpu_ms:.3f} x".format(
            **results["ratio"]
        )
    )
    if args.json is not None:
        write_json(args.json, results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
