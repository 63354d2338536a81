"""Configs as flat lists of settings, and where two of them differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

#: Of a run, not of its settings: names, folders and what tools have written into the config.
_NOT_SETTINGS = frozenset(
    "work_dir launcher experiment_name resume load_from plan settings adopted run_page".split()
)
_ABSENT = "not set"


def flattened(config: dict[str, Any]) -> dict[str, str]:
    """The settings of a config by dotted name; steps and hooks of a list by their type.

    ``train_dataloader.dataset.pipeline.RandomClips.num_frames`` is such a name.
    """
    return {
        ".".join(path): repr(value) if isinstance(value, str) and not value else str(value)
        for path, value in _leaves(config, ())
        if path and path[0] not in _NOT_SETTINGS and not path[0].startswith("_")
    }


def _leaves(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _leaves(value, (*path, str(key)))
    elif isinstance(node, list | tuple) and any(isinstance(item, dict) for item in node):
        for name, item in zip(_names(node), node, strict=True):
            yield from _leaves(item, (*path, name))
    else:
        yield path, list(node) if isinstance(node, tuple) else node


def _names(items: Sequence[Any]) -> list[str]:
    """The type of each item, or its position where that is not unique."""
    types = [str(item.get("type", "")) if isinstance(item, dict) else "" for item in items]
    unique = [kind and types.count(kind) == 1 for kind in types]
    return [
        kind if one else str(i) for i, (kind, one) in enumerate(zip(types, unique, strict=True))
    ]


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(name, value before, value after) of the settings that differ, by name."""
    return [(name, a, b) for name, (a, b) in different_settings([before, after]).items()]


def different_settings(configs: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """The values in each config of every setting in which they differ, by name."""
    flat = [flattened(config) for config in configs]
    names = sorted(set().union(*flat))
    rows = {name: [settings.get(name, _ABSENT) for settings in flat] for name in names}
    return {name: values for name, values in rows.items() if len(set(values)) > 1}
