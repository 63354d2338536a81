"""Compare sce_video with other libraries: readers, loaders, searches, training steps, copies.

    python benchmarks/peers.py [--files VIDEO ...] [--rows NAME ...] [--rounds 11]
        [--only own] [--smoke]

A row is one piece of work that several sides do (benchmarks/peer_sides.py), each in its own
process. Our side uses this environment, and the peers use work_dirs/peers/.venv, which is created
from benchmarks/peers.txt (3 GB). The sides take turns with the same jobs on the same files, on one
core with one thread. Times are processor seconds with all threads and children, as medians over the
rounds. A ratio is a side's time divided by ours, as a geometric mean over the files with its range.
If a side cannot do a job, the table says so and the comparison continues. Results are written to
peers.json, peers.md and peers.png.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from peer_copies import write_videos
from peer_search import write_features
from peer_sides import CLIP_SECONDS, FRAMES, SIDES, SIZE, Job
from peer_steps import SIZES

from sce_video.data_tools.generated import CLASSES, encode_h264, render_toy_action
from sce_video.data_tools.repack.encode import repack_file
from sce_video.data_tools.repack.plan import EncoderLimits, Settings
from sce_video.datasets.readers import AvReader
from sce_video.datasets.transforms import RandomClips
from sce_video.utils.files import write_json, write_text

HERE = Path(__file__).resolve().parent
BATCH = 8
METHODS = ("simclr", "sce", "moco", "ressl", "byol", "swav", "lejepa")
LIMIT_SECONDS = 900  # of one job


# -- the rows -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One piece of work.

    ``jobs`` creates the job of a file and a round. ``files`` is the kind of files, a key of
    :func:`files_of`. ``sides`` are names in :data:`peer_sides.SIDES`, ours first. ``bounds`` are
    those of them that are not peers. ``samples`` is the number of samples in a job. A row of whole
    commands is not warmed up, and is measured in fewer ``rounds``.
    """

    title: str
    files: str
    sides: tuple[str, ...]
    jobs: Callable[[str, int], Job]
    aim: float
    bounds: tuple[str, ...] = ()
    samples: int = 1
    rounds: int = 1000
    warm_up: int = 1


def frames_job(path: str, seed: int) -> Job:
    """Return sixteen random frames in ascending order (fewer for a shorter file)."""
    with AvReader(path) as reader:
        count = len(reader.timestamps)
    chosen = np.random.default_rng(seed).choice(count, min(16, count), replace=False)
    return {"path": path, "indices": np.sort(chosen).tolist()}


def clips_job(path: str, seed: int) -> Job:
    """Return a batch of samples of one file, with the frames of the two clips of each seed."""
    seeds, drawn = list(range(BATCH * seed, BATCH * (seed + 1))), RandomClips(CLIP_SECONDS, FRAMES)
    with AvReader(path) as reader:
        samples = [drawn({"reader": reader, "rng": np.random.default_rng(s)}) for s in seeds]
    clips = [[clip.frames.tolist() for clip in sample["clips"]] for sample in samples]
    return {"path": path, "seeds": seeds, "clips": clips}


def embedding_job(path: str, _: int) -> Job:
    """Return all files of a folder, which also contains the network."""
    videos = Path(path, "videos")
    network = str(Path(path, "network"))
    return {"folder": str(videos), "network": network, "videos": len(list(videos.iterdir()))}


def folder_job(path: str, _: int) -> Job:
    """Return what was generated in a folder."""
    return {"folder": path}


def step_job(method: str, _: int) -> Job:
    """Return a step of a method. With the paths, a peer can build the same backbone."""
    return {"what": "step", "method": method, "paths": [str(HERE.parent), *sys.path]}


def image_step_job(method: str, _: int) -> Job:
    """Return a step of a method on images."""
    return {"what": "image step", "method": method, "paths": [str(HERE.parent), *sys.path]}


