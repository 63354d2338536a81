"""Checking a checkpoint's weights against a model, and loading its backbone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sce_video.engine.config.snapshot import SNAPSHOT
from sce_video.utils.distributed import unwrap_model
from sce_video.utils.files import local_copy
from sce_video.utils.json_files import read_json
from sce_video.utils.run_files import MODEL_CONFIG as CONFIG
from sce_video.utils.storage import exists, join, split

_PREFIX = "backbone."
_HEADS = ("cls_head.", "roi_head.")
#: A counter of BN that no forward pass in eval mode reads; files of other projects may lack it.
_IGNORED = "num_batches_tracked"


def checkpoint_weights(checkpoint: dict) -> dict[str, Any]:
    """The weights of a checkpoint by name, without the prefix of DistributedDataParallel."""
    weights = checkpoint.get("state_dict", checkpoint)
    return {name.removeprefix("module."): value for name, value in weights.items()}


def check_backbone_weights(model: nn.Module, checkpoint: dict, name: str) -> int:
    """Raise unless every weight of the model's backbone is in the checkpoint, in its shape.

    Loading that skips what does not fit would silently evaluate a partly random network. Weights of
    the checkpoint that the model lacks (projector, head) are allowed, unless they belong to a
    backbone as well: then the checkpoint's backbone is deeper.

    Args:
        model: A model with a submodule ``backbone``, bare or wrapped; without such a submodule,
            all of its weights count as the backbone.
        checkpoint: Content of the file: weights under ``state_dict``, or the weights themselves.
        name: Name of the file, for the message.

    Returns:
        Number of backbone tensors that fit.

    Raises:
        ValueError: none or not all of them fit; the message names the file and the first on both
            sides.
    """
    weights = checkpoint_weights(checkpoint)
    own = {k: v for k, v in unwrap_model(model).state_dict().items() if not k.endswith(_IGNORED)}
    backbone = {key: value for key, value in own.items() if key.startswith(_PREFIX)}
    # Without a prefix the first part of a name says whether a weight belongs to the backbone.
    parts = (_PREFIX,) if backbone else tuple({f"{key.split('.')[0]}." for key in own})
    backbone = backbone or own
    if not backbone.keys() & weights.keys():
        raise ValueError(
            f"no backbone weight of the model is in {name}: the model has {list(backbone)[:3]}..., "
            f"the file {list(weights)[:3]}...; convert it first (tools/convert) or give the "
            "file that has this backbone"
        )
    of_backbone = {
        key: value
        for key, value in weights.items()
        if key in backbone or (f"{key}.".startswith(parts) and not key.endswith(_IGNORED))
    }
    if faults := _describe_faults(backbone, of_backbone):
        raise ValueError(
            f"{name} is of another backbone than the model ({faults}): is the depth or width of "
            "the config right?"
        )
    return len(backbone)


def _describe_faults(own: dict, weights: dict, strict: bool = True) -> str:
    """The numbers of weights that do not fit, and the first two of each kind; "" if all do.

    Unless ``strict``, weights that one side alone has are no fault.
    """
    shape = {k: tuple(v.shape) if torch.is_tensor(v) else None for k, v in weights.items()}
    shapes = [
        f"{key} {shape[key]} instead of {tuple(value.shape)}"
        for key, value in own.items()
        if key in shape and shape[key] != tuple(value.shape)
    ]
    missing = [key for key in own if strict and key not in weights]
    extra = [key for key in weights if strict and key not in own]
    kinds = (("missing", missing), ("of another shape", shapes), ("too many", extra))
    return "; ".join(f"{len(found)} {what}, first {found[:2]}" for what, found in kinds if found)


def check_weights(model: nn.Module, weights: dict, name: str, strict: bool) -> None:
    """Raise if weights cannot be loaded into a bare model, in a shorter message than torch's.

    Raises:
        ValueError: a weight has another shape; if ``strict``, one is missing or too many. The
            message names the file (``name``).
    """
    if faults := _describe_faults(model.state_dict(), weights, strict):
        raise ValueError(
            f"{name} is of another network than {type(model).__name__} of the config ({faults}): "
            "are the options that change the network those of its training?"
        )


def load_backbone(model: nn.Module, checkpoint: dict, name: str) -> int:
    """Load and count the backbone's weights alone, as of :func:`check_backbone_weights`."""
    count = check_backbone_weights(model, checkpoint, name)
    weights = checkpoint_weights(checkpoint)
    backbone = {k: v for k, v in weights.items() if k.startswith(_PREFIX)}
    unwrap_model(model).load_state_dict(backbone, strict=False)
    return count


