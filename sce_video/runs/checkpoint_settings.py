"""Settings that a config adopts from a checkpoint: its network, and views of the trained size.

``--cfg-options`` may change the width, the queue or the size of the views in a training run. When
the run is resumed, tested or finetuned, the same settings are needed, and the checkpoint's config
contains them. Each class declares which of its arguments are adopted
(:mod:`~sce_video.utils.stored_arguments`). The checkpoint may be untrusted, so every value is
checked, and a ``type`` is never adopted.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.config.changes import (
    named_path,
    node_at,
    numbered_path,
    parse_options,
    type_name,
    walk_dicts,
)
from sce_video.engine.config.check import registered
from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import stored_config
from sce_video.engine.weights import bounded_network, feature_channels
from sce_video.inference.network_input import (
    TEST_CROPS,
    crop_fits,
    settings_from_config,
    training_crop,
)
from sce_video.registry import MODELS
from sce_video.utils.stored_arguments import (
    Stored,
    StoredArgument,
    constructor_parameters,
    stored_arguments,
)

_HEAD = ("model", "cls_head", "in_channels")
#: Config parts with the pipelines of training, or of a test
_OF_TRAINING = ("train_dataloader", "val_dataloader", "default_hooks")
_OF_TEST = ("val_dataloader", "test_dataloader", "test_cfg")
_ABSENT = object()
#: Limits on numbers of a class that declares no arguments
_UNDECLARED = Stored(2**16, least=0)

#: Purpose for which a checkpoint is used
Use = Literal["resume", "test", "finetune"]
#: Path of keys and numbers in a config
_Path = tuple[str, ...]


@dataclass(frozen=True)
class _Setting:
    """Setting in which a checkpoint's config differs.

    Attributes:
        value: Value in the checkpoint.
        argument: Declaration of the class argument that receives the value.
    """

    value: Any
    argument: StoredArgument


@dataclass(frozen=True)
class Adoption:
    """Config with settings that were adopted from a checkpoint.

    Attributes:
        config: Changed config.
        settings: Adopted settings as text ``KEY=VALUE`` for the log.
        refused: Settings of the checkpoint that were refused because their values are out of
            bounds.
    """

    config: Config
    settings: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def adopted_config(
    path: str | Path | Config,
    options: Sequence[str] | Mapping[str, Any],
    checkpoint: str | Path,
    use: Use,
    content: dict[str, Any] | None = None,
) -> Adoption:
    """Read a config file, and adopt settings from a checkpoint. The options override both.

    - "resume" adopts the network and the training views.
    - "test" adopts the network. It adopts test views if the training views differ from the config
      *file* or the file's crop does not match them. Clips then have the frames and duration used in
      training, and the crop is the one that search and ``embed`` use. If the checkpoint contains
      another kind of model (a pretraining run for a retrieval recipe), only its backbone is
      adopted, because the recipe's protocol defines the views.
    - "finetune" adopts depth and width of the backbone. The views are the recipe's. If the config
      is for a user's own data (without ``benchmark``), they are adopted as in "resume" and "test".

    A classifier's ``in_channels`` follows the backbone. Nothing is adopted if the checkpoint has no
    config (converted files), or one that is not plain data.

    Args:
        path: Config file, or a config.
        options: Changes of the config, as in :func:`~sce_video.engine.config.load.load_config`.
        checkpoint: Path of the checkpoint.
        use: Purpose for which the checkpoint is used.
        content: Content of the checkpoint, if it has been read already.

    Raises:
        FileNotFoundError: If the config or the checkpoint does not exist.
        ValueError: If :func:`~sce_video.engine.config.load.load_config` raises it, or the
            checkpoint is damaged.
    """
    cfg, given = load_config(path, options), parse_options(options)
    content = load_checkpoint_file(checkpoint) if content is None else content
    weights = _weights(content)
    # Limit adopted widths to sizes in the weights, so a file cannot request layers that it lacks.
    widths = {size for w in weights.values() if torch.is_tensor(w) for size in w.shape}
    fixed = {numbered_path(cfg, key.split(".")) for key in given}
    found = {
        path: setting
        for path, setting in _found(cfg, path, content, use).items()
        if not _overlaps(path, fixed)
    }
    taken = {p: s.value for p, s in found.items() if s.argument.accepts(s.value, widths)}
    refused = [p for p in found if p not in taken]

    def changed() -> Config:
        # The options come last because the user may want another size than the checkpoint's.
        return load_config(path, {".".join(keys): v for keys, v in taken.items()} | given)

    cfg = changed() if taken else cfg
    touched = {*taken, *fixed}
    own, of_backbone = node_at(cfg, _HEAD), _overlaps(("model", "backbone"), touched)
    if of_backbone and type(own) is int and not _overlaps(_HEAD, touched):
        channels = feature_channels(cfg.model.backbone)
        if channels not in (None, own):
            taken[_HEAD] = channels
            cfg = changed()
    shown = tuple(f"{named_path(cfg, keys)}={value}" for keys, value in taken.items())
    return Adoption(cfg, shown, tuple(named_path(cfg, keys) for keys in refused))


def _weights(content: dict[str, Any]) -> dict[str, Any]:
    """Return the weights of a checkpoint by name, or none if that entry is not a dict."""
    weights = content.get("state_dict", content)
    return weights if isinstance(weights, dict) else {}


def _overlaps(path: _Path, others: Collection[_Path]) -> bool:
    """Return whether the path, a part of it, or a dict that contains it is in ``others``."""
    return any(path[: len(other)] == other[: len(path)] for other in others)


def _found(
    cfg: Config, path: str | Path | Config, content: dict[str, Any], use: Use
) -> dict[_Path, _Setting]:
    """Return the settings needed for a use in which the stored config differs, unchecked."""
    try:
        stored = stored_config(content, "")
    except ValueError:  # the checkpoint was converted, or its config is not plain data
        return {}
    weights = _weights(content)
    found: dict[_Path, _Setting] = {}
    same_method = type_name(cfg.get("model")) == type_name(stored.get("model")) != ""
    if use != "finetune" and same_method:
        found |= _differences(cfg, stored, ("model",), weights)
        for part in _OF_TRAINING if use == "resume" else ():
            found |= _differences(cfg, stored, (part,))
    elif use != "resume":
        # Another task has its own heads and views, so only the backbone is the same.
        of_backbone = _differences(cfg, stored, ("model", "backbone"), weights)
        found |= {p: s for p, s in of_backbone.items() if s.argument.limits.in_new_tasks}
    # A benchmark's protocol fixes the views. On own data, the network sees what it was trained on.
    own_data = use == "finetune" and cfg.get("benchmark") is None
    if own_data:
        found |= _differences(cfg, stored, ("train_dataloader",))
    if own_data or (use == "test" and same_method):
        found |= _test_views(cfg, load_config(path), stored)
    return found


def _differences(
    cfg: Config, stored: dict[str, Any], below: _Path, weights: Mapping[str, Any] | None = None
) -> dict[_Path, _Setting]:
    """Return declared arguments below a path that differ, with the stored values.

    A dict is compared with a dict of the same ``type`` (or without one), and a list with a list
    whose entries have the same types. If the stored config omits an argument, the default of its
    class is used.

    Args:
        cfg: Config of the file.
        stored: Config in the checkpoint.
        below: Path at which the comparison begins.
        weights: Weights of the checkpoint, if networks are compared. Networks that declare no
            arguments are then built (:func:`_undeclared`); None compares no such networks.
    """
    found: dict[_Path, _Setting] = {}

    def walk(own: Any, other: Any, path: _Path) -> None:
        lists = [list(n) for n in (own, other) if isinstance(n, list | tuple)]
        if len(lists) == 2 and list(map(type_name, lists[0])) == list(map(type_name, lists[1])):
            for number, (mine, theirs) in enumerate(zip(*lists, strict=True)):
                walk(mine, theirs, (*path, str(number)))
        if not (
            isinstance(own, dict) and isinstance(other, dict) and type_name(own) == type_name(other)
        ):
            return
        arguments = _arguments(own, other, weights)
        for key in dict.fromkeys((*own, *other)):
            if key not in arguments:
                walk(own.get(key), other.get(key), (*path, str(key)))
            # JSON has no tuples, so compare tuples as lists.
            elif _listed(own.get(key, _ABSENT)) != _listed(other.get(key, _ABSENT)):
                value = other.get(key, arguments[key].default)
                found[(*path, key)] = _Setting(value, arguments[key])

    walk(node_at(cfg, below), node_at(stored, below), below)
    return found


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _arguments(
    own: dict[str, Any], other: dict[str, Any], weights: Mapping[str, Any] | None
) -> dict[str, StoredArgument]:
    """Return the arguments of a config part that a checkpoint may set, by name."""
    kind = next(iter(registered(own.get("type"))), None)
    declared = stored_arguments(kind)
    ours = str(getattr(kind, "__module__", "")).startswith("sce_video.")
    if declared or ours or weights is None or not inspect.isclass(kind):
        return declared
    return _undeclared(kind, own, other, weights)


def _undeclared(
    kind: type, own: dict[str, Any], other: dict[str, Any], weights: Mapping[str, Any]
) -> dict[str, StoredArgument]:
    """Return the arguments that determine the weights of a class without declarations.

    These are the numbers and booleans that differ between the two configs and without which the
    network would have other weights. In mmaction2, these are ``depth`` and ``base_channels``, but
    not ``frozen_stages``.

    Args:
        kind: Class from another package or from the user.
        own: Config of the part in the config file.
        other: Config of the part in the checkpoint.
        weights: Weights of the checkpoint, which limit the size of the network.
    """
    parameters = constructor_parameters(kind)
    arguments = {
        name: StoredArgument(_UNDECLARED, frozenset({int, bool}), parameters[name].default)
        for name in other.keys() & parameters.keys()
    }
    changes = {
        name: other[name]
        for name, argument in arguments.items()
        if argument.accepts(other[name], set()) and other[name] != own.get(name, argument.default)
    }
    if not changes:
        return {}
    # The user's config file is trusted, so its network is allowed at any size.
    allowed = sum(size.numel() for size in (_shapes(own, None) or {}).values())
    limit = {**weights, "": torch.empty(allowed, device="meta")}
    shapes = _shapes({**own, **changes}, limit)
    found = {}
    for name in changes if shapes is not None else ():
        without = {key: value for key, value in {**own, **changes}.items() if key != name}
        if name in own:
            without[name] = own[name]
        if _shapes(without, limit) != shapes:
            found[name] = arguments[name]
    return found


def _shapes(part: dict[str, Any], limit: Mapping[str, Any] | None) -> dict[str, torch.Size] | None:
    """Return the shapes of a network's weights by name; None if it cannot be built.

    Args:
        part: Config of the network.
        limit: Weights that limit the network's size; None for no limit.
    """
    bounds = nullcontext() if limit is None else bounded_network(limit)
    # mmaction2's recogniser looks names up in the default scope.
    scope = DefaultScope.overwrite_default_scope("sce_video")
    try:
        with scope, bounds, torch.random.fork_rng(devices=[]):
            network = MODELS.build(dict(part))
    except Exception:  # a wrong argument can raise any error inside a network
        return None
    return {name: weight.shape for name, weight in network.state_dict().items()}


def _test_views(cfg: Config, file: Config, stored: dict[str, Any]) -> dict[_Path, _Setting]:
    """Return clip and crop for all test pipelines, if the file's do not match the training."""
    planned, trained = (_sampling(config) for config in (file, stored))
    clip = {key: value for key, value in trained.items() if value != planned.get(key, value)}
    sizes: dict[str, int] = {}
    crop = training_crop(stored)
    tested = [step.get(TEST_CROPS.get(type_name(step), "")) for _, step in _steps(file, _OF_TEST)]
    suits = all(type(size) is not int or crop_fits(size, crop or size) for size in tested)
    if crop is not None and not (suits and crop == training_crop(file._cfg_dict)):
        with suppress(ValueError):  # other kinds of pipelines keep the sizes of the file
            settings = settings_from_config(stored)
            sizes = dict.fromkeys(TEST_CROPS, settings.crop_size)
            sizes["ResizeShortSide"] = settings.short_side
    found: dict[_Path, _Setting] = {}
    for path, step in _steps(cfg, _OF_TEST):
        arguments = _arguments(step, {}, None)
        values = {key: value for key, value in clip.items() if key in step}
        if type_name(step) in sizes:
            values[TEST_CROPS.get(type_name(step), "size")] = sizes[type_name(step)]
        found |= {
            (*path, key): _Setting(value, arguments[key])
            for key, value in values.items()
            if key in arguments and step.get(key) != value
        }
    return found


def _steps(config: Any, parts: Sequence[str]) -> Iterator[tuple[_Path, dict[str, Any]]]:
    """Yield the entries of all pipelines in the given parts of a config."""
    for part in parts:
        for path, node in walk_dicts(config.get(part), (part,)):
            if path[-2:-1] == ("pipeline",):
                yield path, node


def _sampling(config: Any) -> dict[str, Any]:
    """Return the number of frames and duration of the first clip sampled in training."""
    for _, step in _steps(config, _OF_TRAINING[:1]):
        arguments = _arguments(step, {}, None)
        if "num_frames" in arguments and "num_frames" in step:
            return {key: step[key] for key in arguments if key in step}
    return {}
