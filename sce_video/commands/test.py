"""Evaluate a checkpoint with the protocols of a config's ``test_cfg``.

    python tools/test.py CONFIG CHECKPOINT [--out results.json] [--dump scores.npz]
    python tools/test.py CONFIG WORK_DIR          # the last epoch; the best too, if it was kept
    python tools/test.py CONFIG random            # the baseline: random initialisation
    bash tools/dist_test.sh CONFIG CHECKPOINT 8   # on 8 GPUs

Prints a table and writes the results and their provenance as JSON: results.json, or best.json for
an epoch that was chosen by its validation metric (save_best of the checkpoint hook).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from sce_video.commands.arguments import command_line
from sce_video.commands.train import add_data_options, check_data_options, pop_options
from sce_video.datasets.named_files import check_run
from sce_video.utils.command import command
from sce_video.utils.run_files import RANDOM


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser, add = command_line("Evaluate a checkpoint with the protocols of a config's test_cfg.")
    add("config", "config file with test_dataloader and test_cfg")
    tested = (
        f"checkpoint; folder of a training: its last epoch, and its best if kept; or '{RANDOM}'"
    )
    add("checkpoint", tested)
    add("--work-dir", "folder for logs (default: work_dirs/CONFIG_NAME)")
    out = "JSON file (default: results.json in the work dir, best.json for an epoch chosen so)"
    add("--out", out)
    add("--dump FILE.npz", "save scores (tools/fuse_scores.py), or features that are evaluated")
    add_data_options(add, "test")
    add.shared("--backend", "--launcher")
    add.changes("test_dataloader.batch_size=4")
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    os.environ.setdefault("LOCAL_RANK", str(args.local_rank))
    return args


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate; returns the exit status."""
    args = parse_args(argv)
    check_data_options(args, "test")
    if args.checkpoint != RANDOM:
        check_run(args.checkpoint)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.runs import launch
    from sce_video.runs.configs import checkpoints_to_test
    from sce_video.utils.distributed import leave_process_group

    options = vars(args)
    options.pop("local_rank")
    changes = pop_options(options, "test")
    checkpoints = checkpoints_to_test(options.pop("checkpoint"))
    # One file would hold the results of the last checkpoint alone.
    if len(checkpoints) > 1 and (args.out or args.dump):
        raise ValueError(
            f"{' and '.join(checkpoints)} are tested, --out and --dump name one file: give one of "
            "the checkpoints"
        )
    for checkpoint in checkpoints:
        launch.test(launch.testing_config(checkpoint=checkpoint, cfg_options=changes, **options))
    leave_process_group()
    return 0
