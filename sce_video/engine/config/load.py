"""Loading of a config with its changes from the command line, which refuses mistyped keys.

mmengine adds an unknown ``--cfg-options`` key to the config without a warning. Here, a key must
exist in the config, be an argument of the class in the surrounding dict's ``type``, or be a setting
that the runner reads.

:func:`load_config` reads the file (:mod:`~sce_video.engine.config.inheritance`), divides the
changes into single keys (:func:`_flat`), and sets them one after the other (:func:`_set`).
"""

from __future__ import annotations

import copy
import difflib
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict

from sce_video.datasets.readers import check_backend
from sce_video.datasets.transforms import OpenVideo
from sce_video.engine.config.changes import (
    available_settings,
    child,
    named_path,
    node_at,
    numbered_path,
    parse_options,
    step_index,
    walk_dicts,
)
from sce_video.engine.config.check import (
    DEFAULT_HOOKS,
    KnownKeys,
    check_config,
    explain_unknown,
    known_keys,
    registered,
    top_level_keys,
)
from sce_video.engine.config.inheritance import Sources, StepError, read_config, set_source
from sce_video.engine.config.snapshot import ConfigData, resolved_config
from sce_video.engine.recipes import find_recipe, recipe_names, recipes_folder
from sce_video.engine.weights import checked_backbone, read_exported_config, test_settings
from sce_video.utils.files import read_json
from sce_video.utils.records import at
from sce_video.utils.run_files import FORMAT, MODEL_CONFIG

__all__ = ["check_config", "load_config", "parse_options", "set_backend"]


def load_config(
    path: str | Path | Config, cfg_options: Sequence[str] | Mapping[str, Any] | None = None
) -> Config:
    """Read a config file and apply the changes from the command line.

    Args:
        path: A Python, JSON or YAML config, the ``config.json`` of an exported network
            (:mod:`sce_video.engine.weights`), or the name of a recipe
            (:func:`~sce_video.engine.recipes.find_recipe`). A config object is copied first.
        cfg_options: ``["train_cfg.max_epochs=100", ...]`` as typed, or a dict of values by key. An
            entry of a list is selected by the name of its type,
            ``pipeline.RandomClips.num_frames``, or by its number, ``pipeline.1.num_frames``. None
            is a value like any other and can replace a dict.

    Returns:
        The changed config.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file cannot be read, an option has no "=", a key is unknown (the message
            suggests similar keys), a list entry is unknown or ambiguous, or a plain value would
            replace a dict.
    """
    cfg = copy.deepcopy(path) if isinstance(path, Config) else _read(find_recipe(path))
    options = [
        # Find the places of all options first, because one option may change a type that another
        # option's key contains.
        (numbered_path(cfg, key.split(".")), key, value)
        for key, value in _flat(cfg, parse_options(cfg_options or {}))
    ]
    # Set types first, because a dict's type decides which keys it accepts.
    options.sort(key=lambda option: option[0][-1] != "type")
    begun: set[tuple[str, ...]] = set()
    for parts, key, value in options:
        _set(cfg, begun, parts, key, value)
    return cfg


def value_sources(
    path: str | Path | Config,
    cfg_options: Sequence[str] | Mapping[str, Any],
    option_of: Mapping[str, str],
) -> Sources:
    """Find out which file or option sets each value of a config that :func:`load_config` loads.

    Args:
        path: A config file, recipe name or config, as for :func:`load_config`. The values of a
            config object have no recorded source.
        cfg_options: Changes, as for :func:`load_config`.
        option_of: Name of the command-line option that sets a key of ``cfg_options``, by key. Keys
            that are not listed were set with ``--cfg-options``.

    Raises:
        FileNotFoundError, ValueError: If :func:`load_config` cannot read the file or the options.
    """
    sources: Sources = {}
    cfg = path if isinstance(path, Config) else _read(find_recipe(path), sources)
    for key, _ in _flat(cfg, parse_options(cfg_options)):
        parts = numbered_path(cfg, key.split("."))
        set_source(sources, parts, option_of.get(key, "--cfg-options"))
    return sources


