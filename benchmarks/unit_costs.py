"""What one video costs in each step of work over millions of them: processor time, bytes, memory.

    python benchmarks/unit_costs.py --videos DIR [--all] [--json OUT]

docs/scale.md multiplies these by 1, 10 and 100 million. Per file (those like Kinetics' unless
``--all``; one core, processor seconds, median of the rounds, then the mean over the files):

    verify      decoding it completely (sce-video verify)
    repack      encoding it, checking it (sce-video repack)
    import      its row, written to a table (sce-video import)
    views       four clips of 8 frames of 224, without the network (sce-video index)
    bytes       original, repacked, the row without the packets, the frames of two clips

Of the driver of a batch job, by items that do nothing: processor seconds per item, of the next run
that finds them done too, bytes of a record, and MiB that the process grows by. Of a table of many
rows: bytes per row beside the packets, seconds to open it and memory of the process that does.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import side_by_side as sbs
from data_pipeline import needed
from video_list import resident_mib

from sce_video.apis.embed import EmbedOptions, iterate_embeddings
from sce_video.data_tools.repack.settings import Settings
from sce_video.data_tools.repack.work import Job, repack_file
from sce_video.data_tools.tables import RowSource, TableWriter, video_row, write_rows
from sce_video.data_tools.verification import examine_file
from sce_video.datasets import LanceVideoDataset
from sce_video.datasets.tables.rows import INDEX, STREAM, FrameIndex
from sce_video.jobs import BatchJob, Item, RecordStore, Workers, run_job
from sce_video.utils.atomic_file import write_json


@dataclass(frozen=True)
class _Settings:
    clip_duration: float = 2.56
    num_frames: int = 8
    short_side: int = 224
    crop_size: int = 224
    resize: str = "linear"


class NoNetwork:
    """Takes views as a network does and computes nothing."""

    settings = _Settings()
    checkpoint = "none"
    row_size = 1

    def row(self, sample: dict[str, Any], max_views: int) -> np.ndarray:
        """One number of the frames, so that they are there."""
        return np.array([float(sample["frames"].shape[0])], dtype=np.float32)


class Nothing(BatchJob):
    """Gives the facts of a file that was verified, without a file."""

    name = "nothing"

    def process(self, item: Item) -> dict[str, Any]:
        """Facts as of :func:`examine_file`."""
        return {
            **dict(outcome="decoded", error=None, frames=250, seconds=10.0, packets=250),
            **dict(refused=0, damaged=0, header_frames=250, header_seconds=10.0),
            **dict(header_of_file=True, container="mov,mp4,m4a,3gp,3g2,mj2", codec="h264"),
            **dict(height=256, width=340, max_pixels=40_000_000),
        }


def seconds(work: Callable[[], object], rounds: int) -> float:
    """Processor seconds of this process, median."""
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        found.append(time.process_time() - begin)
    return statistics.median(found)


def size_of(folder: Path) -> int:
    """Bytes of all files of a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def video_costs(videos: list[sbs.Video], folder: Path, rounds: int) -> dict[str, float]:
    """The costs of one file, means over the files."""
    rows = []
    options = EmbedOptions(num_clips=4)
    for number, video in enumerate(videos):
        target = str(folder / f"{number}.mp4")
        repacking = Job(video.original, target, Settings(), min_psnr=0.0)
        costs = {"repack": seconds(lambda job=repacking: check(repack_file(job)), 1)}
        costs["verify"] = seconds(lambda path=video.original: examine_file((path, 600.0)), rounds)
        source, table = RowSource(target, "a.mp4"), str(folder / f"{number}.lance")
        writer = TableWriter(table)
        costs["import"] = seconds(lambda s=source, t=table: write_rows(t, [video_row(s)]), rounds)
        row = video_row(source)
        writer.commit(write_rows(table, [row]))
        for kind, path in (("original", video.original), ("repacked", target)):
            views = lambda p=path: list(iterate_embeddings(NoNetwork(), [p], options))  # noqa: E731
            costs[f"views_{kind}"] = seconds(views, rounds)
            costs[f"bytes_{kind}"] = os.path.getsize(path)
        index = FrameIndex.unpack(row[INDEX])
        sizes = np.diff(index.offsets)
        costs["bytes_two_clips"] = float(
            np.mean([sizes[needed(target, seed)].sum() for seed in range(100)])
        )
        costs["bytes_index"] = len(row[INDEX])
        costs["seconds_of_video"] = index.duration
        rows.append(costs)
        print(video.name, {name: round(value, 4) for name, value in costs.items()}, flush=True)
    return {name: statistics.mean(row[name] for row in rows) for name in rows[0]}


