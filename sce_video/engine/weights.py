"""Weights of a checkpoint for a model, and limits on what an untrusted file may build.

The constructor of a registered class may do anything. For example, mmaction2's ``LFBInferHead``
makes folders and saves features. The config in a checkpoint or an index can therefore name only the
classes listed here, and its network cannot be larger than the weights in the file. A config *file*
that the user gives may name every registered network.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from sce_video.engine.config.snapshot import SNAPSHOT, ConfigData
from sce_video.models.modules.lora import ADAPTER, merged_weights
from sce_video.models.modules.target_encoder import TargetEncoder
from sce_video.registry import DATASETS, METRICS, MODELS, TRANSFORMS, is_own_part, named_class
from sce_video.utils.distributed import unwrap_model
from sce_video.utils.files import local_copy, read_json
from sce_video.utils.records import JsonObject, at, lenient_record
from sce_video.utils.run_files import FORMAT
from sce_video.utils.run_files import MODEL_CONFIG as CONFIG
from sce_video.utils.storage import exists, join, split

_PREFIX = "backbone."
_HEADS = ("cls_head.", "roi_head.")
#: Endings of the weight names that a file may lack: BN's batch counter, which evaluation does not
#: use, and adapters, which start at 0 in a new run and are merged into an old run's weights.
_IGNORED = ("num_batches_tracked", *ADAPTER)


def feature_channels(backbone: Mapping[str, Any]) -> int | None:
    """Return the number of channels of a trusted backbone's features; None if it is unknown."""
    try:
        with torch.device("meta"):  # allocates no memory for weights
            network = MODELS.build(dict(backbone))
    except RuntimeError:  # some constructors read values, which meta tensors lack
        with torch.random.fork_rng(devices=[]):
            network = MODELS.build(dict(backbone))
    channels = getattr(network, "out_channels", None)
    return channels if isinstance(channels, int) else None


def checkpoint_weights(checkpoint: dict) -> dict[str, Any]:
    """Return a checkpoint's weights by name, without the prefix of DistributedDataParallel."""
    weights = checkpoint.get("state_dict", checkpoint)
    return {name.removeprefix("module."): value for name, value in weights.items()}


def check_backbone_weights(model: nn.Module, checkpoint: dict, name: str) -> int:
    """Raise unless every weight of the model's backbone is in the checkpoint, in its shape.

    If loading skipped weights that do not fit, a partly random network would be evaluated silently.
    The checkpoint may contain other weights (projector, head), but no further backbone weights,
    because its backbone would then be deeper.

    Args:
        model: A model with a submodule ``backbone``, bare or wrapped. Without such a submodule, all
            of its weights count as the backbone.
        checkpoint: Content of the file, with weights under ``state_dict`` or directly.
        name: Name of the file, for messages.

    Returns:
        Number of backbone tensors that fit.

    Raises:
        ValueError: If not all weights fit. The message names the file and the first weights that do
            not.
    """
    weights = checkpoint_weights(checkpoint)
    own = checkpoint_weights(model.state_dict())
    own = {key: value for key, value in own.items() if not key.endswith(_IGNORED)}
    backbone = {key: value for key, value in own.items() if key.startswith(_PREFIX)}
    # If the names have no prefix, their first part shows which weights belong to the backbone.
    parts = (_PREFIX,) if backbone else tuple({f"{key.split('.')[0]}." for key in own})
    backbone = backbone or own
    if not backbone.keys() & weights.keys():
        raise ValueError(
            f"{name} contains no backbone weight of the model: the model has "
            f"{list(backbone)[:3]}..., but the file has {list(weights)[:3]}.... Convert it first "
            "(tools/convert), or give a file with this backbone"
        )
    of_backbone = {
        key: value
        for key, value in weights.items()
        if key in backbone or (f"{key}.".startswith(parts) and not key.endswith(_IGNORED))
    }
    if faults := _describe_faults(backbone, of_backbone):
        raise ValueError(
            f"{name} contains a different backbone from the model's ({faults}). Check the depth "
            "and width in the config"
        )
    return len(backbone)


def _describe_faults(own: dict, weights: dict, strict: bool = True) -> str:
    """Count the weights that do not fit, and name the first two of each kind; "" if all fit.

    Args:
        own: Weights of the model.
        weights: Weights in the file.
        strict: Whether missing and additional weights are faults, not only different shapes.
    """
    shape = {k: tuple(v.shape) if torch.is_tensor(v) else None for k, v in weights.items()}
    shapes = [
        f"{key} {shape[key]} instead of {tuple(value.shape)}"
        for key, value in own.items()
        if key in shape and shape[key] != tuple(value.shape)
    ]
    missing = [key for key in own if strict and key not in weights]
    extra = [key for key in weights if strict and key not in own]
    kinds = (("missing", missing), ("of a different shape", shapes), ("too many", extra))
    return "; ".join(
        f"{len(found)} {what}, for example {found[:2]}" for what, found in kinds if found
    )