_READERS = (
    *("sce_video", "torchcodec exact", "torchcodec approximate", "decord2", "SPDL", "PyAV loop"),
    "decoder alone",
)
_SEARCHES = (
    *("sce_video vector index", "faiss IVF", "faiss HNSW", "usearch", "LanceDB", "sce_video exact"),
)
_STEPS = ("sce_video step", "lightly", "eztorch", "lightly, channels_last")
_CLIPS = ("sce_video batch", "torchcodec + torchvision", "SPDL filters", "mmaction2")
ROWS = {
    "frames": Row(
        *("16 random frames of a file", "originals", _READERS, frames_job, 1.4),
        bounds=("decoder alone",),
    ),
    "frames_repacked": Row(
        *("16 random frames of a repacked file", "repacked", _READERS, frames_job, 1.05),
        bounds=("decoder alone",),
    ),
    "clips": Row(
        *(f"two clips, {FRAMES} x {SIZE} x {SIZE}, in batches", "originals", _CLIPS, clips_job),
        **{"aim": 1.5, "samples": BATCH},
    ),
    "clips_repacked": Row(
        *("the same of repacked files", "repacked", (*_CLIPS, "sce_video table"), clips_job),
        **{"aim": 2.0, "bounds": ("sce_video table",), "samples": BATCH},
    ),
    "embed": Row(
        *("clips to features, the whole command", "folder"),
        *(("sce-video embed", "transformers loop"), embedding_job),
        **{"aim": 3.0, "rounds": 1, "warm_up": 0},
    ),
    "clips_table": Row(
        *("two clips from a Lance table", "repacked"),
        *(("sce_video table", "WebP frames in Lance"), clips_job),
        **{"aim": 2.5, "samples": BATCH},
    ),
    "search": Row(
        *("10 nearest of the features", "features", _SEARCHES, folder_job),
        **{"aim": 1.0, "bounds": ("sce_video exact",), "rounds": 1, "warm_up": 0},
    ),
    "step": Row(
        *(f"a training step, R3D-18, {SIZES['step']}", "methods", _STEPS, step_job),
        **{"aim": 1.5, "bounds": ("lightly, channels_last",), "rounds": 5},
    ),
    "image_step": Row(
        *(f"a training step, ResNet-18, {SIZES['image step']}", "methods"),
        *((*_STEPS, "LightlyTrain"), image_step_job),
        **{"aim": 1.0, "bounds": ("lightly, channels_last",), "rounds": 5},
    ),
    "near_duplicates": Row(
        *("near-duplicates of generated videos", "copies"),
        *(("sce-video curate", "PDQ of frames"), folder_job),
        **{"aim": 2.0, "rounds": 1, "warm_up": 0},
    ),
}


# -- files and environment ------------------------------------------------------------------------


def originals(args: argparse.Namespace) -> list[str]:
    """Return the given files, or generated ones with Kinetics' size, rate and length."""
    if args.files:
        return args.files
    made = []
    for number in range(4):
        made.append(args.out / "files" / f"generated_{number}.mp4")
        if made[-1].exists():
            continue
        print(f"generating {made[-1]}", flush=True)
        what, how = CLASSES[3 * number % len(CLASSES)].split("_")
        rng = np.random.default_rng(number)
        frames = render_toy_action(what, how, rng, size=340, num_frames=300, fps=30)[:, 42:298]
        made[-1].parent.mkdir(parents=True, exist_ok=True)
        made[-1].write_bytes(encode_h264(frames, 30, {"preset": "medium", "crf": "23"}))
    return [str(path) for path in made]


def repacked(args: argparse.Namespace, files: list[str]) -> list[str]:
    """Return the files after ``sce-video repack``."""
    made = []
    (args.out / "repacked").mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files):
        target = args.out / "repacked" / f"{number}_{Path(file).stem}.mp4"
        target.unlink(missing_ok=True)
        repack_file(file, str(target), Settings(), EncoderLimits(min_psnr=0.0))
        made.append(str(target))
    return made


def folder(args: argparse.Namespace, files: list[str]) -> list[str]:
    """Return a folder of ``--clips`` links to repacked files, and a tiny VideoMAE."""
    from transformers import VideoMAEConfig, VideoMAEImageProcessor, VideoMAEModel

    root = args.out / "folder"
    videos, network = root / "videos", root / "network"
    videos.mkdir(parents=True, exist_ok=True)
    for old in videos.iterdir():
        old.unlink()
    for number in range(args.clips):
        os.link(files[number % len(files)], videos / f"{number:05}.mp4")
    small = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96)
    config = VideoMAEConfig(image_size=112, num_frames=FRAMES, patch_size=16, **small)
    VideoMAEModel(config).save_pretrained(network)
    sizes = dict(size={"shortest_edge": 112}, crop_size={"height": 112, "width": 112})
    VideoMAEImageProcessor(**sizes).save_pretrained(network)
    return [str(root)]


