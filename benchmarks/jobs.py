"""Items per second of the runner of batch jobs: this machine's processes against Ray.

    python benchmarks/jobs.py [--items 2000] [--workers 2] [--rounds 3] [--json OUT]
    python benchmarks/jobs.py --items 2000 --kills 20

Three jobs: one that does nothing, repacking at a fixed quality, and extraction of features by a
ResNet3D-18 with 8 channels from four clips of 8 x 112 x 112, both of generated videos of 16 frames
of 160 x 120, so that an item takes some hundredths of a second: real ones take longer, and what a
runner adds to them counts less. The runners alternate, each with fresh records and outputs, and the
same number of processes; a Ray cluster of as many CPUs is started once. Printed are items per
second, the median over the rounds with all values, and the ratio of Ray to local. The first items
include the start of the processes, as they do for a user.

With --kills, repacking and extraction then run once more on either runner, while processes are
killed by SIGKILL at so many random moments; a second run completes what failed. Every item must
have one record, and outputs and features must equal those of an unbroken run bit for bit.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import av
import numpy as np
import torch

from sce_video.apis.embed import EmbedOptions
from sce_video.apis.embed_job import EmbedJob
from sce_video.apis.model import VideoModel, build_model
from sce_video.apis.model_settings import ModelSettings
from sce_video.data_tools.repack.job import RepackJob
from sce_video.data_tools.repack.plan import make_plan
from sce_video.data_tools.repack.settings import Settings
from sce_video.engine.checkpoint import save_checkpoint_file
from sce_video.jobs import BatchJob, Item, Record, RecordStore, Workers, file_state, run_job
from sce_video.registry import MODELS

_BACKBONE = {"type": "ResNet3dSlowPath", "depth": 18, "base_channels": 8}


class Nothing(BatchJob):
    """Does nothing."""

    name = "nothing"

    def process(self, item: Item) -> dict:
        """No facts."""
        return {}


def write_videos(folder: Path, count: int) -> None:
    """One moving texture, encoded once and linked under other names."""
    folder.mkdir()
    texture = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    texture = texture.repeat(8, axis=0).repeat(8, axis=1)
    first = folder / "0.mp4"
    with av.open(str(first), "w") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = 160, 120, "yuv420p"
        for number in range(16):
            part = np.ascontiguousarray(texture[number : number + 120, 2 * number :][:, :160])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(part, format="rgb24")))
        container.mux(stream.encode())
    for number in range(1, count):
        (folder / f"{number}.mp4").hardlink_to(first)


def small_network(folder: Path) -> VideoModel:
    """A network of random weights."""
    torch.manual_seed(0)
    weights = MODELS.build(_BACKBONE).state_dict()
    checkpoint = {"state_dict": {f"backbone.{key}": value for key, value in weights.items()}}
    save_checkpoint_file(checkpoint, folder / "network.pth")
    settings = ModelSettings(_BACKBONE, 0.45, 0.225, 1.0, 8, 112, 112)
    return build_model(settings, folder / "network.pth", "cpu")


class Jobs:
    """The jobs and their items.

    Args:
        root: Folder of videos and outputs.
        items: Items of each job.
    """

    def __init__(self, root: Path, items: int) -> None:
        self.root = root
        self._count = items
        write_videos(root / "videos", items)
        self._files = make_plan(str(root / "videos"), str(root / "out")).items
        self._model = small_network(root)

    def make(self, name: str, folder: Path) -> tuple[BatchJob, list[Item]]:
        """A job that writes its outputs to a folder."""
        videos = self.root / "videos"
        if name == "nothing":
            return Nothing(), [Item(str(i), {}) for i in range(self._count)]
        if name == "repack":
            repacking = RepackJob(videos, folder / "out", Settings(crf=26.0))
            return repacking, repacking.items(self._files)
        items = [Item(f"{i}.mp4", file_state(videos / f"{i}.mp4")) for i in range(self._count)]
        options = EmbedOptions(num_clips=4)
        return EmbedJob(self._model, str(videos), options, retry_failed=True), items


def measure(jobs: Jobs, name: str, workers: Workers, folder: Path) -> float:
    """Items per second of one run with fresh records."""
    folder.mkdir(parents=True)
    job, items = jobs.make(name, folder)
    with RecordStore(folder / "records.sqlite", job.name) as store:
        begin = time.perf_counter()
        counts = run_job(job, items, store, workers)
        seconds = time.perf_counter() - begin
    assert counts.done == len(items), counts
    print(f"{folder.parent.name} {name}: {len(items) / seconds:.1f} items/s", flush=True)
    return len(items) / seconds


def results(job: BatchJob, store: RecordStore) -> dict[str, str]:
    """Digest of the output or the feature of every finished item."""
    found = {}
    for record in store:
        assert record.done, record
        data = record.data
        if record.output is not None:
            data = Path(job.folder, record.output).read_bytes()
        found[record.key] = hashlib.sha256(data or b"").hexdigest()
    return found


def kill_one(generator: random.Random) -> bool:
    """Kill a random process of a local pool or of Ray; whether there was one."""
    found: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found[int(folder.name)] = int(parent), words
    below = {os.getpid()}
    while more := {child for child, (parent, _) in found.items() if parent in below} - below:
        below |= more
    workers = [
        pid
        for pid in sorted(below - {os.getpid()})
        if found[pid][1].startswith(("ray::_do", "ray::_Host"))
        or "forkserver" in found.get(found[pid][0], (0, ""))[1]
    ]
    if not workers:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(generator.choice(workers), signal.SIGKILL)
    return True


def killer(items: int, kills: int) -> tuple[Callable[[Item, Record | None], None], list[bool]]:
    """A function to call after each item, which kills a process at random ones; what it did."""
    generator, done, seen = random.Random(0), [], iter(range(1, items + 1))
    moments = set(generator.sample(range(1, items), min(kills, items - 1)))

    def after(item: Item, record: Record | None) -> None:
        if next(seen, 0) in moments:
            done.append(kill_one(generator))

    return after, done


def check_kills(
    jobs: Jobs, name: str, runs: Iterator[tuple[str, Workers]], kills: int, folder: Path
) -> dict[str, dict[str, int]]:
    """Runs with killed processes, against one without; what happened, by runner."""
    expected: dict[str, str] = {}
    summary = {}
    for where, workers in runs:
        job, items = jobs.make(name, folder / where)
        (folder / where).mkdir(parents=True)
        after, killed = killer(len(items), kills if where != "unbroken" else 0)
        with RecordStore(folder / where / "records.sqlite", job.name) as store:
            counts = run_job(job, items, store, workers, after)
            first = f"{counts.done} done, {counts.failed} failed"
            assert len(store) == len(items) == counts.done + counts.failed, counts
            again = run_job(job, items, store, workers)
            assert (again.done, again.kept) == (counts.failed, counts.done), again
            found = results(job, store)
        expected = expected or found
        assert found == expected and len(found) == len(items)
        left = [path for path in Path(job.folder or folder / where).rglob(".*.part")]
        assert not left, left
        if where != "unbroken":
            print(f"{name}, {where}: {sum(killed)} processes killed, {first}, then all; equal")
            facts = {"killed": sum(killed), "done": counts.done, "failed": counts.failed}
            summary[where] = {**facts, "done_by_second_run": again.done, "records": len(found)}
    return summary


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=2000, help="items of each job")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--kills", type=int, default=0, help="processes to kill in runs of their own"
    )
    parser.add_argument(
        "--jobs", nargs="+", default=["nothing", "repack", "embed"], help="jobs to measure"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    import ray

    os.environ["RAY_worker_niceness"] = "0"  # as the local processes
    ray.init("local", num_cpus=args.workers, log_to_driver=False, include_dashboard=False)
    local, cluster = Workers(args.workers, 600.0), Workers(None, 600.0, "auto")
    rates: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="jobs_") as folder:
        root = Path(folder)
        jobs = Jobs(root, args.items)
        for number in range(args.rounds):
            for where, workers in (("local", local), ("ray", cluster)):
                for name in args.jobs:
                    rate = measure(jobs, name, workers, root / f"{where}{number}" / name)
                    rates.setdefault(name, {}).setdefault(where, []).append(rate)
        report(rates)
        killed = {}
        for name in [name for name in args.jobs if name != "nothing" and args.kills]:
            runs = iter((("unbroken", local), ("local", local), ("ray", cluster)))
            killed[name] = check_kills(jobs, name, runs, args.kills, root / "kills" / name)
    if args.json is not None:
        options = {key: value for key, value in vars(args).items() if key != "json"}
        found = {"options": options, "items_per_second": rates, "killed": killed}
        args.json.write_text(json.dumps(found, indent=2) + "\n")


def report(rates: dict[str, dict[str, list[float]]]) -> None:
    """Print rates and ratios."""
    for job, found in rates.items():
        for where, values in found.items():
            shown = ", ".join(f"{value:.1f}" for value in values)
            print(f"{job}, {where}: {statistics.median(values):.1f} items/s ({shown})")
        ratio = statistics.median(found["ray"]) / statistics.median(found["local"])
        print(f"{job}: ray / local {ratio:.3f}")


if __name__ == "__main__":
    import jobs  # this file: processes of Ray can import its classes, those of __main__ they cannot

    jobs.main()