def check_weights(model: nn.Module, weights: dict, name: str, strict: bool) -> None:
    """Raise if weights cannot be loaded into a bare model, with a shorter message than torch's.

    Raises:
        ValueError: If a weight has a different shape or, with ``strict``, is missing or too many.
            The message names the file (``name``).
    """
    if faults := _describe_faults(model.state_dict(), weights, strict):
        raise ValueError(
            f"{name} contains a different network from the config's {type(model).__name__} "
            f"({faults}). Use the same network options as in its training"
        )


def load_backbone(
    model: nn.Module, checkpoint: dict, name: str, allow_identity: bool = False
) -> int:
    """Load the weights of a bare model's backbone, and return the number of tensors.

    The target network of a self-supervised method becomes a copy of the online branch.

    Args:
        model: Model with a submodule ``backbone``.
        checkpoint: Content of the file.
        name: Name of the file, for messages.
        allow_identity: Whether layers that start as the identity may be missing from the file. They
            remain the identity, so that an image network becomes a video network.

    Raises:
        ValueError: If :func:`check_backbone_weights` finds that not all weights fit.
    """
    weights = checkpoint_weights(checkpoint)
    if allow_identity:
        weights = {**_identity_weights(model), **weights}
    count = check_backbone_weights(model, weights, name)
    backbone = {k: v for k, v in weights.items() if k.startswith(_PREFIX)}
    model.load_state_dict(backbone, strict=False)
    parts: Any = model
    if isinstance(getattr(model, "target", None), TargetEncoder):
        parts.target.copy_from(parts.backbone, parts.projector)
    return count


