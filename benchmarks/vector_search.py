r"""Search by the vector index of an index's table against exact search: recall, latency, memory.

    python benchmarks/vector_search.py --rows 1000000 [--size 512] [--spectrum measured|flat]
        [--folder DIR] [--keep] [--json OUT]

Vectors are generated: features of millions of videos do not exist here. They have what decides the
difficulty, measured on 2160 views of the 36 videos of weizmann4 (60 clips of each, cropped and
flipped at random; ResNet3D-18 of width 8, 64 features, SCE): the eigenvalues of the covariance,
their sum against the squared mean, and the share of the variance that lies between videos (0.82).
The spectrum of the 64 features is stretched over all dimensions (eigenvalue by relative rank) in a
random basis, so the effective rank (squared sum of the eigenvalues over the sum of their squares)
is 21 of 512, where the 64 measured ones have 2.6: more dimensions count, which is harder. Rows lie
in groups, as a large collection has many similar videos: rows / 100 groups, whose sizes fall with
the 0.7th power of their rank; the centres of the groups and the rows around them are normal, with
the measured spectrum and shares. ``--spectrum flat`` takes 1 / rank as eigenvalues instead.

The table has the columns of an index (docs/search.md), and is written in batches. Queries are
further draws and no rows; their exact neighbours are found while the rows are written. Building and
searching are processes of their own. Measured are recall@10, the latency of single queries one
after the other (median, 95 % quantile) once their cells are in memory, processor time per query (of
all threads of the asking process), the first query of a process, and the largest resident memory of
the searching process; several settings of Lance, then ``query_index`` itself, which asks a process
of its own as ``sce-video search`` does.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from sce_video.apis.index import VideoIndex
from sce_video.apis.index_store import TableStore, table_schema
from sce_video.apis.index_table import FEATURE, TABLE, vector_index_options
from sce_video.apis.search import query_index

# Eigenvalues of the covariance of the measured features, relative to their sum, largest first.
SPECTRUM = (
    0.521,
    0.326,
    0.0709,
    0.0217,
    0.0101,
    0.0072,
    0.00603,
    0.00432,
    0.00346,
    0.00265,
    0.002,
    0.0017,
    0.00145,
    0.00134,
    0.00118,
    0.00113,
    0.00108,
    0.00099,
    0.000914,
    0.000897,
    0.000803,
    0.000743,
    0.000715,
    0.00067,
    0.000614,
    0.000574,
    0.000558,
    0.000526,
    0.000501,
    0.00048,
    0.000461,
    0.000422,
    0.000414,
    0.000403,
    0.000387,
    0.000356,
    0.000355,
    0.000334,
    0.00033,
    0.000311,
    0.000294,
    0.000283,
    0.000255,
    0.000244,
    0.000242,
    0.000228,
    0.00022,
    0.000213,
    0.000207,
    0.000198,
    0.000195,
    0.000186,
    0.000174,
    0.000167,
    0.000166,
    0.000161,
    0.000157,
    0.000145,
    0.000139,
    0.000138,
    0.000129,
    0.000117,
    0.000113,
    0.000112,
)
#: Squared mean over the sum of the eigenvalues, and the share of the variance between videos.
MEAN_TO_VARIANCE, BETWEEN = 1.64, 0.82
K = 10
HEADER = {
    "root": "/videos",
    "checkpoint": {"path": "generated", "sha256": "0"},
    "settings": {"model": {}, "num_clips": 1, "num_crops": 1},
}
SETTINGS = [{"nprobes": n, "refine_factor": r} for n in (10, 20, 40, 80) for r in (5, 20)]
_BATCH, _GROUP_ROWS, _EXACT_QUERIES = 65536, 100, 3


def eigenvalues(size: int, spectrum: str) -> np.ndarray:
    """(size,) with sum 1: the measured ones by relative rank, or 1 / rank."""
    if spectrum == "flat":
        values = 1.0 / np.arange(1, size + 1)
    else:
        ranks = (np.arange(len(SPECTRUM)) + 0.5) / len(SPECTRUM)
        wanted = (np.arange(size) + 0.5) / size
        values = np.exp(np.interp(np.log(wanted), np.log(ranks), np.log(SPECTRUM)))
    return values / values.sum()


class Vectors:
    """Generated rows and queries.

    Args:
        rows: N.
        size: D.
        spectrum: "measured" or "flat".
    """

    def __init__(self, rows: int, size: int, spectrum: str) -> None:
        self.rows, self.size = rows, size
        rng = np.random.default_rng(1)
        values = eigenvalues(size, spectrum)
        basis, _ = np.linalg.qr(rng.normal(size=(size, size)))
        root = (np.sqrt(values)[:, None] * basis.T).astype(np.float32)
        self._within = torch.from_numpy(root * np.sqrt(1 - BETWEEN, dtype=np.float32))
        mean = np.abs(rng.normal(size=size))
        mean *= np.sqrt(MEAN_TO_VARIANCE) / np.linalg.norm(mean)
        groups = max(2, rows // _GROUP_ROWS)
        draws = torch.from_numpy(rng.standard_normal((groups, size), dtype=np.float32))
        self._centres = draws @ torch.from_numpy(root * np.sqrt(BETWEEN, dtype=np.float32))
        self._centres += torch.from_numpy(mean.astype(np.float32))
        share = (1.0 + np.arange(groups)) ** -0.7
        self._bounds = np.cumsum(share / share.sum())
        self.effective_rank = float(values.sum() ** 2 / (values**2).sum())

    def draw(self, count: int, seed: int) -> torch.Tensor:
        """(count, D) float32."""
        rng = np.random.default_rng((7, seed))
        group = np.searchsorted(self._bounds, rng.random(count)).clip(max=len(self._bounds) - 1)
        noise = torch.from_numpy(rng.standard_normal((count, self.size), dtype=np.float32))
        return torch.addmm(self._centres[torch.from_numpy(group)], noise, self._within)

    def batches(self) -> Iterator[tuple[int, torch.Tensor]]:
        """First row and rows of each batch."""
        for start in range(0, self.rows, _BATCH):
            yield start, self.draw(min(_BATCH, self.rows - start), start)


class ExactNeighbours:
    """The K most similar rows of each query, found batch by batch.

    Args:
        queries: (Q, D).
    """

    def __init__(self, queries: torch.Tensor) -> None:
        self._queries = torch.nn.functional.normalize(queries)
        self.similarities = torch.full((len(queries), K), -2.0)
        self.rows = torch.zeros((len(queries), K), dtype=torch.long)
        self.seconds = 0.0

    def add(self, start: int, rows: torch.Tensor) -> None:
        """Compare a batch whose first row has the number ``start``."""
        begin = time.perf_counter()
        similar = self._queries @ torch.nn.functional.normalize(rows).T
        values, columns = torch.cat([self.similarities, similar], 1).topk(K, dim=1)
        known = self.rows.gather(1, columns.clamp(max=K - 1))
        self.rows = torch.where(columns < K, known, columns - K + start)
        self.similarities = values
        self.seconds += time.perf_counter() - begin


def write(args: argparse.Namespace) -> dict:
    """Write the table, and the exact neighbours of the queries."""
    import lance

    vectors = Vectors(args.rows, args.size, args.spectrum)
    queries = vectors.draw(args.queries, args.rows)
    exact = ExactNeighbours(queries)
    columns = table_schema(HEADER, args.size)

    def batches() -> Iterator[pa.RecordBatch]:
        for start, rows in vectors.batches():
            exact.add(start, rows)
            numbers = np.arange(start, start + len(rows))
            arrays = [
                pa.array([f"{number:010}.mp4" for number in numbers.tolist()]),
                pa.FixedSizeListArray.from_arrays(pa.array(rows.numpy().ravel()), args.size),
                pa.array(numbers),
                pa.array(numbers),
                pa.array([""] * len(rows)),
            ]
            yield pa.record_batch(arrays, schema=columns)

    begin = time.perf_counter()
    reader = pa.RecordBatchReader.from_batches(columns, batches())
    lance.write_dataset(
        reader, args.table, schema=columns, mode="overwrite", enable_stable_row_ids=True
    )
    seconds = time.perf_counter() - begin - exact.seconds
    np.savez(args.truth, queries=queries.numpy(), rows=exact.rows.numpy())
    return {
        "write_seconds": round(seconds, 1),
        "effective_rank": round(vectors.effective_rank, 1),
        "similarity_of_1st_and_10th": [
            round(float(exact.similarities[:, i].mean()), 4) for i in (0, K - 1)
        ],
        "table_bytes": tree_bytes(args.table),
        "peak_bytes": peak_bytes(),
    }


def tree_bytes(folder: str) -> int:
    """Size of all files below a folder."""
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


def peak_bytes() -> int:
    """Largest resident memory of this process so far, mapped files included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def build(args: argparse.Namespace) -> dict:
    """Make the vector index."""
    import lance

    data = lance.dataset(args.table)
    options = {**vector_index_options(args.rows), **json.loads(args.index)}
    begin = time.perf_counter()
    data.create_index(FEATURE, replace=True, **options)
    seconds = time.perf_counter() - begin
    newest = max(Path(args.table, "_indices").iterdir(), key=lambda folder: folder.stat().st_mtime)
    return {
        "options": options,
        "build_seconds": round(seconds, 1),
        "build_processor_seconds": round(sum(os.times()[:2]), 1),
        "index_bytes": tree_bytes(str(newest)),
        "build_peak_bytes": peak_bytes(),
    }


