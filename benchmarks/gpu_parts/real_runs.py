"""Whole trainings of minutes: the quickstart's recipe, and a folder of real videos if given.

Each training is the command that a user types. The time to an accuracy refers to the kNN accuracy
of the training videos, which is evaluated during the run and logged in ``metrics.jsonl``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_parts.part import Part
from sce_video.data_tools.generated import generate_toy_actions

REPO = Path(__file__).resolve().parents[2]
#: kNN accuracy of the training videos whose time is measured. Random weights reach about 0.2.
TOY_KNN = 0.45


def command(part: Part, name: str, arguments: Sequence[str], seconds: float) -> dict[str, Any]:
    """Run a command of the package, and stop it after its share of the time."""
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    if not part.on_gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    log = part.folder / f"{name}.log"
    start = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=REPO, env=environment, stdout=output, stderr=output
        )
        stopped = False
        try:
            process.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            stopped = True
            process.send_signal(signal.SIGINT)  # it writes a checkpoint
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    if process.returncode and not stopped:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise RuntimeError(f"{name} ended with {process.returncode}: {lines[-1] if lines else ''}")
    return dict(stopped=stopped, command_s=round(time.monotonic() - start, 1))


def progress(folder: Path, accuracy: float) -> dict[str, Any]:
    """Return speed and time to an accuracy, from the rows of ``metrics.jsonl``."""
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    train = [row for row in rows if row["kind"] == "train"]
    online = [row for row in rows if row["kind"] == "online" and "knn_top1" in row]
    if not train:
        raise RuntimeError(f"no iteration was logged in {path}")
    begin = train[0]["time"] - train[0].get("step_seconds", 0.0) * train[0]["iter"]
    reached = next((row for row in online if row["knn_top1"] >= accuracy), None)
    return dict(
        iterations=train[-1]["iter"],
        epochs=train[-1]["epoch"],
        loss=train[-1]["loss"],
        videos_per_s=train[-1].get("videos_per_s"),
        data_wait=train[-1].get("data_wait"),
        train_s=round(train[-1]["time"] - begin, 1),
        knn=[(row["epoch"], round(row["knn_top1"], 3)) for row in online],
        accuracy=accuracy,
        reached_s=None if reached is None else round(reached["time"] - begin, 1),
    )


def toy_actions(part: Part) -> dict[str, Any]:
    """Train the quickstart's recipe on generated videos."""
    count, epochs = (96, 2) if part.smoke else (480, 100)
    cores = os.cpu_count() or 1
    videos = generate_toy_actions(part.folder / "actions", {"train": count}, workers=cores)
    folder = part.folder / "quickstart"
    arguments = [
        *("-m", "sce_video", "train", "configs/quickstart/sce_toy_actions.py"),
        *("--work-dir", str(folder), "--overwrite", "--cfg-options"),
        f"train_dataloader.dataset.data_root={videos / 'train'}",
        f"default_hooks.online_evaluation.gallery.dataset.data_root={videos / 'train'}",
        f"default_hooks.online_evaluation.interval={1 if part.smoke else 5}",
        f"train_dataloader.num_workers={max(1, min(8, cores - 1))}",
        f"train_cfg.max_epochs={epochs}",
        "default_hooks.logger.interval=5",
        "visualizer=None",
        "run_page=None",
    ]
    share = 1.0 if part.videos is None else 0.5
    done = command(part, "quickstart", arguments, share * part.left - 12)
    return {**progress(folder, 0.0 if part.smoke else TOY_KNN), **done}


def real_videos(part: Part, videos: Path) -> dict[str, Any]:
    """Run ``sce-video pretrain`` on a folder, whose sub-folders are labels for evaluation."""
    folder = part.folder / "pretrain"
    arguments = ["-m", "sce_video", "pretrain", str(videos.resolve()), "--out", str(folder)]
    arguments += ["--overwrite"]
    arguments += ["--epochs", "2"] if part.smoke else ["--hours", f"{(part.left - 15) / 3600:.4f}"]
    done = command(part, "pretrain", arguments, part.left - 12)
    return {**progress(folder, TOY_KNN), **done}


def main(argv: Sequence[str] | None = None) -> int:
    part = Part("real", argv)
    part.run("quickstart, toy actions", lambda: toy_actions(part))
    if part.videos is not None:
        part.run(f"pretrain, {part.videos.name}", lambda: real_videos(part, part.videos), 20.0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
