"""Reading a config and changing it from the command line; mistyped keys are refused.

mmengine adds an unknown ``--cfg-options`` key to the config without a warning. Here a key has to
exist in the config, or be an argument of the class that the dict around it names by ``type``, or be
a setting that the runner reads. :func:`~sce_video.engine.config.check.check_config` checks the
config file itself by this rule.
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
    StepError,
    named_path,
    node_at,
    numbered_path,
    parse_options,
    read_config,
    step_index,
)
from sce_video.engine.config.check import (
    DEFAULT_HOOKS,
    KnownKeys,
    check_config,
    explain_unknown,
    known_keys,
    registered,
    top_level_keys,
    walk_dicts,
)
from sce_video.engine.config.snapshot import resolved_config
from sce_video.engine.recipes import find_recipe, recipe_names, recipes_folder
from sce_video.engine.untrusted_network import checked_backbone
from sce_video.engine.weights import CONFIG as MODEL_CONFIG
from sce_video.engine.weights import FORMAT, read_exported_config, test_settings
from sce_video.utils.json_files import read_json

__all__ = ["check_config", "load_config", "parse_options", "set_backend"]


def load_config(
    path: str | Path | Config, cfg_options: Sequence[str] | Mapping[str, Any] | None = None
) -> Config:
    """Read a config file and change it as the command line asks.

    Args:
        path: A Python, JSON or YAML config, the ``config.json`` of a pretrained network
            (:mod:`sce_video.engine.weights`), or the name of a recipe
            (:func:`~sce_video.engine.recipes.find_recipe`); or a config, to change a copy of it.
        cfg_options: ``["train_cfg.max_epochs=100", ...]`` as typed (:func:`parse_options`), or
            the values themselves by key. An
            entry of a list is given by the name of its type, ``pipeline.RandomClips.num_frames``,
            or by its number, ``pipeline.1.num_frames``; child configs may use names too, see
            :func:`~sce_video.engine.config.changes.read_config`.

    Returns:
        The changed config. ``key=None`` sets a setting to None, whatever it was.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a file that cannot be read, an option without "=", an unknown key (the message
            suggests the near ones), a name or number that a list does not have, a name that several
            of its entries have, a plain value where the config has a dict.
    """
    cfg = copy.deepcopy(path) if isinstance(path, Config) else _read(find_recipe(path))
    options = [
        # Names refer to the types in the file, whatever type an option sets before.
        (numbered_path(cfg, key.split(".")), key, value)
        for key, value in _flat(cfg, parse_options(cfg_options or {}))
    ]
    # Types first: a type decides which keys its dict takes.
    options.sort(key=lambda option: option[0][-1] != "type")
    editor = _Editor(cfg)
    for parts, key, value in options:
        editor.set(parts, key, value)
    return cfg


def _read(path: str | Path) -> Config:
    """The config of a file; whatever fails in it is a ValueError with file and line."""
    if Path(path).name == MODEL_CONFIG:
        stored = read_json(path)
        if isinstance(stored, dict) and stored.get("format") == FORMAT:
            runtime = read_config(recipes_folder() / "_base_/default_runtime.py").to_dict()
            settings = test_settings(read_exported_config(path))
            settings["model"]["backbone"] = checked_backbone(settings["model"]["backbone"])
            return Config({**runtime, **settings}, filename=str(path))
    try:
        return read_config(path)
    except (StepError, FileNotFoundError):
        raise
    except Exception as error:  # the file is code: it may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f"{f.filename}, line {f.lineno}" for f in frames if f.name == "<module>"]
        where = lines[-1] if lines else str(path)
        raise ValueError(f"cannot read the config {where}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    reason = str(error)
    if not reason and traceback.extract_tb(error.__traceback__)[-1].filename.endswith("lazy.py"):
        # mmengine reads a config that imports from other packages as names of classes.
        reason = (
            "what this config imports names a type and cannot be called; with _base_ = [] in the "
            "file it is imported as in any program"
        )
    return f"{type(error).__name__}: {reason}".splitlines()[0]


def set_backend(cfg: Config, backend: str) -> None:
    """Set the decoding backend of every ``OpenVideo`` of a config.

    Raises:
        ValueError: the backend is unknown or not installed, or the config opens no video files.
    """
    try:
        check_backend(backend)
    except ImportError as error:
        raise ValueError(str(error)) from error
    kinds = (OpenVideo, OpenVideo.__name__, f"sce_video.{OpenVideo.__name__}")
    openers = [node for _, node in walk_dicts(cfg._cfg_dict, ()) if node.get("type") in kinds]
    if not openers:
        raise ValueError(f"the config opens no video files: the backend {backend!r} has no effect")
    for node in openers:
        node["backend"] = backend


def _flat(node: Any, options: Mapping, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Nested dicts of options as dotted keys, where the config has a dict to merge them into."""
    for key, value in options.items():
        target = node_at(node, numbered_path(node, str(key).split(".")))
        replaces = not isinstance(value, dict) or value.get("_delete_")
        if replaces or not isinstance(target, dict | list | tuple):
            if isinstance(value, dict):
                value = {k: v for k, v in value.items() if k != "_delete_"}
            yield ".".join((*path, str(key))), value
        else:
            yield from _flat(target, value, (*path, str(key)))


