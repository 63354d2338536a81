"""The test of a checkpoint's network, built from the config inside the checkpoint.

A config file is a program, so the config file in the folder of a run is not executed. The config
inside the checkpoint is read as data. Only what a test needs is built, from classes of this
package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmengine.config import Config

from sce_video.engine.checkpoint import is_plain, load_checkpoint_file
from sce_video.engine.config.changes import walk_dicts
from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import lacking_imports, stored_config
from sce_video.engine.recipes import recipes_folder
from sce_video.engine.weights import checked_parts, test_settings
from sce_video.inference.network_input import TEST_CROPS, ModelSettings, settings_from_config
from sce_video.utils.records import at

#: Keys that describe the recipe's dataset. They are dropped, because a test has its own data.
_OF_THE_DATA = ("ann_file", "block_size", "class_file", "data_root", "storage_options")
#: Keys with which a result describes its recipe, as plain data.
_CLAIMS = ("benchmark", "split")


def stored_test(checkpoint: str | Path) -> Config:
    """Return a test config with the network, views and metrics of the config in a checkpoint.

    ``checkpoint`` is a file, a URL, or the weights of a pretrained network with the ``config.json``
    next to them.

    Raises:
        FileNotFoundError: If there is no such checkpoint.
        ValueError: If the checkpoint has no config, or a config that is not plain data or names
            classes of other packages. The test then needs the config file.
    """
    read = load_checkpoint_file(checkpoint)
    stored = stored_config(read, checkpoint)
    try:
        settings = settings_from_config(stored)
        content = {**_test(stored, settings), "model": _model(stored["model"], settings)}
    except ValueError as error:
        advice = (
            "If you trust its config file, run sce-video test CONFIG "
            f"{checkpoint} or sce-video embed --config CONFIG"
        )
        raise ValueError(
            f"the config in {checkpoint}: {error}. {lacking_imports(read) or advice}"
        ) from error
    content |= {key: value for key, value in stored.items() if key in _CLAIMS and is_plain(value)}
    runtime = load_config(recipes_folder() / "_base_/default_runtime.py").to_dict()
    return Config({**runtime, **content}, cfg_text="\n", filename=str(checkpoint))


def _model(model: dict, settings: ModelSettings) -> dict[str, object]:
    """Return the network without the parts that only training needs, or the classifier."""
    head, kind = at(model, "cls_head"), "Video"
    built: dict[str, object] = {"type": "Encoder", "backbone": settings.backbone}
    if "roi_head" in model:
        raise ValueError("its network classifies actions of person boxes (roi_head), not videos")
    if head is not None:
        built |= {"type": "Recognizer3D", "cls_head": checked_parts(head)}
        kind = "Recognizer"
    preprocessor = {"type": f"{kind}DataPreprocessor", "mean": settings.mean, "std": settings.std}
    return {**built, "data_preprocessor": preprocessor}


def _test(stored: dict, settings: ModelSettings) -> dict[str, object]:
    """Return loader, loop and metrics, by default as for a pretrained network."""
    loader, loop = (at(stored, key, dict) for key in ("test_dataloader", "test_cfg"))
    if loader is None or loop is None:
        own = test_settings({"model": settings.to_dict()})
        return {key: value for key, value in own.items() if key != "model"}
    kept = {key: loop[key] for key in ("max_views", "precision") if key in loop}
    for key in ("gallery_dataloader", "selection_dataloader"):
        if at(loop, key) is not None:
            kept[key] = _loader(loop[key], settings)
    return {
        "test_dataloader": _loader(loader, settings),
        "test_cfg": {"type": "MultiViewTestLoop", **kept},
        "test_evaluator": checked_parts(at(stored, "test_evaluator")),
    }


def _loader(loader: Any, settings: ModelSettings) -> dict[str, object]:
    """Return a loader without data: a dataset of this package, with the network's test crop."""
    if (dataset := at(loader, "dataset", dict)) is None:
        raise ValueError(f"a loader must be a dict with a dataset, got {loader!r:.100}")
    dataset = checked_parts({k: v for k, v in dataset.items() if k not in _OF_THE_DATA})
    if at(dataset, "type") == "LanceVideoDataset":
        dataset["type"] = "VideoDataset"  # a test on a table will set the type itself
    for _, step in walk_dicts(dataset, ()):
        kind = at(step, "type", str)
        if kind in TEST_CROPS:
            step[TEST_CROPS[kind]] = settings.crop_size
        if kind == "ResizeShortSide":
            step["size"] = settings.short_side
    numbers = {key: value for key, value in loader.items() if isinstance(value, bool | int)}
    return {**numbers, "dataset": dataset}
