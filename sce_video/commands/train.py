"""Train a model with a config.

    python tools/train.py CONFIG [--work-dir DIR] [--resume [PATH] | --overwrite] [--amp [DTYPE]]
                          [--seed N] [--pretrained CHECKPOINT|random]
                          [--backend av|decord|torchcodec] [--track wandb|mlflow]
                          [--mirror s3://BUCKET/RUN] [--cfg-options KEY=VALUE ...]
                          [--launcher none|pytorch|slurm]

One process: as above. Several: bash tools/dist_train.sh CONFIG NPROC ...
Ctrl-C or SIGTERM completes the current step, writes a checkpoint and exits with status 130 or 143;
--resume continues from there. A second Ctrl-C stops at once, without a checkpoint. SIGUSR1 does the
same and requeues the Slurm job. Started again by torchrun or Slurm, a training resumes by itself.
"""

from __future__ import annotations

import argparse
import sys

from mmengine.config import Config

from sce_video.apis import launch
from sce_video.apis.run_page import train_with_page
from sce_video.engine.checkpoint import find_checkpoints
from sce_video.engine.trackers import TRACKERS
from sce_video.utils.command import command
from sce_video.utils.distributed import leave_process_group


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a model with a config.")
    parser.add_argument("config", help="path of a config file")
    parser.add_argument(
        "--work-dir", help="folder for logs and checkpoints (default: work_dirs/<config name>)"
    )
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        metavar="PATH",
        help="continue from this checkpoint, or from the newest readable one of the work dir, with "
        "its network and views",
    )
    start.add_argument(
        "--overwrite",
        action="store_true",
        help="remove an earlier training from the work dir, and start from scratch",
    )
    parser.add_argument(
        "--pretrained",
        metavar="CHECKPOINT",
        help="start from the backbone of this checkpoint; 'random' trains from scratch",
    )
    parser.add_argument(
        "--amp",
        nargs="?",
        const="bfloat16",
        choices=["bfloat16", "float16", "float32"],
        help="mixed precision (without a value: bfloat16); float32 switches it off",
    )
    parser.add_argument("--seed", type=int, help="random seed")
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="change the config, e.g. model.tau_m=0.07; unknown keys are refused",
    )
    parser.add_argument(
        "--backend",
        help="decoder of all videos: av, decord or torchcodec (default: the config's)",
    )
    add_track_option(parser)
    add_mirror_option(parser)
    parser.add_argument("--launcher", choices=["none", "pytorch", "slurm"], default="none")
    return parser.parse_args(argv)


def add_track_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--track``."""
    parser.add_argument(
        "--track",
        action="append",
        default=[],
        choices=sorted(TRACKERS),
        help="log to Weights & Biases or MLflow, too; may be given twice (docs/logging.md)",
    )


def add_mirror_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--mirror``."""
    parser.add_argument(
        "--mirror",
        metavar="URL",
        help="copy checkpoints and logs to this folder of an object store, s3://BUCKET/RUN; with "
        "--resume a newer run there is restored first (docs/object_storage.md)",
    )


def _what_is_left(cfg: Config | None) -> str:
    """What can be resumed after an interruption."""
    checkpoints = [] if cfg is None else find_checkpoints(cfg.work_dir)
    if not checkpoints:
        return "there is no checkpoint yet to resume from"
    return f"--resume continues from the last checkpoint, {checkpoints[0]}"


@command
def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    warning = launch.warn_of_slow_amp(args.amp)
    if warning:
        print(f"train.py: {warning}", file=sys.stderr)
    options = vars(args)
    overwrite = options.pop("overwrite")
    cfg = None
    try:
        cfg = launch.training_config(**options)
        runner = train_with_page(cfg, overwrite)
    except KeyboardInterrupt:  # before the training started, or the second one
        print(f"train.py: interrupted; {_what_is_left(cfg)}", file=sys.stderr)
        return 130
    status = launch.end_training(runner)
    leave_process_group(status)
    return status