def measure(
    ask: Callable[[np.ndarray], list[int]], truth: dict[str, np.ndarray], count: int, warm: bool
) -> dict:
    """Recall and latency of a search for the first queries.

    Args:
        ask: Returns row numbers for a query.
        truth: ``queries`` and ``rows``.
        count: Of the queries.
        warm: Ask all of them once before.
    """
    queries, expected = truth["queries"][:count], truth["rows"][:count]
    for query in queries if warm else []:
        ask(query)
    times, hits, used = [], 0, sum(os.times()[:2])
    for query, rows in zip(queries, expected, strict=True):
        begin = time.perf_counter()
        found = ask(query)
        times.append(1000 * (time.perf_counter() - begin))
        hits += len(set(found) & set(rows.tolist()))
    return {
        "recall_at_10": round(hits / K / count, 4),
        "median_ms": round(statistics.median(times), 2),
        "p95_ms": round(float(np.quantile(times, 0.95)), 2),
        "processor_ms": round(1000 * (sum(os.times()[:2]) - used) / count, 2),
    }


def settings(args: argparse.Namespace) -> dict:
    """Settings of Lance, asked in this process."""
    import lance

    truth = dict(np.load(args.truth))
    begin = time.perf_counter()
    data = lance.dataset(args.table)
    found: dict = {"threads": os.environ.get("LANCE_CPU_THREADS", "default"), "settings": []}

    def asking(setting: dict) -> Callable[[np.ndarray], list[int]]:
        def ask(query: np.ndarray) -> list[int]:
            nearest = {"column": FEATURE, "q": query, "k": K, "metric": "cosine", **setting}
            return data.to_table(columns=["size", "_distance"], nearest=nearest)["size"].to_pylist()

        return ask

    for setting in json.loads(args.settings):
        if not found["settings"]:
            asking(setting)(truth["queries"][0])
            found["first_query_ms"] = round(1000 * (time.perf_counter() - begin), 1)
        row = {**setting, **measure(asking(setting), truth, args.queries, warm=True)}
        found["settings"].append({**row, "peak_bytes": peak_bytes()})
        print(json.dumps(row), file=sys.stderr, flush=True)
    return found


