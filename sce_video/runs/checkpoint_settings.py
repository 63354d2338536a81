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
from sce_video.utils.records import at
from sce_video.utils.stored_arguments import (
    Stored,
    StoredArgument,
    constructor_parameters,
    stored_arguments,
)

_HEAD = ("model", "cls_head", "in_channels")
#: Config parts that contain training pipelines, and config parts that contain test pipelines
_OF_TRAINING = ("train_dataloader", "val_dataloader", "default_hooks")
_OF_TEST = ("val_dataloader", "test_dataloader", "test_cfg")
_ABSENT = object()
#: Limits on stored numbers for classes that do not declare their arguments
_UNDECLARED = Stored(2**16, least=0)

#: Purpose for which a checkpoint is used
Use = Literal["resume", "test", "finetune"]
#: Path to an entry of a config: keys of dicts and positions in lists
_Path = tuple[str, ...]
#: Part of a config
_Part = dict[str, Any]
#: Content of a checkpoint
Content = dict[str, Any]


@dataclass(frozen=True)
class _Setting:
    """Setting whose value in a checkpoint's config differs.

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
        settings: Adopted settings as ``KEY=VALUE`` strings for the log.
        refused: Names of the checkpoint's settings that were refused because their values are out
            of bounds.
    """

    config: Config
    settings: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def adopted_config(
    path: str | Path | Config,
    options: Sequence[str] | Mapping[str, Any],
    checkpoint: str | Path,
    use: Use,
    content: Content | None = None,
) -> Adoption:
    """Read a config file, and adopt settings from a checkpoint. The options override both.

    - "resume" adopts the network and the training views.
    - "test" adopts the network. It also adopts test views if the checkpoint's training views differ
      from the config *file*, or if the file's crop does not match them. Clips then have the number
      of frames and the duration used in training, and the crop is the one that search and ``embed``
      use. If the checkpoint contains another kind of model (for example a pretraining run for a
      retrieval recipe), only its backbone is adopted, because the recipe's protocol defines the
      views.
    - "finetune" adopts depth and width of the backbone, and keeps the recipe's views. If the config
      is for a user's own data (without ``benchmark``), the views are adopted as in "resume" and
      "test".

    A classifier's ``in_channels`` follows the backbone. Nothing is adopted if the checkpoint has no
    config (converted files), or one that is not plain data.

    Args:
        path: Config file, or a config.
        options: Config overrides, as in :func:`~sce_video.engine.config.load.load_config`.
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
    # Adopt only widths that occur in the weights, so that a file cannot request layers without
    # weights.
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
        # The user's options come last, so that they override the settings from the checkpoint.
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


def _weights(content: Content) -> Mapping[str, Any]:
    """Return the weights in a checkpoint by name; none if its ``state_dict`` is not a dict."""
    weights = content.get("state_dict", content)
    return weights if isinstance(weights, dict) else {}


def _overlaps(path: _Path, others: Collection[_Path]) -> bool:
    """Return whether the path or the path of a dict that contains it is in ``others``."""
    return any(path[: len(other)] == other[: len(path)] for other in others)


def _found(
    cfg: Config, path: str | Path | Config, content: Content, use: Use
) -> dict[_Path, _Setting]:
    """Return the settings for a use in which the stored config differs. They are not checked."""
    try:
        stored = stored_config(content, "")
    except ValueError:  # the checkpoint was converted, or its config is not plain data
        return {}
    weights = _weights(content)
    found: dict[_Path, _Setting] = {}
    same_method = type_name(at(cfg, "model")) == type_name(at(stored, "model")) != ""
    if use != "finetune" and same_method:
        found |= _differences(cfg, stored, ("model",), weights)
        for part in _OF_TRAINING if use == "resume" else ():
            found |= _differences(cfg, stored, (part,))
    elif use != "resume":
        # Another task has its own heads and views, so only the backbone is the same.
        of_backbone = _differences(cfg, stored, ("model", "backbone"), weights)
        found |= {p: s for p, s in of_backbone.items() if s.argument.limits.in_new_tasks}
    # A benchmark's protocol fixes the views. For the user's own data, adopt the views with which
    # the network was trained.
    own_data = use == "finetune" and at(cfg, "benchmark") is None
    if own_data:
        found |= _differences(cfg, stored, ("train_dataloader",))
    if own_data or (use == "test" and same_method):
        found |= _test_views(cfg, load_config(path), stored)
    return found


def _differences(
    cfg: Config, stored: _Part, below: _Path, weights: Mapping[str, Any] | None = None
) -> dict[_Path, _Setting]:
    """Return declared arguments below a path that differ, with the stored values.

    A dict is compared with a dict that has the same ``type``, and a list with a list whose entries
    have the same types. If the stored config omits an argument, the default of its class is used.

    Args:
        cfg: Config of the file.
        stored: Config in the checkpoint.
        below: Path at which the comparison begins.
        weights: Weights in the checkpoint, if networks are compared. Networks that declare no
            arguments are then built (:func:`_undeclared`). None does not compare such networks.
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
    own: _Part, other: _Part, weights: Mapping[str, Any] | None
) -> dict[str, StoredArgument]:
    """Return the arguments of a config part that a checkpoint may set, by name."""
    kind = next(iter(registered(at(own, "type"))), None)
    declared = stored_arguments(kind)
    ours = str(getattr(kind, "__module__", "")).startswith("sce_video.")
    if declared or ours or weights is None or not inspect.isclass(kind):
        return declared
    return _undeclared(kind, own, other, weights)