def _identity_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of the layers that start as the identity, by name."""
    return {
        f"{prefix}.{name}": value
        for prefix, layer in model.named_modules()
        if getattr(layer, "starts_as_identity", False)
        for name, value in layer.state_dict().items()
    }


def check_classifier_weights(model: nn.Module, checkpoint: dict, name: str) -> None:
    """Raise unless a checkpoint has every weight of the model's ``cls_head`` or ``roi_head``.

    A model without a head passes. The arguments are as in :func:`check_backbone_weights`.

    Raises:
        ValueError: If the file has no classifier, or its classifier has a different number of
            classes.
    """
    weights = checkpoint_weights(checkpoint)
    own = {k: v for k, v in unwrap_model(model).state_dict().items() if k.startswith(_HEADS)}
    given = {key: weights[key] for key in own if key in weights}
    if own and not given:
        raise ValueError(
            f"{name} has no classifier (no {next(iter(own))}), so it is not a checkpoint of this "
            "recipe. Train one first with python tools/train.py CONFIG --pretrained CHECKPOINT"
        )
    if faults := _describe_faults(own, given):
        raise ValueError(
            f"{name} contains a different classifier from the config's ({faults}). The number of "
            "classes, the backbone or the grid of probes differs"
        )


#: Format version of ``config.json``.
VERSION = 1
#: Maximum number of tensors in a file, enough for two branches of 3,000 modules and their
#: optimiser states
_MOST_TENSORS = 50_000
#: Entries of a checkpoint's ``meta`` that an exported network keeps.
_META = ("epoch", "benchmark", "training", "selected", "pretrained")


def load_weights_file(path: str | Path) -> dict[str, Any]:
    """Read a ``.safetensors`` file as a checkpoint with ``state_dict`` and ``meta``.

    If there is a ``config.json`` next to the file or URL, ``meta`` contains its config and
    provenance.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, or this package cannot read the ``config.json``.
    """
    from safetensors import SafetensorError

    local = local_copy(path, newest=True)
    if not local.is_file():
        raise FileNotFoundError(f"there is no checkpoint at {path}")
    try:
        weights = merged_weights(read_tensors(local))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    beside = join(split(str(path))[0] or ".", CONFIG)
    if not exists(beside):
        return {"state_dict": weights, "meta": {}}
    stored = read_exported_config(beside)
    given = at(stored, "provenance", dict) or {}
    meta = {name: value for name, value in given.items() if name in _META}
    # Leave out the checkpoint's hash, because it covers weights that were not exported.
    if (training := at(meta, "training", dict)) is not None:
        meta["training"] = {k: v for k, v in training.items() if k != "weights_sha256"}
    if (classes := at(stored, "classifier.classes", list)) is not None:
        meta["classes"] = classes
    meta[SNAPSHOT] = json.dumps(test_settings(stored))
    return {"state_dict": weights, "meta": meta}


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors of a ``.safetensors`` file by name.

    Raises:
        SafetensorError: If the file is damaged.
        ValueError: If it contains more tensors than any network has.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(path, "pt") as file:
        check_count(len(file.keys()))
    return load_file(path)


def check_count(tensors: int) -> None:
    """Raise ValueError for more tensors than any network has, because reading each takes time."""
    if tensors > _MOST_TENSORS:
        raise ValueError(f"it contains {tensors:,} tensors, and at most {_MOST_TENSORS:,} are read")


def read_exported_config(path: str | Path) -> JsonObject:
    """Read a ``config.json`` without checking its values.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not JSON, not from this package, or from a later version.
    """
    content = read_json(local_copy(path, newest=True))
    if at(content, "format") != FORMAT:
        raise ValueError(
            f'{path} does not describe a network of this package (no "format": "{FORMAT}")'
        )
    if (version := at(content, "version")) != VERSION:
        raise ValueError(
            f"{path} has version {version!r:.40}, but this package reads only version {VERSION}"
        )
    for name, kind in (("model", dict), ("classifier", dict | None)):
        if not isinstance(at(content, name), kind):
            raise ValueError(f"{path}: {name} must be an object {{...}}")
    return content


@dataclass(frozen=True)
class _ExportedModel:
    """The ``model`` of a ``config.json``, unchecked. Values that are missing there are None."""

    backbone: Any = None
    num_frames: Any = None
    clip_duration: Any = None
    short_side: Any = None
    crop_size: Any = None
    mean: Any = None
    std: Any = None


@dataclass(frozen=True)
class _ExportedClassifier:
    """The ``classifier`` of a ``config.json``, unchecked."""

    num_classes: Any = None
    num_clips: Any = 4
    num_crops: Any = 1


def test_settings(stored: Mapping[str, Any]) -> ConfigData:
    """Return the config of a test of the network in a ``config.json``: model, data, metrics."""
    given = lenient_record(_ExportedModel, stored["model"])
    classifier = lenient_record(_ExportedClassifier, at(stored, "classifier"))
    classifies = bool(at(stored, "classifier"))
    clip: dict[str, object] = {"type": "CenterSegmentClip", "num_frames": given.num_frames}
    if given.clip_duration is not None:
        clip |= {"type": "UniformClips", "clip_duration": given.clip_duration}
        clip["num_clips"] = classifier.num_clips
    pipeline = [
        {"type": "OpenVideo"},
        clip,
        {"type": "DecodeSharedFrames"},
        {"type": "ResizeShortSide", "size": given.short_side},
        {"type": "PackVideo", "crop_size": given.crop_size, "num_crops": classifier.num_crops},
    ]
    dataset = {"type": "VideoDataset", "on_error": "raise", "pipeline": pipeline}
    loader = {"batch_size": 2, "num_workers": 2, "dataset": dataset}
    pixels = {"mean": given.mean, "std": given.std}
    if not classifies:
        return {
            "model": {
                "type": "Encoder",
                "backbone": given.backbone,
                "data_preprocessor": {"type": "VideoDataPreprocessor", **pixels},
            },
            "test_dataloader": loader,
            "test_cfg": {"type": "MultiViewTestLoop", "gallery_dataloader": loader},
            "test_evaluator": [
                {"type": "KNN", "k": 20},
                {"type": "LinearProbe"},
                {"type": "Retrieval", "ks": [1, 5, 10]},
                {"type": "FeatureStatistics"},
            ],
        }
    head = {"num_classes": classifier.num_classes, "in_channels": stored["feature_size"]}
    return {
        "model": {
            "type": "Recognizer3D",
            "backbone": given.backbone,
            "cls_head": {"type": "I3DHead", **head},
            "data_preprocessor": {"type": "RecognizerDataPreprocessor", **pixels},
        },
        "test_dataloader": loader,
        "test_cfg": {"type": "MultiViewTestLoop"},
        "test_evaluator": [{"type": "TopKAccuracy"}, {"type": "MeanClassAccuracy"}],
    }


def write_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Write tensors by name. Tensors that share memory are written as separate copies."""
    from safetensors.torch import save_file

    rows = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
    path.touch()  # the library itself would create a file that only the owner can read
    mode = path.stat().st_mode
    save_file(rows, path, metadata={"format": "pt"})
    path.chmod(mode)