def features(args: argparse.Namespace) -> list[str]:
    """Return a folder of ``--features`` generated features."""
    root = args.out / f"features_{args.features}"
    if not root.exists():
        write_features(root, args.features)
    return [str(root)]


def copies(args: argparse.Namespace) -> list[str]:
    """Return a folder of ``--copies`` generated videos, a fifth of them edited copies."""
    root = args.out / f"copies_{args.copies}"
    if not (root / "pairs.json").exists():
        write_videos(root, args.copies)
    return [str(root)]


def environment(out: Path) -> tuple[str, str]:
    """Return the interpreter of the peers, or the reason why there is none."""
    venv, wanted = out / ".venv", HERE / "peers.txt"
    python, stamp = venv / "bin" / "python", venv / "peers.txt"
    if stamp.exists() and stamp.read_text() == wanted.read_text():
        return str(python), ""
    print(f"installing {wanted} into {venv}", flush=True)
    for words in (
        [sys.executable, "-m", "venv", str(venv)],
        [str(python), "-m", "pip", "install", "-q", "-r", str(wanted)],
    ):
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            return "", f"the environment cannot be installed: {reason}"
    stamp.write_text(wanted.read_text())
    return str(python), ""


# -- one row --------------------------------------------------------------------------------------


class SideProcess:
    """A side in a process that answers jobs. ``error`` is its first failure or its end."""

    def __init__(self, name: str, python: str, error: str, log: Path) -> None:
        self.name, self.error, self.versions = name, error, {}
        self._log, self._ended = log, bool(error)
        if error:
            return
        own = {"PYTHONPATH": str(HERE.parent)} if SIDES[name].own else {}
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | own
        with open(log, "w") as file:
            self._process = subprocess.Popen(
                [python, str(HERE / "peer_sides.py"), name],
                **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": file},
                **{"text": True, "env": env | {"OMP_NUM_THREADS": "1"}},
            )
        started = self._answer()
        self.versions, self.error = started.get("versions", {}), started.get("error", "")

    def ask(self, job: Job) -> dict[str, Any] | None:
        """Return the answer to a job, or None if it failed."""
        if self._ended:
            return None
        with contextlib.suppress(BrokenPipeError):  # the answer says so
            print(json.dumps(job), file=self._process.stdin, flush=True)
        answer = self._answer()
        self.error = self.error or answer.get("error", "")
        return None if "error" in answer else answer

    def _answer(self) -> dict[str, Any]:
        timer = threading.Timer(LIMIT_SECONDS, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if line:
            return json.loads(line)
        said = (self._log.read_text(errors="replace").strip().splitlines() or [""])[-1][:200]
        self._ended = True
        return {"error": f"the process ended with code {self._process.wait()}: {said}"}

    def close(self) -> None:
        """End the process."""
        if hasattr(self, "_process"):
            self._process.stdin.close()
            self._process.wait()


@dataclass
class Measured:
    """Processor seconds by file and side, and how far frames are from ours, in grey levels."""

    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # by side, of its last job


def measure(row: Row, files: list[str], sides: list[SideProcess], rounds: int) -> Measured:
    """Let the sides take turns, and warm up all except whole commands."""
    found = Measured({file: {} for file in files})
    for number in range(min(rounds, row.rounds) + row.warm_up):
        for file in files:
            job, frames = row.jobs(file, number), {}
            turn = number % len(sides)
            for side in sides[turn:] + sides[:turn]:
                answer = side.ask(job)
                if answer is None:
                    continue
                if number >= row.warm_up:
                    found.seconds[file].setdefault(side.name, []).append(answer["cpu"])
                frames[side.name] = answer.get("frames")
                found.facts[side.name] = answer.get("facts")
            ours = frames.get(row.sides[0])
            for name, values in frames.items():
                if values and ours:
                    difference = (
                        float(np.abs(np.subtract(values, ours)).max())
                        if len(values) == len(ours)
                        else math.inf
                    )
                    found.differences[name] = max(difference, found.differences.get(name, 0.0))
    return found


def ratio(times: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    """Return how much faster we are, from (side, our) times by file: mean and range."""
    each = [theirs / ours for theirs, ours in times]
    if not each:
        return None
    mean = math.exp(statistics.fmean(map(math.log, each)))
    return {"mean": round(mean, 3), "least": round(min(each), 3), "most": round(max(each), 3)}


def summary(row: Row, found: Measured, sides: list[SideProcess]) -> dict[str, Any]:
    """Return the results of a row as plain data."""
    ours = row.sides[0]
    medians = {
        file: {name: statistics.median(times) for name, times in by_side.items()}
        for file, by_side in found.seconds.items()
    }
    result: dict[str, Any] = {"title": row.title, "aim": row.aim, "sides": {}}
    for side in sides:
        run = SIDES[side.name].run
        known = [times for times in medians.values() if side.name in times]
        result["sides"][side.name] = {
            "does": " ".join(str(getattr(run, "func", run).__doc__).split()),
            "versions": side.versions,
            "error": side.error,
            "ms": round(1e3 * statistics.fmean(t[side.name] for t in known) / row.samples, 3)
            if known
            else None,
            "ours_faster": ratio([(t[side.name], t[ours]) for t in known if ours in t]),
            "frames_differ": found.differences.get(side.name),
            "facts": found.facts.get(side.name),
        }
    peers = [name for name in row.sides[1:] if name not in row.bounds]
    best = [
        (min(times[name] for name in peers if name in times), times[ours])
        for times in medians.values()
        if ours in times and any(name in times for name in peers)
    ]
    result["best_peer"] = ratio(best)  # the fastest of each file
    result["reached"] = bool(best) and result["best_peer"]["mean"] >= row.aim
    result["files"] = {
        Path(file).name: {name: round(1e3 * t / row.samples, 3) for name, t in times.items()}
        for file, times in medians.items()
    }
    return result


# -- what is written ------------------------------------------------------------------------------


def table(rows: dict[str, Any]) -> str:
    """Return the results in Markdown."""
    lines = ["| | ms | ours x as fast | over the files |", "|---|---|---|---|"]
    for row in rows.values():
        best = row.get("best_peer")
        against = f"**{best['mean']:.2f}** (aim {row['aim']})" if best else ""
        spread = f"{best['least']:.2f} to {best['most']:.2f}" if best else row.get("error", "")
        lines.append(f"| **{row['title']}**, best peer of each file | | {against} | {spread} |")
        for name, side in row.get("sides", {}).items():
            versions = ", ".join(f"{p} {v}" for p, v in side["versions"].items())
            faster, ms = side["ours_faster"], side["ms"]
            numbers = (
                f"{faster['mean']:.2f} | {faster['least']:.2f} to {faster['most']:.2f}"
                if faster
                else " | "
            )
            if side["error"]:
                numbers += f" {side['error']}"
            lines.append(f"| {name} ({versions}) | {f'{ms:.2f}' if ms else ''} | {numbers} |")
    return "\n".join(lines) + "\n"


def figure(rows: dict[str, Any]) -> Figure:
    """Draw a bar for each side: how much faster we are, with the range over the files."""
    bars: list[tuple[str, dict[str, float], int]] = []
    at_other_recall = ("search", "near_duplicates")
    drawn_rows = [row for name, row in rows.items() if name not in at_other_recall]
    for number, row in enumerate(drawn_rows):
        for name, side in list(row.get("sides", {}).items())[1:]:
            if side["ours_faster"]:
                bars.append((f"{row['title']}: {name}", side["ours_faster"], number))
    drawn = Figure(figsize=(8, 1 + 0.28 * max(1, len(bars))), layout="constrained")
    axes = drawn.subplots()
    means = [faster["mean"] for _, faster, _ in bars]
    low = [faster["mean"] - faster["least"] for _, faster, _ in bars]
    high = [faster["most"] - faster["mean"] for _, faster, _ in bars]
    colours = [f"C{number}" for *_, number in bars]
    axes.barh([label for label, *_ in bars], means, xerr=[low, high], color=colours, height=0.7)
    axes.axvline(1, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("their processor time over ours")
    return drawn


def front(sides: dict[str, Any]) -> Figure:
    """Draw recall over time of the row "search", with one line per side."""
    drawn = Figure(figsize=(8, 4), layout="constrained")
    axes = drawn.subplots()
    for name, side in sides.items():
        points = list((side["facts"] or {}).get("points", {}).values())
        columns = [[point[key] for point in points] for key in ("p50_ms", "recall")]
        if points:
            axes.plot(*columns, "o-", linewidth=3 if SIDES[name].own else 1, label=name)
    axes.set(xscale="log", xlabel="processor milliseconds of a query, median", ylabel="recall@10")
    axes.set_ylim(0.5, 1.01)
    axes.grid(alpha=0.3)
    axes.legend()
    return drawn


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="sce_video beside its live peers.")
    parser.add_argument("--files", nargs="+", help="videos (default: four are generated)")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=11, help="after one to warm up")
    parser.add_argument("--only", choices=["own"], help="own: our sides alone, nothing installed")
    parser.add_argument("--eztorch", type=Path, help="checkout of juliendenize/eztorch")
    parser.add_argument("--clips", type=int, default=1000, help="of the row embed")
    parser.add_argument("--features", type=int, default=1_000_000, help="of the row search")
    parser.add_argument("--copies", type=int, default=1000, help="videos of near_duplicates")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to try the script")
    parser.add_argument("--out", type=Path, default=HERE.parent / "work_dirs" / "peers")
    args = parser.parse_args(argv)
    if args.smoke:
        args.rounds, args.clips, args.features, args.copies = 1, 2, 2000, 50
    return args


def run_row(row: Row, files: list[str], args: argparse.Namespace, peers: tuple[str, str]) -> dict:
    """Start the sides of a row, measure and end them."""
    sides = []
    for name in row.sides:
        own = SIDES[name].own
        if own or not args.only:
            python, error = (sys.executable, "") if own else peers
            sides.append(SideProcess(name, python, error, args.out / f"{name}.log"))
    found = measure(row, files, sides, args.rounds)
    for side in sides:
        side.close()
    return summary(row, found, sides)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rows. The status is 1 if one of our own sides fails."""
    args = parse_args(argv)
    args.out = args.out.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.eztorch:
        os.environ["EZTORCH"] = str(args.eztorch.resolve())
    peers = ("", "not asked for") if args.only else environment(args.out)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    methods = list(METHODS[:1] if args.smoke else METHODS)
    made: dict[str, list[str]] = {"originals": originals(args), "methods": methods}
    stored = args.out / "peers.json"
    rows = json.loads(stored.read_text())["rows"] if stored.exists() else {}  # of earlier runs
    skipped: list[str] = []
    for name in args.rows:
        row = ROWS[name]
        print(f"{name}: {row.title}", flush=True)
        if row.files in ("features", "copies"):
            made[row.files] = {"features": features, "copies": copies}[row.files](args)
        if row.files in ("repacked", "folder"):
            made["repacked"] = made.get("repacked") or repacked(args, made["originals"])
        if row.files == "folder":
            try:
                made["folder"] = folder(args, made["repacked"])
            except ImportError as error:
                skipped.append(f"{name}: left out, {error}")
                continue
        rows[name] = run_row(row, made[row.files], args, peers)
        rows[name]["run"] = {"date": str(date.today()), "cores": os.cpu_count()}
        rows[name]["run"] |= {"load": round(os.getloadavg()[1], 1)}
        rows = {known: rows[known] for known in ROWS if known in rows}
        write_json(stored, {"rows": rows})
        write_text(args.out / "peers.md", table(rows))
        print(table({name: rows[name]}), flush=True)
    if "search" in rows:
        front(rows["search"]["sides"]).savefig(args.out / "peers_search.png", dpi=120)
    figure(rows).savefig(args.out / "peers.png", dpi=120)
    ours = {ROWS[name].sides[0]: name for name in args.rows if name in rows}
    print(*skipped, sep="\n")
    failed = [f"{s}: {e}" for s, n in ours.items() if (e := rows[n]["sides"][s]["error"])]
    print("\n".join(["failed:", *failed]) if failed else f"written: {stored.with_suffix('.*')}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
