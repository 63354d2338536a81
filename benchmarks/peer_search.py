"""The row "search" of benchmarks/peers.py: ten nearest of many features, recall over time.

A side builds its index in its own process, which keeps it on the disk and does not repeat it if it
exists. The side then reads it and answers queries one after the other.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

K, RECALL, SIZE = 10, 0.95, 256
Ask = Callable[[np.ndarray], Sequence[int]]


def write_features(folder: Path, count: int, queries: int = 300) -> None:
    """Write generated rows, queries that are not rows, and their nearest rows by cosine.

    The rows have a mean, eigenvalues 1 / rank, and groups of 100 rows on average, whose sizes fall
    as rank^-0.7. 82 % of the variance lies between groups, as measured on weizmann4.
    """
    rng = np.random.default_rng(1)
    values = np.sqrt(1 / np.arange(1, SIZE + 1), dtype=np.float32)
    basis = np.linalg.qr(rng.normal(size=(SIZE, SIZE)))[0].astype(np.float32)
    share = (1.0 + np.arange(max(2, count // 100))) ** -0.7
    centres = rng.standard_normal((len(share), SIZE), dtype=np.float32) * (values * 0.82**0.5)
    centres += np.float32(2 / SIZE**0.5)

    def draw(number: int) -> np.ndarray:
        group = rng.choice(len(share), number, p=share / share.sum())
        noise = rng.standard_normal((number, SIZE), dtype=np.float32) * (values * 0.18**0.5)
        drawn = (centres[group] + noise) @ basis
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)

    folder.mkdir(parents=True)
    asked, best = draw(queries), np.empty((queries, 0), np.float32)
    rows = np.lib.format.open_memmap(folder / "rows.npy", "w+", np.float32, (count, SIZE))
    found = np.empty((queries, 0), np.int64)
    for start in range(0, count, 50_000):
        rows[start : start + 50_000] = block = draw(min(50_000, count - start))
        numbers = np.broadcast_to(np.arange(start, start + len(block)), (queries, len(block)))
        best, found = np.hstack([best, asked @ block.T]), np.hstack([found, numbers])
        kept = np.argsort(-best, axis=1)[:, :K]
        best, found = np.take_along_axis(best, kept, 1), np.take_along_axis(found, kept, 1)
    np.savez(folder / "queries.npz", queries=asked, nearest=found)


# -- engines: what builds an index in a folder, and what opens it as {setting: ask} ----------------


def build_ours(rows: np.ndarray, folder: Path, table: bool = True) -> None:
    from sce_video.find.store import FEATURES, TABLE, FileRecord, FileStore, IndexHeader
    from sce_video.find.table_store import TableStore

    store = TableStore(folder / TABLE) if table else FileStore(folder / FEATURES)
    records = {f"{k:08}.mp4": FileRecord(1, 1, rows[k]) for k in range(len(rows))}
    header = IndexHeader("/", "", "", model={}, num_clips=1, num_crops=1)
    store.write(header, records)
    store.make_vector_index(True)


def open_ours(folder: Path) -> dict[str, Ask]:
    from sce_video.datasets.tables.table import import_lance
    from sce_video.find import query, table_store
    from sce_video.find.reading import read_index

    exact = not (folder / "features.lance").exists()
    if not exact:
        import_lance()  # or a process of its own would answer
    index = read_index(folder)

    def ask(setting: tuple[int, int] | None, feature: np.ndarray) -> list[int]:
        if setting:
            table_store._PROBES, table_store._REFINED = setting
        return [int(match.path[:8]) for match in query.query_index(index, feature, K)]

    usual = table_store._PROBES, table_store._REFINED
    settings = [None] if exact else [(5, 5), (10, 5), usual, (80, 5), (80, 20)]
    return {str(setting): functools.partial(ask, setting) for setting in settings}


def build_faiss(rows: np.ndarray, folder: Path, kind: str) -> None:
    import faiss

    if kind == "HNSW":
        index = faiss.IndexHNSWFlat(SIZE, 32, faiss.METRIC_INNER_PRODUCT)
    else:
        index = faiss.index_factory(SIZE, f"IVF{cells(rows)},Flat", faiss.METRIC_INNER_PRODUCT)
        index.train(np.asarray(rows[:: max(1, len(rows) // (64 * cells(rows)))]))
    index.add(np.asarray(rows))
    faiss.write_index(index, str(folder / "index"))


def cells(rows: np.ndarray) -> int:
    return round(len(rows) ** 0.5)


def open_faiss(folder: Path) -> dict[str, Ask]:
    import faiss

    index = faiss.read_index(str(folder / "index"))
    name, settings = ("efSearch", (16, 32, 64, 128, 256, 512))
    if isinstance(index, faiss.IndexIVF):
        name, settings = "nprobe", (1, 2, 4, 8, 16, 32, 64)

    def ask(value: int, feature: np.ndarray) -> Sequence[int]:
        setattr(index.hnsw if name == "efSearch" else index, name, value)
        return index.search(feature[None], K)[1][0].tolist()

    return {f"{name} {value}": functools.partial(ask, value) for value in settings}


def build_usearch(rows: np.ndarray, folder: Path) -> None:
    from usearch.index import Index

    index = Index(ndim=SIZE, metric="cos", dtype="f32")
    index.add(np.arange(len(rows)), np.asarray(rows), threads=1)
    index.save(folder / "index")


def open_usearch(folder: Path) -> dict[str, Ask]:
    from usearch.index import Index

    index = Index(ndim=SIZE, metric="cos", dtype="f32")
    index.load(folder / "index")

    def ask(value: int, feature: np.ndarray) -> Sequence[int]:
        index.expansion_search = value
        return index.search(feature, K, threads=1).keys.tolist()

    return {f"expansion {v}": functools.partial(ask, v) for v in (16, 32, 64, 128, 256, 512)}


def build_lancedb(rows: np.ndarray, folder: Path) -> None:
    import lancedb
    import pyarrow as pa

    schema = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), SIZE))])
    table = lancedb.connect(folder).create_table("rows", schema=schema)
    for start in range(0, len(rows), 100_000):
        values = pa.array(rows[start : start + 100_000].reshape(-1))
        numbers = pa.array(range(start, start + len(values) // SIZE))
        array = pa.FixedSizeListArray.from_arrays(values, SIZE)
        table.add(pa.table([numbers, array], schema=schema))
    table.create_index(metric="cosine")


def open_lancedb(folder: Path) -> dict[str, Ask]:
    import lancedb

    table = lancedb.connect(folder).open_table("rows")

    def ask(setting: tuple[int, int] | None, feature: np.ndarray) -> Sequence[int]:
        query = table.search(feature).limit(K).select(["id", "_distance"]).distance_type("cosine")
        if setting:
            query = query.nprobes(setting[0]).refine_factor(setting[1])
        return query.to_arrow()["id"].to_pylist()

    settings = [None, (10, 10), (20, 20), (40, 50), (80, 100)]
    return {str(setting): functools.partial(ask, setting) for setting in settings}


ENGINES: dict[str, tuple[Callable[..., None], Callable[[Path], dict[str, Ask]]]] = {
    "ours": (build_ours, open_ours),
    "exact": (functools.partial(build_ours, table=False), open_ours),
    "IVF": (functools.partial(build_faiss, kind="IVF"), open_faiss),
    "HNSW": (functools.partial(build_faiss, kind="HNSW"), open_faiss),
    "usearch": (build_usearch, open_usearch),
    "LanceDB": (build_lancedb, open_lancedb),
}


def build(name: str, folder: str) -> None:
    """Build the index of an engine in its own process, and note time and memory."""
    made = Path(folder, name)
    made.mkdir()
    ENGINES[name][0](np.load(Path(folder, "rows.npy"), mmap_mode="r"), made)
    size = sum(file.stat().st_size for file in made.rglob("*") if file.is_file())
    facts = {"build_s": round(time.process_time(), 1), "build_gb": peak_gb()}
    made.with_suffix(".json").write_text(json.dumps(facts | {"disk_gb": round(size / 2**30, 2)}))


def peak_gb() -> float:
    """Return the largest resident memory of this program, including mapped files."""
    status = Path("/proc/self/status").read_text()
    return round(int(status.split("VmHWM:")[1].split()[0]) / 2**20, 2)


def search(name: str, job: dict[str, Any]) -> None:
    """Return processor time per query at the fastest setting of recall 0.95, and all settings."""
    folder = Path(job["folder"])
    stored = folder / f"{name}.json"
    if not stored.exists():
        script = f"import peer_search; peer_search.build({name!r}, {str(folder)!r})"
        here = Path(__file__).parent
        path = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
        env = os.environ | {"LANCE_CPU_THREADS": "1", "PYTHONPATH": path}
        subprocess.run([sys.executable, "-c", script], check=True, stdout=sys.stderr, env=env)
    os.environ["LANCE_CPU_THREADS"] = "1"
    with np.load(folder / "queries.npz") as truth:
        queries, nearest = truth["queries"], truth["nearest"]
    if name == "exact":
        queries = queries[:20]
    points = {}
    for setting, ask in ENGINES[name][1](folder / name).items():
        ask(queries[0])
        times, hits = [], 0
        for query, wanted in zip(queries, nearest, strict=False):
            begin = time.process_time()
            found = ask(query)
            times.append(1e3 * (time.process_time() - begin))
            hits += len(set(found) & set(wanted.tolist()))
        p50, p99 = np.percentile(times, [50, 99]).round(3).tolist()
        recall = round(hits / K / len(queries), 4)
        points[setting] = {"recall": recall, "p50_ms": p50, "p99_ms": p99}
    enough = [p["p50_ms"] for p in points.values() if p["recall"] >= RECALL]
    if not enough:
        raise RuntimeError(f"recall {RECALL} not reached: {points}")
    job["cpu"] = min(enough) / 1e3
    job["facts"] = json.loads(stored.read_text()) | {"search_gb": peak_gb(), "points": points}
