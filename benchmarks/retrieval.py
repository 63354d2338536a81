"""Time and memory of exact retrieval: in blocks, as a full matrix, and by faiss.

    python benchmarks/retrieval.py [--rows 1000000] [--size 128] [--queries 1024] [--threads 2]
                                   [--methods blocks full faiss] [--out retrieval.json]

Writes a gallery of random features to a file, then runs every method in its own process: read the
file, subtract the means, normalise, find the 10 nearest. ``full`` is the plain implementation: a
centred and a normalised copy of the gallery and one matrix of all similarities. Prints seconds
(median of the rounds, methods interleaved), CPU time (less sensitive to other load) and memory
beyond the gallery, each as a ratio to the first method, and the fraction of neighbours that agree
with it.

Memory is the peak resident memory of the process, mapped file included, minus that before the
gallery was read, minus the gallery itself (once).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from sce_video.evaluation import Rows, load_features, save_features
from sce_video.evaluation.functional.neighbours import (
    faiss_neighbours,
    feature_mean,
    nearest_neighbours,
)

K = 10


def full_matrix(queries: torch.Tensor, gallery: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By one matrix of all similarities, with copies of the gallery."""
    queries = F.normalize(queries - queries.double().mean(0).float(), dim=1)
    gallery = F.normalize(gallery - gallery.double().mean(0).float(), dim=1)
    return (queries @ gallery.T).topk(K, dim=1)


def in_blocks(queries: torch.Tensor, gallery: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    means = {"query_mean": feature_mean(queries), "gallery_mean": feature_mean(gallery)}
    return nearest_neighbours(queries, gallery, K, **means)


def by_faiss(queries: torch.Tensor, gallery: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    means = {"query_mean": feature_mean(queries), "gallery_mean": feature_mean(gallery)}
    return faiss_neighbours(queries, gallery, K, **means)


METHODS = {"blocks": in_blocks, "full": full_matrix, "faiss": by_faiss}


class PeakMemory:
    """Context that records the peak resident memory in bytes, sampled every 2 ms."""

    def __enter__(self) -> PeakMemory:
        self.anonymous = self.total = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            anonymous, total = resident()
            self.anonymous = max(self.anonymous, anonymous)
            self.total = max(self.total, total)
            time.sleep(0.002)


def resident() -> tuple[int, int]:
    """Current resident bytes: anonymous memory, and with mapped files (Linux)."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return tuple(1024 * int(fields[name].split()[0]) for name in ("RssAnon", "VmRSS"))  # type: ignore[return-value]


def run_one(args: argparse.Namespace) -> dict:
    """Measure one method in this process."""
    torch.set_num_threads(args.threads)
    method = METHODS[args.method]
    method(torch.randn(64, args.size), torch.randn(256, args.size))  # starts thread pools
    if args.method == "faiss":
        import faiss

        faiss.omp_set_num_threads(args.threads)
    before = resident()
    with PeakMemory() as peak:
        start, worked = time.perf_counter(), time.process_time()
        queries, _ = load_features(Path(args.folder) / "queries.npz")
        gallery, _ = load_features(Path(args.folder) / "bank.npz")
        loaded = time.perf_counter()
        _, indices = method(queries.features, gallery.features)
        done = time.perf_counter()
    np.save(Path(args.folder) / f"{args.method}.npy", indices.numpy())
    return {
        "load_seconds": loaded - start,
        "search_seconds": done - loaded,
        "seconds": done - start,
        "cpu_seconds": time.process_time() - worked,
        "own_bytes": peak.anonymous - before[0],
        "resident_bytes": peak.total - before[1],
        "bytes_beyond_the_bank": peak.total - before[1] - gallery.features.nbytes,
    }


def write_files(folder: Path, args: argparse.Namespace) -> None:
    for name, count, seed in (("bank", args.rows, 0), ("queries", args.queries, 1)):
        generator = torch.Generator().manual_seed(seed)
        features = torch.randn(count, args.size, generator=generator) + 0.5
        numbers = torch.arange(count)
        paths = [f"{name}/{i:07}.mp4" for i in range(count)]
        save_features(folder / f"{name}.npz", Rows(features, numbers % 400, numbers, paths))


def measure(folder: Path, args: argparse.Namespace) -> dict[str, dict]:
    """Medians of every method, each run in its own process, interleaved."""
    runs: dict[str, list[dict]] = {method: [] for method in args.methods}
    sizes = ["--size", str(args.size), "--threads", str(args.threads), "--folder", str(folder)]
    for _ in range(args.rounds):
        for method, results in runs.items():
            command = [sys.executable, __file__, "--method", method, *sizes]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results.append(json.loads(done.stdout.splitlines()[-1]))
    summary = {
        method: {name: statistics.median(r[name] for r in results) for name in results[0]}
        for method, results in runs.items()
    }
    reference = np.load(folder / f"{args.methods[0]}.npy")
    for method, values in summary.items():
        values["agreement"] = float((np.load(folder / f"{method}.npy") == reference).mean())
        for name in ("seconds", "search_seconds", "cpu_seconds", "bytes_beyond_the_bank"):
            values[f"{name}_ratio"] = values[name] / summary[args.methods[0]][name]
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description="Retrieval in blocks, as a full matrix, by faiss.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="gallery size")
    parser.add_argument("--size", type=int, default=128, help="feature size")
    parser.add_argument("--queries", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=["blocks", "full"])
    parser.add_argument("--out", help="JSON file for the results")
    parser.add_argument("--method", choices=list(METHODS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.method is not None:
        print(json.dumps(run_one(args)))
        return
    if importlib.util.find_spec("faiss") is None and "faiss" in args.methods:
        parser.error("the method faiss needs faiss: pip install faiss-cpu")
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), args)
        summary = measure(Path(folder), args)
    bank_bytes = 4 * args.rows * args.size
    print(
        f"{args.queries} queries, gallery of {args.rows} x {args.size} "
        f"({bank_bytes / 2**20:.0f} MiB), {args.threads} threads"
    )
    for method, values in summary.items():
        print(
            f"  {method:7} load {values['load_seconds']:6.2f} s, search "
            f"{values['search_seconds']:6.2f} s ({values['search_seconds_ratio']:.2f} x), "
            f"CPU {values['cpu_seconds']:6.2f} s ({values['cpu_seconds_ratio']:.2f} x), "
            f"{values['bytes_beyond_the_bank'] / 2**20:6.0f} MiB beyond the gallery "
            f"({values['bytes_beyond_the_bank_ratio']:.1f} x), same neighbours "
            f"{100 * values['agreement']:.3f} %"
        )
    if args.out:
        machine = {
            "processor": platform.processor() or platform.machine(),
            "torch": torch.__version__,
        }
        settings = {
            name: getattr(args, name) for name in ("rows", "size", "queries", "threads", "rounds")
        }
        content = {
            "settings": settings,
            "machine": machine,
            "bank_bytes": bank_bytes,
            "methods": summary,
        }
        Path(args.out).write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