def product(args: argparse.Namespace) -> dict:
    """``query_index``, by the vector index and exactly."""
    truth = dict(np.load(args.truth))

    def asking(index: VideoIndex, exact: bool) -> Callable[[np.ndarray], list[int]]:
        return lambda query: [
            int(match.path.split(".")[0]) for match in query_index(index, query, K, exact=exact)
        ]

    begin = time.perf_counter()
    index = VideoIndex(Path(args.table).parent, TableStore(Path(args.table).parent).open())
    opened = time.perf_counter()
    asking(index, exact=False)(truth["queries"][0])
    found = {
        "open_ms": round(1000 * (opened - begin), 1),
        "first_query_ms": round(1000 * (time.perf_counter() - opened), 1),
        "approximate": measure(asking(index, exact=False), truth, args.queries, warm=True),
    }
    own = peak_bytes()
    found["exact"] = measure(asking(index, exact=True), truth, _EXACT_QUERIES, warm=False)
    found["peak_bytes"], found["peak_bytes_with_exact"] = own, peak_bytes()
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    status = "".join(Path(f"/proc/{child}/status").read_text() for child in children)
    peaks = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")]
    found["peak_bytes_of_the_reading_process"] = 1024 * max(peaks, default=0)
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


STEPS = {"write": write, "build": build, "settings": settings, "product": product}


def step(name: str, args: argparse.Namespace, threads: int | None = None) -> dict:
    """Run one of the functions above in a process of its own."""
    words = [sys.executable, __file__, "--step", name]
    for key in ("rows", "size", "queries", "spectrum", "table", "truth", "index", "settings"):
        words += [f"--{key}", str(getattr(args, key))]
    own = {"LANCE_LOG": "error"} | ({"LANCE_CPU_THREADS": str(threads)} if threads else {})
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, env={**os.environ, **own})
    result = json.loads(done.stdout.splitlines()[-1])
    print(f"{name}: {json.dumps(result)}", file=sys.stderr, flush=True)
    return result


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Search by vector index against exact search.")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=512, help="dimensions")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--spectrum", choices=("measured", "flat"), default="measured")
    parser.add_argument("--index", default="{}", help="JSON: other arguments of create_index")
    parser.add_argument("--settings", default=json.dumps(SETTINGS), help="JSON: of queries")
    parser.add_argument("--folder", help="of the table (default: a temporary one)")
    parser.add_argument(
        "--keep", action="store_true", help="keep the table, and use one that is there"
    )
    parser.add_argument("--json", type=Path)
    for hidden in ("step", "table", "truth"):
        parser.add_argument(f"--{hidden}", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    args = parse_args()
    if args.step is not None:
        print(json.dumps(STEPS[args.step](args)))
        return
    folder = args.folder or tempfile.mkdtemp(prefix="vector_search_")
    os.makedirs(folder, exist_ok=True)
    args.table, args.truth = os.path.join(folder, TABLE), os.path.join(folder, "truth.npz")
    report: dict = {key: getattr(args, key) for key in ("rows", "size", "spectrum", "queries")}
    try:
        if not (args.keep and os.path.exists(args.truth)):
            report |= step("write", args)
        report |= step("build", args)
        report["lance"] = [step("settings", args), step("settings", args, threads=1)]
        report["query_index"] = step("product", args)
    finally:
        if not args.keep:
            shutil.rmtree(folder)
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
