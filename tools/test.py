"""Judge a checkpoint by the protocols of a config's ``test_cfg``.

    python tools/test.py CONFIG CHECKPOINT [--out results.json]
    python tools/test.py CONFIG random            # the baseline: random initialisation
    bash tools/dist_test.sh CONFIG CHECKPOINT 8   # on 8 GPUs

Prints a table and writes results and protocol as JSON.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from mmengine.config import Config

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.config import check_config, load_config
from sce_video.engine.runner import VideoRunner, leave_process_group
from sce_video.evaluation import check_backbone_weights

RANDOM = "random"
#: Settings that judging does not need; custom hooks schedule and watch the training.
_TRAINING_ONLY = (
    "train_dataloader",
    "train_cfg",
    "optim_wrapper",
    "param_scheduler",
    "custom_hooks",
    "val_dataloader",
    "val_cfg",
    "val_evaluator",
)


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Judge a checkpoint by the protocols of a config's test_cfg."
    )
    parser.add_argument("config", help="config file with test_dataloader and test_cfg")
    parser.add_argument(
        "checkpoint", help=f"checkpoint file, or '{RANDOM}' to judge random initialisation"
    )
    parser.add_argument("--work-dir", help="folder of logs (default: work_dirs/CONFIG_NAME)")
    parser.add_argument(
        "--out", help="JSON file of results (default: results.json in the work dir)"
    )
    parser.add_argument("--launcher", choices=["none", "pytorch", "slurm"], default="none")
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="override settings, for example test_dataloader.batch_size=4",
    )
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
    return args


def prepare_config(args: argparse.Namespace) -> Config:
    """The config with what the command line says filled in.

    Raises:
        FileNotFoundError: no such config.
        ValueError: the config has nothing to test by or unknown keys, or there is no such
            checkpoint.
    """
    cfg = load_config(args.config, args.cfg_options)
    check_config(cfg)
    if cfg.get("test_cfg") is None or cfg.get("test_dataloader") is None:
        raise ValueError(f"{args.config} has no test_cfg and test_dataloader: nothing to judge by")
    if cfg.get("test_evaluator") is None:
        cfg.test_evaluator = {}
    cfg.launcher = args.launcher
    cfg.resume = False
    cfg.load_from = None
    for name in _TRAINING_ONLY:
        cfg[name] = None
    if args.checkpoint != RANDOM:
        if not Path(args.checkpoint).is_file():
            raise ValueError(f"no checkpoint at {args.checkpoint} ('{RANDOM}' judges without one)")
        cfg.load_from = str(Path(args.checkpoint).resolve())
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get("work_dir") is None:
        cfg.work_dir = str(Path("work_dirs") / Path(args.config).stem)
    if args.out is not None:
        cfg.test_cfg.out = str(Path(args.out).resolve())
    return cfg


def main(argv: list[str] | None = None) -> int:
    """Judge; returns the exit status."""
    args = parse_args(argv)
    try:
        cfg = prepare_config(args)
        runner = VideoRunner.from_cfg(cfg)
        if cfg.load_from is not None:
            check_backbone_weights(runner.model, load_checkpoint_file(cfg.load_from), cfg.load_from)
        runner.test()
    except (ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    leave_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
