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
from typing import Any

from sce_video.commands.arguments import ArgumentAdder, command_line
from sce_video.datasets.named_files import check_exists, check_run, check_videos
from sce_video.engine.recipes import find_recipe
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


def add_data_options(add: ArgumentAdder, *parts: str) -> None:
    """Add ``--data-root``, ``--classes``, and a list for each part of a config's data.

    Part ``train`` gets ``--train-list``, the annotation list that replaces that of
    ``train_dataloader``.
    """
    add = add.group("other videos than the config's")
    add("--data-root DIR", "folder or table of videos")
    add.shared("--all-files")
    for part in parts:
        add(f"--{part}-list LIST", f"'path label' on every line, for {part}_dataloader")
    add("--classes FILE", "names of their labels, one per line")


def check_data_options(args: argparse.Namespace, *parts: str) -> None:
    """See that config, ``KEY=VALUE`` and other videos can be meant.

    Raises:
        FileNotFoundError: no such config or file.
        ValueError: ``--classes`` without a list, no videos, or an option without "=".
    """
    find_recipe(args.config)
    lists = [path for part in parts if (path := getattr(args, f"{part}_list")) is not None]
    if args.classes is not None and not lists:
        raise ValueError(f"--classes names the labels of a list: give --{parts[0]}-list, too")
    for path in (*lists, args.classes):
        check_exists(path, "file")
    if args.data_root is not None:
        check_exists(args.data_root, "folder") if lists else check_videos(args.data_root)
    for option in args.cfg_options:
        if not option.partition("=")[0] or "=" not in option:
            raise ValueError(
                f"a config option is KEY=VALUE, like train_cfg.max_epochs=100; got {option!r}"
            )


def pop_options(options: dict[str, Any], *parts: str) -> dict[str, Any]:
    """The changes of a config: ``cfg_options`` and those of :func:`add_data_options`, by key.

    Both are taken out of ``options``. Without a list, all videos of the folder are of the first
    part.

    Raises:
        ValueError: a malformed ``KEY=VALUE``.
    """
    from sce_video.datasets.sources import dataset_settings
    from sce_video.engine.config.changes import parse_options

    root, classes = options.pop("data_root"), options.pop("classes")
    lists = {part: options.pop(f"{part}_list") for part in parts}
    changes = parse_options(options.pop("cfg_options"))
    for part, ann_file in lists.items():
        if ann_file is None and (root is None or any(lists.values()) or part != parts[0]):
            continue
        data = {**({} if root is None else dataset_settings(root)), "ann_file": ann_file}
        if classes is not None:
            data["class_file"] = classes
        changes |= {f"{part}_dataloader.dataset.{key}": value for key, value in data.items()}
    return changes


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