def _read(path: str | Path, sources: Sources | None = None) -> Config:
    """Read a config file, and raise every error in it as a ValueError with file and line."""
    if Path(path).name == MODEL_CONFIG and at(read_json(path), "format") == FORMAT:
        runtime = read_config(recipes_folder() / "_base_/default_runtime.py").to_dict()
        settings = test_settings(read_exported_config(path))
        settings["model"]["backbone"] = checked_backbone(settings["model"]["backbone"])
        return Config({**runtime, **settings}, filename=str(path))
    try:
        return read_config(path, sources)
    except (StepError, FileNotFoundError):
        raise
    except Exception as error:  # a config file is code, so it may raise any error
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f"{f.filename}, line {f.lineno}" for f in frames if f.name == "<module>"]
        where, reason = lines[-1] if lines else str(path), str(error)
        if not reason and frames[-1].filename.endswith("lazy.py"):
            # mmengine does not execute the imports of this config, but treats the imported names as
            # class names.
            reason = (
                "this config calls something that it imports, but mmengine treats the imports of a "
                "config as class names. Add _base_ = [] to the file to import as usual"
            )
        reason = f"{type(error).__name__}: {reason}".splitlines()[0]
        raise ValueError(f"cannot read the config {where}: {reason}") from error


def set_backend(cfg: Config, backend: str) -> None:
    """Set the decoding backend of each ``OpenVideo`` in a config.

    Raises:
        ValueError: If the backend is unknown or missing, or the config opens no video files.
    """
    try:
        check_backend(backend)
    except ImportError as error:
        raise ValueError(str(error)) from error
    kinds = (OpenVideo, OpenVideo.__name__, f"sce_video.{OpenVideo.__name__}")
    openers = [node for _, node in walk_dicts(cfg._cfg_dict, ()) if child(node, "type") in kinds]
    if not openers:
        raise ValueError(
            f"the config opens no video files, so the backend {backend!r} has no effect"
        )
    for node in openers:
        node["backend"] = backend


