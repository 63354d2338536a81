"""Settings that a config takes from a checkpoint: its network, and views of the trained size.

A training may change the width, the queue or the size of the views by ``--cfg-options``. What is
made from its checkpoint (a resumed training, a test, a finetuning) needs the same settings, and the
config stored in the checkpoint has them. It may come from a stranger: only the settings named here
are taken, each after a check of its value, and never a ``type``.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from mmengine.config import Config

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.config.changes import (
    named_path,
    node_at,
    numbered_path,
    parse_options,
    type_name,
)
from sce_video.engine.config.check import walk_dicts
from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import stored_config
from sce_video.inference.network_input import (
    TEST_CROPS,
    crop_fits,
    settings_from_config,
    training_crop,
)
from sce_video.registry import MODELS

#: Largest values of the numbers that shape the weights of a backbone.
_BACKBONE = {
    "depth": 1000,
    **dict.fromkeys(("base_channels", "channels"), 1024),
    **dict.fromkeys(("in_channels", "embed_dims"), 2**14),
    "num_heads": 256,
    **dict.fromkeys(("patch_size", "tubelet_size"), 32),
    "grid_size": 64,
}
#: Those of a whole model.
_NETWORK = {
    **_BACKBONE,
    "hidden_channels": 2**14,
    **dict.fromkeys(("out_channels", "num_classes"), 2**16),
    "num_layers": 32,
    "queue_size": 2**20,
    **dict.fromkeys(("last_stage_stride", "last_stage_dilation"), 8),
}
#: Numbers that are no size of a weight; any other has to be one in the checkpoint.
_NOT_WIDTHS = (
    *("depth", "num_layers", "last_stage_stride", "last_stage_dilation", "num_heads"),
    "grid_size",
)
#: Settings that name a variant of a network, and those that are true, false or None.
_VARIANTS = ("stem", "position")
_SWITCHES = ("norm_output", "norm_hidden", "affine_output", "bias", "bias_output", "gating")
_CLIP = {"num_frames": 4096, "frame_interval": 4096, "clip_duration": 86400}
_VIEW = {**_CLIP, **dict.fromkeys(("size", "crop_size", "short_side"), 8192)}
#: Settings that may be a sequence, and its largest length.
_SEQUENCES = {**dict.fromkeys(_VIEW, 2), "grid_size": 3}
_HEAD = ("model", "cls_head", "in_channels")
#: Parts of a config with the pipelines that a training, or a test, uses.
_OF_TRAINING = ("train_dataloader", "val_dataloader", "default_hooks")
_OF_TEST = ("val_dataloader", "test_dataloader", "test_cfg")
_ABSENT = object()

#: Settings by their path of keys and numbers.
_Settings = dict[tuple[str, ...], Any]


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

    ``adopted`` of the config has the ``checkpoint`` and the ``settings`` taken from it,
    ``KEY=VALUE`` each; it is missing if none were. The ``content`` of the file is given if it has
    been read already.

    Raises:
        FileNotFoundError: no such config or checkpoint.
        ValueError: of :func:`~sce_video.engine.config.load.load_config`; or a damaged checkpoint.
    """
    cfg, given = load_config(path, options), parse_options(options)
    content = load_checkpoint_file(checkpoint) if content is None else content
    weights = content.get("state_dict", content)
    tensors = weights.values() if isinstance(weights, dict) else ()
    # A file cannot ask for layers that it lacks.
    widths = {size for tensor in tensors if torch.is_tensor(tensor) for size in tensor.shape}
    fixed = {numbered_path(cfg, key.split(".")) for key in given}
    settings = {
        path: value
        for path, value in _found(cfg, path, content, use).items()
        if not _overlaps(path, fixed) and _is_sound(path[-1], value, widths)
    }

    def changed() -> Config:
        return load_config(path, {".".join(keys): v for keys, v in settings.items()} | given)

    cfg = changed() if settings else cfg
    touched = {*settings, *fixed}
    own, of_backbone = node_at(cfg, _HEAD), _overlaps(("model", "backbone"), touched)
    if of_backbone and type(own) is int and not _overlaps(_HEAD, touched):
        with torch.device("meta"):  # no memory for weights
            channels = getattr(MODELS.build(cfg.model.backbone), "out_channels", None)
        if isinstance(channels, int) and channels != own:
            settings[_HEAD] = channels
            cfg = changed()
    if settings:
        shown = [f"{named_path(cfg, keys)}={value}" for keys, value in settings.items()]
        cfg.adopted = {"checkpoint": str(checkpoint), "settings": shown}
    return cfg


def _overlaps(path: tuple[str, ...], others: Collection[tuple[str, ...]]) -> bool:
    """Whether the path, a part of it or a dict around it is among others."""
    return any(path[: len(other)] == other[: len(path)] for other in others)


