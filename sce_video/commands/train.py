"""Train a model with a config.

    sce-video train CONFIG [--work-dir DIR] [--resume [RUN] | --overwrite] [--amp [DTYPE]] [...]

One process: as above. Several: bash tools/dist_train.sh CONFIG NPROC ...
Ctrl-C, SIGTERM or SIGHUP (a closed terminal) completes the current step, writes a checkpoint and
exits with status 130, 143 or 129; --resume continues from there. A second Ctrl-C stops at once,
without a checkpoint. SIGUSR1 does the same and requeues the Slurm job. Started again by torchrun or
Slurm, a training resumes by itself. --print shows the whole recipe instead of training.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sce_video.commands.arguments import ArgumentAdder, command_line, number
from sce_video.datasets.named_files import check_exists, check_run, check_videos
from sce_video.engine.recipes import find_recipe
from sce_video.utils.command import command, printable_lines
from sce_video.utils.run_files import find_checkpoints


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser, add = command_line("Train a model with a config.")
    add("config", "path of a config file")
    add("--work-dir", "folder for logs and checkpoints (default: work_dirs/<config name>)")
    start = add.exclusive()
    resumed = "continue this run or checkpoint, or the newest of the work dir, with its network"
    start("--resume RUN", resumed, nargs="?", const="auto")
    start("--overwrite", "remove an earlier training from the work dir first", bool)
    add("--pretrained RUN", "start from its backbone; 'random' trains from scratch")
    kinds = ["bfloat16", "float16", "float32"]
    amp = "mixed precision (without a value: bfloat16); float32 switches it off"
    add("--amp", amp, nargs="?", const="bfloat16", choices=kinds)
    add("--seed", "random seed", number(int, 0))
    add("--deterministic", "use deterministic algorithms where they exist (slower)", bool)
    add("--auto-scale-lr", "scale the learning rate with the batch (our recipes always do)", bool)
    add.changes("model.tau_m=0.07")
    add("--print", "print every value of the recipe with its source, and do not train", bool)
    add.shared("--backend", "--track", "--mirror", "--launcher")
    add_data_options(add, "train", "val")
    return parser.parse_args(argv)


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


def pop_switches(options: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Take the switches of mmaction2 out of the options; the changes of the config that they mean.

    ``--auto-scale-lr`` changes nothing if a ScheduleHook scales the learning rate already.

    Raises:
        ValueError: If the learning rate cannot be scaled, since the config states no batch size.
    """
    from sce_video.engine.config.load import load_config

    found: dict[str, Any] = {}
    if options.pop("deterministic"):
        found["randomness.deterministic"] = True
    if not options.pop("auto_scale_lr"):
        return found
    config = options["config"]
    cfg = load_config(config, changes)
    for hook in cfg.get("custom_hooks") or ():
        if str(hook.get("type")).endswith("ScheduleHook") and hook.get("base_batch_size", 256):
            return found
    if not (cfg.get("auto_scale_lr") or {}).get("base_batch_size"):
        raise ValueError(
            f"--auto-scale-lr: {config} states no batch size for its learning rate. Give "
            "--cfg-options auto_scale_lr.base_batch_size=N"
        )
    return {**found, "auto_scale_lr.enable": True}


def option_of(key: str, value: Any) -> str:
    """Return the option that sets a key of the config to a value, other than ``--cfg-options``."""
    part, last = key.partition("_")[0], key.rpartition(".")[2]
    names = {
        "ann_file": "--data-root" if value is None else f"--{part}-list",
        "class_file": "--classes",
        "deterministic": "--deterministic",
        "enable": "--auto-scale-lr",
    }
    return names.get(last, "--data-root")


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Train or print the recipe; returns the exit status, 128 + n if signal n has stopped it."""
    args = parse_args(argv)
    check_data_options(args, "train", "val")
    # These words stand for no file.
    for run, word in ((args.pretrained, "random"), (args.resume, "auto")):
        if run not in (None, word):
            check_run(run)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.runs import launch
    from sce_video.runs.page import train_with_page
    from sce_video.runs.resolved import resolved
    from sce_video.utils.distributed import leave_process_group

    options = vars(args)
    overwrite, only_print = options.pop("overwrite"), options.pop("print")
    typed = {option.partition("=")[0] for option in args.cfg_options}
    cfg = None
    try:
        changes = pop_options(options, "train", "val")
        changes |= pop_switches(options, changes)
        if only_print:
            names = {k: option_of(k, v) for k, v in changes.items() if k not in typed}
            recipe = resolved(**options, cfg_options=changes, option_of=names)
            print(printable_lines(str(recipe)))
            return 0
        cfg = launch.training_config(**options, cfg_options=changes)
        runner = train_with_page(cfg, overwrite)
    except KeyboardInterrupt:  # before the training started, or the second one
        checkpoints = [] if cfg is None else find_checkpoints(cfg.work_dir)
        left = "there is no checkpoint yet to resume from"
        if checkpoints:
            left = f"--resume continues from the last checkpoint, {checkpoints[0]}"
        print(f"train.py: interrupted; {left}", file=sys.stderr)
        return 130
    status = launch.end_training(runner)
    leave_process_group(status)
    return status