def _flat(node: Any, options: Mapping, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Divide nested options into dotted keys, wherever the config has a dict to merge them into."""
    for key, value in options.items():
        target = node_at(node, numbered_path(node, str(key).split(".")))
        replaces = not isinstance(value, dict) or child(value, "_delete_")
        if replaces or not isinstance(target, dict | list | tuple):
            if isinstance(value, dict):
                value = {k: v for k, v in value.items() if k != "_delete_"}
            yield ".".join((*path, str(key))), value
        else:
            yield from _flat(target, value, (*path, str(key)))


def _set(
    cfg: Config, begun: set[tuple[str, ...]], parts: Sequence[str], full_key: str, value: Any
) -> None:
    """Check and set one key.

    Args:
        cfg: The config to change.
        begun: Paths of dicts that options have created in place of None or a boolean. Paths are
            added to it.
        parts: Path of keys and numbers.
        full_key: The key as the user has spelled it, for messages.
        value: The new value.
    """
    parts = numbered_path(cfg._cfg_dict, parts)
    node: Any = cfg._cfg_dict
    steps: list[tuple[Any, Any]] = []  # containers on the path, and the key used in each
    for depth, part in enumerate(parts):
        path = tuple(parts[:depth])
        key: Any = part
        if isinstance(node, list | tuple):
            try:
                key = step_index(node, part, named_path(cfg, path))
            except ValueError as error:
                raise ValueError(f"{full_key}: {error}") from None
        elif part not in node:
            _check_key(cfg, node, path, parts[depth:], full_key, path in begun)
        steps.append((node, key))
        if depth == len(parts) - 1:
            break
        below = child(node, str(key))
        if below is None or isinstance(below, bool):
            begun.add((*path, part))
            below = ConfigDict()
        elif not isinstance(below, dict | list | tuple):
            name = named_path(cfg, (*path, part))
            raise ValueError(f"{full_key}: {name} is {below!r}, which has no keys")
        node = below
    container, last = steps[-1]
    if not isinstance(container, dict) or last in container:
        _check_kind(container[last], value, full_key)
    value = ConfigDict(value) if isinstance(value, dict) else value
    # Tuples are immutable, so put a new tuple into the container above.
    for container, key in reversed(steps):
        if isinstance(container, tuple):
            value = (*container[:key], value, *container[key + 1 :])
        else:
            container[key] = value
            value = container


def _check_key(
    cfg: Config, node: dict, path: tuple[str, ...], parts: Sequence[str], full_key: str, begun: bool
) -> None:
    """Raise ValueError if the dict ``node`` at ``path`` does not accept the first key of ``parts``.

    An option that begins a new dict (``begun``) may add any key, unless the key shows that the user
    expects a list there.
    """
    part, *rest = parts
    known = known_keys(node, path)
    if not path:
        known = KnownKeys(top_level_keys(), False, "the config")
    elif path == ("default_hooks",):
        known = KnownKeys(set(DEFAULT_HOOKS), False, "default_hooks")
    if known is None and begun:
        if part.isdecimal() or (part[:1].isupper() and registered(part)):
            raise ValueError(
                f"{full_key}: the config has no list {'.'.join(path)}, and options cannot create "
                "lists"
            )
        return
    known = known or KnownKeys(set(), False, named_path(cfg, path))
    near = difflib.get_close_matches(part, known.keys, 1, 0.8)
    if part not in known.keys and (near or not known.any_key):
        raise ValueError(
            f"unknown key {full_key!r} in the config options: "
            f"{explain_unknown(known, part, path, cfg, rest)}"
        )


def _check_kind(old: Any, new: Any, full_key: str) -> None:
    """Refuse a plain value for a dict or a list of dicts, and text for a number or a boolean.

    None is always accepted.
    """
    if new is None:
        return
    gives_dicts = isinstance(new, list | tuple) and all(isinstance(v, dict) for v in new)
    holds_dicts = isinstance(old, list | tuple) and any(isinstance(v, dict) for v in old)
    message = ""
    if isinstance(old, dict) and not isinstance(new, dict):
        keys = ", ".join(map(str, old))
        message = f"is a dict with the keys {keys}. Set one of these keys, or set the dict to "
        message += f"None, got {new!r}"
    elif holds_dicts and not gives_dicts:
        first = f"{full_key}.{named_path(old, ('0',))}.type"
        message = f"is a list of {len(old)} dicts. Set a key of one dict, for example {first}, or "
        message += f"set the list to None, got {new!r}"
    elif isinstance(old, bool | int | float) and isinstance(new, str):
        wanted = "true or false" if isinstance(old, bool) else "a number"
        message = f"is {old!r} in the config. Give {wanted}, got {new!r}"
    if message:
        raise ValueError(f"{full_key} {message}")


def options_of_settings(cfg: Config, values: Mapping[str, object]) -> dict[str, object]:
    """Return the changes for :func:`load_config` that set these settings in all their places.

    Args:
        cfg: Config of a recipe, which declares the settings.
        values: New values by setting name.

    Raises:
        ValueError: If the recipe does not have a setting with this name.
    """
    known = available_settings(cfg, known_keys)
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise ValueError(
                f"there is no setting {name!r} here.{meant} The settings are {', '.join(known)}"
            )
    return {place: value for name, value in values.items() for place in known[name]}


def recipe_config(name: str, options: Mapping[str, object]) -> ConfigData:
    """Return the resolved config of a shipped recipe, with the global batch that its name states.

    Args:
        name: Name of the recipe. ``sce_r3d18_8xb64-8x224-200e_k400`` trains on 8 processes.
        options: Settings that a row of an ablation table changes, by key.
    """
    cfg = load_config(recipe_names()[name], options)  # a path, so no other file takes precedence
    processes = re.search(r"_(\d+)xb\d+-", name)
    own_batch = at(cfg, "train_dataloader.batch_size", int) or 1
    return resolved_config(cfg, int(processes[1]) * own_batch if processes else None)
