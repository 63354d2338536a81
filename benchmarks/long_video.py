"""A two-hour file: memory and rate of its index, and clips found in it.

    python benchmarks/long_video.py --checkpoint RUN [--hours 2] [--clips 100] [--json OUT]

The file consists of toy actions (64 x 64 pixels, 15 frames per second) of 4 to 20 s, between which
``--clips`` other toy actions of 5 s are planted. Each planted clip is also re-encoded at a lower
quality as a file, which is the query: it is found where the most similar window begins within one
second of it. ``--checkpoint`` is a network pretrained on toy actions
(tools/data/make_toy_actions.py, sce-video pretrain); their random numbers are others than here.

The rate is that of ``sce-video index`` with windows of 5 s every 5 s, against the index of the same
seconds as files of 5 s, each in a process of its own, in turn; as seconds of video per second of
the processor, which another program on the machine changes little, and per second. Memory is the
largest resident size of the process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np

from sce_video.apis import load_model
from sce_video.apis.index import read_index
from sce_video.apis.moments import Query
from sce_video.apis.search import query_feature, query_index
from sce_video.data_tools.toy_actions import HOWS, WHATS, render_toy_action
from sce_video.engine.checkpoint import newest_checkpoint
from sce_video.utils.atomic_file import write_json

FPS, SIZE, SECONDS = 15, 64, 5
_SEED = 10**6  # far from those of make_toy_actions.py


class Encoder:
    """An h264 file that grows by frames."""

    def __init__(self, path: Path, crf: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(path), "w")
        options = {"crf": str(crf), "preset": "veryfast"}
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


def action(number: int, frames: int) -> np.ndarray:
    """(frames, 64, 64, 3) of a random toy action."""
    rng = np.random.default_rng((_SEED, number))
    what, how = WHATS[int(rng.integers(len(WHATS)))], HOWS[int(rng.integers(len(HOWS)))]
    return render_toy_action(what, how, rng, size=SIZE, num_frames=frames, fps=FPS)


def scenes(total: int, clips: int) -> Iterator[tuple[int, bool, np.ndarray]]:
    """First frame, whether it is planted, and frames, of the scenes of the long file."""
    rng = np.random.default_rng(_SEED)
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
        yield at, planted, action(number, length)
        at += length


def make_files(folder: Path, hours: float, clips: int) -> list[float]:
    """Write long/long.mp4, short/*.mp4 and queries/*.mp4; returns starts of the planted clips."""
    long, starts = Encoder(folder / "long" / "long.mp4", 18), []
    rest = np.empty((0, SIZE, SIZE, 3), dtype=np.uint8)
    count = 0
    for first, planted, frames in scenes(round(hours * 3600 * FPS), clips):
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


def index(videos: Path, out: Path, checkpoint: str, clips: int, windows: Sequence[str]) -> Any:
    """Run ``sce-video index`` in a process; its seconds, processor seconds and memory."""
    command = [sys.executable, "-m", "sce_video", "index", str(videos), "--out", str(out)]
    command += ["--checkpoint", checkpoint, "--workers", "0", "--device", "cpu", "--rebuild"]
    begin = time.monotonic()
    process = subprocess.Popen(
        [*command, "--clips", str(clips), *windows],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"sce-video index ended with status {status}: {' '.join(command)}")
    return {
        "seconds": time.monotonic() - begin,
        "processor_seconds": usage.ru_utime + usage.ru_stime,
        "memory_mb": usage.ru_maxrss / 1024,
    }


def find(folder: Path, out: Path, model: Any, starts: Sequence[float]) -> dict[str, Any]:
    """How many planted clips are found, and how far from their starts."""
    held = read_index(out)
    found = {}
    for centred in (False, True):
        errors = []
        for number, start in enumerate(starts):
            query = Query(str(folder / "queries" / f"{number:04}.mp4"))
            feature = query_feature(held, query, lambda: model)
            (best,) = query_index(held, feature, 1, centred=centred)
            assert best.start is not None
            errors.append(abs(best.start - start))
        within = int(np.sum(np.array(errors) <= 1.0))
        found["centred" if centred else "plain"] = {
            "found_within_1_s": within,
            "of": len(starts),
            "median_error_s": float(np.median(errors)),
        }
    return {"windows": len(held), **found}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--clips", type=int, default=100, help="planted")
    parser.add_argument("--views", type=int, default=4, help="clips of a window")
    parser.add_argument("--rounds", type=int, default=2, help="of the rate")
    parser.add_argument("--json")
    args = parser.parse_args(argv)
    checkpoint = str(newest_checkpoint(args.checkpoint))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        starts = make_files(folder, args.hours, args.clips)
        seconds = args.hours * 3600
        runs: dict[str, list[Any]] = {"long": [], "short": []}
        for _ in range(args.rounds):
            for kind in runs:
                windows = ["--windows", f"{SECONDS}s"] if kind == "long" else []
                out = folder / f"{kind}_index"
                runs[kind].append(index(folder / kind, out, checkpoint, args.views, windows))
        result: dict[str, Any] = {
            "hours": args.hours,
            "views": args.views,
            "bytes": (folder / "long" / "long.mp4").stat().st_size,
        }
        for measure in ("seconds", "processor_seconds"):
            best = {kind: min(run[measure] for run in runs[kind]) for kind in runs}
            result[measure] = {
                **{f"{kind}_rate": seconds / value for kind, value in best.items()},
                "ratio": best["short"] / best["long"],
            }
        result["memory_mb"] = {k: max(run["memory_mb"] for run in runs[k]) for k in runs}
        model = load_model(checkpoint, device="cpu")
        for stride in ("1s", "2.5s"):
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
