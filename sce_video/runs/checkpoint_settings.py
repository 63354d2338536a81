"""Settings that a config takes from a checkpoint: its network, and views of the trained size.

A training may change the width, the queue or the size of the views by ``--cfg-options``. What is
made from its checkpoint (a resumed training, a test, a finetuning) needs the same settings, and the
config text inside the checkpoint has them. That text may come from a stranger: it is parsed as
data, only the settings named here are taken, each after a check of its value, and never a ``type``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from mmengine.config import Config

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.config.changes import child, named_path, numbered_path, parse_options
from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import stored_config
from sce_video.inference.model_settings import (
    TEST_CROPS,
    crop_fits,
    settings_from_config,
    training_crop,
)
from sce_video.registry import MODELS

#: Numbers that shape weights, and their largest values. Those of a backbone:
_BACKBONE = {
    "depth": 1000,
    "base_channels": 1024,
    "channels": 1024,
    "in_channels": 2**14,
    "embed_dims": 2**14,
    "num_heads": 256,
    "patch_size": 32,
    "tubelet_size": 32,
    "grid_size": 64,
}
#: Those of a whole model.
_NETWORK = {
    **_BACKBONE,
    "hidden_channels": 2**14,
    "out_channels": 2**16,
    "num_layers": 32,
    "num_classes": 2**16,
    "queue_size": 2**20,
    "last_stage_stride": 8,
    "last_stage_dilation": 8,
}
#: Numbers that are no size of a weight; any other has to be one in the checkpoint.
_NOT_WIDTHS = (
    *("depth", "num_layers", "last_stage_stride", "last_stage_dilation"),
    *("num_heads", "grid_size"),
)
#: Settings that name a variant of a network.
_VARIANTS = ("stem", "position")
_SWITCHES = (
    *("norm_output", "norm_hidden", "affine_output", "bias", "bias_output"),
    "gating",
)
_BACKBONE_NAMES = (*_BACKBONE, *_VARIANTS, "gating")
_NETWORK_NAMES = (*_NETWORK, *_SWITCHES, *_VARIANTS)
_CLIP = {"num_frames": 4096, "frame_interval": 4096, "clip_duration": 86400}
_VIEW = {**_CLIP, "size": 8192, "crop_size": 8192, "short_side": 8192}
#: Settings that may be a sequence, and its largest length.
_SEQUENCES = {**dict.fromkeys(_VIEW, 2), "grid_size": 3}
_HEAD = ("model", "cls_head", "in_channels")
#: Parts of a config with the pipelines that a training uses.
_OF_TRAINING = ("train_dataloader", "val_dataloader", "default_hooks")
_OF_TEST = ("val_dataloader", "test_dataloader", "test_cfg")
#: The setting has no value in the checkpoint's config: the class has its default.
_ABSENT = object()

_Path = tuple[str, ...]


def adopted_config(
    path: str | Path | Config,
    options: Sequence[str] | Mapping[str, Any],
    checkpoint: str | Path,
    use: Literal["resume", "test", "finetune"],
    content: dict[str, Any] | None = None,
) -> Config:
    """A config file with the settings of a checkpoint that it needs; the options win over both.

    - "resume": the network and the training views.
    - "test": the network; and where the training differs from that of the config *file*, or the
      file's crop does not suit it, the test views: frames and duration of a clip as in training,
      the crop at which search and ``embed`` evaluate it. A checkpoint of another kind of model (a
      pretraining, for a retrieval recipe) gives its backbone only: the views are those of the
      recipe's protocol.
    - "finetune": depth and width of the backbone; the views are the recipe's, or for data of one's
      own (a config without ``benchmark``), as in "resume" and "test".

    A classifier's ``in_channels`` follows the backbone. A checkpoint without a config (converted
    files), or with one that is not plain data, gives nothing.

    Args:
        path: The config file, or a config.
        options: ``KEY=VALUE`` each, or the values by key.
        checkpoint: A local file.
        use: What the checkpoint is for.
        content: Content of the checkpoint, if it has been read already.

    Returns:
        The config. Its ``adopted`` has the ``checkpoint`` and the ``settings`` taken from it,
        ``KEY=VALUE`` each; it is missing if none were.

    Raises:
        FileNotFoundError: no such config or checkpoint.
        ValueError: of :func:`~sce_video.engine.config.load.load_config`; or a damaged checkpoint.
    """
    cfg = load_config(path, options)
    content = load_checkpoint_file(checkpoint) if content is None else content
    stored: dict[str, Any] = {}
    with suppress(ValueError):  # converted, or not plain data
        stored = stored_config(content, checkpoint)
    found: dict[_Path, Any] = {}
    if use != "finetune" and _same_method(cfg, stored):
        found = dict(_differences(cfg.model, stored["model"], _NETWORK_NAMES, ("model",)))
        if use == "test":
            found |= _test_views(cfg, load_config(path), stored)
        else:
            for part in _OF_TRAINING:
                found |= dict(_differences(cfg.get(part), stored.get(part), [*_VIEW], (part,)))
    elif use != "resume":
        path_of = ("model", "backbone")
        found = dict(
            _differences(_at(cfg, path_of), _at(stored, path_of), _BACKBONE_NAMES, path_of)
        )
        if use == "finetune" and cfg.get("benchmark") is None:
            loader = ("train_dataloader",)
            found |= dict(_differences(_at(cfg, loader), _at(stored, loader), [*_VIEW], loader))
            found |= _test_views(cfg, load_config(path), stored)
    return _Adoption(path, options, cfg, checkpoint, _widths(content)).adopt(found)


def _same_method(cfg: Config, stored: dict[str, Any]) -> bool:
    own, other = cfg.get("model"), stored.get("model")
    return isinstance(own, dict) and isinstance(other, dict) and _kind(own) == _kind(other) != ""


def _at(root: Any, path: _Path) -> Any:
    for part in path:
        root = child(root, part)
    return root


def _kind(node: Any) -> str:
    """The name of a dict's type, without scope; "" without one."""
    kind = node.get("type") if isinstance(node, dict) else None
    return kind.rpartition(".")[2] if isinstance(kind, str) else getattr(kind, "__name__", "")


