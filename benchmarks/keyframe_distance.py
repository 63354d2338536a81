"""Disk against speed: key-frame distance and quality of repacked files.

Every file is repacked at its short side of 256 with each key-frame distance and each quality, and
read as in pretraining: two random clips of 2.56 s, 8 frames each, in one pass. The variants of a
file are interleaved, one sample each per round with the same clips, so that other load on the
machine slows all of them alike; a second column is by CPU time.

Bytes are those of the video stream, relative to the source's stream. A source larger than the
output is first encoded at the output's size with usual settings (x264 medium, crf 23, key frames
250 apart), and bytes are relative to that stream.

Usage:
    python benchmarks/keyframe_distance.py VIDEO [VIDEO ...] [--keyint 1 2 4 8 16]
        [--crf auto 20 23 26] [--rounds 15] [--short-side 256] [--json OUT] [--figure PNG]

Prints a table per file and one of the geometric means over the files; the figure plots the means,
speed over bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from sce_video.data_tools.repack import Settings
from sce_video.data_tools.repack.work import Job, repack_file
from sce_video.datasets import open_reader

CLIP_DURATION, NUM_FRAMES, NUM_CLIPS = 2.56, 8, 2


def read_clips(path: str, seed: int) -> None:
    """Read the frames of two random clips in ascending order, each once."""
    rng = np.random.default_rng(seed)
    with open_reader(path) as reader:
        starts = rng.uniform(0, max(0.0, reader.duration - CLIP_DURATION), NUM_CLIPS)
        offsets = (np.arange(NUM_FRAMES) + 0.5) * CLIP_DURATION / NUM_FRAMES
        seconds = (starts[:, None] + offsets).ravel()
        frames = np.searchsorted(reader.timestamps, seconds, side="right") - 1
        reader.read(np.unique(frames))


def repack(source: str, target: str, settings: Settings) -> dict[str, Any]:
    """Repack a file; returns its record, exits with the reason on failure."""
    facts = repack_file(Job(source, target, settings, min_psnr=0))
    if facts["status"] != "done":
        sys.exit(f"keyframe_distance: {source}: {facts['reason']}")
    return facts


def make_variants(
    source: str, folder: str, keyints: Sequence[int], crfs: Sequence[str], short_side: int
) -> list[dict[str, Any]]:
    """A row per repacked version of a file; the first row is the file itself."""
    usual = Settings(short_side=short_side, keyint=250, crf=23, tune="")
    facts = repack(source, os.path.join(folder, "usual.mp4"), usual)
    stream = facts["video_bytes"] if facts["scaled"] else facts["source_video_bytes"]
    rows: list[dict[str, Any]] = [{"keyint": "source", "crf": "", "path": source, "ratio": 1.0}]
    for keyint in keyints:
        for crf in crfs:
            settings = Settings(
                short_side=short_side, keyint=keyint, crf=None if crf == "auto" else float(crf)
            )
            path = os.path.join(folder, f"{keyint}_{crf}.mp4")
            facts = repack(source, path, settings)
            rows.append(
                {
                    "keyint": keyint,
                    "crf": crf,
                    "path": path,
                    "chosen_crf": facts["crf"],
                    "ratio": facts["video_bytes"] / stream,
                    "psnr": facts["psnr"],
                    "psnr_luma": facts["psnr_luma"],
                    "encode_cpu_seconds": facts["cpu_seconds"],
                }
            )
    return rows


def measure(rows: list[dict[str, Any]], rounds: int) -> None:
    """Time all variants, interleaved; adds their speeds and ``speedup`` to the rows."""
    wall: list[list[float]] = [[] for _ in rows]
    cpu: list[list[float]] = [[] for _ in rows]
    for seed in range(rounds + 1):
        for i, row in enumerate(rows):
            begin = time.perf_counter(), time.process_time()
            read_clips(row["path"], seed)
            if seed > 0:  # the first round warms up
                wall[i].append(time.perf_counter() - begin[0])
                cpu[i].append(time.process_time() - begin[1])
    for i, row in enumerate(rows):
        row["videos_per_second"] = 1 / statistics.median(wall[i])
        row["videos_per_cpu_second"] = 1 / statistics.mean(cpu[i])
    for row in rows:
        row["speedup"] = row["videos_per_cpu_second"] / rows[0]["videos_per_cpu_second"]


def means(tables: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Geometric means of ratios and speeds, means of dB, row by row over the files."""
    result = []
    for rows in zip(*tables, strict=True):
        row = {"keyint": rows[0]["keyint"], "crf": rows[0]["crf"]}
        for key in ("ratio", "videos_per_second", "videos_per_cpu_second", "speedup"):
            row[key] = statistics.geometric_mean(r[key] for r in rows)
        if "psnr" in rows[0]:
            for key in ("psnr", "psnr_luma", "chosen_crf", "encode_cpu_seconds"):
                row[key] = statistics.mean(r[key] for r in rows)
        result.append(row)
    return result


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print a table as markdown."""
    print(f"\n{title}\n")
    print("| keyint | crf | bytes | PSNR luma | PSNR all | videos/s | per CPU s | x source |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        quality = ("", "", "")
        if "psnr" in row:
            crf = f"auto ({row['chosen_crf']:.1f})" if row["crf"] == "auto" else row["crf"]
            quality = (crf, f"{row['psnr_luma']:.1f}", f"{row['psnr']:.1f}")
        print(
            f"| {row['keyint']} | {quality[0]} | {row['ratio']:.2f} | {quality[1]} | {quality[2]} "
            f"| {row['videos_per_second']:.0f} | {row['videos_per_cpu_second']:.0f} "
            f"| {row['speedup']:.1f} |",
            flush=True,
        )


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """Plot speed over bytes: a line per key-frame distance, a point per quality."""
    figure = Figure(figsize=(7.5, 4.8), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    made = [row for row in rows if "psnr" in row]
    distances = sorted({row["keyint"] for row in made})
    for i, keyint in enumerate(distances):
        line = sorted((r for r in made if r["keyint"] == keyint), key=lambda row: row["ratio"])
        colour = colormaps["viridis"](0.85 * i / max(1, len(distances) - 1))
        axes.plot(
            [row["ratio"] for row in line],
            [row["videos_per_cpu_second"] for row in line],
            color=colour,
            marker="o",
            label="every frame" if keyint == 1 else f"every {keyint} frames",
        )
        for row in line:
            is_auto = row["crf"] == "auto"
            axes.annotate(
                f"{row['psnr_luma']:.0f} dB" + (" (auto)" if is_auto else ""),
                (row["ratio"], row["videos_per_cpu_second"]),
                xytext=(5, 4),
                textcoords="offset points",
                fontsize=7,
                fontweight="bold" if is_auto else "normal",
                color=colour,
            )
    source = rows[0]
    axes.plot(source["ratio"], source["videos_per_cpu_second"], "k*", ms=11, label="source")
    axes.set_xlabel("bytes, relative to the source's video stream")
    axes.set_ylabel("pairs of 8-frame clips per CPU second")
    axes.set_xlim(0, 1.1 * max(row["ratio"] for row in rows))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(title="key frame", fontsize=8, title_fontsize=8)
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("videos", nargs="+")
    parser.add_argument("--keyint", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--crf", nargs="+", default=["auto", "20", "23", "26"])
    parser.add_argument("--short-side", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=15, help="samples per variant")
    parser.add_argument("--json", help="JSON file for all numbers")
    parser.add_argument("--figure", metavar="PNG", help="file for a plot of the means")
    args = parser.parse_args(argv)
    cv2.setNumThreads(1)
    tables = []
    for video in args.videos:
        with tempfile.TemporaryDirectory() as folder:
            rows = make_variants(video, folder, args.keyint, args.crf, args.short_side)
            measure(rows, args.rounds)
        show(os.path.basename(video), rows)
        tables.append(rows)
    mean = means(tables)
    show(f"means over {len(tables)} files", mean)
    if args.json:
        for row in (row for rows in tables for row in rows):
            row["path"] = os.path.basename(row["path"])
        named = dict(zip(map(os.path.basename, args.videos), tables, strict=True))
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"load": os.getloadavg(), "files": named, "mean": mean}, file, indent=2)
            file.write("\n")
    if args.figure:
        draw(mean, args.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
