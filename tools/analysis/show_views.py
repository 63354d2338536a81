"""Draw the augmented training views of a config.

    python tools/analysis/show_views.py CONFIG --out views.png [--num 4] [--seed 0]
                                        [--frames 8] [--cfg-options KEY=VALUE ...]

Takes videos (or images) at equal steps through the training set, runs pipeline, collation and
augmentation as in training, and writes a sheet: a row per view, a column per frame, titled with the
transforms: RGB differences, backwards, colours, blur, flip.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config

from sce_video.datasets.samplers import SampleRequest, mix_seed
from sce_video.engine.config import check_config, load_config
from sce_video.models.data_preprocessors.video import VideoDataPreprocessor
from sce_video.registry import DATASETS, FUNCTIONS, MODELS
from sce_video.utils.command import command
from sce_video.visualization.figures import save_figure
from sce_video.visualization.views import ViewRow, draw_view_sheet, view_rows


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Draw the augmented training views of a config.")
    parser.add_argument("config", help="path of a config file")
    parser.add_argument("--out", required=True, help="image to write, .png, .jpg, .pdf, ...")
    parser.add_argument("--num", type=int, default=4, help="videos to show (4)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the augmentation (0)")
    parser.add_argument("--frames", type=int, default=8, help="frames to show of a view (8)")
    parser.add_argument(
        "--cfg-options",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="change the config, e.g. train_dataloader.dataset.data_root=videos",
    )
    args = parser.parse_args(argv)
    if args.num < 1:
        parser.error(f"--num must be at least 1, got {args.num}")
    return args


def build_preprocessor(cfg: Config) -> VideoDataPreprocessor:
    """The data preprocessor of the model, or of the top level of the config, as in the runner.

    Raises:
        ValueError: The config has none, or one of another class.
    """
    config = (cfg.get("model") or {}).get("data_preprocessor") or cfg.get("data_preprocessor")
    if config is None:
        raise ValueError(f"{cfg.filename} has no data_preprocessor: add a base of _base_/views/")
    preprocessor = MODELS.build(config)
    if not isinstance(preprocessor, VideoDataPreprocessor):
        raise ValueError(f"data_preprocessor must be a VideoDataPreprocessor, got {config['type']}")
    return preprocessor


def load_rows(cfg: Config, num: int, seed: int) -> list[ViewRow]:
    """Rows of ``num`` videos at equal steps through the training set, or of all if it has fewer."""
    if cfg.get("train_dataloader") is None:
        raise ValueError(f"{cfg.filename} has no train_dataloader: there are no training views")
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    preprocessor = build_preprocessor(cfg)
    indices = np.linspace(0, len(dataset) - 1, min(num, len(dataset))).round().astype(int).tolist()
    requests = [SampleRequest(index, mix_seed(seed, index)) for index in indices]
    samples = [dataset[request] for request in requests]
    collate = cfg.train_dataloader.get("collate_fn", dict(type="sce_video.collate_views"))
    batch = FUNCTIONS.get(collate["type"])(samples)
    names = [name_video(dataset, sample["index"], sample["label"]) for sample in samples]
    # A replacement of a bad file has another index than its request.
    clips = [
        dataset.clips(SampleRequest(sample["index"], request.seed))
        for sample, request in zip(samples, requests, strict=True)
    ]
    return view_rows(preprocessor, batch, names, [] if None in clips else clips)


def name_video(dataset: Any, index: int, label: int) -> str:
    """Folder and name of the file, and its label if it has one."""
    path = Path(dataset.path(index))
    return "/".join(path.parts[-2:]) + (f"   label {label}" if label >= 0 else "")


@command
def main(argv: list[str] | None = None) -> int:
    """Draw; returns the exit status."""
    args = parse_args(argv)
    cfg = load_config(args.config, args.cfg_options)
    check_config(cfg)
    figure = draw_view_sheet(load_rows(cfg, args.num, args.seed), max_frames=args.frames)
    save_figure(figure, args.out)
    print(f"wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