#: Backbones whose constructors only create layers, by scope. mmaction2's other backbones read files
#: or use the internet, do not process videos, or compute tables of any size
#: (``VisionTransformer``).
BACKBONES = {
    "sce_video": frozenset(
        "EfficientNetLite HFEncoder R2Plus1d ResNet2d ResNet3dSlowPath S3D TimmEncoder "
        "VisionTransformer3d".split()
    ),
    "mmaction": frozenset(
        "C2D C3D MobileNetV2 MobileNetV2TSM MViT ResNet ResNet2Plus1d ResNet3d ResNet3dCSN "
        "ResNet3dLayer ResNet3dSlowFast ResNet3dSlowOnly ResNetTIN ResNetTSM SwinTransformer3D "
        "TANet TimeSformer UniFormer X3D".split()
    ),
}
#: Layers that a backbone's config may name.
LAYERS = {
    "mmaction": frozenset(
        "Conv2plus1d DividedSpatialAttentionWithNorm DividedTemporalAttentionWithNorm FFNWithNorm "
        "SubBatchNorm3D".split()
    ),
    "mmengine": frozenset(
        "BN BN1d BN2d BN3d SyncBN IN IN1d IN2d IN3d GN LN Conv Conv1d Conv2d Conv3d ConvAWS ConvWS "
        "ReLU ReLU6 LeakyReLU PReLU RReLU ELU GELU SiLU Sigmoid Tanh HSigmoid HSwish Swish Clamp "
        "Clip DropPath Dropout NonLocal2d MultiheadAttention FFN BaseTransformerLayer "
        "TransformerLayerSequence".split()
    ),
}
#: Models that a file may name (:func:`checked_parts`), in addition to datasets, transforms and
#: metrics
_PARTS = (
    *("AttentiveProbeHead", "I3DHead", "RecognizerDataPreprocessor", "VideoDataPreprocessor"),
)
#: A metric that a file may not name, because it can write to any path.
_WRITES = ("AVAMeanAP",)
#: Keys of a backbone that would load weights or change how names are looked up.
_DROPPED = ("init_cfg", "pretrained", "_scope_")
#: Largest integer in a backbone's config, such as a number of channels, pixels or frames.
_MAX_NUMBER = 2**16
#: Exceptions for keys that contain these words. The limit is lower for sizes that multiply memory
#: or the number of layers, and higher for a text network's vocabulary.
_MAX_NUMBERS = {
    **{"vocab_size": 2**19, "depths": 1024},
    "window": 16,
    **dict.fromkeys(("kernel", "stride", "padding", "dilation", "pool", "patch", "tubelet"), 32),
}
#: Largest number of values in a backbone's config.
_MAX_VALUES = 2000
#: Maximum depth to which these values may be nested.
_MAX_DEPTH = 20
#: Largest number of modules in a network.
_MAX_MODULES = 3000
#: Number of bytes that a network may need beyond its stored weights, for example for constants.
_SPARE_BYTES = 2**24
#: Maximum number of bytes in a network per byte in the file. A weight stored with 16 bits may need
#: 32 bits, and it may be used twice.
_BYTES_PER_STORED_BYTE = 4


def checked_backbone(backbone: Any, trusted: bool = False) -> ConfigData:
    """Copy a backbone's config so that it is safe to build inside :func:`bounded_network`.

    An mmengine registry imports any dotted path given as ``type``. Every ``type`` in the config
    must therefore be a name in :data:`BACKBONES` or :data:`LAYERS`, plain or with its scope, or a
    class that the user's own code has registered. Keys that would load weights (``init_cfg``,
    ``pretrained``) are dropped, and sequences become tuples.

    Args:
        backbone: Config of the backbone.
        trusted: Whether the config comes from a file that the user gave. It may then use every
            registered network and layer, of any size.

    Raises:
        ValueError: If a ``type`` is missing or may not be named, a value is not plain data, or a
            number is too large.
    """
    if not isinstance(backbone, dict) or "type" not in backbone:
        raise ValueError(f"a backbone must be a dict with a type, got {backbone!r:.100}")
    values = itertools.count(1)

    def clean(node: Any, key: str, depth: int) -> Any:
        if depth > _MAX_DEPTH or next(values) > _MAX_VALUES:
            raise ValueError(
                f"a backbone's config may have at most {_MAX_VALUES} values, in at most "
                f"{_MAX_DEPTH} levels"
            )
        if isinstance(node, dict):
            if "type" in node:
                _check_type(node["type"], layer=depth > 0, trusted=trusted)
            return {k: clean(v, str(k), depth + 1) for k, v in node.items() if k not in _DROPPED}
        if isinstance(node, list | tuple):
            return tuple([clean(item, key, depth + 1) for item in node])
        _check_plain(node, "a backbone's config")
        if type(node) is int and not trusted:
            limits = [number for word, number in _MAX_NUMBERS.items() if word in key]
            limit = min(limits, default=_MAX_NUMBER)
            if abs(node) > limit:
                size = str(node) if abs(node) < 10**20 else f"a number of {node.bit_length()} bits"
                raise ValueError(f"{key} of the backbone is {size}, more than {limit}")
        return node

    return clean(backbone, "backbone", 0)


