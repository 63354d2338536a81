"""Train and test all splits of a data set, and report each and the mean.

    python tools/finetune_splits.py CONFIG --splits 1 2 3 --pretrained CHECKPOINT
    torchrun --nproc_per_node 8 tools/finetune_splits.py CONFIG --splits 1 2 3 \
        --pretrained CHECKPOINT --launcher pytorch --cfg-options train_dataloader.batch_size=8

The second trains on 8 GPUs with the recipe's 64 videos in all.
The same command resumes an interrupted run: finished splits are kept, a training continues from
its last checkpoint. Writes WORK_DIR/split<N>/results.json and WORK_DIR/splits.json, of the last
epochs. Where the recipe keeps the best epoch (save_best), split<N>/best.json and the entry "best"
of splits.json are of that one; the recipes choose it on the test videos, as the authors' code does.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import is_main_process

from sce_video.runs import launch
from sce_video.runs.splits import SUMMARY, StoppedError, format_splits, run_splits
from sce_video.utils.command import command
from sce_video.utils.distributed import leave_process_group


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train and test all splits of a data set.")
    parser.add_argument("config", help="a recipe with split = 1 and lists named *split1*")
    parser.add_argument("--splits", nargs="+", default=["1", "2", "3"], help="default: 1 2 3")
    parser.add_argument(
        "--pretrained",
        metavar="CHECKPOINT",
        help="start from the backbone of this checkpoint; 'random' trains from scratch",
    )
    parser.add_argument(
        "--work-dir", help="folder for all splits (default: work_dirs/<config name>_splits)"
    )
    parser.add_argument(
        "--amp", choices=["bfloat16", "float16", "float32"], help="precision of the training"
    )
    parser.add_argument("--seed", type=int, help="random seed")
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="change the config; unknown keys are refused",
    )
    parser.add_argument(
        "--backend",
        help="decoder of all videos: av, decord or torchcodec (default: the config's)",
    )
    parser.add_argument("--launcher", choices=["none", "pytorch", "slurm"], default="none")
    return parser.parse_args(argv)


def prepare_test(args: argparse.Namespace, checkpoint: str, folder: Path) -> Config:
    """The config that tests the last checkpoint of one split."""
    return launch.testing_config(
        args.config,
        checkpoint,
        work_dir=folder,
        backend=args.backend,
        cfg_options=args.cfg_options,
        launcher=args.launcher,
    )


@command(interrupted="interrupted; the same command resumes from here")
def main(argv: list[str] | None = None) -> int:
    """Run all splits; returns the exit status."""
    args = parse_args(argv)
    work_dir = args.work_dir or Path("work_dirs") / f"{Path(args.config).stem}_splits"
    try:
        training = launch.training_config(
            args.config,
            work_dir=work_dir,
            amp=args.amp,
            seed=args.seed,
            pretrained=args.pretrained,
            backend=args.backend,
            cfg_options=args.cfg_options,
            launcher=args.launcher,
        )
        launch.join_processes(args.launcher, training.get("env_cfg"))
        summary = run_splits(training, partial(prepare_test, args), args.splits)
    except StoppedError as stop:
        print(f"finetune_splits.py: {stop}", file=sys.stderr)
        status = 128 + stop.by
        leave_process_group(status)
        return status
    if is_main_process():
        print(f"\n{format_splits(summary)}\nwritten to {Path(work_dir) / SUMMARY}")
    leave_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
