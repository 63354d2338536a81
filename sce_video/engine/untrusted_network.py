"""What a file of unknown origin describes: which classes may be built, networks how large.

The constructor of a registered class may do anything: mmaction2's ``LFBInferHead`` makes folders
and saves features. So the text in a checkpoint or an index can only name the classes listed here,
and the network may not be larger than the weights that the file contains. A config *file* that the
user gives may name every registered network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from sce_video.registry import DATASETS, METRICS, MODELS, TRANSFORMS

#: Backbones whose constructors only make layers, by scope. mmaction2's others read files or the
#: network, map no videos, or compute tables of any size (``VisionTransformer``).
BACKBONES: dict[str, frozenset[str]] = {
    "sce_video": frozenset(
        {"HFEncoder", "R2Plus1d", "ResNet2d", "ResNet3dSlowPath", "S3D", "VisionTransformer3d"}
    ),
    "mmaction": frozenset(
        {
            "C2D", "C3D", "MobileNetV2", "MobileNetV2TSM", "MViT", "ResNet", "ResNet2Plus1d",
            "ResNet3d", "ResNet3dCSN", "ResNet3dLayer", "ResNet3dSlowFast", "ResNet3dSlowOnly",
            "ResNetTIN", "ResNetTSM", "SwinTransformer3D", "TANet", "TimeSformer", "UniFormer",
            "X3D",
        }
    ),
}  # fmt: skip
#: Layers that the config of a backbone may name.
LAYERS: dict[str, frozenset[str]] = {
    "mmaction": frozenset(
        {
            "Conv2plus1d", "DividedSpatialAttentionWithNorm", "DividedTemporalAttentionWithNorm",
            "FFNWithNorm", "SubBatchNorm3D",
        }
    ),
    "mmengine": frozenset(
        {
            "BN", "BN1d", "BN2d", "BN3d", "SyncBN", "IN", "IN1d", "IN2d", "IN3d", "GN", "LN",
            "Conv", "Conv1d", "Conv2d", "Conv3d", "ConvAWS", "ConvWS",
            "ReLU", "ReLU6", "LeakyReLU", "PReLU", "RReLU", "ELU", "GELU", "SiLU", "Sigmoid",
            "Tanh", "HSigmoid", "HSwish", "Swish", "Clamp", "Clip",
            "DropPath", "Dropout", "NonLocal2d",
            "MultiheadAttention", "FFN", "BaseTransformerLayer", "TransformerLayerSequence",
        }
    ),
}  # fmt: skip
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
    (``init_cfg``, ``pretrained``) are dropped, sequences become tuples.

    Args:
        backbone: The config.
        trusted: It comes from a config file that the user gave: every registered network or layer
            may be named, in any size.

    Raises:
        ValueError: a ``type`` is missing or may not be named, a value is no plain data or a number
            is too large.
    """
    if not isinstance(backbone, dict) or "type" not in backbone:
        raise ValueError(f"a backbone is a dict with a type, got {backbone!r:.100}")
    return _Cleaner(trusted).clean(backbone, "backbone", 0)


def checked_parts(node: Any) -> Any:
    """A copy of the config of data sets, transforms, metrics or heads that is safe to build.

    Their constructors only keep their arguments, or read lists and videos on this machine.

    Raises:
        ValueError: a ``type`` is not one of this package's, a value is no plain data, or a text is
            a URL or an option of a store: a stranger's file causes no requests.
    """
    if isinstance(node, dict):
        if "type" in node and not _is_part(node["type"]):
            raise ValueError(
                f"type {node['type']!r:.100} is no data set, transform, metric or head of "
                "sce_video: only those are built for a config that is read as data"
            )
        if node.get("storage_options"):
            raise ValueError("storage_options name a store")
        return {key: checked_parts(value) for key, value in node.items() if key != "_scope_"}
    if isinstance(node, list | tuple):
        return type(node)([checked_parts(value) for value in node])
    if not (node is None or isinstance(node, bool | int | float | str)):
        raise ValueError(f"a config holds plain data, got a {type(node).__name__}")
    if isinstance(node, str) and "://" in node:
        raise ValueError(f"{node!r:.100} is a URL, which a config that is read as data cannot open")
    return node


