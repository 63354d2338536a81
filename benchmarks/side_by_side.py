"""Shared code of the data pipeline benchmarks: files, interleaving, the decoder's limit, tables.

All candidates process the same file with the same seed, one sample each per round, pinned to one
core, so that other load on the machine slows all of them alike. Times are CPU seconds of the
process with all its threads, unless they are called wall times.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import av
import av.logging
import cv2
import numpy as np
import torch

from sce_video.data_tools.repack.encode import Job, repack_file
from sce_video.data_tools.repack.plan import RepackOptions, Settings
from sce_video.datasets import VideoDecodeError, backend_importable, scan_folder
from sce_video.datasets.readers import AvReader, av_file
from sce_video.datasets.readers import av_reader as av_frames
from sce_video.datasets.readers.av_file import open_container
from sce_video.datasets.readers.base import FrameCountError
from sce_video.datasets.transforms import lazy_view
from sce_video.jobs import ItemError
from sce_video.utils.files import write_json

# Makes the sample of a path and a seed; ``kinds``, if it has them: the files that it can read.
Sample = Callable[[str, int], Any]
MMACTION2 = "mmaction2"
LIMITS = ("limit", "limit, our reader")
BACKENDS = ("av", "decord", "torchcodec")


@dataclass
class Video:
    """A file to measure and its repacked version."""

    name: str
    original: str
    repacked: str | None = None


@dataclass
class Times:
    """Seconds of each sample of one candidate on one file."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        """Videos per second, by the median of the CPU times."""
        return 1 / statistics.median(self.cpu)

    @property
    def per_second_wall(self) -> float:
        """Videos per second, by the median of the wall times."""
        return 1 / statistics.median(self.wall)


def arguments(description: str) -> argparse.ArgumentParser:
    """The command-line options of the benchmarks."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--videos", required=True, metavar="DIR", help="folder of videos")
    parser.add_argument("--json", metavar="OUT", help="JSON file for the results")
    parser.add_argument(
        "--repacked",
        metavar="DIR",
        help="folder of repacked versions; created temporarily if not given",
    )
    parser.add_argument(
        "--backend",
        default="av",
        choices=importable_backends(),
        help="our backend whose ratios are reported; all are measured (default: %(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=120, help="approximate measuring time")
    parser.add_argument(
        "--all",
        action="store_true",
        help="all decodable files, not only those like Kinetics: h264, short side 240 to 256, "
        "9 to 11 seconds, at least 24 frames per second",
    )
    return parser


def prepare_process() -> int:
    """Pin the process to one core and one thread, silence libraries; returns the core."""
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    av.logging.set_libav_level(av.logging.FATAL)
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    return core


# -- files ------------------------------------------------------------------------------------


def find_videos(folder: str, everything: bool) -> list[Video]:
    """The files to measure; prints which are left out and why."""
    found = scan_folder(folder)
    videos = []
    for index in range(len(found)):
        path = os.path.join(folder, found.path(index))
        reason = _unfit(path, everything)
        if reason:
            print(f"left out: {found.path(index)}: {reason}")
        else:
            videos.append(Video(found.path(index), path))
    if not videos:
        raise SystemExit(
            f"no video like Kinetics' to measure in {folder} (--all takes all that can be decoded)"
        )
    return videos


def _unfit(path: str, everything: bool) -> str:
    try:
        with AvReader(path, deadline=time.monotonic() + 60) as reader:
            last = len(reader.timestamps) - 1
            reader.read(np.unique([0, last]))
            short, codec = min(reader.size), reader.facts[1]
            if everything:
                return ""
            rate = len(reader.timestamps) / reader.duration
            like = codec == "h264" and 240 <= short <= 256 and 9 <= reader.duration <= 11
            if not (like and rate >= 23.9):
                return f"{codec}, short side {short}, {reader.duration:.1f} s, {rate:.1f} a second"
    except FrameCountError as error:
        return str(error)
    except VideoDecodeError as error:
        return error.reason
    return ""


@contextlib.contextmanager
def with_repacked(videos: list[Video], folder: str | None) -> Iterator[None]:
    """Set ``repacked`` of all videos: from a folder, or repacked into a temporary folder."""
    if folder is not None:
        for video in videos:
            stem = os.path.join(folder, video.name)
            names = (os.path.splitext(stem)[0] + ".mp4", stem + ".mp4")
            video.repacked = next(filter(os.path.isfile, names), None)
            if video.repacked is None:
                print(f"{video.name}: not found in {folder}, measured without")
        yield
        return
    with tempfile.TemporaryDirectory(prefix="repacked_") as made:
        for number, video in enumerate(videos):
            print(f"repacking {video.name}", flush=True)
            target = os.path.join(made, f"{number}.mp4")
            try:
                repack_file(Job(video.original, target, Settings(), RepackOptions(min_psnr=0.0)))
                video.repacked = target
            except ItemError as error:
                print(f"{video.name}: cannot be repacked, measured without: {error}")
        yield


# -- the decoder's limit ----------------------------------------------------------------------


@functools.cache
def _packets(path: str) -> list[tuple[int, bool]]:
    """(pts, is_keyframe) in decoding order; read before the time is measured."""
    with open_container(path) as container:
        stream = container.streams.best("video")
        return [(p.pts, p.is_keyframe) for p in container.demux(stream) if p.size]


@functools.lru_cache(maxsize=4096)
def _plan(path: str, indices: tuple[int, ...]) -> list[tuple[int, int, frozenset[int]]]:
    """(pts of the key frame, pts of the last packet, wanted pts) of every section to decode."""
    packets = _packets(path)
    shown = sorted(range(len(packets)), key=lambda i: packets[i][0])
    sections: list[list[Any]] = []
    for i in indices:
        packet = shown[i]
        pts = packets[packet][0]
        key = max((k for k, (p, is_key) in enumerate(packets) if is_key and p <= pts), default=0)
        if not sections or key > sections[-1][1]:
            sections.append([key, packet, {pts}])
        else:
            sections[-1][1] = max(sections[-1][1], packet)
            sections[-1][2].add(pts)
    return [(packets[k][0], packets[last][0], frozenset(w)) for k, last, w in sections]


def decode_only(path: str, indices: np.ndarray) -> None:
    """Open a file, seek, and decode the frames needed for some indices, nothing else.

    A plain PyAV loop with known packet positions; frames that are neither wanted nor reference
    frames are skipped, and no frame is converted: an upper bound for a reader based on FFmpeg.
    """
    found = 0
    with open_container(path) as container:
        stream = container.streams.best("video")
        codec = stream.codec_context
        codec.thread_count = 1
        for start, last, wanted in _plan(path, tuple(indices.tolist())):
            container.seek(start, stream=stream)
            frames: list[av.VideoFrame] = []
            for packet in container.demux(stream):
                codec.skip_frame = "DEFAULT" if packet.pts in wanted else "NONREF"
                frames += codec.decode(packet)
                if packet.pts == last or not packet.size:
                    break
            frames += codec.decode(None)
            codec.flush_buffers()
            found += sum(frame.pts in wanted for frame in frames)
    if found != len(indices):
        raise RuntimeError(f"{path}: {found} of {len(indices)} frames found")


def decode_with_our_reader(path: str, indices: np.ndarray) -> None:
    """The same with our reader."""
    with AvReader(path) as reader:
        reader.decode(indices)


def limits(choose: Callable[[str, int], np.ndarray]) -> dict[str, Sample]:
    """The two candidates for the decoder's limit, by name.

    Args:
        choose: Gives the frame indices of the sample of a path and a seed.
    """
    ways = decode_only, decode_with_our_reader
    return {name: _limit(choose, way) for name, way in zip(LIMITS, ways, strict=True)}


def _limit(choose: Callable[[str, int], np.ndarray], decode: Callable[..., None]) -> Sample:
    """A candidate that decodes the frames of a sample; choosing them is not measured."""
    chosen = functools.lru_cache(maxsize=4096)(choose)

    def sample(path: str, seed: int) -> tuple[float, float]:
        indices = chosen(path, seed)
        if decode is decode_only:
            _plan(path, tuple(indices.tolist()))
        cpu, wall = time.process_time(), time.perf_counter()
        decode(path, indices)
        return time.process_time() - cpu, time.perf_counter() - wall

    return sample


# -- interleaved measurement ------------------------------------------------------------------


def measure_interleaved(
    videos: list[Video], candidates: dict[str, Sample], seconds: float, least: int = 5
) -> dict[tuple[str, str, str], Times]:
    """Run all candidates on all files, round after round, for a number of seconds.

    Returns:
        (file, "original" or "repacked", candidate) -> times. A candidate that fails on a file is
        printed and left out.
    """
    jobs = []
    for video in videos:
        for kind, path in (("original", video.original), ("repacked", video.repacked)):
            if path is None:
                continue
            jobs += [
                (video.name, kind, name, path)
                for name, sample in candidates.items()
                if kind in getattr(sample, "kinds", (kind,))
            ]
            # decord crashes on some damaged files
            if MMACTION2 in candidates and _crashes(candidates[MMACTION2], path):
                print(f"{video.name} ({kind}): {MMACTION2}: crashes the process")
                jobs.remove((video.name, kind, MMACTION2, path))
    times: dict[tuple[str, str, str], Times] = {job[:3]: Times() for job in jobs}
    end, seed = time.monotonic() + seconds, 0
    while seed <= least or time.monotonic() < end:
        for name, kind, candidate, path in jobs:
            key = (name, kind, candidate)
            if key not in times:
                continue
            try:
                cpu, wall = _one_sample(candidates[candidate], path, seed)
            except Exception as error:  # a candidate that cannot read the file is a result
                text = (str(error).splitlines() or [""])[0]
                print(f"{name} ({kind}): {candidate}: {type(error).__name__}: {text[:100]}")
                del times[key]
                continue
            if seed > 0:  # the first round warms up
                times[key].cpu.append(cpu)
                times[key].wall.append(wall)
        seed += 1
    return times


def _crashes(sample: Sample, path: str) -> bool:
    """Whether a first sample ends its process by a signal; tried in a forked process."""
    pid = os.fork()
    if pid == 0:
        try:
            sample(path, 0)
        finally:  # without the cleanup handlers of the parent
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def _one_sample(sample: Sample, path: str, seed: int) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    result = sample(path, seed)
    if isinstance(result, tuple) and len(result) == 2:
        return result  # the candidate measured itself
    return time.process_time() - cpu, time.perf_counter() - wall


def importable_backends() -> list[str]:
    """Our backends that are installed."""
    return [name for name in BACKENDS if backend_importable(name)]


# -- stages -----------------------------------------------------------------------------------


class Stages:
    """CPU seconds of our default pipeline by stage, measured separately from the rounds.

    The functions of the stages are wrapped while the context is active; the time of a nested
    function counts for its own stage only.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stack: list[float] = []
        self._undo: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Stages:
        self._wrap(av_file.AvFile, "__init__", "open")
        self._wrap(AvReader, "_take_table", "index")
        self._wrap(AvReader, "decode", "seek+decode")
        self._wrap(av_frames.AvFrames, "__getitem__", "convert")
        self._wrap(lazy_view, "_apply", "crop/resize")
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, function in self._undo:
            setattr(owner, name, function)

    def _wrap(self, owner: Any, name: str, stage: str) -> None:
        function = getattr(owner, name)

        @functools.wraps(function)
        def timed(*args: Any, **options: Any) -> Any:
            with self.stage(stage):
                return function(*args, **options)

        self._undo.append((owner, name, function))
        setattr(owner, name, timed)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the time of this block without that of nested stages."""
        self._stack.append(0.0)
        start = time.process_time()
        try:
            yield
        finally:
            spent = time.process_time() - start
            inner = self._stack.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - inner
            if self._stack:
                self._stack[-1] += spent


def measure_stages(sample: Sample, rest: str, path: str, rounds: int = 5) -> dict[str, float]:
    """Milliseconds per sample of every stage; the time outside all stages is named ``rest``."""
    sample(path, 0)
    with Stages() as stages:
        for seed in range(1, rounds + 1):
            with stages.stage(rest):
                sample(path, seed)
    return {name: 1e3 * seconds / rounds for name, seconds in stages.seconds.items()}


# -- results ----------------------------------------------------------------------------------


def mean_ratio(
    times: dict[tuple[str, str, str], Times],
    above: tuple[str, str],
    below: tuple[str, str],
    speed: str = "per_second",
) -> float | None:
    """Geometric mean over the files of the ratio of two (kind, candidate) speeds."""
    ratios = [
        getattr(times[name, *above], speed) / getattr(times[name, *below], speed)
        for name in dict.fromkeys(key[0] for key in times)
        if (name, *above) in times and (name, *below) in times
    ]
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else None


def mean_ratio_to_best(
    times: dict[tuple[str, str, str], Times],
    above: tuple[str, str],
    below: Sequence[str],
    speed: str = "per_second",
) -> float | None:
    """As :func:`mean_ratio`, to the fastest of several candidates on the same kind of file."""
    kind = above[0]
    best: dict[tuple[str, str, str], Times] = {}
    for (name, which, candidate), measured in times.items():
        key = (name, kind, "best")
        if which != kind or candidate not in below:
            continue
        if key not in best or getattr(measured, speed) > getattr(best[key], speed):
            best[key] = measured
    return mean_ratio({**times, **best}, above, (kind, "best"), speed)


def print_table(times: dict[tuple[str, str, str], Times], videos: list[Video]) -> None:
    """Print videos per second of all candidates, and the ratio to mmaction2 on the original."""
    for video in videos:
        base = times.get((video.name, "original", MMACTION2))
        print(f"\n{video.name}")
        for (name, kind, candidate), measured in times.items():
            if name == video.name:
                ratio = f"{measured.per_second / base.per_second:6.2f} x" if base else ""
                print(
                    f"  {kind} {candidate:<22}{measured.per_second:8.1f} videos/s {ratio}"
                    f"   wall {measured.per_second_wall:8.1f}"
                )


def print_stages(stages: dict[str, dict[str, float]]) -> None:
    """Print CPU milliseconds by stage, a line per kind of file."""
    names = list(dict.fromkeys(name for found in stages.values() for name in found))
    print("\nCPU milliseconds of our pipeline (av) by stage, mean of the files")
    print("  " + " " * 10 + "".join(f"{name:>13}" for name in names))
    for kind, found in stages.items():
        print(f"  {kind:<10}" + "".join(f"{found.get(name, 0):13.2f}" for name in names))


def stages_by_kind(videos: list[Video], sample: Sample, rest: str) -> dict[str, dict[str, float]]:
    """Milliseconds by stage, means over the original and over the repacked files."""
    means = {}
    for kind in ("original", "repacked"):
        paths = [path for video in videos if (path := getattr(video, kind)) is not None]
        found = [measure_stages(sample, rest, path) for path in paths]
        if found:
            means[kind] = {
                name: statistics.mean(one.get(name, 0.0) for one in found)
                for name in dict.fromkeys(name for one in found for name in one)
            }
    return means


def results_by_file(
    times: dict[tuple[str, str, str], Times], videos: list[Video]
) -> list[dict[str, Any]]:
    """Results of all files as plain data, for JSON."""
    rows: dict[str, dict[str, Any]] = {video.name: {"file": video.name} for video in videos}
    for video in videos:
        for kind, path in (("original", video.original), ("repacked", video.repacked)):
            if path is not None:
                rows[video.name][kind] = {"bytes": os.path.getsize(path), "samples": {}}
    for (name, kind, candidate), measured in times.items():
        rows[name][kind]["samples"][candidate] = {
            "videos_per_second": round(measured.per_second, 3),
            "videos_per_second_wall": round(measured.per_second_wall, 3),
            "rounds": len(measured.cpu),
        }
    return list(rows.values())


def compare(
    args: argparse.Namespace,
    core: int,
    videos: list[Video],
    candidates: dict[str, Sample],
    ratios: Callable[[dict, str, str], dict[str, float | None]],
    staged: tuple[Sample, str],
    least: int = 5,
) -> None:
    """Measure, print the tables and write the JSON.

    Args:
        args: See :func:`arguments`.
        core: The core of the process.
        videos: The files.
        candidates: Functions to compare, by name.
        ratios: Maps times, our backend and a speed of :class:`Times` to the ratios to report.
        staged: The candidate whose CPU time is split by stage, and the name of the remaining time.
        least: Minimum number of rounds.
    """
    with with_repacked(videos, args.repacked):
        times = measure_interleaved(videos, candidates, args.seconds, least)
        stages = stages_by_kind(videos, *staged)
        print_table(times, videos)
        print_stages(stages)
        values = {
            "ratios": ratios(times, args.backend, "per_second"),
            "ratios_wall": ratios(times, args.backend, "per_second_wall"),
            "backend": args.backend,
            "mean": "geometric, over the files; medians over the rounds",
            "stages_ms": stages,
            "machine": machine(core),
            "files": results_by_file(times, videos),
        }
    print(f"\nratios (CPU time, geometric mean of {len(videos)} files): {values['ratios']}")
    print(f"ratios (wall time): {values['ratios_wall']}")
    if args.json:
        write_json(args.json, values)


def machine(core: int) -> dict[str, Any]:
    """Description of the machine and the libraries."""
    return {
        "cores": os.cpu_count(),
        "core": core,
        "load": [round(value, 2) for value in os.getloadavg()],
        "av": av.__version__,
        "opencv": cv2.__version__,
        "torch": torch.__version__,
    }
