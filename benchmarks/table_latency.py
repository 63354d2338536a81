"""Samples from a table in object storage against the same table on the local disk.

    python benchmarks/table_latency.py --videos DIR [--repacked DIR] [--delay 0.02] [--workers 1]
        [--batch 16] [--rows 128] [--rounds 5] [--json OUT]

A sample: two random clips of 2.56 s, 8 frames each, a random resized crop to 224 pixels of each.
Both tables are read by a DataLoader with the same workers, batch size and seeds, in turn, an epoch
of each in a round. The object storage is ``slow_store.py``, another process on this machine, which
answers every request ``--delay`` seconds after it came. Where there are two cores or more, server
and loader have cores of their own, so that the server's work is not counted as latency.

Prints and writes (JSON) samples per second of the best epoch of each, the ratio of object storage
to local disk, the same without reading the next batch ahead, and of the object storage: requests
per sample, and bytes sent over bytes of the frames that are used.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import data_pipeline
import numpy as np
import side_by_side as sbs
from torch.utils.data import DataLoader

from sce_video.datasets import LanceVideoDataset, ResumableSampler, SampleRequest, collate_views
from sce_video.utils.atomic_file import write_json

#: Object storage without reading the next batch while this one is decoded.
ALONE = "remote, each batch for itself"

MAKE_TABLE = """
import sys
from sce_video.data_tools.tables import RowSource, TableWriter, video_row, write_rows
table, rows, *files = sys.argv[1:]
writer = TableWriter(table)
made = (video_row(RowSource(files[k % len(files)], f"{k:05}.mp4")) for k in range(int(rows)))
writer.commit(write_rows(table, made))
"""


@contextlib.contextmanager
def slow_store(folder: str, delay: float, core: int | None) -> Iterator[str]:
    """Address of a server of a folder; the environment names it and some credentials."""
    script = str(Path(__file__).with_name("slow_store.py"))
    command = [sys.executable, script, folder, "--delay", str(delay)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if core is not None:
                os.sched_setaffinity(process.pid, {core})
            assert process.stdout is not None
            address = f"http://127.0.0.1:{int(process.stdout.readline())}"
            os.environ |= {"AWS_ENDPOINT_URL": address, "AWS_REGION": "us-east-1",
                           "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
                           "NO_PROXY": "127.0.0.1"}  # fmt: skip
            yield address
        finally:
            process.terminate()


def counts(address: str) -> dict[str, int]:
    """Requests and bytes of the server so far."""
    with urllib.request.urlopen(f"{address}/-/counts") as answer:
        return json.load(answer)


def loader_of(table: str, announced: bool, args: argparse.Namespace) -> DataLoader:
    """The loader of a table, with workers that stay; ``announced``: they read a batch ahead."""
    dataset = LanceVideoDataset(table, None, data_pipeline.pipeline("av"), on_error="raise")
    sampler = ResumableSampler(dataset, seed=1, min_samples=args.samples)
    if announced and dataset.reads_ahead:  # as VideoRunner.build_dataloader
        sampler.announce_batches(args.batch, args.workers)
    return DataLoader(
        dataset, args.batch, sampler=sampler, num_workers=args.workers, collate_fn=collate_views,
        persistent_workers=True, drop_last=True,
    )  # fmt: skip


def epoch(loader: DataLoader, number: int) -> tuple[float, list[SampleRequest]]:
    """Samples per second of an epoch from its second batch on, and what was sampled."""
    loader.sampler.set_epoch(number)  # type: ignore[attr-defined]
    seen: list[SampleRequest] = []
    begin = 0.0
    for batch in loader:
        begin = begin or time.perf_counter()
        seen += map(SampleRequest, batch["index"].tolist(), batch["seed"].tolist())
    batches = len(seen) // loader.batch_size - 1
    return batches * loader.batch_size / (time.perf_counter() - begin), seen


def bytes_used(dataset: LanceVideoDataset, requests: Sequence[SampleRequest], batch: int) -> int:
    """Bytes of the frames that samples show; a frame of several samples of a batch counts once."""
    total = 0
    for begin in range(0, len(requests), batch):
        frames: dict[int, list[np.ndarray]] = {}
        for request in requests[begin : begin + batch]:
            frames.setdefault(request.index, []).extend(c.frames for c in dataset.clips(request))
        for index, parts in frames.items():
            row = int(dataset._rows[index])
            sizes = np.diff(dataset._source.read_indexes([row])[row].index.offsets)
            total += int(sizes[np.unique(np.concatenate(parts))].sum())
    return total


def compare(args: argparse.Namespace, tables: dict[str, str], address: str) -> dict[str, Any]:
    """Measure both tables, round after round."""
    loaders = {name: loader_of(table, True, args) for name, table in tables.items()}
    loaders[ALONE] = loader_of(tables["remote"], False, args)
    speeds: dict[str, list[float]] = {name: [] for name in loaders}
    sent = {"requests": 0, "bytes": 0}
    used = samples = 0
    for number in range(args.rounds + 1):  # the first one starts the workers
        for name, loader in loaders.items():
            before = counts(address)
            speed, seen = epoch(loader, number)
            after = counts(address)
            if number == 0:
                continue
            speeds[name].append(speed)
            if name == "remote":
                sent = {key: sent[key] + after[key] - before[key] for key in sent}
                used += bytes_used(loaders["local"].dataset, seen, args.batch)
                samples += len(seen)
        print(f"round {number}: " + ", ".join(f"{n} {s[-1]:.1f}" for n, s in speeds.items() if s))
    best = {name: max(values) for name, values in speeds.items()}
    return {
        "samples_per_second": {name: round(value, 2) for name, value in best.items()},
        "ratio": round(best["remote"] / best["local"], 3),
        "ratio_without_reading_ahead": round(best[ALONE] / best["local"], 3),
        "ratios_of_rounds": [
            round(r / s, 3) for r, s in zip(speeds["remote"], speeds["local"], strict=True)
        ],
        "requests_per_sample": round(sent["requests"] / samples, 2),
        "bytes_read_to_used": round(sent["bytes"] / used, 3),
        "load_average": os.getloadavg()[0],
    }


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = sbs.arguments("Samples from object storage against the local disk.")
    parser.add_argument("--delay", type=float, default=0.02, help="seconds of latency")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rows", type=int, default=128, help="rows of the table")
    parser.add_argument("--samples", type=int, default=256, help="of an epoch")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison."""
    args = parse_args(argv)
    cores = sorted(os.sched_getaffinity(0))
    videos = sbs.find_videos(args.videos, args.all)
    with contextlib.ExitStack() as stack:
        stack.enter_context(sbs.with_repacked(videos, args.repacked))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tables_"))
        files = [video.repacked for video in videos if video.repacked]
        table = os.path.join(folder, "videos.lance")
        command = [sys.executable, "-c", MAKE_TABLE, table, str(args.rows), *files]
        subprocess.run(command, check=True)  # a process of its own: Lance does not survive forks
        own = cores[-1] if len(cores) > 1 else None
        address = stack.enter_context(slow_store(folder, args.delay, own))
        if own is not None:
            os.sched_setaffinity(0, set(cores[:-1]))
        found = compare(args, {"local": table, "remote": "s3://any/videos.lance"}, address)
    found |= {name: getattr(args, name) for name in ("delay", "workers", "batch", "rows")}
    print(json.dumps(found, indent=1))
    if args.json:
        write_json(Path(args.json), found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