def _is_part(kind: Any) -> bool:
    name = kind.removeprefix("sce_video.") if isinstance(kind, str) else ""
    if name in _PARTS:
        return True
    for registry in (DATASETS, TRANSFORMS, METRICS):
        part = next(registry.chain()).module_dict.get(name)
        if part is not None and part.__module__.startswith("sce_video."):
            return name not in _WRITES
    return False


class _Cleaner:
    """Copies a config; counts its values.

    Args:
        trusted: See :func:`checked_backbone`.
    """

    def __init__(self, trusted: bool) -> None:
        self._trusted = trusted
        self._values = 0

    def clean(self, node: Any, key: str, depth: int) -> Any:
        """The copy of the value of ``key``."""
        self._values += 1
        if depth > _MAX_DEPTH or self._values > _MAX_VALUES:
            raise ValueError(
                f"a backbone's config has at most {_MAX_VALUES} values, nested {_MAX_DEPTH} deep"
            )
        if isinstance(node, dict):
            if "type" in node:
                _check_type(node["type"], layer=depth > 0, trusted=self._trusted)
            kept = {k: v for k, v in node.items() if k not in _DROPPED}
            return {k: self.clean(v, str(k), depth + 1) for k, v in kept.items()}
        if isinstance(node, list | tuple):
            return tuple([self.clean(item, key, depth + 1) for item in node])
        if not (node is None or isinstance(node, bool | int | float | str)):
            raise ValueError(f"a backbone's config holds plain data, got a {type(node).__name__}")
        if type(node) is int and not self._trusted:
            limit = min((n for part, n in _MAX_NUMBERS.items() if part in key), default=_MAX_NUMBER)
            if abs(node) > limit:
                raise ValueError(f"{key} of the backbone is {_short(node)}, more than {limit}")
        return node


def _short(number: int) -> str:
    return str(number) if abs(number) < 10**20 else f"a number of {number.bit_length()} bits"


def _check_type(name: Any, layer: bool, trusted: bool) -> None:
    """Raise unless ``name`` is that of a network (or layer) that may be built.

    Args:
        name: Value of a ``type`` key.
        layer: Names of layers are allowed too.
        trusted: See :func:`checked_backbone`.
    """
    if isinstance(name, str):
        scope, _, plain = name.rpartition(".")
        for registry in MODELS.chain():
            if scope not in ("", registry.scope) or not (registry.scope in BACKBONES or layer):
                continue
            part = registry.module_dict.get(plain)
            if isinstance(part, type) and issubclass(part, nn.Module):
                if trusted or _is_named(part, plain, registry.scope, layer):
                    return
                break
    raise ValueError(
        f"type {name!r:.100} is not the name of a registered network or layer that a checkpoint "
        "may name; only those are built (any other network, for example of your own with "
        "custom_imports: give the config file)"
    )


def _is_named(part: type, name: str, scope: str, layer: bool) -> bool:
    if part.__module__.partition(".")[0] not in KNOWN_PACKAGES:
        return True
    named = BACKBONES.get(scope, frozenset())
    return name in (named | LAYERS.get(scope, frozenset()) if layer else named)


@contextmanager
def bounded_network(state_dict: Mapping[str, Any]) -> Iterator[None]:
    """Limit the networks built inside to the size of these weights.

    A layer that is too large is refused when it registers its weights, before they are written:
    memory that is only reserved costs nothing.

    Args:
        state_dict: Weights of the file that describes the network.

    Raises:
        ValueError: a network is larger than the weights, or has too many layers.
    """
    storages = [value.untyped_storage() for value in state_dict.values() if torch.is_tensor(value)]
    stored = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    left = {"bytes": _BYTES_PER_STORED_BYTE * stored + _SPARE_BYTES, "modules": _MAX_MODULES}

    def count(module: nn.Module, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            left["bytes"] -= value.nbytes
        elif value is not None:
            left["modules"] -= 1
        if min(left.values()) < 0:
            raise ValueError(
                f"it is larger than the weights in the file ({stored:,} bytes): are depth and "
                "width in the config right?"
            )

    handles = [
        register(count)
        for register in (
            register_module_parameter_registration_hook,
            register_module_buffer_registration_hook,
            register_module_module_registration_hook,
        )
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