def check(facts: dict[str, Any]) -> None:
    """Raise unless a file was repacked."""
    if facts["status"] != "done":
        raise RuntimeError(facts["reason"])


def driver_costs(count: int, folder: str) -> dict[str, float]:
    """Of a run of so many items on two processes, and of the next; in a process of its own."""
    path = Path(folder, "records.sqlite")

    def items() -> Iterator[Item]:
        for number in range(count):
            key = f"class_{number % 400:03}/{number:011x}_000000_000010.mp4"
            yield Item(key, {"size": 2_000_000 + number, "mtime_ns": 1_700_000_000_000_000_000})

    def own() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    found = {}
    with RecordStore(path, Nothing.name) as store:
        run_job(Nothing(), (item for item in [Item("first", {})]), store, Workers(2))
    for name in ("first", "again"):
        before, memory, wall = own(), resident_mib("VmRSS"), time.perf_counter()
        with RecordStore(path, Nothing.name) as store:
            run_job(Nothing(), items(), store, Workers(2))
        found[f"cpu_{name}"] = (own() - before) / count
        found[f"wall_{name}"] = (time.perf_counter() - wall) / count
        found[f"mib_{name}"] = resident_mib("VmRSS") - memory
    return {**found, "record_bytes": path.stat().st_size / count}


def make_table(rows: int, video: str, table: str) -> None:
    """A table of rows that hold the frame index of a video and no packets to speak of."""
    row = video_row(RowSource(video, "a.mp4"))
    writer, rng = TableWriter(table), np.random.default_rng(0)
    index = FrameIndex.unpack(row[INDEX])
    sizes, most = np.diff(index.offsets), 2**32

    def copies(start: int, stop: int) -> Iterator[dict[str, Any]]:
        for number in range(start, stop):
            path = f"class_{number % 400:03}/{number:011x}_000000_000010.mp4"
            ends = np.cumsum(rng.permutation(sizes))  # no two rows are alike, or they compress
            other = replace(
                index,
                offsets=np.concatenate([[0], ends]),
                checks=rng.integers(0, most, len(sizes), dtype=np.uint32),
            )
            hashed = {"hash": rng.bytes(len(row["hash"])), "source_size": 2_000_000 + number}
            named = {"path": path, "label": number % 400, INDEX: other.pack(), STREAM: b"\0"}
            yield {**row, **hashed, **named}

    step = 10_000
    for start in range(0, rows, step):
        writer.commit(write_rows(table, copies(start, min(rows, start + step))))


def open_table(small: str, table: str) -> dict[str, float]:
    """Seconds and MiB of opening a table for training, beside those of a small one; in a process
    of its own."""
    LanceVideoDataset(small)
    before, cpu, wall = resident_mib("VmRSS"), time.process_time(), time.perf_counter()
    dataset = LanceVideoDataset(table)
    found = {
        "open_cpu": time.process_time() - cpu,
        "open_wall": time.perf_counter() - wall,
        "open_mib": resident_mib("VmRSS") - before,
        "open_peak_mib": resident_mib("VmHWM") - before,
    }
    return {**found, "rows": float(len(dataset))}


def alone(function: Callable[..., dict[str, float]], *args: Any) -> dict[str, float]:
    """A function's result from a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = sbs.arguments("Costs of one video in work over millions of them.")
    parser.add_argument("--items", type=int, default=100_000, help="of the job that does nothing")
    parser.add_argument("--rows", type=int, default=200_000, help="of the table")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(argv)
    result: dict[str, Any] = {"items": args.items, "rows": args.rows, "load": os.getloadavg()}
    with tempfile.TemporaryDirectory(prefix="unit_costs_") as name:
        folder = Path(name)
        result["driver"] = alone(driver_costs, args.items, name)
        print("driver", result["driver"], flush=True)
        sbs.prepare_process()
        videos = sbs.find_videos(args.videos, args.all)
        result["videos"] = [video.name for video in videos]
        result["video"] = video_costs(videos, folder, args.rounds)
        table = folder / "many.lance"
        make_table(args.rows, str(folder / "0.mp4"), str(table))
        result["table"] = {"row_bytes": size_of(table) / args.rows}
        result["table"] |= alone(open_table, str(folder / "0.lance"), str(table))
        print("table", result["table"], flush=True)
    if args.json:
        write_json(args.json, result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