def _found(cfg: Config, path: str | Path | Config, content: dict[str, Any], use: str) -> _Settings:
    """Settings of the stored config that a use needs and ``cfg`` has otherwise, not checked."""
    try:
        stored = stored_config(content, "")
    except ValueError:  # converted, or not plain data
        return {}
    found: _Settings = {}
    same_method = type_name(cfg.get("model")) == type_name(stored.get("model")) != ""
    if use != "finetune" and same_method:
        found = _differences(cfg, stored, ("model",), (*_NETWORK, *_SWITCHES, *_VARIANTS))
        for part in _OF_TRAINING if use == "resume" else ():
            found |= _differences(cfg, stored, (part,), _VIEW)
    elif use != "resume":
        names = (*_BACKBONE, *_VARIANTS, "gating")
        found = _differences(cfg, stored, ("model", "backbone"), names)
    own_data = use == "finetune" and cfg.get("benchmark") is None
    if own_data:
        found |= _differences(cfg, stored, ("train_dataloader",), _VIEW)
    if own_data or (use == "test" and same_method):
        found |= _test_views(cfg, load_config(path), stored)
    return found


def _differences(
    cfg: Config, stored: dict[str, Any], below: tuple[str, ...], names: Collection[str]
) -> _Settings:
    """Named settings below a path that differ, with the stored values, where types agree.

    A dict is compared with one of the same ``type`` (or both have none), a list with one whose
    entries have the same types. What the stored config leaves out has the default of its class.
    """
    found: _Settings = {}

    def walk(own: Any, other: Any, path: tuple[str, ...]) -> None:
        lists = [list(n) for n in (own, other) if isinstance(n, list | tuple)]
        if len(lists) == 2 and list(map(type_name, lists[0])) == list(map(type_name, lists[1])):
            for number, (mine, theirs) in enumerate(zip(*lists, strict=True)):
                walk(mine, theirs, (*path, str(number)))
        if not (
            isinstance(own, dict) and isinstance(other, dict) and type_name(own) == type_name(other)
        ):
            return
        for key in dict.fromkeys((*own, *other)):
            if key not in names:
                walk(own.get(key), other.get(key), (*path, str(key)))
            # A list of the JSON is the same as a tuple of the config.
            elif _listed(own.get(key, _ABSENT)) != _listed(other.get(key, _ABSENT)):
                kind = own.get("type")
                part = MODELS.get(kind) if isinstance(kind, str) else None
                argument = part and inspect.signature(part).parameters.get(key)
                found[(*path, key)] = other.get(key, getattr(argument, "default", _ABSENT))

    walk(node_at(cfg, below), node_at(stored, below), below)
    return found


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _test_views(cfg: Config, file: Config, stored: dict[str, Any]) -> _Settings:
    """Clip and crop of all test pipelines, where those of the file do not suit the training."""

    def steps(config: Any, parts: Sequence[str]) -> list[tuple[tuple[str, ...], dict]]:
        """The entries of all pipelines in some parts of a config."""
        below = (entry for part in parts for entry in walk_dicts(config.get(part), (part,)))
        return [(path, node) for path, node in below if path[-2:-1] == ("pipeline",)]

    planned, trained = (  # frames and duration of the first clip that is sampled
        next((s for _, s in steps(config, _OF_TRAINING[:1]) if "num_frames" in s), {})
        for config in (file, stored)
    )
    clip = {k: v for k, v in trained.items() if k in _CLIP and v != planned.get(k, v)}
    sizes: dict[str, tuple[str, int]] = {}
    crop = training_crop(stored)
    tested = [step.get(TEST_CROPS.get(type_name(step))) for _, step in steps(file, _OF_TEST)]
    suits = all(type(size) is not int or crop_fits(size, crop or size) for size in tested)
    if crop is not None and not (suits and crop == training_crop(file._cfg_dict)):
        with suppress(ValueError):  # pipelines of another kind: the sizes of the file stay
            settings = settings_from_config(stored)
            sizes = {step: (key, settings.crop_size) for step, key in TEST_CROPS.items()}
            sizes["ResizeShortSide"] = "size", settings.short_side
    found: _Settings = {}
    for path, step in steps(cfg, _OF_TEST):
        values = {key: value for key, value in clip.items() if key in step}
        values |= dict([sizes[type_name(step)]] if type_name(step) in sizes else [])
        found |= {(*path, key): value for key, value in values.items() if step.get(key) != value}
    return found


def _is_sound(name: str, value: Any, widths: set[int]) -> bool:
    """Whether a value of a stranger's config may be taken for a setting of one of the names above.

    ``widths`` are the sizes of the checkpoint's weights.
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
    return name in {*_VIEW, *_NOT_WIDTHS} or value in widths
