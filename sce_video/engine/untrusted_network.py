"""What a file of unknown origin describes: which classes may be built, networks how large.

The constructor of a registered class may do anything: mmaction2's ``LFBInferHead`` makes folders
and saves features. So the text in a checkpoint or an index can only name the classes listed here,
and the network may not be larger than the weights that the file contains. A config *file* that the
user gives may name every registered network.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

from sce_video.registry import DATASETS, METRICS, MODELS, TRANSFORMS

#: Backbones whose constructors only make layers, by scope. mmaction2's others read files or the
#: network, map no videos, or compute tables of any size (``VisionTransformer``).
BACKBONES = {
    "sce_video": frozenset(
        "HFEncoder R2Plus1d ResNet2d ResNet3dSlowPath S3D VisionTransformer3d".split()
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
#: Models that :func:`checked_parts` lets a file name, beside data sets, transforms and metrics.
_PARTS = ("AttentiveProbeHead", "I3DHead", "VideoDataPreprocessor")
#: A metric that writes a file of any name.
_WRITES = ("AVAMeanAP",)
#: Packages whose classes must be listed above. A class of any other package is in the registry
#: only because the user's own code imported it.
KNOWN_PACKAGES = frozenset({"sce_video", "mmaction", "mmengine", "mmcv", "torch"})
#: Keys of a backbone that would load weights or change the lookup of names.
_DROPPED = ("init_cfg", "pretrained", "_scope_")
#: Largest whole number in the config of a backbone: channels, pixels, frames.
_MAX_NUMBER = 2**16
#: Smaller limits, by a part of the key: these sizes multiply, by each other or by activations.
_MAX_NUMBERS = {
    "window": 16,
    **dict.fromkeys(("kernel", "stride", "padding", "dilation", "pool", "patch", "tubelet"), 32),
}
_MAX_VALUES, _MAX_DEPTH = 2000, 20  # values of a config, and their nesting
_MAX_MODULES = 3000
#: Bytes of a network that the file need not hold, such as constant tables. A weight may be wider in
#: the network than in the file (16 bits), and be used twice.
_SPARE_BYTES, _BYTES_PER_STORED_BYTE = 2**24, 4


def checked_backbone(backbone: Any, trusted: bool = False) -> dict[str, Any]:
    """A copy of a backbone's config that is safe to build inside :func:`bounded_network`.

    An mmengine registry imports any dotted path given as ``type``; so every ``type`` in the config
    must be a registered name, plain or with its scope, in :data:`BACKBONES` or :data:`LAYERS`, or
    of a class that code of the user's own has registered. Keys that would load weights
    (``init_cfg``, ``pretrained``) are dropped, sequences become tuples. A ``trusted`` config, from
    a file that the user gave, may name every registered network or layer, in any size.

    Raises:
        ValueError: a ``type`` is missing or may not be named, a value is no plain data or a number
            is too large.
    """
    if not isinstance(backbone, dict) or "type" not in backbone:
        raise ValueError(f"a backbone is a dict with a type, got {backbone!r:.100}")
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
        raise ValueError(f"{what} holds plain data, got a {type(node).__name__}")


def _check_type(name: Any, layer: bool, trusted: bool) -> None:
    """Raise unless ``name`` is that of a network (or ``layer``) that may be built."""
    scope, _, plain = name.rpartition(".") if isinstance(name, str) else ("", "", None)
    for registry in MODELS.chain():
        if scope not in ("", registry.scope) or not (registry.scope in BACKBONES or layer):
            continue
        part = registry.module_dict.get(plain)
        if isinstance(part, type) and issubclass(part, nn.Module):
            named = BACKBONES.get(registry.scope, frozenset())
            if layer:
                named |= LAYERS.get(registry.scope, frozenset())
            of_the_user = part.__module__.partition(".")[0] not in KNOWN_PACKAGES
            if trusted or of_the_user or plain in named:
                return
            break  # the registry takes the first of this name, too
    raise ValueError(
        f"type {name!r:.100} is not the name of a registered network or layer that a checkpoint "
        "may name; only those are built (any other network, for example of your own with "
        "custom_imports: give the config file)"
    )


def checked_parts(node: Any) -> Any:
    """A copy of the config of data sets, transforms, metrics or heads that is safe to build.

    Their constructors only keep their arguments, or read lists and videos on this machine.

    Raises:
        ValueError: a ``type`` is not one of this package's, a value is no plain data, or a text is
            a URL or an option of a store: a stranger's file causes no requests.
    """
    if isinstance(node, dict):
        name = str(node.get("type", _PARTS[0])).removeprefix("sce_video.")
        registries = [next(r.chain()).module_dict for r in (DATASETS, TRANSFORMS, METRICS)]
        parts = [found[name] for found in registries if name in found and name not in _WRITES]
        ours = any(part.__module__.startswith("sce_video.") for part in parts)
        if name not in _PARTS and not ours:
            raise ValueError(
                f"type {node['type']!r:.100} is no data set, transform, metric or head of "
                "sce_video: only those are built for a config that is read as data"
            )
        if node.get("storage_options"):
            raise ValueError("storage_options name a store")
        return {key: checked_parts(value) for key, value in node.items() if key != "_scope_"}
    if isinstance(node, list | tuple):
        return type(node)([checked_parts(value) for value in node])
    _check_plain(node, "a config")
    if isinstance(node, str) and "://" in node:
        raise ValueError(f"{node!r:.100} is a URL, which a config that is read as data cannot open")
    return node


@contextmanager
def bounded_network(state_dict: Mapping[str, Any]) -> Iterator[None]:
    """Limit the networks built inside to the size of these weights, those of the file.

    A layer that is too large is refused when it registers its weights, before they are written:
    memory that is only reserved costs nothing.

    Raises:
        ValueError: a network is larger than the weights, or has too many layers.
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
                f"it is larger than the weights in the file ({stored:,} bytes): are depth and "
                "width in the config right?"
            )

    with ExitStack() as stack:
        for register in (
            hooks.register_module_parameter_registration_hook,
            hooks.register_module_buffer_registration_hook,
            hooks.register_module_module_registration_hook,
        ):
            stack.callback(register(count).remove)
        yield
