"""The row "near_duplicates" of benchmarks/peers.py: pairs of copies among generated videos."""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

Job = dict[str, Any]
HASHES_PER_SECOND, DISTANCE, QUALITY = 4, 31, 50  # vpdq: one, 31 of 256 bits, 50


def write_videos(folder: Path, count: int) -> None:
    """Write videos of benchmarks/near_duplicates.py, and which pairs come from one original."""
    import near_duplicates

    videos = near_duplicates.plan(count, 7)
    (folder / "videos").mkdir(parents=True, exist_ok=True)
    for video in videos:
        near_duplicates.make_video(folder / "videos", 7, video)
    pairs = [(*pair, kind) for pair, kind in near_duplicates.true_pairs(videos).items()]
    (folder / "pairs.json").write_text(json.dumps(pairs))


def _facts(job: Job, found: set[tuple[int, int]], names: list[str]) -> None:
    """Return recall, also by kind of copy, and precision of pairs in one group."""
    from itertools import combinations

    parent = list(range(len(names)))

    def root(row: int) -> int:
        while parent[row] != row:
            row = parent[row]
        return row

    for a, b in found:
        parent[root(a)] = root(b)
    groups: dict[int, list[str]] = {}
    for row, name in enumerate(names):
        groups.setdefault(root(row), []).append(name)
    said = {pair for group in groups.values() for pair in combinations(sorted(group), 2)}
    kinds: dict[str, list[bool]] = {}
    for a, b, kind in json.loads(Path(job["folder"], "pairs.json").read_text()):
        kinds.setdefault(kind, []).append((a, b) in said)
    right = sum(map(sum, kinds.values()))
    job["facts"] = {
        "recall": round(right / sum(map(len, kinds.values())), 3),
        "precision": round(right / max(1, len(said)), 3),
        "recall_by_kind": {kind: round(sum(v) / len(v), 3) for kind, v in kinds.items()},
    }


def our_copies(job: Job) -> None:
    """Run ``sce-video curate`` by frames: thumbnails of all frames, candidates, alignment."""
    from sce_video.curation.comparison import ThumbnailFile, read_thumbnails
    from sce_video.curation.near_duplicates import pairs_of_frames
    from sce_video.options.find import THRESHOLDS, CurateOptions

    files = sorted(map(str, Path(job["folder"], "videos").iterdir()))
    none = np.empty((0, 2), dtype=np.int64)
    with tempfile.TemporaryDirectory() as folder, closing(ThumbnailFile(folder)) as stored:
        read_thumbnails(stored, files, 0)
        edges, _ = pairs_of_frames(stored, none, THRESHOLDS["frames"], CurateOptions.neighbours)
    _facts(job, set(edges), [Path(file).name for file in files])


def pdq_copies(job: Job) -> None:
    """Run vpdq's method with pdqhash: PDQ of four frames a second, pairs by the share that matches.

    The threshold for the share (of the video that matches more) has the best F1 on the truth.
    """
    import av
    import faiss
    import pdqhash

    files = sorted(Path(job["folder"], "videos").iterdir())
    hashes: list[np.ndarray] = []
    owner: list[int] = []
    for number, file in enumerate(files):
        with av.open(str(file)) as container:
            container.streams.video[0].thread_count = 1
            due = 0.0
            for frame in container.decode(video=0):
                if frame.time >= due:
                    due += 1 / HASHES_PER_SECOND
                    bits, quality = pdqhash.compute(frame.to_ndarray(format="rgb24"))
                    if quality >= QUALITY:
                        hashes.append(np.packbits(bits.astype(bool)))
                        owner.append(number)
    matrix, owners = np.stack(hashes), np.array(owner)
    index = faiss.IndexBinaryFlat(256)
    index.add(matrix)
    limits, _, rows = index.range_search(matrix, DISTANCE + 1)
    asked = np.repeat(np.arange(len(matrix)), np.diff(limits.astype(np.int64)))
    answers = np.unique(np.stack([asked, owners[rows]], 1), axis=0)
    counts = np.bincount(owners, minlength=len(files))
    shares: dict[tuple[int, int], float] = {}
    for (one, other), hits in zip(
        *np.unique(np.stack([owners[answers[:, 0]], answers[:, 1]], 1), axis=0, return_counts=True),
        strict=True,
    ):
        if one != other:
            pair = int(min(one, other)), int(max(one, other))
            shares[pair] = max(shares.get(pair, 0.0), hits / counts[one])
    best: Job = {}
    for share in (0.2, 0.4, 0.6, 0.8, 1.0):
        tried = dict(job)
        _facts(tried, {p for p, s in shares.items() if s >= share}, [file.name for file in files])
        facts = tried["facts"] | {"share": share}
        total = facts["recall"] + facts["precision"]
        facts["f1"] = round(2 * facts["recall"] * facts["precision"] / max(total, 1e-9), 3)
        best = max(best, facts, key=lambda f: f.get("f1", -1.0))
    job["facts"] = best
