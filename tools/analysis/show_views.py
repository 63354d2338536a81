"""Draw the augmented training views of a config.

    python tools/analysis/show_views.py CONFIG --out views.png [--num 4] [--seed 0]
                                        [--frames 8] [--cfg-options KEY=VALUE ...]

The tool selects evenly spaced videos (or images) of the training set and runs pipeline, collation
and augmentation as in training. It writes a sheet with a row per view and a column per frame. The
title of a row lists the transforms: RGB differences, backwards, colours, blur, flip.
"""

from __future__ import annotations

import argparse
import sys

from mmengine.config import Config

from sce_video.engine.config.load import check_config, load_config
from sce_video.pages.frames import SheetRow, draw_sheet, equal_steps, save_figure
from sce_video.pages.view_sheets import training_views
from sce_video.utils.command import command


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Draw the augmented training views of a config.")
    parser.add_argument("config", help="path of a config file")
    parser.add_argument("--out", required=True, help="image to write, .png, .jpg, .pdf, ...")
    parser.add_argument("--num", type=int, default=4, help="number of videos (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument(
        "--frames", type=int, default=8, help="number of frames per view (default: 8)"
    )
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="change the config, e.g. train_dataloader.dataset.data_root=videos",
    )
    args = parser.parse_args(argv)
    for name in ("num", "frames"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    return args


def load_rows(cfg: Config, num: int, seed: int, frames: int) -> list[SheetRow]:
    """Return a row for each view of ``num`` evenly spaced training videos, or of all if fewer.

    If a view has more than ``frames`` frames, evenly spaced ones are shown.
    """
    videos, _ = training_views(cfg, num, seed)
    rows = []
    for video in videos:
        for number, view in enumerate(video.views):
            label = f"   {video.label}" if video.label else ""
            heading = "" if number else f"{video.name}{label}"
            caption = f"view {number}: {', '.join(view.transforms) or 'unchanged'}"
            shown = view.frames[equal_steps(len(view.frames), frames)]
            rows.append(SheetRow(shown, heading, caption))
    return rows


@command
def main(argv: list[str] | None = None) -> int:
    """Draw, and return the exit status."""
    args = parse_args(argv)
    cfg = load_config(args.config, args.cfg_options)
    check_config(cfg)
    save_figure(draw_sheet(load_rows(cfg, args.num, args.seed, args.frames)), args.out)
    print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
