"""Initial networks of training runs: a run, a file in any known layout, or an encoder."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sce_video.engine.checkpoint import (
    file_sha256,
    load_checkpoint_file,
    load_third_party_checkpoint,
    save_checkpoint_file,
)
from sce_video.engine.config.snapshot import (
    SNAPSHOT,
    has_config,
    lacking_imports,
    stored_config,
)
from sce_video.engine.weights import (
    bounded_network,
    check_backbone_weights,
    checkpoint_weights,
    test_settings,
)
from sce_video.inference.encoders.encoder_folder import run_of_model, run_of_weights
from sce_video.inference.network_input import ModelSettings, settings_from_config, training_crop
from sce_video.interop.weights.image_networks import from_eztorch, from_torchvision
from sce_video.interop.weights.video_networks import (
    Conversion,
    from_video_layout,
    stored_weights,
    to_video_layout,
)
from sce_video.models.backbones.hf_encoder import family_of
from sce_video.registry import MODELS
from sce_video.runs.checkpoint_settings import Content
from sce_video.utils.files import cache_folder, local_copy
from sce_video.utils.records import at
from sce_video.utils.run_files import (
    MODEL_PREFIX,
    is_model,
    newest_checkpoint,
    packaged_network,
)
from sce_video.utils.storage import is_url

_HEADS = ("cls_head.", "roi_head.")
_BACKBONE = "backbone."


@dataclass(frozen=True)
class Source:
    """Network that provides the backbone of a training run. :func:`find_source` finds it.

    Attributes:
        checkpoint: Absolute path of a file with a config and weights, whose names begin with
            ``backbone.``.
        settings: Backbone, and the input with which it was trained.
        name: Name that the user gave, for messages.
        family: "vit", "convolution", or the ``model_type`` of a transformers encoder.
        is_classifier: Whether the network was trained on labels. The file then contains a
            classifier next to the backbone, or the backbone pools like one.
        per_frame: Whether the network encodes images, so that it encodes a clip frame by frame.
        train_size: Side of the training crops in pixels. Test crops may be larger.
        parameters: Number of weights in the backbone.
        channels: Number of feature channels; 0 if the backbone does not state it.
    """

    checkpoint: str
    settings: ModelSettings
    name: str
    family: str
    is_classifier: bool
    per_frame: bool
    train_size: int
    parameters: int
    channels: int

    @property
    def kind(self) -> str:
        """Name of the network for people: its family, architecture or class."""
        kind = _class_name(self.settings.backbone)
        if kind == "TimmEncoder":
            return str(self.settings.backbone["architecture"])
        return self.family if kind == "HFEncoder" else kind


def find_source(source: str | os.PathLike) -> Source:
    """Find the network that a name refers to. A file in another layout is converted once.

    Args:
        source: ``demo`` or ``demo-sce``, which the package contains; ``hf:NAME`` or the folder of a
            transformers or timm model; a run or one of its checkpoints; a folder that
            ``save_pretrained`` has written; or a checkpoint from torchvision, timm, pytorchvideo,
            SlowFast, mmaction2, mmdet or eztorch, which is recognised by the names of its weights.

    Raises:
        FileNotFoundError: If the file or folder does not exist, or the folder has no checkpoint.
        ValueError: If the file is damaged, has an unknown layout or contains only a head, or its
            weights do not match its network.
    """
    name = os.fspath(source)
    name = packaged_network(name) or name
    if not (is_model(name) or is_url(name) or os.path.exists(name)):
        raise FileNotFoundError(
            f"there is no {name}. Give a run, a checkpoint, the folder of an exported network, "
            f"a transformers model as {MODEL_PREFIX}NAME, or demo, which sce_video contains"
        )
    path, content = _in_our_layout(name)
    config = stored_config(content, path)
    try:
        settings = settings_from_config(config)
    except ValueError as error:
        lacking = lacking_imports(content)
        raise ValueError(f"the config in {path}: {error}{'. ' * bool(lacking)}{lacking}") from error
    weights = checkpoint_weights(content)
    network = _checked_network(settings.backbone, content, name)
    attends = any("attention" in type(layer).__name__.lower() for layer in network.modules())
    family = "vit" if attends else "convolution"
    classifies = at(content, "meta.classifier") is True
    classifies |= any(key.startswith(_HEADS) for key in weights)
    if _class_name(settings.backbone) == "HFEncoder":
        family = settings.backbone["architecture"]["model_type"]
        head = family_of(family).classifier
        classifies |= head is not None and at(settings.backbone, "pool") == head.pool
    return Source(
        checkpoint=path,
        settings=settings,
        name=name,
        family=family,
        is_classifier=classifies,
        per_frame=sees_single_frames(settings.backbone),
        train_size=training_crop(config) or settings.crop_size,
        parameters=sum(v.numel() for k, v in weights.items() if k.startswith(_BACKBONE)),
        channels=getattr(network, "out_channels", 0),
    )


def sees_single_frames(backbone: Mapping[str, Any]) -> bool:
    """Return whether a network computes the features of each frame independently."""
    kind = _class_name(backbone)
    if kind == "HFEncoder":
        return family_of(backbone["architecture"]["model_type"]).per_frame
    if kind == "EfficientNetLite":
        return not at(backbone, "temporal")
    return kind in ("ResNet2d", "TimmEncoder")


def _class_name(backbone: Mapping[str, Any]) -> str:
    return backbone["type"].rpartition(".")[2]


def _in_our_layout(name: str) -> tuple[str, Content]:
    """Return path and content of a source's file, which is converted if it has another layout."""
    found = newest_checkpoint(run_of_model(name))
    if is_url(found) and not found.endswith(".pth"):
        raise ValueError(
            f"exported networks cannot be read from an object store. Copy the folder {name} to "
            "this machine"
        )
    # Download a URL first, because the run's config names the path and must not trigger a request.
    path = os.path.abspath(local_copy(found))
    try:
        content = load_checkpoint_file(path)
    except ValueError:
        # PyTorch Lightning files also contain hyper-parameters and callbacks, which are skipped.
        content = load_third_party_checkpoint(path)
    weights = checkpoint_weights(content)
    if weights and all(key.startswith(_HEADS) for key in weights):
        raise ValueError(f"{name} contains only a head. Give the checkpoint of its backbone")
    if has_config(content):
        return path, content
    if (imported := run_of_weights(path, content)) is not None:
        return imported, load_checkpoint_file(imported)
    return _converted(path, content)


