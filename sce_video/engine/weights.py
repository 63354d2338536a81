"""Weights of a checkpoint for a model, and limits on what an untrusted file may build.

The constructor of a registered class may do anything: mmaction2's ``LFBInferHead`` makes folders
and saves features. So the text in a checkpoint or an index can only refer to the classes listed
here, and the network may not be larger than the weights that the file contains. A config *file*
that the user gives may use every registered network.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from sce_video.engine.config.snapshot import SNAPSHOT
from sce_video.models.modules.lora import ADAPTER, merged_weights
from sce_video.models.modules.target_encoder import TargetEncoder
from sce_video.registry import DATASETS, METRICS, MODELS, TRANSFORMS, is_own_part, named_class
from sce_video.utils.distributed import unwrap_model
from sce_video.utils.files import local_copy, read_json
from sce_video.utils.run_files import FORMAT
from sce_video.utils.run_files import MODEL_CONFIG as CONFIG
from sce_video.utils.storage import exists, join, split

_PREFIX = "backbone."
_HEADS = ("cls_head.", "roi_head.")
#: Names that files of other projects may lack: a counter of BN, which no forward pass in eval mode
#: reads, and adapters, which start at 0 in a new training run and are part of an old run's weights.
_IGNORED = ("num_batches_tracked", *ADAPTER)


def feature_channels(backbone: Mapping[str, Any]) -> int | None:
    """Return the number of channels of a trusted backbone's features; None if it is unknown."""
    try:
        with torch.device("meta"):  # no memory for weights
            network = MODELS.build(dict(backbone))
    except RuntimeError:  # some networks compute with values when they are built
        with torch.random.fork_rng(devices=[]):
            network = MODELS.build(dict(backbone))
    channels = getattr(network, "out_channels", None)
    return channels if isinstance(channels, int) else None


def checkpoint_weights(checkpoint: dict) -> dict[str, Any]:
    """Return the weights of a checkpoint by name, without the DistributedDataParallel prefix."""
    weights = checkpoint.get("state_dict", checkpoint)
    return {name.removeprefix("module."): value for name, value in weights.items()}


def check_backbone_weights(model: nn.Module, checkpoint: dict, name: str) -> int:
    """Raise unless every weight of the model's backbone is in the checkpoint, in its shape.

    If loading skipped weights that do not fit, a partly random network would be evaluated silently.
    Weights of the checkpoint that the model lacks (projector, head) are allowed, unless they belong
    to a backbone as well: then the checkpoint's backbone is deeper.

    Args:
        model: A model with a submodule ``backbone``, bare or wrapped; without such a submodule,
            all of its weights count as the backbone.
        checkpoint: Content of the file: weights under ``state_dict``, or the weights themselves.
        name: Name of the file, for the message.

    Returns:
        Number of backbone tensors that fit.

    Raises:
        ValueError: If no weight fits, or not all of them fit. The message names the file and the
            first weight on both sides.
    """
    weights = checkpoint_weights(checkpoint)
    own = checkpoint_weights(model.state_dict())
    own = {key: value for key, value in own.items() if not key.endswith(_IGNORED)}
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
            f"{name} contains a different backbone from the model's ({faults}). Check the depth "
            "and width in the config"
        )
    return len(backbone)


def _describe_faults(own: dict, weights: dict, strict: bool = True) -> str:
    """Count the weights that do not fit, and name the first two of each kind; "" if all fit.

    Unless ``strict``, weights that only one side has are not a fault.
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
        ValueError: If a weight has another shape or, if ``strict``, one is missing or too many. The
            message names the file (``name``).
    """
    if faults := _describe_faults(model.state_dict(), weights, strict):
        raise ValueError(
            f"{name} contains a different network from {type(model).__name__} of the config "
            f"({faults}). Use the same network options as in its training"
        )


def load_backbone(
    model: nn.Module, checkpoint: dict, name: str, allow_identity: bool = False
) -> int:
    """Load and count the weights of a bare model's backbone, as in :func:`check_backbone_weights`.

    The target of a self-supervised method becomes equal to the online branch.

    Args:
        model: Model with a submodule ``backbone``.
        checkpoint: Content of the file.
        name: Name of the file, for messages.
        allow_identity: Whether layers that start as the identity may be missing from the file. They
            remain the identity, so that an image network becomes a video network.
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
    """Raise unless every weight of a ``cls_head`` or ``roi_head`` is there, in its shape.

    Models without either pass. Arguments are as in :func:`check_backbone_weights`.

    Raises:
        ValueError: If the file has no classifier, or one with another number of classes.
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
                f"{name}: {key} is {tuple(weights[key].shape)}, but the config's classifier has "
                f"{tuple(value.shape)}. The number of classes, the backbone or the grid of probes "
                "differs"
            )
    if missing:
        raise ValueError(f"{name} lacks {len(missing)} weights of the classifier: {missing[:2]}...")


VERSION = 1
_MOST_TENSORS = 50_000  # maximum in a file: 3,000 modules in two branches, and two of an optimizer
#: Entries of a checkpoint's ``meta`` that the provenance keeps.
_META = ("epoch", "benchmark", "training", "selected", "pretrained")


