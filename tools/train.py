"""Train as a config says.

    python tools/train.py CONFIG [--work-dir DIR] [--resume [PATH]] [--amp [DTYPE]] [--seed N]
                          [--cfg-options KEY=VALUE ...] [--launcher none|pytorch|slurm]

One process: as above. Several: bash tools/dist_train.sh CONFIG NPROC ...
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from mmengine.config import Config

from sce_video.engine import VideoRunner
from sce_video.engine.config import check_config, load_config
from sce_video.engine.runner import leave_process_group


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train as a config says.")
    parser.add_argument("config", help="path of a config file")
    parser.add_argument("--work-dir", help="where logs and checkpoints go: work_dirs/<config name>")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        metavar="PATH",
        help="continue from this checkpoint, or from the newest readable one of the work dir",
    )
    parser.add_argument(
        "--amp",
        nargs="?",
        const="bfloat16",
        choices=["bfloat16", "float16"],
        help="mixed precision, bfloat16 unless said otherwise",
    )
    parser.add_argument("--seed", type=int, help="seed of everything random")
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="change the config, e.g. model.tau_m=0.07; unknown keys are refused",
    )
    parser.add_argument("--launcher", choices=["none", "pytorch", "slurm"], default="none")
    return parser.parse_args(argv)


def configure(args: argparse.Namespace) -> Config:
    """The config with the command line's wishes in it, checked."""
    cfg = load_config(args.config, args.cfg_options)
    cfg.launcher = args.launcher
    if args.work_dir or not cfg.get("work_dir"):
        cfg.work_dir = args.work_dir or os.path.join("work_dirs", Path(args.config).stem)
    if args.amp:
        if not torch.cuda.is_available():
            print("train: --amp without a GPU is mostly slower, often many times", file=sys.stderr)
        cfg.optim_wrapper.type = "MixedPrecisionOptimWrapper"
        cfg.optim_wrapper.dtype = args.amp
    if args.seed is not None:
        cfg.randomness = {**cfg.get("randomness", {}), "seed": args.seed}
    if args.resume:
        cfg.resume = True
        cfg.load_from = None if args.resume == "auto" else args.resume
    check_config(cfg)
    return cfg


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    try:
        cfg = configure(args)
    except (ValueError, FileNotFoundError) as error:  # of the user's making: no traceback
        print(f"train: {error}", file=sys.stderr)
        return 2
    VideoRunner.from_cfg(cfg).train()
    leave_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