def _checked_network(backbone: Mapping[str, Any], content: Content, name: str) -> nn.Module:
    """Build a backbone, and check that the file contains its weights. The weights are not loaded.

    Raises:
        ValueError: If the backbone cannot be built, or a weight is missing or has another shape.
    """
    weights = checkpoint_weights(content)
    # Third-party encoders can be built without allocating memory. Other networks compute values in
    # their constructors.
    imported = backbone["type"].endswith(("HFEncoder", "TimmEncoder"))
    device = torch.device("meta" if imported else "cpu")
    try:
        with bounded_network(weights), device, torch.random.fork_rng(devices=[]):
            model = nn.ModuleDict({"backbone": MODELS.build(backbone)})
    except Exception as error:  # a network may raise any error for a wrong argument
        raise ValueError(f"cannot build the network of {name}: {error}") from error
    check_backbone_weights(model, content, name)
    if (channels := backbone.get("in_channels", 3)) != 3:
        raise ValueError(f"{name} has in_channels={channels}, but videos have 3 channels")
    return model["backbone"]


# -- files from other code bases -----------------------------------------------------------------

#: File layouts, keyed by the end of the first convolution's name. All other files have
#: torchvision's layout.
_FIRST_WEIGHTS = {
    "s1.pathway0_stem.conv.weight": "slowfast",
    "blocks.0.conv.weight": "pytorchvideo",
    "conv1.conv.weight": "mmaction2",
    "trunk.conv1.weight": "eztorch",
}
_IMAGENET = dict(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
_KINETICS = dict(mean=(0.43216, 0.394666, 0.37645), std=(0.22803, 0.22145, 0.216989))
#: Input of each network, because the files do not state it. The values come from torchvision's
#: references/classification, models/video/resnet.py and s3d.py (15 frames per second), and from
#: SlowFast's configs/Kinetics/SLOW_8x8_R50.yaml (every eighth frame at 30 frames per second).
#: torchvision tests S3D with 128 frames, but these would not fit into memory in training.
_INPUTS: dict[str, dict[str, Any]] = {
    "ResNet2d": dict(**_IMAGENET, num_frames=1, clip_duration=1.0, short_side=256, crop_size=224),
    "R2Plus1d": dict(
        **_KINETICS, num_frames=16, clip_duration=16 / 15, short_side=128, crop_size=112
    ),
    "S3D": dict(**_KINETICS, num_frames=32, clip_duration=32 / 15, short_side=256, crop_size=224),
    "ResNet3dSlowPath": dict(
        mean=0.45, std=0.225, num_frames=8, clip_duration=64 / 30, short_side=256, crop_size=224
    ),
}
#: Prefixes of the names of classifier weights in these layouts
_HEAD_NAMES = ("fc.", "classifier.", "head.", "cls_head.", "blocks.5.")
#: Names of the first convolution in files from tools/convert. Depth and width of the network follow
#: from the names in these files.
_OWN_STEMS = ("backbone.conv1.weight", "conv1.weight")
#: Version of the converted files. Increase it when they change.
_FORMAT = 1


def _converted(path: str, content: Content) -> tuple[str, Content]:
    """Convert a checkpoint from another code base to a cached file, and return path and content.

    The cached file is used again until the checkpoint changes.
    """
    weights = stored_weights(content)
    facts = [_FORMAT, path, file_sha256(path)]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    out = cache_folder() / "converted" / digest / f"{Path(path).stem}.pth"
    if out.is_file():
        return str(out), load_checkpoint_file(out)
    layout = next((v for k, v in _FIRST_WEIGHTS.items() if any(n.endswith(k) for n in weights)), "")
    stems = [value.ndim for name, value in weights.items() if name in _OWN_STEMS]
    try:
        conversion = _conversion(content, "own" if stems == [5] else layout)
    except ValueError as error:
        raise ValueError(
            f"{path} contains no config of this package, and its weights do not have the layout of "
            f"a known code base: {error}"
        ) from error
    given = _INPUTS[conversion.backbone["type"]]
    if layout == "mmaction2":
        given = {**given, **_IMAGENET}
    settings = ModelSettings(backbone=conversion.backbone, **given)
    parts = conversion.state_dict
    prefix = "" if any(key.startswith(_BACKBONE) for key in parts) else _BACKBONE
    converted = {
        "meta": {
            SNAPSHOT: json.dumps(test_settings({"model": settings.to_dict()})),
            "source": Path(path).name,
            "classifier": any(
                name.removeprefix(conversion.prefix).startswith(_HEAD_NAMES)
                for name in conversion.dropped
            ),
        },
        "state_dict": {prefix + key: value for key, value in parts.items()},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint_file(converted, out)
    return str(out), converted


def _conversion(content: Content, layout: str) -> Conversion:
    """Convert the backbone in a file by its layout, where "" stands for torchvision's."""
    if layout == "own":
        content = dict(to_video_layout(stored_weights(content), "pytorchvideo").state_dict)
        layout = "pytorchvideo"
    if layout == "eztorch":
        return from_eztorch(content)
    return from_video_layout(content, layout) if layout else from_torchvision(content)
