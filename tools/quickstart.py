"""The quickstart: generate toy-action videos, pretrain on them, compare with random weights.

    bash tools/quickstart.sh               # creates the environment, then calls this script
    python tools/quickstart.py [--method moco] [--smoke] [--part val] [--seed N]

The script runs and prints the commands that a user would type, prints a small table and writes
WORK_DIR/results.json. A second run keeps the videos and repeats everything else.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sce_video.data_tools.generated import generate_toy_actions
from sce_video.engine.config.load import load_config
from sce_video.utils.command import command
from sce_video.utils.cores import usable_cores
from sce_video.utils.errors import UserError
from sce_video.utils.files import write_json

REPO = Path(__file__).resolve().parents[1]
CONFIG = "configs/quickstart/{method}_toy_actions.py"
METHODS = sorted(
    path.name.removesuffix("_toy_actions.py") for path in REPO.glob(CONFIG.format(method="*"))
)
METRICS = ("knn_top1", "linear_top1", "retrieval_r1")


class Size(NamedTuple):
    """Numbers of videos and epochs."""

    train: int
    """Pretraining videos. With their labels, they are also the gallery of the evaluation."""
    evaluated: int
    """Videos of the evaluation."""
    epochs: int | None
    """None: the config's."""


FULL = Size(train=480, evaluated=240, epochs=None)
SMOKE = Size(train=96, evaluated=48, epochs=2)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Pretrain on toy actions and evaluate, in minutes."
    )
    parser.add_argument(
        "--method", choices=METHODS, default="sce", help="pretraining method (default: sce)"
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="run the same steps with fewer videos and epochs, in about a minute",
    )
    parser.add_argument(
        "--part",
        choices=["val", "test"],
        default="test",
        help="evaluation videos. Choose settings on val, and report results on test",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of the weights and of training"
    )
    parser.add_argument(
        "--work-dir", type=Path, help="default: work_dirs/quickstart[_METHOD][_smoke]"
    )
    return parser.parse_args(argv)


def run(tool: str, *arguments: str) -> None:
    """Run a tool of the project in the repository's root, with its output in this terminal."""
    print("\n$ " + shlex.join(["python", f"tools/{tool}", *arguments]), flush=True)
    # Let waiting threads sleep, because spinning threads would block the decoding worker.
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    command = [sys.executable, f"tools/{tool}", *arguments]
    subprocess.run(command, cwd=REPO, env=environment, check=True)


def evaluate(config: str, checkpoint: str, folder: Path, options: list[str]) -> dict[str, float]:
    """Return the metrics of tools/test.py for a checkpoint or ``random``."""
    out = folder / "results.json"
    run(
        *("test.py", config, checkpoint, "--work-dir", str(folder), "--out", str(out)),
        *("--cfg-options", *options),
    )
    metrics = json.loads(out.read_text(encoding="utf-8"))["metrics"]
    return {name: metrics[name] for name in METRICS}


def table(results: dict, title: str) -> str:
    """Return a table of the metrics in percent with one row per network."""
    head = ("", "kNN top-1", "linear top-1", "retrieval R@1")
    rows: list[tuple[str, ...]] = [head]
    for name in ("random", "pretrained"):
        rows.append((name, *(f"{100 * results[name][metric]:.1f}" for metric in METRICS)))
    gains = [results["pretrained"][metric] - results["random"][metric] for metric in METRICS]
    rows.append(("gain", *(f"{100 * gain:+.1f}" for gain in gains)))
    lines = [f"{first:<12}" + "".join(f"{cell:>15}" for cell in rest) for first, *rest in rows]
    return "\n".join([title, *lines])


def quickstart(
    size: Size, work_dir: Path, part: str = "test", seed: int = 0, method: str = "sce"
) -> dict[str, dict[str, float] | float]:
    """Run all steps, write ``results.json``, and return its content."""
    start = time.monotonic()
    config = CONFIG.format(method=method)
    videos = work_dir / "videos"
    print(f"{size.train} + {size.evaluated} videos in {videos}", flush=True)
    generate_toy_actions(
        videos, {"train": size.train, part: size.evaluated}, workers=usable_cores()
    )
    epochs = size.epochs or load_config(REPO / config).train_cfg.max_epochs
    data = {
        "train_dataloader": "train",
        "default_hooks.online_evaluation.gallery": "train",
        "test_cfg.gallery_dataloader": "train",
        "test_dataloader": part,
    }
    options = [
        # Quote the folder, because 2023 or a,b would be parsed as a number or a list.
        *(f"{key}.dataset.data_root={str(videos / name)!r}" for key, name in data.items()),
        f"train_cfg.max_epochs={epochs}",
        f"randomness.seed={seed}",
    ]
    pretraining = work_dir / "pretraining"
    arguments = ("--work-dir", str(pretraining), "--overwrite")
    run("train.py", config, *arguments, "--cfg-options", *options)
    checkpoint = str(pretraining / f"epoch_{epochs}.pth")
    results: dict = {
        "pretrained": evaluate(config, checkpoint, work_dir / "test_pretrained", options),
        "random": evaluate(config, "random", work_dir / "test_random", options),
        "videos": size.train,
        "epochs": epochs,
    }
    results["seconds"] = round(time.monotonic() - start, 1)
    out = work_dir / "results.json"
    write_json(out, results)
    title = f"toy actions, {part} part, {size.train} videos, {epochs} epochs (percent)"
    print(f"\n{table(results, title)}\n{results['seconds']:.0f} s; written to {out}")
    return results


@command
def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    method = "" if args.method == "sce" else f"_{args.method}"
    work_dir = args.work_dir or REPO / f"work_dirs/quickstart{method}{'_smoke' * args.smoke}"
    size = SMOKE if args.smoke else FULL
    try:
        quickstart(size, work_dir.resolve(), args.part, args.seed, args.method)
    except subprocess.CalledProcessError as error:
        raise UserError(f"{shlex.join(error.cmd[1:3])} failed, see above") from error
    return 0


if __name__ == "__main__":
    sys.exit(main())
