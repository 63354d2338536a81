"""Settings that a recipe declares by name (``settings``), and the places where they stand."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from mmengine.config import Config

from sce_video.engine.config.changes import node_at, numbered_path


def available_settings(cfg: Config, defaults: bool = True) -> dict[str, tuple[str, ...]]:
    """The places of every setting that the recipe declares and has, by name.

    Args:
        cfg: The recipe.
        defaults: Whether it has what its classes take by default, too, which imports them.
    """
    found = {
        name: tuple(place for place in places if _has(cfg, place, defaults))
        for name, places in (cfg.get("settings") or {}).items()
    }
    return {name: places for name, places in found.items() if places}


def _has(cfg: Config, place: str, defaults: bool) -> bool:
    """Whether a place is in the config, or is an argument of the class that is named there."""
    *parents, last = numbered_path(cfg, place.split("."))
    node = node_at(cfg, parents)
    if not isinstance(node, dict) or last in node or not defaults:
        return isinstance(node, dict) and last in node
    from sce_video.engine.config.check import known_keys  # here, since it imports torch

    known = known_keys(node, tuple(parents))
    return known is not None and last in known.keys


def options_of_settings(
    cfg: Config, values: Mapping[str, Any], other_options: Iterable[str] = ()
) -> dict[str, Any]:
    """The changes of a config that set these settings everywhere, for ``load_config``.

    Args:
        cfg: The recipe.
        values: Settings by name.
        other_options: Dotted keys that are changed as well.

    Raises:
        ValueError: a setting that the recipe does not have, or a key that a setting sets too.
    """
    known = available_settings(cfg)
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f", meant {near[0]}?" if near else ""
            raise ValueError(f"no setting {name!r} here{meant}; there are: {', '.join(known)}")
    options = {place: value for name, value in values.items() for place in known[name]}
    set_by = {numbered_path(cfg, place.split(".")): place for place in options}
    for key in other_options:
        place = set_by.get(numbered_path(cfg, key.split(".")))
        if place is not None:
            (name,) = (name for name in values if place in known[name])
            raise ValueError(f"{name} and the option {key} set the same: give one of them")
    return options
