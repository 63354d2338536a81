"""Train a model with a config.

    python tools/train.py CONFIG [--work-dir DIR] [--resume [PATH]] [--amp [DTYPE]] [--seed N]
                          [--pretrained CHECKPOINT|random] [--backend av|decord|torchcodec|auto]
                          [--cfg-options KEY=VALUE ...] [--launcher none|pytorch|slurm]

One process: as above. Several: bash tools/dist_train.sh CONFIG NPROC ...
Ctrl-C or SIGTERM completes the current step, writes a checkpoint and exits with status 130 or 143;
--resume continues from there. A second Ctrl-C stops at once, without a checkpoint.
"""

from __future__ import annotations

import argparse
import sys

from sce_video.apis import launch
from sce_video.engine.runner import leave_process_group
from sce_video.utils.command import command


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a model with a config.")
    parser.add_argument("config", help="path of a config file")
    parser.add_argument(
        "--work-dir", help="folder for logs and checkpoints (default: work_dirs/<config name>)"
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        metavar="PATH",
        help="continue from this checkpoint, or from the newest readable one of the work dir",
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
        help="decoder of all videos: av, decord, torchcodec, or auto, which measures them on the "
        "given files (default: the config's)",
    )
    parser.add_argument("--launcher", choices=["none", "pytorch", "slurm"], default="none")
    return parser.parse_args(argv)


@command(interrupted="interrupted; --resume continues from the last checkpoint, if there is one")
def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    warning = launch.warn_of_slow_amp(args.amp)
    if warning:
        print(f"train.py: {warning}", file=sys.stderr)
    runner = launch.train(launch.training_config(**vars(args)))
    stopped_by = getattr(runner.train_loop, "stopped_by", None)
    status = 0 if stopped_by is None else 128 + stopped_by  # as shells report a signal
    leave_process_group(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