def check_classifier_weights(model: nn.Module, checkpoint: dict, name: str) -> None:
    """Raise unless every weight of a ``cls_head`` or ``roi_head`` is there, in its shape.

    Models without these pass; arguments as of :func:`check_backbone_weights`.

    Raises:
        ValueError: the file has no classifier, or one with another number of classes.
    """
    weights = checkpoint_weights(checkpoint)
    own = {k: v for k, v in unwrap_model(model).state_dict().items() if k.startswith(_HEADS)}
    missing = [key for key in own if key not in weights]
    if missing and len(missing) == len(own):
        raise ValueError(
            f"{name} has no classifier (no {missing[0]}): it is not a checkpoint of this recipe; "
            "train it first: python tools/train.py CONFIG --pretrained CHECKPOINT"
        )
    for key, value in own.items():
        if key in weights and weights[key].shape != value.shape:
            raise ValueError(
                f"{name}: {key} is {tuple(weights[key].shape)}, the config's classifier has "
                f"{tuple(value.shape)}: another number of classes, another backbone or "
                "another grid of probes"
            )
    if missing:
        raise ValueError(f"{name} lacks {len(missing)} weights of the classifier: {missing[:2]}...")


FORMAT, VERSION = "sce_video", 1
#: Entries of a checkpoint's ``meta`` that the provenance keeps.
_META = ("epoch", "benchmark", "training", "selected", "pretrained")


def load_weights_file(path: str | Path) -> dict[str, Any]:
    """A ``.safetensors`` file as the content of a checkpoint: ``state_dict`` and ``meta``.

    ``meta`` has the config and the provenance of a ``config.json`` beside the file or URL.

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
    if not exists(beside):
        return {"state_dict": weights, "meta": {}}
    stored = read_exported_config(beside)
    given = stored.get("provenance")
    meta = {k: v for k, v in given.items() if k in _META} if isinstance(given, dict) else {}
    classes = (stored.get("classifier") or {}).get("classes")
    if isinstance(classes, list):
        meta["classes"] = classes
    meta[SNAPSHOT] = json.dumps(test_settings(stored))
    return {"state_dict": weights, "meta": meta}


def read_exported_config(path: str | Path) -> dict[str, Any]:
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
    """The settings of a test of the network in a ``config.json``: model, data, metrics.

    Values that are missing there are None here.
    """
    given, classifier = stored["model"], stored.get("classifier") or {}
    clip: dict[str, Any] = {"type": "CenterSegmentClip", "num_frames": given.get("num_frames")}
    if given.get("clip_duration") is not None:
        clip |= {"type": "UniformClips", "clip_duration": given["clip_duration"]}
        clip["num_clips"] = classifier.get("num_clips", 4)
    crops = {"crop_size": given.get("crop_size"), "num_crops": classifier.get("num_crops", 1)}
    pipeline = [
        {"type": "OpenVideo"},
        clip,
        {"type": "DecodeSharedFrames"},
        {"type": "ResizeShortSide", "size": given.get("short_side")},
        {"type": "PackVideo", **crops},
    ]
    dataset = {"type": "VideoDataset", "on_error": "raise", "pipeline": pipeline}
    loader = {"batch_size": 2, "num_workers": 2, "dataset": dataset}
    preprocessor = {"type": "VideoDataPreprocessor", "mean": given.get("mean")}
    preprocessor["std"] = given.get("std")
    model = {"type": "Encoder", "backbone": given.get("backbone")}
    test_cfg: dict[str, Any] = {"type": "MultiViewTestLoop"}
    metrics: list[dict[str, Any]]
    if classifier:
        head = {"type": "I3DHead", "num_classes": classifier.get("num_classes")}
        head["in_channels"] = stored["feature_size"]
        model |= {"type": "Recognizer3D", "cls_head": head}
        preprocessor["type"] = "RecognizerDataPreprocessor"
        metrics = [{"type": "TopKAccuracy"}, {"type": "MeanClassAccuracy"}]
    else:
        test_cfg["gallery_dataloader"] = loader
        metrics = [{"type": "KNN", "k": 20}, {"type": "LinearProbe"}]
        metrics += [{"type": "Retrieval", "ks": [1, 5, 10]}, {"type": "FeatureStatistics"}]
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
