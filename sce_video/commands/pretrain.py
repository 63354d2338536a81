"""Pretrain on a folder or a table of videos, labels not needed, with settings chosen for it.

    sce-video pretrain VIDEOS --out RUN [--method simclr] [--hours 2 | --epochs 50] [--frames 16]

Looks at the videos and the machine, prints the chosen settings with a reason each, writes them to
RUN/config.py, and trains. Ctrl-C or SIGTERM completes the current step and writes a checkpoint;
--resume continues from it. `python tools/train.py RUN/config.py` is the same training.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sce_video.apis.automatic.pretrain import (
    PRECISIONS,
    methods,
    planned_pretraining,
    write_config,
)
from sce_video.apis.launch import end_training, training_config
from sce_video.apis.run_page import train_with_page
from sce_video.commands.train import add_mirror_option, add_track_option
from sce_video.engine.config import load_config, parse_options
from sce_video.engine.config_settings import available_settings
from sce_video.engine.mirror import restore_run
from sce_video.engine.restarts import is_restart
from sce_video.engine.work_dir import CONFIG
from sce_video.utils.command import command
from sce_video.utils.distributed import leave_process_group
from sce_video.utils.printable import printable


def parse_args(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The command line, and the settings of the method's recipe in it."""
    parser = argparse.ArgumentParser(
        description="Pretrain on a folder or a table of videos, labels not needed.",
        allow_abbrev=False,
    )
    known = methods()
    parser.add_argument("videos", nargs="?", help="folder, sub-folders too; or a table (v.lance)")
    parser.add_argument("--out", required=True, type=Path, metavar="RUN", help="folder of the run")
    parser.add_argument("--method", default="sce", choices=sorted(known), help="default: sce")
    parser.add_argument("--hours", type=float, help="budget, instead of --epochs")
    parser.add_argument("--precision", choices=PRECISIONS, help="default: what is fast here")
    add_track_option(parser)
    add_mirror_option(parser)
    parser.add_argument("--plan", action="store_true", help="write RUN/config.py, do not train")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--resume", action="store_true", help="continue the training in RUN")
    start.add_argument("--overwrite", action="store_true", help="remove the training in RUN first")
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--method", default="sce", choices=sorted(known))
    recipe = load_config(known[first.parse_known_args(argv)[0].method])
    group = parser.add_argument_group(
        "settings", "chosen for your videos and this machine unless you give them"
    )
    names = available_settings(recipe)
    for name in names:
        group.add_argument(f"--{name.replace('_', '-')}", metavar="X", dest=f"set_{name}")
    args = parser.parse_args(argv)
    texts = {name: getattr(args, f"set_{name}") for name in names}
    options = [f"{name}={text}" for name, text in texts.items() if text is not None]
    return args, parse_options(options)


@command(interrupted="interrupted; --resume continues from the last checkpoint")
def main(argv: Sequence[str] | None = None) -> int:
    """Plan and train; the status is that of ``tools/train.py``."""
    args, settings = parse_args(argv)
    config = args.out / CONFIG
    if not args.plan and config.is_file() and is_restart(args.out):
        # Planned again, the recipe could differ: speeds are measured.
        cfg = training_config(
            config, work_dir=args.out, resume="auto", track=args.track, mirror=args.mirror
        )
    elif args.resume:
        if args.mirror is not None:
            restore_run(args.mirror, args.out)
        if not config.is_file():
            raise ValueError(f"no training in {args.out} to resume: there is no {config}")
        if args.videos is not None or settings or args.hours is not None:
            raise ValueError("--resume takes everything from RUN/config.py: give --out RUN alone")
        cfg = training_config(
            config, work_dir=args.out, resume="auto", track=args.track, mirror=args.mirror
        )
    else:
        if args.videos is None:
            raise ValueError("give the folder of videos or a table, or --resume")
        planned = planned_pretraining(
            args.videos,
            args.out,
            method=args.method,
            hours=args.hours,
            precision=args.precision,
            settings=settings,
        )
        print("\n".join(map(printable, planned.lines())), flush=True)
        config = write_config(planned)
        print(f"written to {config}", flush=True)
        if args.plan:
            return 0
        cfg = training_config(config, work_dir=args.out, track=args.track, mirror=args.mirror)
    status = end_training(train_with_page(cfg, args.overwrite))
    leave_process_group(status)
    return status
