"""A network in a folder: ``model.safetensors`` and ``config.json``, both plain data.

``config.json`` holds what running the network needs and where it comes from::

    format, version      "sce_video", 1
    model                backbone, mean, std, clip_duration, num_frames, short_side, crop_size
    classifier           of a classifier: num_classes, classes (or null), num_clips, num_crops
    feature_size         C, size of a representation
    provenance           of the checkpoint that it was written from

For the rest of the package the weights file is a checkpoint, and the JSON file is a config with a
test and no training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from sce_video.utils.downloads import local_copy
from sce_video.utils.json_files import read_json
from sce_video.utils.run_files import MODEL_CONFIG as CONFIG
from sce_video.utils.run_files import WEIGHTS as WEIGHTS
from sce_video.utils.run_files import is_pretrained_folder as is_pretrained_folder
from sce_video.utils.storage import exists, join, split

FORMAT, VERSION = "sce_video", 1
#: Entries of a checkpoint's ``meta`` that the provenance keeps.
_META = ("epoch", "benchmark", "training", "selected", "pretrained")


def load_weights_file(path: str | Path) -> dict[str, Any]:
    """A ``.safetensors`` file as the content of a checkpoint: ``state_dict`` and ``meta``.

    ``meta`` has the config and the provenance of a ``config.json`` beside the file.

    Args:
        path: A file or a URL.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it is damaged, or the JSON file beside it is not one of this package.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    local = local_copy(path, newest=True)
    if not local.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        weights = load_file(local)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    beside = join(split(str(path))[0] or ".", CONFIG)
    return {"state_dict": weights, "meta": _meta(beside) if exists(beside) else {}}


def _meta(path: str) -> dict[str, Any]:
    stored = read_model_config(path)
    provenance = stored.get("provenance")
    provenance = provenance if isinstance(provenance, dict) else {}
    meta = {name: provenance[name] for name in _META if name in provenance}
    classes = (stored.get("classifier") or {}).get("classes")
    if isinstance(classes, list):
        meta["classes"] = classes
    settings = test_settings(stored)
    return {**meta, "cfg": "\n".join(f"{name} = {value!r}" for name, value in settings.items())}


def read_model_config(path: str | Path) -> dict[str, Any]:
    """The content of a ``config.json``; the values in it are not checked here.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it is not JSON, not one of this package, or of a later version.
    """
    content = read_json(local_copy(path, newest=True))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(
            f'{path} does not describe a network of this package (no "format": "{FORMAT}")'
        )
    if content.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {content.get('version')!r:.40}, this package reads {VERSION}"
        )
    for name, kind in (("model", dict), ("classifier", dict | None)):
        if not isinstance(content.get(name), kind):
            raise ValueError(f"{path}: {name} must be an object {{...}}")
    return content


def test_settings(stored: dict[str, Any]) -> dict[str, Any]:
    """The settings of a test of the network, as in a config file: model, data, metrics.

    Args:
        stored: Content of a ``config.json``. Values that are missing are None here.
    """
    given, classifier = stored["model"], stored.get("classifier") or {}
    frames = {"num_frames": given.get("num_frames")}
    clip: dict[str, Any] = {"type": "CenterSegmentClip", **frames}
    if given.get("clip_duration") is not None:
        clip = {"type": "UniformClips", "clip_duration": given["clip_duration"], **frames}
        clip["num_clips"] = classifier.get("num_clips", 4)
    crops = {"crop_size": given.get("crop_size"), "num_crops": classifier.get("num_crops", 1)}
    loader = {
        "batch_size": 2,
        "num_workers": 2,
        "dataset": {
            "type": "VideoDataset",
            "on_error": "raise",
            "pipeline": [
                {"type": "OpenVideo"},
                clip,
                {"type": "DecodeSharedFrames"},
                {"type": "ResizeShortSide", "size": given.get("short_side")},
                {"type": "PackVideo", **crops},
            ],
        },
    }
    model = {"type": "Encoder", "backbone": given.get("backbone")}
    metrics = [
        {"type": "KNN", "k": 20},
        {"type": "LinearProbe"},
        {"type": "Retrieval", "ks": [1, 5, 10]},
        {"type": "FeatureStatistics"},
    ]
    test_cfg: dict[str, Any] = {"type": "MultiViewTestLoop", "gallery_dataloader": loader}
    prefix = "Video"
    if classifier:
        sizes = {
            "num_classes": classifier.get("num_classes"),
            "in_channels": stored["feature_size"],
        }
        model = {**model, "type": "Recognizer3D", "cls_head": {"type": "I3DHead", **sizes}}
        metrics = [{"type": "TopKAccuracy"}, {"type": "MeanClassAccuracy"}]
        test_cfg, prefix = {"type": "MultiViewTestLoop"}, "Recognizer"
    normalisation = {name: given.get(name) for name in ("mean", "std")}
    preprocessor = {"type": f"{prefix}DataPreprocessor", **normalisation}
    return {
        "model": {**model, "data_preprocessor": preprocessor},
        "test_dataloader": loader,
        "test_cfg": test_cfg,
        "test_evaluator": metrics,
    }


def write_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Write tensors by name; those that share memory are written separately."""
    from safetensors.torch import save_file

    rows = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
    save_file(rows, path, metadata={"format": "pt"})