def load_weights_file(path: str | Path) -> dict[str, Any]:
    """Read a ``.safetensors`` file as a checkpoint with ``state_dict`` and ``meta``.

    ``meta`` has the config and the provenance of a ``config.json`` next to the file or URL.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, or the JSON file next to it is not one of this package.
    """
    from safetensors import SafetensorError

    local = local_copy(path, newest=True)
    if not local.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        weights = merged_weights(read_tensors(local))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
    beside = join(split(str(path))[0] or ".", CONFIG)
    if not exists(beside):
        return {"state_dict": weights, "meta": {}}
    stored = read_exported_config(beside)
    given = stored.get("provenance")
    meta = {k: v for k, v in given.items() if k in _META} if isinstance(given, dict) else {}
    if isinstance(meta.get("training"), dict):  # the hash is of the whole checkpoint
        meta["training"] = {k: v for k, v in meta["training"].items() if k != "weights_sha256"}
    classes = (stored.get("classifier") or {}).get("classes")
    if isinstance(classes, list):
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


def read_exported_config(path: str | Path) -> dict[str, Any]:
    """Read a ``config.json`` without checking its values.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not JSON, not from this package, or from a later version.
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
    """Return the test settings of the network in a ``config.json``: model, data, metrics.

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
    """Write tensors by name. Tensors that share memory are written separately."""
    from safetensors.torch import save_file

    rows = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
    path.touch()  # set the usual permissions, because the library lets no other user read the file
    mode = path.stat().st_mode
    save_file(rows, path, metadata={"format": "pt"})
    path.chmod(mode)


#: Backbones whose constructors only create layers, by scope. The other mmaction2 backbones read
#: files or the network, do not process videos, or compute tables of any size
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
#: Layers that the config of a backbone may name.
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
#: Models that :func:`checked_parts` lets a file name, besides datasets, transforms and metrics.
_PARTS = (
    *("AttentiveProbeHead", "I3DHead", "RecognizerDataPreprocessor", "VideoDataPreprocessor"),
)
#: A metric that can write to any path.
_WRITES = ("AVAMeanAP",)
#: Keys of a backbone that would load weights or change the lookup of names.
_DROPPED = ("init_cfg", "pretrained", "_scope_")
#: Largest whole number in the config of a backbone: channels, pixels, frames.
_MAX_NUMBER = 2**16
#: Other limits, by a part of the key. They are lower for sizes that multiply memory or the number
#: of layers, and higher for vocabularies of texts.
_MAX_NUMBERS = {
    **{"vocab_size": 2**19, "depths": 1024},
    "window": 16,
    **dict.fromkeys(("kernel", "stride", "padding", "dilation", "pool", "patch", "tubelet"), 32),
}
_MAX_VALUES = 2000  # maximum number of values in a config
_MAX_DEPTH = 20  # maximum nesting of these values
_MAX_MODULES = 3000
#: Bytes of a network that need not be in the file, such as constant tables. A weight may be wider
#: in the network than in the file (16 bits), and be used twice.
_SPARE_BYTES, _BYTES_PER_STORED_BYTE = 2**24, 4


def checked_backbone(backbone: Any, trusted: bool = False) -> dict[str, Any]:
    """Copy a backbone's config so that it is safe to build inside :func:`bounded_network`.

    An mmengine registry imports any dotted path given as ``type``. Every ``type`` in the config
    must therefore be a registered name, plain or with its scope, in :data:`BACKBONES` or
    :data:`LAYERS`, or belong to a class that the user's own code has registered. Keys that would
    load weights (``init_cfg``, ``pretrained``) are dropped, and sequences become tuples. A
    ``trusted`` config, from a file that the user gave, may use every registered network or layer of
    any size.

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
                f"a backbone's config has at most {_MAX_VALUES} values, nested {_MAX_DEPTH} deep"
            )
        if isinstance(node, dict):
            if "type" in node:
                _check_type(node["type"], layer=depth > 0, trusted=trusted)
            return {k: clean(v, str(k), depth + 1) for k, v in node.items() if k not in _DROPPED}
        if isinstance(node, list | tuple):
            return tuple([clean(item, key, depth + 1) for item in node])
        _check_plain(node, "a backbone's config")
        if type(node) is int and not trusted:
            limit = min((n for part, n in _MAX_NUMBERS.items() if part in key), default=_MAX_NUMBER)
            if abs(node) > limit:
                size = str(node) if abs(node) < 10**20 else f"a number of {node.bit_length()} bits"
                raise ValueError(f"{key} of the backbone is {size}, more than {limit}")
        return node

    return clean(backbone, "backbone", 0)


def _check_plain(node: Any, what: str) -> None:
    if not (node is None or isinstance(node, bool | int | float | str)):
        raise ValueError(f"{what} must contain only plain data, got a {type(node).__name__}")


def _check_type(name: Any, layer: bool, trusted: bool) -> None:
    """Raise unless ``name`` refers to a network (or ``layer``) that may be built."""
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
            break  # the registry takes the first of this name, too
    raise ValueError(
        f"type {name!r:.100} is not a registered network or layer that a checkpoint may name. If "
        "it is your own network, give its module with --import MODULE, or give the config file"
    )


def checked_parts(node: Any) -> Any:
    """Copy the config of datasets, transforms, metrics or heads so that it is safe to build.

    Their constructors only keep their arguments, or read lists and videos on this machine.

    Classes that the user's own code has registered may be named too.

    Raises:
        ValueError: If a ``type`` is not one of these, a value is not plain data, or a text is a URL
            or an option of a store, because an untrusted file may cause no requests.
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
        if node.get("storage_options"):
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
    """Limit the networks built inside to the size of the file's weights.

    A layer that is too large is refused when it registers its weights, before they are written.
    Memory that is only reserved costs nothing.

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
