"""Values of a config against the annotations of the class that takes them, before it is built."""

from __future__ import annotations

import difflib
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from sce_video.engine.config_keys import NEAR, registered, registered_names

#: Dicts that a registry builds, by the last name of their path (without numbers).
_BUILT = {
    "model": "MODELS",
    "backbone": "MODELS",
    "data_preprocessor": "MODELS",
    "cls_head": "MODELS",
    "roi_head": "MODELS",
    "dataset": "DATASETS",
    "pipeline": "TRANSFORMS",
    "sampler": "DATA_SAMPLERS",
    "collate_fn": "FUNCTIONS",
    "optim_wrapper": "OPTIM_WRAPPERS",
    "optimizer": "OPTIMIZERS",
    "custom_hooks": "HOOKS",
    "train_cfg": "LOOPS",
    "val_cfg": "LOOPS",
    "test_cfg": "LOOPS",
    "val_evaluator": "METRICS",
    "test_evaluator": "METRICS",
    "log_processor": "LOG_PROCESSORS",
    "visualizer": "VISUALIZERS",
    "vis_backends": "VISBACKENDS",
    "param_scheduler": "PARAM_SCHEDULERS",
}
#: Annotations of these packages do not always say what their classes take.
_UNCHECKED = ("mmengine", "mmcv", "mmaction")
_NAMES = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}


def unknown_type(node: dict, path: tuple[str, ...]) -> str | None:
    """A message if the ``type`` of the dict at ``path`` is not in the registry that builds it."""
    kind = node.get("type")
    names = [part for part in path if not part.isdecimal()]
    registry = _BUILT.get(names[-1])
    if names[:-1] == ["default_hooks"]:
        registry = "HOOKS"
    of_a_method = registry is None and len(path) == 2 and path[0] == "model"
    registry = "MODELS" if of_a_method else registry
    if registry is None or not isinstance(kind, str) or registered(kind):
        return None
    near = difflib.get_close_matches(
        kind.split(".")[-1], sorted(registered_names(registry)), 3, NEAR
    )
    if of_a_method and not near:  # a method may give a type a meaning of its own
        return None
    hint = f"did you mean {' or '.join(near)}?" if near else "is its file in custom_imports?"
    return f"nothing is registered as {kind!r}; {hint}"


def wrong_values(node: dict) -> Iterator[tuple[str, str]]:
    """Yield (key, message) for the values that the class of a dict is not annotated to take."""
    if "type" not in node:
        return
    found = registered(node["type"])
    if not found or found[0].__module__.split(".")[0] in _UNCHECKED:  # the first is ours, if any
        return
    hints = _hints(found[0])
    for key, value in node.items():
        if key in hints and not _fits(value, hints[key]):
            yield key, f"give {_describe(hints[key])}, got {value!r}"


def _hints(part: Any) -> dict[str, Any]:
    """Annotated types of the arguments of a class or function; {} where they cannot be read."""
    function = part.__init__ if inspect.isclass(part) else part
    try:
        return {k: hint for k, hint in get_type_hints(function).items() if k != "return"}
    except (TypeError, NameError, AttributeError):  # written in C, or names for type checks only
        return {}


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has an annotated type; True where the annotation leaves it open."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, option) for option in arguments)
    if origin is Literal:
        return value in arguments
    if hint in (None, type(None)):
        return value is None
    if hint is bool:
        return isinstance(value, bool)
    if hint in (int, float):
        kinds = int if hint is int else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool)
    if hint is str:
        return isinstance(value, str | Path)
    if origin in (tuple, list, Sequence):
        return _fits_sequence(value, arguments, origin is tuple)
    if (origin or hint) in (dict, Mapping):
        return isinstance(value, Mapping)
    return True


def _fits_sequence(value: Any, arguments: tuple, fixed: bool) -> bool:
    """Whether a list or tuple has the annotated entries; options give lists for tuples."""
    if not isinstance(value, list | tuple):
        return False
    if fixed and arguments and Ellipsis not in arguments:
        pairs = zip(value, arguments, strict=False)
        return len(value) == len(arguments) and all(_fits(v, hint) for v, hint in pairs)
    return not arguments or all(_fits(v, arguments[0]) for v in value)


def _describe(hint: Any) -> str:
    """An annotated type in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_describe(option) for option in arguments))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if hint in (None, type(None)):
        return "None"
    if origin is tuple and Ellipsis not in arguments:
        return f"{len(arguments)} values ({', '.join(map(_describe, arguments))})"
    if origin in (tuple, list, Sequence):
        return f"a list of values ({_describe(arguments[0])})" if arguments else "a list"
    if (origin or hint) in (dict, Mapping):
        return "a dict"
    return _NAMES.get(hint, getattr(hint, "__name__", str(hint)))
