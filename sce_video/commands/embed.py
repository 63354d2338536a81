"""A feature of every video in a folder, a table or the data of a config, in one .npz file.

    sce-video embed VIDEOS --checkpoint RUN --out features.npz
    sce-video embed --config CONFIG --checkpoint RUN --out F.npz [--part test|bank|train]
    torchrun --nproc_per_node 8 -m sce_video embed --config CONFIG --checkpoint RUN --out F.npz \
        --launcher pytorch

The file holds features (N, D) float32, paths, labels (N,) from sub-folders, the table or the list,
and, as JSON, their provenance; tools/retrieve.py and tools/probe.py evaluate it. Every feature is
saved at once in F.npz.parts/; the same command resumes an interrupted run. Ray clusters:
docs/jobs.md. With --windows, which also takes one video, a row is a window, and `starts` and `ends`
hold its seconds.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from sce_video.commands.arguments import RUN, command_line, given_windows, number, output
from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.named_files import check_exists, check_run, check_videos
from sce_video.engine.recipes import find_recipe
from sce_video.utils.command import command, printable
from sce_video.utils.files import output_file
from sce_video.utils.run_files import RANDOM, newest_checkpoint


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser, add = command_line("A feature of every video in a folder, a table or a config's data.")
    videos = "folder or table (v.lance); with --windows a video, too; with --config not needed"
    add("videos", videos, nargs="?")
    add("--checkpoint", f"{RUN}; '{RANDOM}' with --config", required=True)
    add("--out FILE.npz", "output file or URL", output(str), required=True)
    add.shared("--all-files")
    add("--config", "config to run (default: the one inside the checkpoint, as data)")
    data = add.group("data of a config")
    parts = ["test", "bank", "train"]
    data("--part", "of a retrieval recipe its gallery is the bank", choices=parts, default="test")
    data("--ann-file LIST", "annotation list, of videos in VIDEOS")
    data.shared("--backend")
    data.changes("test_dataloader.num_workers=8")
    where = add.group("processes")
    workers = "of each rank; 0: none besides this one (default: the config's; with --ray all of it)"
    where("--workers", workers, number(int, 0))
    where.shared("--ray", "--processes-per-gpu", "--launcher")
    windows = add.group("windows")
    windows.shared("--windows", "--stride", "--shots")
    windows("--clips", "per window (default: 4)", number(int, 1), default=4)
    windows("--crops", "per clip", int, choices=(1, 3), default=1)
    windows.shared("--device")
    return parser.parse_args(argv)


@command(interrupted="interrupted; the same command resumes from here")
def main(argv: Sequence[str] | None = None) -> int:
    """Embed; returns the exit status, 1 if some windows (``--windows``) are missing."""
    args = parse_args(argv)
    windows = given_windows(args)
    if args.config is not None:
        find_recipe(args.config)
    if args.videos is None and (args.config is None or windows is not None):
        raise ValueError("give the folder of videos or a table, or --config CONFIG for its data")
    if args.videos is not None:
        if args.config is None and (windows is None or os.path.isdir(args.videos)):
            check_videos(args.videos)
        else:  # a config may be of images
            check_exists(args.videos, "video, folder or table")
    if args.ann_file is not None and not Path(args.videos or "", args.ann_file).exists():
        check_exists(args.ann_file, "file or folder")
    if args.checkpoint != RANDOM or args.config is None:
        check_run(args.checkpoint)
    if windows is not None:
        return _embed_windows(args, windows)
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.inference.encoders.encoder_folder import run_of_model
    from sce_video.inference.stored_test import stored_test
    from sce_video.runs import launch
    from sce_video.utils.distributed import leave_process_group

    checkpoint = args.checkpoint
    if checkpoint != RANDOM:
        # A model of transformers becomes a run in the cache.
        checkpoint = newest_checkpoint(run_of_model(checkpoint))
    same = ("part", "ann_file", "backend", "cfg_options", "launcher")
    names = ("workers", "ray", "processes_per_gpu")
    with output_file(args.out) as out:
        cfg = launch.extraction_config(
            args.config or stored_test(checkpoint),
            checkpoint,
            out,
            **{name: getattr(args, name) for name in same},
            data_root=args.videos,
            processes={name: getattr(args, name) for name in names},
        )
        launch.test(cfg)
    leave_process_group()
    return 0


def _embed_windows(args: argparse.Namespace, windows: Windows) -> int:
    """Embed windows; returns 1 if some of them are missing."""
    from sce_video.inference.embed_file import embed_to_file
    from sce_video.inference.model import load_model
    from sce_video.inference.network_input import ViewOptions

    model = load_model(args.checkpoint, args.config, args.device)
    options = ViewOptions(
        num_clips=args.clips, num_crops=args.crops, num_workers=args.workers or 0
    )
    with output_file(args.out) as out:
        found = embed_to_file(model, args.videos, out, windows, options)
    problems = [*found.failures, *found.incomplete]
    lines = [f"{args.out}: {len(found)} {windows}", *(f"  {p}: {why}" for p, why in problems)]
    print("\n".join(map(printable, lines)))
    return 1 if problems else 0