def _differences(
    own: Any, other: Any, names: Sequence[str], path: _Path
) -> Iterator[tuple[_Path, Any]]:
    """Named settings that differ between two configs, with the other's values, where types agree.

    A dict is compared with one of the same ``type`` (or both have none), a list with one whose
    entries have the same types.
    """
    if isinstance(own, dict) and isinstance(other, dict) and _kind(own) == _kind(other):
        for key in dict.fromkeys((*own, *other)):
            if key in names:
                value = other.get(key, _ABSENT)
                if _plain(own.get(key, _ABSENT)) != _plain(value):
                    yield (*path, key), value
            else:
                yield from _differences(own.get(key), other.get(key), names, (*path, str(key)))
    elif isinstance(own, list | tuple) and isinstance(other, list | tuple):
        if list(map(_kind, own)) == list(map(_kind, other)):
            for i, pair in enumerate(zip(own, other, strict=True)):
                yield from _differences(*pair, names, (*path, str(i)))


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple) else value


def _test_views(cfg: Config, file: Config, stored: dict[str, Any]) -> dict[_Path, Any]:
    """Clip and crop of all test pipelines, where those of the file do not suit the training."""
    clips = [_clip_settings(c.get("train_dataloader")) for c in (file, stored)]
    wanted = {key: value for key, value in clips[1].items() if value != clips[0].get(key, value)}
    sizes = _test_sizes(file, stored)
    found: dict[_Path, Any] = {}
    for part in _OF_TEST:
        for path, step in _steps(cfg.get(part), (part,)):
            keys = {key: value for key, value in wanted.items() if key in step}
            keys |= dict([sizes[_kind(step)]] if _kind(step) in sizes else [])
            found |= {(*path, key): value for key, value in keys.items() if step.get(key) != value}
    return found


