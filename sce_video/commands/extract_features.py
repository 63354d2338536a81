"""Embed a data set: the mean representation of every video, in one .npz file.

    python tools/extract_features.py CONFIG CHECKPOINT --out F.npz [--part test|bank|train]
    python tools/extract_features.py CONFIG CHECKPOINT --out F.npz --data-root /my/videos
    torchrun --nproc_per_node 8 tools/extract_features.py CONFIG CHECKPOINT --out F.npz \
        --launcher pytorch

    python tools/extract_features.py CONFIG CHECKPOINT --out F.npz --ray auto

The file holds features (N, D) float32, labels (N,), paths and, as JSON, their provenance; see
tools/retrieve.py and tools/probe.py. Every feature is saved at once in F.npz.parts/; the same
command resumes an interrupted run. Ray clusters: docs/jobs.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sce_video.commands.arguments import (
    Parser,
    add_gpu_option,
    add_ray_option,
    check_exists,
    check_run,
    number,
)
from sce_video.engine.recipes import find_recipe
from sce_video.utils.command import command
from sce_video.utils.run_files import RANDOM

_PROCESSES = ("workers", "ray", "processes_per_gpu")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(description="Embed a data set into a .npz file.")
    parser.add_argument("config", help="config of the checkpoint, or a retrieval recipe")
    parser.add_argument("checkpoint", help=f"checkpoint file, or '{RANDOM}' for random weights")
    parser.add_argument("--out", required=True, metavar="FILE.npz", help="output file")
    parser.add_argument(
        "--part",
        choices=["test", "bank", "train"],
        default="test",
        help="data of the config: the test set, the gallery of a retrieval recipe (bank), or the "
        "training set",
    )
    parser.add_argument(
        "--data-root", help="another folder of videos, which paths of a list are relative to"
    )
    parser.add_argument("--ann-file", help="another annotation list")
    parser.add_argument(
        "--backend",
        help="decoder of all videos: av, decord or torchcodec (default: the config's)",
    )
    parser.add_argument(
        "--workers",
        type=number(int, 0),
        help="processes that decode and embed, of each rank; 0 for none besides this one (default: "
        "num_workers of the config, at most one per core; with --ray the whole cluster)",
    )
    add_ray_option(parser)
    add_gpu_option(parser)
    parser.add_argument("--launcher", choices=["none", "pytorch", "slurm"], default="none")
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="override settings, for example test_dataloader.num_workers=8",
    )
    return parser.parse_args(argv)


@command(interrupted="interrupted; the same command resumes from here")
def main(argv: list[str] | None = None) -> int:
    """Embed; returns the exit status."""
    given = parse_args(argv)
    find_recipe(given.config)
    if given.checkpoint != RANDOM:
        check_run(given.checkpoint)
    if given.data_root is not None:
        check_exists(given.data_root, "file or folder")
    if given.ann_file is not None and not Path(given.data_root or "", given.ann_file).exists():
        check_exists(given.ann_file, "file or folder")
    # Imported here, as in all commands: a wrong command line must not wait for torch.
    from sce_video.runs import launch
    from sce_video.utils.distributed import leave_process_group

    args = vars(given)
    processes = {name: args.pop(name) for name in _PROCESSES}
    launch.test(launch.extraction_config(**args, processes=processes))
    leave_process_group()
    return 0
