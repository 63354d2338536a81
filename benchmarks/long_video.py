"""Measure the index of a two-hour file: memory, rate, and clips that are found in it.

    python benchmarks/long_video.py --checkpoint RUN [--hours 2] [--clips 100] [--json OUT]

The file consists of toy actions (64 x 64 pixels, 15 frames per second) of 4 to 20 s, between which
``--clips`` other toy actions of 5 s are planted. Each planted clip is also re-encoded at a lower
quality as a separate file, which is the query. It counts as found if the most similar window begins
within one second of it. Rankings are plain, centred, whitened, and refined as by ``sce-video search
--refine`` and ``--refine-moments 20``. ``--checkpoint`` is a network pretrained on toy actions
(sce-video prepare toy_actions, sce-video pretrain) with other random numbers than here.

    python benchmarks/long_video.py --checkpoint RUN --segments [--hours 2] [--json OUT]

This measures segments instead. 20 actions of each of five classes, 2 to 10 s long, are planted
among toy actions of the other seven classes. ``sce-video finetune`` learns from the labelled
segments of one such file of an hour, with 100 scenes from between them as "background". ``sce-video
predict --windows 2s --stride 0.5s --segments`` chooses its threshold on a second file, and finds
the segments of a third one. Their mAP is printed next to the accuracy of the same classifier on the
same actions cut by hand.

    python benchmarks/long_video.py --rows 1000000 [--json OUT]

This measures searches in generated windows of size 256, 50 per file, in a file and in a table with
a vector index. Conditions on columns are passed by half, a hundredth and none of them. It also
measures searches of whole videos with one line of columns each.

The rate of ``sce-video index`` with windows of 5 s every 5 s is compared with the index of the same
seconds as files of 5 s, each in its own process, in turn. It is given as seconds of video per
second of the processor, which another program on the machine changes little, and per second. Memory
is the largest resident size of the process. No scene occurs twice in the file, because each has its
own random numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np

from sce_video.data_tools.generated import CLASSES, HOWS, WHATS, render_toy_action
from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.segments import Segment, read_segments, segment_path, write_segment_file
from sce_video.datasets.sources import Query
from sce_video.engine.checkpoint import newest_checkpoint
from sce_video.evaluation.functional.segment_map import evaluate_segments
from sce_video.find.columns import COLUMNS, columns_of_index
from sce_video.find.examples import query_feature
from sce_video.find.index import read_index
from sce_video.find.query import Match, query_index
from sce_video.find.refined_moments import refine_moments, windows_near
from sce_video.find.store import FEATURES, TABLE, FileRecord, FileStore, IndexHeader, VideoIndex
from sce_video.find.table_store import TableStore
from sce_video.inference.classifier import class_probabilities, load_classifier
from sce_video.inference.model import load_model
from sce_video.options.find import BACKGROUND
from sce_video.options.search import MOST_REFINED
from sce_video.utils.files import write_json

FPS, SIZE, SECONDS = 15, 64, 5
REFINED = {"refined": MOST_REFINED, "refined_20": 20}  # moments
# A process begins with the memory of the one that starts it, and ``ru_maxrss`` never falls. A
# small process therefore starts the command and reports time and memory.
_LAUNCHER = """
import json, resource, subprocess, sys
status = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]))
sys.exit(status)
"""


class Encoder:
    """An h264 file to which frames are appended."""

    def __init__(self, path: Path, crf: int, keys: int = 250) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(path), "w")
        options = {"crf": str(crf), "preset": "veryfast", "g": str(keys)}
        self._stream = self._container.add_stream("libx264", rate=FPS, options=options)
        self._stream.width = self._stream.height = SIZE
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.thread_count = 1

    def write(self, frames: np.ndarray) -> None:
        for frame in frames:
            image = av.VideoFrame.from_ndarray(frame, format="rgb24")
            self._container.mux(self._stream.encode(image))

    def close(self) -> None:
        self._container.mux(self._stream.encode())
        self._container.close()


def action(seed: int, number: int, frames: int) -> np.ndarray:
    """Return (frames, 64, 64, 3) of a random toy action."""
    rng = np.random.default_rng((seed, number))
    what, how = WHATS[int(rng.integers(len(WHATS)))], HOWS[int(rng.integers(len(HOWS)))]
    return render_toy_action(what, how, rng, size=SIZE, num_frames=frames, fps=FPS)


def scenes(total: int, clips: int, seed: int) -> Iterator[tuple[int, bool, np.ndarray]]:
    """Yield the scenes of the file: first frame, whether it is planted, and frames."""
    rng = np.random.default_rng(seed)
    room = total - clips * SECONDS * FPS
    places = np.sort(rng.choice(room, clips, replace=False)).tolist()
    at = number = 0
    free = 0  # frames besides the planted ones
    while free < room or places:
        if places and places[0] <= free:
            places.pop(0)
            length, planted = SECONDS * FPS, True
        else:
            length, planted = int(rng.integers(4 * FPS, 20 * FPS)), False
            length = min(length, (places[0] if places else room) - free)
            free += length
        number += 1
        yield at, planted, action(seed, number, length)
        at += length


def make_files(folder: Path, hours: float, clips: int, seed: int) -> list[float]:
    """Write long/long.mp4, short/*.mp4 and queries/*.mp4, and return the planted starts."""
    long, starts = Encoder(folder / "long" / "long.mp4", 18), []
    rest = np.empty((0, SIZE, SIZE, 3), dtype=np.uint8)
    count = 0
    for first, planted, frames in scenes(round(hours * 3600 * FPS), clips, seed):
        long.write(frames)
        if planted:
            query = Encoder(folder / "queries" / f"{len(starts):04}.mp4", 26)
            query.write(frames)
            query.close()
            starts.append(first / FPS)
        rest = np.concatenate([rest, frames])
        while len(rest) >= SECONDS * FPS:
            short = Encoder(folder / "short" / f"{count:06}.mp4", 18)
            short.write(rest[: SECONDS * FPS])
            short.close()
            rest, count = rest[SECONDS * FPS :], count + 1
    long.close()
    return starts


def measured(command: Sequence[str]) -> dict[str, float]:
    """Run a command in a process, and return its seconds, processor seconds and memory.

    Raises:
        SystemExit: If it fails.
    """
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _LAUNCHER, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    if done.returncode:
        raise SystemExit(f"ended with status {done.returncode}: {' '.join(command)}")
    seconds, memory = json.loads(done.stdout)
    return {
        "seconds": time.monotonic() - begin,
        "processor_seconds": seconds,
        "memory_mb": memory,
    }


def index(
    videos: Path, out: Path, checkpoint: str, clips: int, windows: Sequence[str]
) -> dict[str, float]:
    """Measure ``sce-video index``, see :func:`measured`."""
    command = [sys.executable, "-m", "sce_video", "index", str(videos), "--out", str(out)]
    command += ["--checkpoint", checkpoint, "--workers", "0", "--device", "cpu", "--rebuild"]
    return measured([*command, "--clips", str(clips), *windows])


def find(folder: Path, out: Path, model: Any, starts: Sequence[float]) -> dict[str, Any]:
    """Return how many planted clips are found, and how far from their starts."""
    held = read_index(out)
    features = [
        query_feature(held, Query(str(folder / "queries" / f"{i:04}.mp4")), lambda: model)
        for i in range(len(starts))
    ]
    found = {}
    for kind in ("plain", "centred", "whitened", *REFINED):
        errors, begin = [], time.monotonic()
        for feature, start in zip(features, starts, strict=True):
            best = first_moment(held, feature, kind, model)
            assert best.start is not None
            errors.append(abs(best.start - start))
        within = int(np.sum(np.array(errors) <= 1.0))
        found[kind] = {
            "found_within_1_s": within,
            "of": len(starts),
            "median_error_s": float(np.median(errors)),
            "seconds_per_query": (time.monotonic() - begin) / len(starts),
        }
    return {"windows": len(held), **found}


def first_moment(held: VideoIndex, feature: np.ndarray, kind: str, model: Any) -> Match:
    """Return the best moment, for refined ones by whitened features as in ``sce-video search``."""
    if kind in REFINED:
        count = REFINED[kind]
        matches = query_index(held, feature, count, whitened=True)
        near = partial(windows_near, model, held.options)
        return refine_moments(held, feature, matches, near, whitened=True, count=count)[0][0]
    return query_index(held, feature, 1, centred=kind == "centred", whitened=kind == "whitened")[0]


def rates(folder: Path, checkpoint: str, seconds: float, views: int, rounds: int) -> dict[str, Any]:
    """Return seconds of video per second for the index of windows and of short files."""
    runs: dict[str, list[dict[str, float]]] = {"long": [], "short": []}
    for _ in range(rounds):
        for kind in runs:
            windows = ["--windows", f"{SECONDS}s"] if kind == "long" else []
            out = folder / f"{kind}_index"
            runs[kind].append(index(folder / kind, out, checkpoint, views, windows))
    result: dict[str, Any] = {}
    for measure in ("seconds", "processor_seconds"):
        best = {kind: min(run[measure] for run in runs[kind]) for kind in runs}
        result[measure] = {
            **{f"{kind}_rate": seconds / value for kind, value in best.items()},
            "ratio": best["short"] / best["long"],
        }
    result["memory_mb"] = {k: max(run["memory_mb"] for run in runs[k]) for k in runs}
    return result


#: Classes of toy actions that are planted as segments.
PLANTED = ("stripes_bounce", "checks_circle", "rings_shake", "stripes_pulse", "checks_bounce")
OTHERS = tuple(name for name in CLASSES if name not in PLANTED)


def labelled_file(file: Path, hours: float, per_class: int, seed: int) -> list[Segment]:
    """Write a file of planted actions between background scenes, and return all scenes."""
    rng = np.random.default_rng(seed)
    names = [name for name in PLANTED for _ in range(per_class)]
    order = rng.permutation(len(names)).tolist()
    lengths = rng.integers(2 * FPS, 10 * FPS, len(names))
    room = round(hours * 3600 * FPS) - int(lengths.sum())
    places = np.sort(rng.choice(room, len(names), replace=False))
    gaps = np.diff(places, prepend=0, append=room).tolist()
    out, found, at = Encoder(file, 18, keys=30), [], 0
    for i, gap in enumerate(gaps):
        parts = []
        while gap > 0:
            length = min(gap, int(rng.integers(4 * FPS, 20 * FPS)))
            parts.append((OTHERS[int(rng.integers(len(OTHERS)))], BACKGROUND, length))
            gap -= length
        if i < len(order):
            name = names[order[i]]
            parts.append((name, name, int(lengths[i])))
        for drawn, label, length in parts:
            what, how = drawn.split("_")
            own = np.random.default_rng((seed, at))
            out.write(render_toy_action(what, how, own, size=SIZE, num_frames=length, fps=FPS))
            found.append(Segment(file.name, at / FPS, (at + length) / FPS, label))
            at += length
    out.close()
    return found


def segments(folder: Path, checkpoint: str, hours: float, seed: int) -> dict[str, Any]:
    """Return the mAP of predicted segments, and the accuracy on the same segments cut by hand."""
    scenes = {
        part: labelled_file(folder / f"{part}.mp4", length, 20, seed + i)
        for i, (part, length) in enumerate({"train": 1.0, "chosen": 1.0, "test": hours}.items())
    }
    planted = {part: [s for s in own if s.label != BACKGROUND] for part, own in scenes.items()}
    rng = np.random.default_rng(seed)
    for part in ("train", "chosen"):
        between = [s for s in scenes[part] if s.label == BACKGROUND and s.end - s.start >= 2]
        drawn = rng.choice(len(between), min(100, len(between)), replace=False).tolist()
        write_segment_file(folder / f"{part}.csv", planted[part] + [between[i] for i in drawn])
    train, chosen, test = (str(folder / f) for f in ("train.csv", "chosen.csv", "test.mp4"))
    run, out = str(folder / "classifier"), str(folder / "found.csv")
    tool = [sys.executable, "-m", "sce_video"]
    sets = ["--train", train, "--test", chosen, "--out", run, "--workers", "1", "--epochs", "40"]
    sets += ["--clips", "1", "--crops", "1"]  # of the test
    trained = measured([*tool, "finetune", checkpoint, *sets])
    windows = ["--windows", "2s", "--stride", "0.5s", "--segments", chosen, "--csv", out]
    cost = measured([*tool, "predict", run, test, "--device", "cpu", *windows])
    found = [replace(s, path="test.mp4") for s in read_segments(out)]
    result = evaluate_segments(planted["test"], found)
    classifier = load_classifier(run, device="cpu")
    cut = [segment_path(str(folder / s.path), s.start, s.end) for s in planted["test"]]
    numbers = [classifier.classes.index(s.label) for s in planted["test"]]
    predicted = class_probabilities(classifier, cut).argmax(axis=1)
    return {
        "hours": hours,
        "seed": seed,
        "planted": len(planted["test"]),
        "found": len(found),
        "tious": result.tious,
        "segment_map": result.mAP,
        "f1": result.f1,
        "per_class": result.per_class,
        "accuracy_of_cut_clips": float(np.mean(predicted == np.array(numbers))),
        "finetune": trained,
        "predict": cost,
    }


def generated(folder: Path, rows: int, windows: int, seed: int) -> dict[str, VideoIndex]:
    """Build an index of generated features in a file and in a table, with their columns."""
    rng = np.random.default_rng(seed)
    spectrum = np.arange(1, 257) ** -0.5
    groups, mean = rng.normal(size=(1000, 256)) * spectrum, np.abs(rng.normal(size=256))
    spans = np.arange(windows)[:, None] * 2.5 + [0.0, 5.0]
    records, lines = {}, ["path,camera,speed"]
    for number in range(rows // windows):
        scene = 2 * mean + 2 * groups[rng.integers(1000)] + rng.normal(size=256) * spectrum
        features = np.float32(scene + 0.7 * rng.normal(size=(windows, 256)) * spectrum)
        one = (features[0],) if windows == 1 else (features, "", spans)
        records[f"camera_{number % 100:02}/{number:07}.mp4"] = FileRecord(1, number, *one)
        lines.append(f"camera_{number % 100:02}/{number:07}.mp4,c{number % 100},{rng.random():.4f}")
    cut = Windows(5.0, 2.5) if windows > 1 else None
    header = IndexHeader(
        "/videos", "c.pth", "0" * 64, model={}, num_clips=1, num_crops=1, windows=cut
    )
    stores = {"file": FileStore(folder / "file" / FEATURES)}
    stores["table"] = TableStore(folder / "table" / TABLE)
    for store in stores.values():
        store.file.parent.mkdir(parents=True)
        (store.file.parent / COLUMNS).write_text("\n".join(lines))
        store.write(header, dict(sorted(records.items())))
        store.make_vector_index(True)
    return {kind: store.open() for kind, store in stores.items()}


def searches(index: VideoIndex, queries: int = 20) -> dict[str, Any]:
    """Return median and worst seconds of this process, to read columns and to search."""
    found: dict[str, list[tuple[float, float]]] = {}

    def timed(name: str, function: Callable[..., Any], *options: Any) -> Any:
        start = time.perf_counter(), time.process_time()
        result = function(*options)
        now = time.perf_counter(), time.process_time()
        found.setdefault(name, []).append((now[0] - start[0], now[1] - start[1]))
        return result

    for name in ("columns, first", "columns"):
        columns = timed(name, columns_of_index, index)
    rows = np.random.default_rng(1).integers(0, len(index), queries)
    features = np.asarray(index.features[rows]) + np.float32(0.05)
    for where in ("", "speed > 0.5", "camera = 'c5'", "speed > 2"):
        out = np.flatnonzero(~timed(f"condition {where}", columns.matching, where))
        for feature in features:
            search = partial(query_index, leave_out=out)
            timed(f"search {where}", search, index, feature)
    medians = {name: np.median(took, axis=0).round(4).tolist() for name, took in found.items()}
    return {name: [*medians[name], round(max(took)[0], 4)] for name, took in found.items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoint")
    parser.add_argument("--rows", type=int, help="measure searches in generated features instead")
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--clips", type=int, default=100, help="planted")
    parser.add_argument("--views", type=int, default=4, help="clips of a window")
    parser.add_argument("--rounds", type=int, default=2, help="of the rate, 0 for none")
    parser.add_argument("--segments", action="store_true", help="measure segments instead")
    parser.add_argument("--seed", type=int, default=10**6, help="of the videos")
    parser.add_argument("--json")
    args = parser.parse_args(argv)
    if (args.rows is None) == (args.checkpoint is None):
        parser.error("give --checkpoint or --rows")
    checkpoint = "" if args.checkpoint is None else str(newest_checkpoint(args.checkpoint))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.segments or args.rows:
            result = {}
            for windows in (50, 1) if args.rows else ():
                for kind, held in generated(folder / str(windows), args.rows, windows, 0).items():
                    result[f"{kind}, {windows} windows of a video"] = searches(held)
            if args.segments:
                result = segments(folder, checkpoint, args.hours, args.seed)
            print(json.dumps(result, indent=1))
            if args.json:
                write_json(Path(args.json), result)
            return 0
        starts = make_files(folder, args.hours, args.clips, args.seed)
        result = {
            "hours": args.hours,
            "views": args.views,
            "seed": args.seed,
            "bytes": (folder / "long" / "long.mp4").stat().st_size,
        }
        if args.rounds:
            result |= rates(folder, checkpoint, args.hours * 3600, args.views, args.rounds)
        model = load_model(checkpoint, device="cpu")
        for stride in ("2.5s", "1s", "0.5s"):
            out = folder / f"index_{stride}"
            cost = index(
                folder / "long", out, checkpoint, args.views,
                ["--windows", f"{SECONDS}s", "--stride", stride],
            )  # fmt: skip
            result[f"stride_{stride}"] = {**find(folder, out, model, starts), **cost}
            print(stride, result[f"stride_{stride}"], flush=True)
    print(result)
    if args.json:
        write_json(Path(args.json), result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