def _undeclared(
    kind: type, own: _Part, other: _Part, weights: Mapping[str, Any]
) -> dict[str, StoredArgument]:
    """Return the arguments that determine the weights of a class without declarations.

    These are the numbers and booleans that differ between the two configs and change the shapes of
    the network's weights. In mmaction2, these are ``depth`` and ``base_channels``, but not
    ``frozen_stages``.

    Args:
        kind: Class from another package or from the user.
        own: Config of the network in the config file.
        other: Config of the network in the checkpoint.
        weights: Weights in the checkpoint, which limit the size of the network.
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
    # The user's config file is trusted, so its network may have any size.
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


def _shapes(part: _Part, limit: Mapping[str, Any] | None) -> dict[str, torch.Size] | None:
    """Return the shapes of a network's weights by name; None if it cannot be built.

    The weights in ``limit`` limit the size of the network.
    """
    bounds = nullcontext() if limit is None else bounded_network(limit)
    # Set the default scope, because mmaction2's recogniser looks up registered names in it.
    scope = DefaultScope.overwrite_default_scope("sce_video")
    try:
        with scope, bounds, torch.random.fork_rng(devices=[]):
            network = MODELS.build(dict(part))
    except Exception:  # a network may raise any error for a wrong argument
        return None
    return {name: weight.shape for name, weight in network.state_dict().items()}


def _test_views(cfg: Config, file: Config, stored: _Part) -> dict[_Path, _Setting]:
    """Return clip and crop settings for all test pipelines if the file's do not match training."""
    planned, trained = (_sampling(config) for config in (file, stored))
    clip = {key: value for key, value in trained.items() if value != planned.get(key, value)}
    sizes: dict[str, int] = {}
    crop = training_crop(stored)
    tested = [at(step, TEST_CROPS.get(type_name(step), "")) for _, step in _steps(file, _OF_TEST)]
    suits = all(type(size) is not int or crop_fits(size, crop or size) for size in tested)
    if crop is not None and not (suits and crop == training_crop(file._cfg_dict)):
        with suppress(ValueError):  # other kinds of pipelines keep the sizes in the file
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


def _steps(config: Any, parts: Sequence[str]) -> Iterator[tuple[_Path, _Part]]:
    """Yield the steps of all pipelines in the given parts of a config, with their paths."""
    for part in parts:
        for path, node in walk_dicts(at(config, part), (part,)):
            if path[-2:-1] == ("pipeline",):
                yield path, node


def _sampling(config: Any) -> _Part:
    """Return the settings of the first training step that samples clips; empty without one."""
    for _, step in _steps(config, _OF_TRAINING[:1]):
        arguments = _arguments(step, {}, None)
        if "num_frames" in arguments and "num_frames" in step:
            return {key: step[key] for key in arguments if key in step}
    return {}
