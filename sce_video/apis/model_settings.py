"""What a config says about embedding a video: the backbone, and what it wants to see."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from sce_video.registry import MODELS

#: Scopes whose registered names may be built.
_SCOPES = ("sce_video", "mmaction")
#: Keys of a backbone that would load weights or change how names are looked up.
_DROPPED = ("init_cfg", "pretrained", "_scope_")
_PREPROCESSORS = ("VideoDataPreprocessor", "RecognizerDataPreprocessor")
_CLIPS = ("RandomClips", "UniformClips")
_SEGMENTS = ("RandomSegmentClip", "CenterSegmentClip")
_TEST_CROPS = {"PackVideo": "crop_size", "CenterCropClips": "size", "ThreeCrops": "size"}
_TRAIN_CROPS = ("RandomResizedCropClips", "RandomCropClips")
#: The test crop that goes with a training crop (paper, appendix; 8/7 of it); other sizes are kept.
_TEST_SIZE_OF = {224: 256, 112: 128}
#: A test crop so many times larger than the training crop shows things in sizes never seen.
_MOST_LARGER = 1.5


@dataclass(frozen=True)
class ModelSettings:
    """The network and its input.

    Attributes:
        backbone: Config of the backbone; every sequence in it is a tuple.
        mean: Subtracted from pictures in 0..1, one number or one per channel.
        std: Divided by after that.
        clip_duration: Seconds; None when a clip is the whole video (segment sampling).
        num_frames: T, frames kept of a clip.
        short_side: Pixels to which the short side of a frame is scaled.
        crop_size: Side of the square that is cut from it, pixels.
    """

    backbone: dict[str, Any]
    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]
    clip_duration: float | None
    num_frames: int
    short_side: int
    crop_size: int

    def __post_init__(self) -> None:
        if self.clip_duration is not None and not (
            _is_number(self.clip_duration) and 0 < self.clip_duration < math.inf
        ):
            raise ValueError(f"clip_duration must be positive seconds, got {self.clip_duration!r}")
        for name in ("num_frames", "short_side", "crop_size"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.short_side < self.crop_size:
            raise ValueError(
                f"a crop of {self.crop_size} does not fit into a short side of {self.short_side}"
            )
        for name in ("mean", "std"):
            value = getattr(self, name)
            if not all(map(_is_number, value if isinstance(value, tuple) else (value,))):
                raise ValueError(f"{name} must be one number or three, got {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON keeps it: the inverse of :meth:`from_dict`."""
        return {name: _lists(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> ModelSettings:
        """Settings from plain data, of which nothing is believed.

        Raises:
            ValueError: keys are missing or unknown, a value is out of range, or the backbone names
                something that is not registered.
        """
        if not isinstance(stored, dict) or set(stored) != set(cls.__dataclass_fields__):
            raise ValueError(f"these are not the settings of a model: {stored!r:.200}")
        values = {name: _tuples(value) for name, value in stored.items()}
        return cls(**{**values, "backbone": checked_backbone(stored["backbone"])})


def settings_from_config(cfg: dict[str, Any]) -> ModelSettings:
    """Find backbone, normalisation, clip and crop in a config.

    The clip is that of the training pipeline, else that of a test pipeline. The crop is that of a
    test pipeline. Without one, or where it does not go with the training crop (who trains at 64
    by ``--cfg-options`` leaves 256 in the test pipeline), it follows from the training crop: 256
    from 224, 128 from 112, any other size from itself.

    Args:
        cfg: A config as plain dicts and lists.

    Raises:
        ValueError: something is missing, or the backbone names what is not registered.
    """
    model = cfg.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("backbone"), dict):
        raise ValueError("the config has no model.backbone")
    mean, std = _normalisation(model, cfg)
    train = list(_transforms(cfg, "train"))
    test = [t for part in ("test", "val", "judge") for t in _transforms(cfg, part)]
    clip_duration, num_frames = _clip(train + test)
    short_side, crop_size = _sizes(train, test)
    return ModelSettings(
        backbone=checked_backbone(model["backbone"]),
        mean=mean,
        std=std,
        clip_duration=clip_duration,
        num_frames=num_frames,
        short_side=short_side,
        crop_size=crop_size,
    )


def checked_backbone(backbone: Any) -> dict[str, Any]:
    """A copy of a backbone's config that is safe to build.

    A registry of mmengine imports whatever dotted path stands as ``type``; so every ``type`` in it
    must be a registered name, plain or with the prefix ``sce_video.`` or ``mmaction.``. What would
    load weights (``init_cfg``, ``pretrained``) is dropped, sequences become tuples.

    Raises:
        ValueError: a ``type`` is missing, or not such a name.
    """
    if not isinstance(backbone, dict) or "type" not in backbone:
        raise ValueError(f"a backbone is a dict with a type, got {backbone!r:.100}")
    _check_type(backbone["type"], ancestors=False)
    return _clean(backbone)


def _clean(node: Any) -> Any:
    if isinstance(node, dict):
        if "type" in node:
            _check_type(node["type"], ancestors=True)
        return {key: _clean(value) for key, value in node.items() if key not in _DROPPED}
    if isinstance(node, list | tuple):
        return tuple(_clean(item) for item in node)
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise ValueError(f"a backbone's config holds plain data, got a {type(node).__name__}")


def _check_type(name: Any, ancestors: bool) -> None:
    """Raise unless ``name`` is registered by us, mmaction2 or (layers) by their ancestors."""
    if isinstance(name, str):
        scope, _, plain = name.rpartition(".")
        for registry in MODELS.chain():
            known = registry.scope in _SCOPES or (ancestors and not scope)
            part = registry.module_dict.get(plain) if known and scope in ("", registry.scope) else 0
            if isinstance(part, type) and issubclass(part, nn.Module):
                return
    raise ValueError(
        f"type {name!r} is not the name of a registered network or layer; only those are built "
        "(a network of your own: give the config file, with custom_imports)"
    )


def _normalisation(model: dict, cfg: dict) -> tuple[Any, Any]:
    preprocessor = model.get("data_preprocessor") or cfg.get("data_preprocessor") or {}
    if not isinstance(preprocessor, dict):
        raise ValueError(f"data_preprocessor must be a dict, got {preprocessor!r:.100}")
    kind = str(preprocessor.get("type", _PREPROCESSORS[0])).removeprefix("sce_video.")
    if kind not in _PREPROCESSORS:
        raise ValueError(
            f"data_preprocessor is a {kind}, whose scale of mean and std is not known here; "
            f"known: {', '.join(_PREPROCESSORS)}"
        )
    return _tuples(preprocessor.get("mean", 0.45)), _tuples(preprocessor.get("std", 0.225))


def _transforms(cfg: dict, part: str) -> Iterator[tuple[str, dict]]:
    """(name, config) of the transforms of ``<part>_dataloader``, then of ``<part>_pipeline``."""
    node = cfg.get(f"{part}_dataloader")
    while isinstance(node, dict) and "pipeline" not in node:
        node = node.get("dataset")  # a wrapper, such as RepeatDataset, holds another
    pipelines = [node.get("pipeline") if isinstance(node, dict) else None]
    pipelines.append(cfg.get(f"{part}_pipeline"))
    for pipeline in pipelines:
        for transform in pipeline if isinstance(pipeline, list | tuple) else ():
            if isinstance(transform, dict) and isinstance(transform.get("type"), str):
                yield transform["type"].rpartition(".")[2], transform


def _clip(transforms: list[tuple[str, dict]]) -> tuple[float | None, int]:
    for name, transform in transforms:
        if name in _CLIPS and {"clip_duration", "num_frames"} <= set(transform):
            return transform["clip_duration"], transform["num_frames"]
        if name in _SEGMENTS and "num_frames" in transform:
            return None, transform["num_frames"]
    raise ValueError(
        f"the config's pipelines say nothing of clips ({', '.join(_CLIPS + _SEGMENTS)} with "
        "num_frames)"
    )


def _sizes(train: list[tuple[str, dict]], test: list[tuple[str, dict]]) -> tuple[int, int]:
    """Short side and crop."""
    trained = next((t["size"] for n, t in train if n in _TRAIN_CROPS and _is_size(t, "size")), None)
    short_side = None
    for name, transform in test:
        if name == "ResizeShortSide" and _is_size(transform, "size"):
            short_side = transform["size"]
        if name in _TEST_CROPS and _is_size(transform, _TEST_CROPS[name]):
            crop_size = transform[_TEST_CROPS[name]]
            if trained is None or trained <= crop_size <= _MOST_LARGER * trained:
                return short_side or crop_size, crop_size
            break
    if trained is None:
        raise ValueError(
            f"the config's pipelines have no crop ({', '.join([*_TEST_CROPS, *_TRAIN_CROPS])})"
        )
    size = _TEST_SIZE_OF.get(trained, trained)
    return size, size


def _is_size(transform: dict, name: str) -> bool:
    return type(transform.get(name)) is int


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value
