"""The training views of a config, as the network gets them, and where in the videos they lie."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from mmengine.config import Config

from sce_video.datasets.sample_origin import SampleOrigin
from sce_video.datasets.samplers import SampleRequest, mix_seed
from sce_video.models.data_preprocessors.video import VideoDataPreprocessor
from sce_video.registry import DATASETS, FUNCTIONS, MODELS
from sce_video.visualization.neighbour_rows import label_name
from sce_video.visualization.views import ViewRow, view_rows


class TrainingViews(NamedTuple):
    """The views of one training sample.

    Attributes:
        name: Folder and name of the file.
        label: Name of the class; None for no label.
        kind: ``video`` or ``image``.
        origin: Time line, clips and crops.
        rows: One of each view.
        num_local: The last of the rows that are local views.
    """

    name: str
    label: str | None
    kind: str
    origin: SampleOrigin
    rows: list[ViewRow]
    num_local: int = 0


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


def training_views(
    cfg: Config, num: int, seed: int = 0
) -> tuple[list[TrainingViews], list[tuple[str, str]]]:
    """The views of ``num`` videos at equal steps through the training set, or of all if fewer.

    Pipeline, collation and augmentation are those of training.

    Args:
        cfg: A config with ``train_dataloader`` and ``data_preprocessor``.
        num: Videos or images.
        seed: Of clips, crops and augmentation.

    Returns:
        The views, and (path, reason) of files that could not be read; as in training they are
        replaced by others, or left out.

    Raises:
        ValueError: The config has no training views, or no file can be read.
    """
    if cfg.get("train_dataloader") is None:
        raise ValueError(f"{cfg.filename} has no train_dataloader: there are no training views")
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    preprocessor = build_preprocessor(cfg)
    indices = np.linspace(0, len(dataset) - 1, min(num, len(dataset))).round().astype(int).tolist()
    samples = [dataset[SampleRequest(index, mix_seed(seed, index))] for index in indices]
    failures = list(dict.fromkeys(f for sample in samples for f in sample["failures"]))
    samples = [sample for sample in samples if sample.get("inputs") is not None]
    if not samples:
        path, reason = failures[0]
        raise ValueError(f"none of {len(indices)} {dataset.kind}s can be read; {path}: {reason}")
    collate = cfg.train_dataloader.get("collate_fn", dict(type="sce_video.collate_views"))
    batch = FUNCTIONS.get(collate["type"])(samples)
    # A replacement of a bad file has another index than its request.
    origins = [dataset.origin(SampleRequest(s["index"], s["seed"])) for s in samples]
    clips = [origin.clips for origin in origins]
    names = ["/".join(Path(dataset.path(s["index"])).parts[-2:]) for s in samples]
    rows = view_rows(preprocessor, batch, names, clips if all(clips) else [])
    num_views = len(rows) // len(samples)
    classes = (getattr(dataset, "metainfo", None) or {}).get("classes") or ()
    views = [
        TrainingViews(
            name=names[i],
            label=label_name(samples[i]["label"], classes),
            kind=dataset.kind,
            origin=origins[i],
            rows=rows[i * num_views : (i + 1) * num_views],
            num_local=dataset.num_local_views,
        )
        for i in range(len(samples))
    ]
    return views, failures
