"""Settings by one name that stand at several places of a config.

A recipe declares them::

    settings = dict(frames=["train_dataloader.dataset.pipeline.RandomClips.num_frames",
                            "test_dataloader.dataset.pipeline.UniformClips.num_frames"])

so that ``frames=16`` changes training and evaluation alike. A recipe that inherits the declaration
and lacks a place, as a method without queue does, leaves that place out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from mmengine.config import Config

from sce_video.engine.config_keys import known_keys
from sce_video.engine.config_steps import child, numbered_path


def available_settings(cfg: Config) -> dict[str, tuple[str, ...]]:
    """The places of every setting that the recipe declares and has, by name."""
    found = {
        name: tuple(place for place in places if _has(cfg, place))
        for name, places in (cfg.get("settings") or {}).items()
    }
    return {name: places for name, places in found.items() if places}


def _has(cfg: Config, place: str) -> bool:
    """Whether a place is in the config, or is an argument of the class that is named there."""
    node: Any = cfg
    *parents, last = numbered_path(cfg, place.split("."))
    for part in parents:
        node = child(node, part)
    if not isinstance(node, dict):
        return False
    known = known_keys(node, tuple(parents))
    return last in node or (known is not None and last in known.keys)


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
