"""Settings that a recipe declares by name (``settings``), and the places where they stand."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from mmengine.config import Config

from sce_video.engine.config.changes import node_at, numbered_path


def available_settings(cfg: Config, defaults: bool = True) -> dict[str, tuple[str, ...]]:
    """The places of every setting that the recipe declares and has, by name.

    With ``defaults`` it also has what its classes take by default; their import takes seconds.
    """

    def has(place: str) -> bool:
        *parents, last = numbered_path(cfg, place.split("."))
        node = node_at(cfg, parents)
        if not isinstance(node, dict) or last in node or not defaults:
            return isinstance(node, dict) and last in node
        from sce_video.engine.config.check import known_keys  # here, since it imports torch

        known = known_keys(node, tuple(parents))
        return known is not None and last in known.keys

    declared = (cfg.get("settings") or {}).items()
    found = {name: tuple(place for place in places if has(place)) for name, places in declared}
    return {name: places for name, places in found.items() if places}


def options_of_settings(cfg: Config, values: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of a config that set these settings everywhere, for ``load_config``.

    Raises:
        ValueError: a setting that the recipe does not have.
    """
    known = available_settings(cfg)
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f", meant {near[0]}?" if near else ""
            raise ValueError(f"no setting {name!r} here{meant}; there are: {', '.join(known)}")
    return {place: value for name, value in values.items() for place in known[name]}