def _test_sizes(file: Config, stored: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Steps of a test pipeline, and the key and value of the size; empty if the file's suit."""
    trained = training_crop(stored)
    steps = [step for part in _OF_TEST for _, step in _steps(file.get(part), ())]
    crops = [step.get(TEST_CROPS[_kind(step)]) for step in steps if _kind(step) in TEST_CROPS]
    suits = all(type(c) is not int or trained is None or crop_fits(c, trained) for c in crops)
    if trained is None or (suits and trained == training_crop(file._cfg_dict)):
        return {}
    try:
        settings = settings_from_config(stored)
    except ValueError:  # pipelines of another kind: the sizes of the file stay
        return {}
    sizes = {step: (key, settings.crop_size) for step, key in TEST_CROPS.items()}
    return {**sizes, "ResizeShortSide": ("size", settings.short_side)}


def _clip_settings(part: Any) -> dict[str, Any]:
    """Frames and duration of the first sampled clip of a part's pipelines."""
    for _, step in _steps(part, ()):
        if "num_frames" in step:
            return {key: step[key] for key in _CLIP if key in step}
    return {}


def _steps(node: Any, path: _Path) -> Iterator[tuple[_Path, dict]]:
    """The entries of all pipelines below a node."""
    for key, value in node.items() if isinstance(node, dict) else ():
        if key == "pipeline" and isinstance(value, list | tuple):
            yield from (((*path, key, str(i)), s) for i, s in enumerate(value) if _kind(s))
        else:
            yield from _steps(value, (*path, str(key)))


@dataclass
class _Adoption:
    """A config file, the options that change it, and the checkpoint that settings come from."""

    file: str | Path | Config
    options: Sequence[str] | Mapping[str, Any]
    cfg: Config
    """The file with the options."""
    source: str | Path
    widths: set[int]

    def __post_init__(self) -> None:
        self.given = {numbered_path(self.cfg, k.split(".")) for k in parse_options(self.options)}

    def adopt(self, found: dict[_Path, Any]) -> Config:
        """The config with the found settings; the options win."""
        settings = {}
        for path, value in found.items():
            if value is _ABSENT:
                value = _default(_at(self.cfg, path[:-1]), path[-1])
            if not _covered(path, self.given) and _is_sound(path[-1], value, self.widths):
                settings[path] = value
        cfg = self._with(settings) if settings else self.cfg
        channels = self._head_channels(cfg, {*settings, *self.given})
        if channels is not None:
            settings[_HEAD] = channels
            cfg = self._with(settings)
        if settings:
            shown = [f"{named_path(cfg, path)}={value}" for path, value in settings.items()]
            cfg.adopted = {"checkpoint": str(self.source), "settings": shown}
        return cfg

    def _with(self, settings: dict[_Path, Any]) -> Config:
        adopted = {".".join(path): value for path, value in settings.items()}
        return load_config(self.file, {**adopted, **parse_options(self.options)})

    def _head_channels(self, cfg: Config, changed: set[_Path]) -> int | None:
        """Channels that the classifier must take, if the backbone was changed and they were not."""
        own = _at(cfg, _HEAD)
        if type(own) is not int or _covered(_HEAD, changed):
            return None
        if not any(path[:2] == ("model", "backbone") for path in changed):
            return None
        with torch.device("meta"):  # no memory for weights
            channels = getattr(MODELS.build(cfg.model.backbone), "out_channels", None)
        return channels if isinstance(channels, int) and channels != own else None


def _covered(path: _Path, given: set[_Path]) -> bool:
    """Whether an option sets the path, a part of it or a dict around it."""
    return any(path[: len(other)] == other[: len(path)] for other in given)


def _default(node: dict, name: str) -> Any:
    """The default of an argument of the model or layer that a dict describes."""
    part = MODELS.get(node["type"]) if isinstance(node.get("type"), str) else None
    parameter = inspect.signature(part).parameters.get(name) if part is not None else None
    return _ABSENT if parameter is None else parameter.default


def _is_sound(name: str, value: Any, widths: set[int]) -> bool:
    """Whether a value of a stranger's config may be taken for a setting of this name.

    Args:
        name: One of the names above.
        value: Plain data.
        widths: Sizes of the checkpoint's weights: a file cannot ask for layers that it lacks.
    """
    if name in _VARIANTS:
        return isinstance(value, str) and value.isidentifier() and len(value) <= 32
    if name in _SWITCHES:
        return value is None or type(value) is bool
    largest = {**_NETWORK, **_VIEW}[name]
    if name == "clip_duration":
        return type(value) in (int, float) and 0 < value <= largest
    numbers = value if isinstance(value, list | tuple) and name in _SEQUENCES else (value,)
    if not 1 <= len(numbers) <= _SEQUENCES.get(name, 1):
        return False
    if not all(type(n) is int and 1 <= n <= largest for n in numbers):
        return False
    return name in _VIEW or name in _NOT_WIDTHS or value in widths


def _widths(checkpoint: dict[str, Any]) -> set[int]:
    """All sizes of all dimensions of the weights."""
    weights = checkpoint.get("state_dict", checkpoint)
    tensors = weights.values() if isinstance(weights, dict) else ()
    return {size for tensor in tensors if torch.is_tensor(tensor) for size in tensor.shape}
