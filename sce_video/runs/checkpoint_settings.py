"""Settings that a config takes from a checkpoint: its network, and views of the trained size.

A training may change the width, the queue or the size of the views by ``--cfg-options``. What is
made from its checkpoint (a resumed training, a test, a finetuning) needs the same settings, and the
config stored in the checkpoint has them. It may come from a stranger: only the settings named here
are taken, each after a check of its value, and never a ``type``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from mmengine.config import Config

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.config.changes import child, named_path, numbered_path, parse_options
from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import stored_config
from sce_video.inference.views import TEST_CROPS, crop_fits, settings_from_config, training_crop
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
_NOT_WIDTHS = ("depth", "num_layers", "last_stage_stride", "last_stage_dilation", "num_heads")
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
        checkpoint: A local file, with its ``content`` if that has been read already.
        use: What the checkpoint is for.

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
    same_method = _kind(cfg.get("model")) == _kind(stored.get("model")) != ""
    if use != "finetune" and same_method:
        found = dict(_differences(cfg, stored, ("model",), (*_NETWORK, *_SWITCHES, *_VARIANTS)))
        for part in _OF_TRAINING if use == "resume" else ():
            found |= _differences(cfg, stored, (part,), _VIEW)
    elif use != "resume":
        names = (*_BACKBONE, *_VARIANTS, "gating")
        found = dict(_differences(cfg, stored, ("model", "backbone"), names))
    own_data = use == "finetune" and cfg.get("benchmark") is None
    if own_data:
        found |= _differences(cfg, stored, ("train_dataloader",), _VIEW)
    if own_data or (use == "test" and same_method):
        found |= _test_views(cfg, load_config(path), stored)
    return _with_settings(cfg, found, path, parse_options(options), checkpoint, content)


def _at(root: Any, path: _Path) -> Any:
    for part in path:
        root = child(root, part)
    return root


def _kind(node: Any) -> str:
    """The name of a dict's type, without scope; "" without one."""
    kind = node.get("type") if isinstance(node, dict) else None
    return kind.rpartition(".")[2] if isinstance(kind, str) else getattr(kind, "__name__", "")


def _differences(
    own: Any, other: Any, below: _Path, names: Sequence[str] | Mapping[str, Any]
) -> Iterator[tuple[_Path, Any]]:
    """Named settings below a path that differ, with the other's values, where types agree.

    A dict is compared with one of the same ``type`` (or both have none), a list with one whose
    entries have the same types.
    """

    def walk(own: Any, other: Any, path: _Path) -> Iterator[tuple[_Path, Any]]:
        pair = own, other
        if all(isinstance(n, dict) for n in pair) and _kind(own) == _kind(other):
            for key in dict.fromkeys((*own, *other)):
                if key not in names:
                    yield from walk(own.get(key), other.get(key), (*path, str(key)))
                    continue
                # A list of the JSON is the same as a tuple of the config.
                mine, theirs = (
                    tuple(v) if isinstance(v, list | tuple) else v
                    for v in (n.get(key, _ABSENT) for n in pair)
                )
                if mine != theirs:
                    yield (*path, key), other.get(key, _ABSENT)
        elif all(isinstance(n, list | tuple) for n in pair):
            if list(map(_kind, own)) == list(map(_kind, other)):
                for i, entries in enumerate(zip(own, other, strict=True)):
                    yield from walk(*entries, (*path, str(i)))

    yield from walk(_at(own, below), _at(other, below), below)


def _test_views(cfg: Config, file: Config, stored: dict[str, Any]) -> dict[_Path, Any]:
    """Clip and crop of all test pipelines, where those of the file do not suit the training."""
    clips = []
    for config in (file, stored):  # frames and duration of the first clip that is sampled
        steps = (step for _, step in _steps(config.get("train_dataloader"), ()))
        clip = next((step for step in steps if "num_frames" in step), {})
        clips.append({key: clip[key] for key in _CLIP if key in clip})
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


def _steps(node: Any, path: _Path) -> Iterator[tuple[_Path, dict]]:
    """The entries of all pipelines below a node."""
    for key, value in node.items() if isinstance(node, dict) else ():
        if key == "pipeline" and isinstance(value, list | tuple):
            yield from (((*path, key, str(i)), s) for i, s in enumerate(value) if _kind(s))
        else:
            yield from _steps(value, (*path, str(key)))


def _with_settings(
    cfg: Config,
    found: Mapping[_Path, Any],
    file: str | Path | Config,
    given: dict[str, Any],
    checkpoint: str | Path,
    content: dict[str, Any],
) -> Config:
    """``cfg``, a file with given options, with what was found in a checkpoint; the options win.

    A classifier takes the channels that its backbone then has.
    """
    fixed = {numbered_path(cfg, key.split(".")) for key in given}
    weights = content.get("state_dict", content)
    tensors = weights.values() if isinstance(weights, dict) else ()
    # A file cannot ask for layers that it lacks.
    widths = {size for tensor in tensors if torch.is_tensor(tensor) for size in tensor.shape}
    settings: dict[_Path, Any] = {}

    def is_set(path: _Path, by: set[_Path]) -> bool:
        """Whether the path, a part of it or a dict around it is among others."""
        return any(path[: len(other)] == other[: len(path)] for other in by)

    def changed() -> Config:
        adopted = {".".join(path): value for path, value in settings.items()}
        return load_config(file, {**adopted, **given})

    for path, value in found.items():
        if value is _ABSENT:
            value = _default(_at(cfg, path[:-1]), path[-1])
        if not is_set(path, fixed) and _is_sound(path[-1], value, widths):
            settings[path] = value
    cfg = changed() if settings else cfg
    touched = {*settings, *fixed}
    new_backbone = any(path[:2] == ("model", "backbone") for path in touched)
    own = _at(cfg, _HEAD)
    if new_backbone and type(own) is int and not is_set(_HEAD, touched):
        with torch.device("meta"):  # no memory for weights
            channels = getattr(MODELS.build(cfg.model.backbone), "out_channels", None)
        if isinstance(channels, int) and channels != own:
            settings[_HEAD] = channels
            cfg = changed()
    if settings:
        shown = [f"{named_path(cfg, path)}={value}" for path, value in settings.items()]
        cfg.adopted = {"checkpoint": str(checkpoint), "settings": shown}
    return cfg


def _default(node: dict, name: str) -> Any:
    """The default of an argument of the model or layer that a dict describes."""
    part = MODELS.get(node["type"]) if isinstance(node.get("type"), str) else None
    parameter = inspect.signature(part).parameters.get(name) if part is not None else None
    return _ABSENT if parameter is None else parameter.default


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
    return name in {*_VIEW, *_NOT_WIDTHS, "grid_size"} or value in widths