def _check_plain(node: Any, what: str) -> None:
    if not (node is None or isinstance(node, bool | int | float | str)):
        raise ValueError(f"{what} must contain only plain data, got a {type(node).__name__}")


def _check_type(name: Any, layer: bool, trusted: bool) -> None:
    """Raise unless ``name`` refers to a network, or to a ``layer``, that may be built."""
    scope, _, plain = name.rpartition(".") if isinstance(name, str) else ("", "", None)
    for registry in MODELS.chain():
        whole = isinstance(name, str) and name in registry.module_dict
        in_scope = whole or scope in ("", registry.scope)
        if not in_scope or not (registry.scope in BACKBONES or layer):
            continue
        part = registry.module_dict.get(name if whole else plain)
        if isinstance(part, type) and issubclass(part, nn.Module):
            named = BACKBONES.get(registry.scope, frozenset())
            if layer:
                named |= LAYERS.get(registry.scope, frozenset())
            if trusted or is_own_part(part) or plain in named:
                return
            break  # like the registry, use only the first class with this name
    raise ValueError(
        f"type {name!r:.100} is not a registered network or layer that a checkpoint may name. If "
        "it is your own network, give its module with --import MODULE, or give the config file"
    )


def checked_parts(node: Any) -> Any:
    """Copy the config of datasets, transforms, metrics or heads so that it is safe to build.

    The constructors of this package's classes only keep their arguments, or read lists and videos
    on this machine. A config may also name classes that the user's own code has registered.

    Raises:
        ValueError: If a ``type`` is not one of these classes, a value is not plain data, or the
            config contains a URL or options of an object store, because an untrusted file must not
            cause requests.
    """
    if isinstance(node, dict):
        name = str(node.get("type", _PARTS[0])).removeprefix("sce_video.")
        part = named_class(name, DATASETS, TRANSFORMS, METRICS)
        head = None if part is not None else named_class(name, MODELS)
        own = any(is_own_part(kind) for kind in (part, head) if kind is not None)
        ours = part is not None and name not in _WRITES
        if not (own or ours or name in _PARTS):
            raise ValueError(
                f"type {node['type']!r:.100} is not a dataset, transform, metric or head of "
                "sce_video, and no module that was imported has registered it. A config that is "
                "read as data may name only these"
            )
        if at(node, "storage_options"):
            raise ValueError("storage_options are not accepted, because they name an object store")
        return {key: checked_parts(value) for key, value in node.items() if key != "_scope_"}
    if isinstance(node, list | tuple):
        return type(node)([checked_parts(value) for value in node])
    _check_plain(node, "a config")
    if isinstance(node, str) and "://" in node:
        raise ValueError(f"{node!r:.100} is a URL, which a config that is read as data cannot open")
    return node


@contextmanager
def bounded_network(state_dict: Mapping[str, Any]) -> Iterator[None]:
    """Limit the networks that are built in the block to the size of the file's weights.

    A layer that is too large is refused when it registers its weights. Nothing has been written to
    them yet, and memory that is only reserved costs nothing.

    Raises:
        ValueError: If a network is larger than the weights, or has too many layers.
    """
    storages = [value.untyped_storage() for value in state_dict.values() if torch.is_tensor(value)]
    stored = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    left = {"bytes": _BYTES_PER_STORED_BYTE * stored + _SPARE_BYTES, "modules": _MAX_MODULES}

    def count(_module: nn.Module, _name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            left["bytes"] -= value.nbytes
        elif value is not None:
            left["modules"] -= 1
        if min(left.values()) < 0:
            raise ValueError(
                f"it is larger than the weights in the file ({stored:,} bytes). Check depth and "
                "width in the config"
            )

    with ExitStack() as stack:
        for register in (
            hooks.register_module_parameter_registration_hook,
            hooks.register_module_buffer_registration_hook,
            hooks.register_module_module_registration_hook,
        ):
            stack.callback(register(count).remove)
        yield