class _Editor:
    """Sets keys of a config one after the other, after checking each."""

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self.begun: set[tuple[str, ...]] = set()  # dicts that only the options have

    def set(self, parts: Sequence[str], full_key: str, value: Any) -> None:
        """Set one key; dicts on the way that are None or a switch so far are created.

        Args:
            parts: Path of the key; entries of lists by number or name.
            full_key: The key as the user wrote it, for messages.
            value: What to set.

        Raises:
            ValueError: see :func:`load_config`.
        """
        parts = numbered_path(self.cfg._cfg_dict, parts)
        node: Any = self.cfg._cfg_dict
        steps: list[tuple[Any, Any]] = []  # containers on the way, and the key taken in each
        for depth, part in enumerate(parts):
            path = tuple(parts[:depth])
            if isinstance(node, list | tuple):
                steps.append((node, self._index(node, part, path, full_key)))
            else:
                self._check_key(node, path, parts[depth:], full_key)
                steps.append((node, part))
            if depth < len(parts) - 1:
                node = self._descend(*steps[-1], (*path, part), full_key)
        container, last = steps[-1]
        if not isinstance(container, dict) or last in container:
            _check_kind(container[last], value, full_key)
        value = ConfigDict(value) if isinstance(value, dict) else value
        for container, step in reversed(steps):
            if isinstance(container, tuple):
                value = (*container[:step], value, *container[step + 1 :])
            else:
                container[step] = value
                value = container

    def _index(self, node: Sequence, part: str, path: tuple[str, ...], full_key: str) -> int:
        """The index of an entry of the list at ``path``."""
        try:
            return step_index(node, part, named_path(self.cfg, path))
        except ValueError as error:
            raise ValueError(f"{full_key}: {error}") from None

    def _descend(self, node: Any, key: Any, path: tuple[str, ...], full_key: str) -> Any:
        """What is below a key; a new dict where there is nothing yet."""
        below = node.get(key) if isinstance(node, dict) else node[key]
        if below is None or isinstance(below, bool):
            self.begun.add(path)
            return ConfigDict()
        if isinstance(below, dict | list | tuple):
            return below
        raise ValueError(f"{full_key}: {named_path(self.cfg, path)} is {below!r}, it has no keys")

    def _check_key(
        self, node: dict, path: tuple[str, ...], parts: Sequence[str], full_key: str
    ) -> None:
        """Raise if the dict at ``path`` may not have the first of ``parts``."""
        part, *rest = parts
        if part in node:
            return
        if not path:
            known: KnownKeys | None = KnownKeys(top_level_keys(), False, "the config")
        elif path == ("default_hooks",):
            known = KnownKeys(set(DEFAULT_HOOKS), False, "default_hooks")
        else:
            known = known_keys(node, path)
        if known is None and path in self.begun:
            # A number or the name of a class: what the user takes for a list does not exist.
            if part.isdecimal() or (part[:1].isupper() and registered(part)):
                raise ValueError(f"{full_key}: options cannot begin the list {'.'.join(path)}")
            return
        known = known or KnownKeys(set(), False, named_path(self.cfg, path))
        near = difflib.get_close_matches(part, known.keys, 1, 0.8)
        if part in known.keys or (known.any_key and not near):
            return
        raise ValueError(
            f"unknown key {full_key!r} in the config options: "
            f"{explain_unknown(known, part, path, self.cfg, rest)}"
        )


def _check_kind(old: Any, new: Any, full_key: str) -> None:
    """Refuse a plain value for a dict or a list of dicts, and text for a number or a switch."""
    if old is None or new is None:
        return
    holds_dicts = isinstance(old, list | tuple) and any(isinstance(v, dict) for v in old)
    if isinstance(old, dict) and not isinstance(new, dict):
        raise ValueError(
            f"{full_key} is a dict with the keys {', '.join(map(str, old))}: set one of them, "
            f"or None; got {new!r}"
        )
    if holds_dicts and not (
        isinstance(new, list | tuple) and all(isinstance(v, dict) for v in new)
    ):
        raise ValueError(
            f"{full_key} is a list of {len(old)} dicts: set a key of one, for example "
            f"{full_key}.{named_path(old, ('0',))}.type, or None; got {new!r}"
        )
    if isinstance(old, bool | int | float) and isinstance(new, str):
        wanted = "true or false" if isinstance(old, bool) else "a number"
        raise ValueError(f"{full_key} is {old!r} in the config: give {wanted}, got {new!r}")


class FormattedOnce(Config):
    """mmengine's config; :attr:`pretty_text` is kept until the content changes."""

    @classmethod
    def of(cls, cfg: Config) -> FormattedOnce:
        """A config that shares all values with another one."""
        found = cls.__new__(cls)
        found.__dict__.update(cfg.__dict__)
        return found

    @property
    def pretty_text(self) -> str:
        """Python source of the config."""
        content = repr(self._cfg_dict)
        known: tuple[str, str] | None = self.__dict__.get("_formatted")
        if known is None or known[0] != content:
            known = content, super().pretty_text
            self.__dict__["_formatted"] = known  # Config sets attributes in its values
        return known[1]


def recipe_config(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved config of a shipped recipe, with the batch of all processes in its name.

    Args:
        name: ``sce_r3d18_8xb64-8x224-200e_k400``: 8 processes.
        options: What a row of an ablation changes, by key.
    """
    cfg = load_config(recipe_names()[name], options)  # no other file of that name
    processes = re.search(r"_(\d+)xb\d+-", name)
    loader = cfg.get("train_dataloader") or {}
    batch = int(processes[1]) * loader.get("batch_size", 1) if processes else None
    return resolved_config(cfg, batch)
