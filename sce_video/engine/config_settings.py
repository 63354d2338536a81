"""Settings of a command line: ``KEY=VALUE``, and names that stand at several places of a config.

A recipe declares them::

    settings = dict(frames=["train_dataloader.dataset.pipeline.RandomClips.num_frames",
                            "test_dataloader.dataset.pipeline.UniformClips.num_frames"])

so that ``frames=16`` changes training and evaluation alike. A recipe that inherits the declaration
and lacks a place, as a method without queue does, leaves that place out.
"""

from __future__ import annotations

import difflib
from ast import literal_eval
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from mmengine.config import Config, DictAction

from sce_video.engine.config_steps import child, numbered_path


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
    node: Any = cfg
    *parents, last = numbered_path(cfg, place.split("."))
    for part in parents:
        node = child(node, part)
    if not isinstance(node, dict) or last in node or not defaults:
        return isinstance(node, dict) and last in node
    from sce_video.engine.config_keys import known_keys  # imported here: it needs torch

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


def parse_options(options: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """``["a.b=1", "c=[x,y]"]`` to ``{"a.b": 1, "c": ["x", "y"]}``; of equal keys the last counts.

    Values that are given by key stay what they are.

    Raises:
        ValueError: an option without "=" or with brackets that do not match.
    """
    if isinstance(options, Mapping):
        return dict(options)
    parsed = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or not key:
            raise ValueError(
                f"a config option is KEY=VALUE, like train_cfg.max_epochs=100; got {option!r}"
            )
        try:
            parsed[key] = parse_value(text)
        except ValueError as error:
            raise ValueError(f"{error} in the config option {option!r}") from None
    return parsed


def parse_value(text: str) -> Any:
    """The value of a typed text, as of mmengine's ``DictAction``.

    ``1e-3``, ``true`` and ``None`` are a number, a switch and None, ``a,b`` and ``[(1,2),c]`` are
    sequences, and any other text is itself, as is whatever stands in quotes: ``'2023'``.

    Raises:
        ValueError: brackets do not match.
    """
    if text[:1] in ("'", '"'):
        with suppress(ValueError, SyntaxError):
            quoted = literal_eval(text)
            if isinstance(quoted, str):
                return quoted
    try:
        value = DictAction._parse_iterable(text)
    except AssertionError as error:
        raise ValueError("brackets do not match") from error
    # mmengine removes spaces from plain text too: a path with spaces would not be found.
    return text.strip("'\"") if isinstance(value, str) else value
