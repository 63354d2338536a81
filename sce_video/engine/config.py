"""Reading a config and changing it from the command line, mistyped keys refused.

mmengine adds an unknown ``--cfg-options`` key to the config without a word. Here a key has to exist
in the config, or be an argument of the class that the dict around it names by ``type``, or be a
setting that the runner reads. :func:`check_config` asks the same of the config file itself.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config, ConfigDict, DictAction
from mmengine.dist import init_dist
from mmengine.registry import Registry
from mmengine.runner import Runner
from mmengine.runner.utils import set_random_seed
from mmengine.utils.dl_utils import set_multi_processing
from torch.utils.data import DataLoader

import sce_video.registry as own_registry
from sce_video.datasets.readers import check_backend
from sce_video.datasets.transforms import OpenVideo

_PARTS = (
    "RUNNERS LOOPS HOOKS OPTIMIZERS OPTIM_WRAPPERS DATASETS DATA_SAMPLERS TRANSFORMS FUNCTIONS "
    "MODELS METRICS MODEL_WRAPPERS WEIGHT_INITIALIZERS OPTIM_WRAPPER_CONSTRUCTORS "
    "PARAM_SCHEDULERS EVALUATOR TASK_UTILS VISUALIZERS VISBACKENDS LOG_PROCESSORS"
).split()
# Keys that the builders take out of a dict before its class sees the rest.
_BUILDER_KEYS = {"type", "_scope_", "_delete_", "init_cfg"}
_BUILDER_KEYS_OF: dict[tuple[str, ...], set[str]] = {
    ("optim_wrapper",): {"constructor", "paramwise_cfg"},
    ("param_scheduler",): {"convert_to_iter_based"},
    ("custom_hooks",): {"priority"},
    ("default_hooks",): {"priority"},
}
# Read by Runner from the whole config, beside the arguments of its constructor.
_RUNNER_KEYS = {
    "activation_checkpointing",
    "compile",
    "custom_imports",
    "efficient_conv_bn_eval",
    "find_unused_parameters",
    "model_wrapper_cfg",
    "pretrained",
    "runner_type",
    "sync_bn",
}
_DEFAULT_HOOKS = "runtime_info timer sampler_seed logger param_scheduler checkpoint".split()
_NEAR = 0.6


def load_config(
    path: str | Path, cfg_options: Sequence[str] | dict[str, Any] | None = None
) -> Config:
    """Read a config file and change it as the command line asks.

    Args:
        path: A Python, JSON or YAML config.
        cfg_options: ``["model.tau=0.1", ...]`` as typed, values as in mmengine's ``DictAction``
            (``1e-3``, ``true``, ``None``, ``a,b``, ``[(1,2),c]``), or ``{"model.tau": 0.1}``.
            ``pipeline.0.size`` names an entry of a list.

    Returns:
        The changed config. ``key=None`` empties a setting, whatever it was.

    Raises:
        FileNotFoundError: no such file.
        ValueError: an option without "=", an unknown key (the message suggests the near ones), an
            index out of its list, a plain value where the config has a dict.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no config file at {path}")
    cfg = Config.fromfile(str(path))
    if cfg_options is not None and not isinstance(cfg_options, dict):
        cfg_options = parse_options(cfg_options)
    options = list(_flat(cfg, cfg_options or {}))
    # The class first: it decides which keys its dict takes.
    options.sort(key=lambda option: option[0].split(".")[-1] != "type")
    editor = _Editor(cfg)
    for key, value in options:
        editor.set(key, value)
    return cfg


def parse_options(options: Sequence[str]) -> dict[str, Any]:
    """``["a.b=1", "c=[x,y]"]`` to ``{"a.b": 1, "c": ["x", "y"]}``; the last of equal keys holds.

    Raises:
        ValueError: an option without "=" or with brackets that do not match.
    """
    parsed = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or not key:
            raise ValueError(f"a config option is KEY=VALUE, like model.tau=0.1; got {option!r}")
        try:
            value = DictAction._parse_iterable(text)
        except AssertionError as error:
            raise ValueError(f"brackets do not match in the config option {option!r}") from error
        # mmengine drops the blanks of plain text too: a path would no longer be found.
        parsed[key] = text.strip("'\"") if isinstance(value, str) else value
    return parsed


def set_backend(cfg: Config, backend: str) -> None:
    """Let every ``OpenVideo`` of a config decode with this backend.

    Raises:
        ValueError: unknown, or not installed, or the config opens no video files.
    """
    try:
        check_backend(backend)
    except ImportError as error:
        raise ValueError(str(error)) from error
    openers = [node for _, node in _dicts(cfg._cfg_dict, ()) if _opens_videos(node)]
    if not openers:
        raise ValueError(f"the config opens no video files, so there is no use in {backend!r}")
    for node in openers:
        node["backend"] = backend


def _opens_videos(node: dict) -> bool:
    kind = node.get("type")
    return kind is OpenVideo or (isinstance(kind, str) and kind.split(".")[-1] == "OpenVideo")


def check_config(cfg: Config) -> None:
    """Refuse keys that the class or function named by the ``type`` beside them does not take.

    Not judged: dicts without ``type``, save for the runner's own (data loaders, ``randomness``,
    ``env_cfg``, ``compile``); types that no registry knows; classes with ``**kwargs``, which take
    anything; dicts called ``*_cfg`` inside a model (``norm_cfg``), whose readers have keys of their
    own.

    Raises:
        ValueError: lists every such key with its path and the near ones.
    """
    faults = []
    for path, node in _dicts(cfg._cfg_dict, ()):
        known = _known_keys(node, path)
        if known is None or known.any_key:
            continue
        for key in node:
            if key not in known.keys:
                faults.append(f"{_join(path, key)}: {_explain(known, key, path, cfg)}")
    if faults:
        raise ValueError("unknown keys in the config:\n  " + "\n  ".join(faults))


class _Known(NamedTuple):
    """What may stand in a dict."""

    keys: set[str]
    any_key: bool  # the class takes **kwargs: ``keys`` are only those that have a name
    owner: str


def _known_keys(node: dict, path: tuple[str, ...]) -> _Known | None:
    """The keys that a dict of the config may have, None if nothing is known of it."""
    special = _runner_dicts().get(".".join(path))
    if "type" not in node:
        return None if special is None else _Known(special, False, ".".join(path))
    found = _find(node["type"])
    if not found:
        return None
    place = tuple(part for part in path if not part.isdecimal())
    if place[:1] == ("default_hooks",) and len(place) == 2:
        place = place[:1]
    signatures = [_parameters(part) for part in found]
    keys = set().union(*(names for names, _ in signatures)) | _BUILDER_KEYS
    # The function that reads a norm_cfg or its like takes keys that the class does not.
    free_form = len(path) > 1 and path[-1].endswith("_cfg")
    return _Known(
        keys | _BUILDER_KEYS_OF.get(place, set()),
        free_form or any(any_key for _, any_key in signatures),
        node["type"] if isinstance(node["type"], str) else found[0].__name__,
    )


def _runner_dicts() -> dict[str, set[str]]:
    """Dicts without a ``type`` whose keys the runner reads: path to keys."""
    loader = _names(DataLoader) | {"num_batch_per_epoch"}
    return {
        "train_dataloader": loader,
        "val_dataloader": loader,
        "test_dataloader": loader,
        "randomness": _names(set_random_seed),
        "env_cfg": {"cudnn_benchmark", "mp_cfg", "dist_cfg", "resource_limit"},
        "env_cfg.mp_cfg": _names(set_multi_processing) - {"distributed"},
        "env_cfg.dist_cfg": (_names(init_dist) | {"timeout", "port"}) - {"launcher"},
        "compile": _names(torch.compile) - {"model"},
        "auto_scale_lr": {"enable", "base_batch_size"},
    }


def _names(function: Callable) -> set[str]:
    return set(inspect.signature(function).parameters) - {"kwargs"}


def _top_level_keys() -> set[str]:
    return (_names(Runner) | _RUNNER_KEYS) - {"cfg"}


def _find(kind: Any) -> list[Any]:
    """The classes and functions that a ``type`` may mean, of all registries; each once."""
    if not isinstance(kind, str):
        return [kind] if callable(kind) else []
    scope, name = Registry.split_scope_key(kind)
    found: list[Any] = []
    for part in _PARTS:
        for registry in getattr(own_registry, part).chain():
            match = registry.module_dict.get(name)
            if match is not None and scope in (None, registry.scope) and match not in found:
                found.append(match)
    return found


def _parameters(part: Any) -> tuple[set[str], bool]:
    """Names of the arguments, and whether it takes others too (``**kwargs``).

    A class that hands ``**kwargs`` on most often does so to its parent: the parent's arguments are
    among the names then.
    """
    constructors = [part]
    if inspect.isclass(part):
        constructors = [vars(c)["__init__"] for c in part.__mro__ if "__init__" in vars(c)]
    names: set[str] = set()
    for position, constructor in enumerate(constructors):
        if constructor is object.__init__:
            return names, position > 0
        try:
            parameters = list(inspect.signature(constructor).parameters.values())
        except (TypeError, ValueError):  # written in C
            return names, True
        if inspect.isclass(part):
            parameters = parameters[1:]
        names |= {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names, position > 0
    return names, True


def _dicts(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict]]:
    """All dicts within, in order, with their paths."""
    if isinstance(node, dict):
        yield path, node
        for key, value in node.items():
            yield from _dicts(value, (*path, str(key)))
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            yield from _dicts(value, (*path, str(i)))


def _flat(node: Any, options: dict, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Nested dicts of options as dotted keys, where the config has a dict to merge them into."""
    for key, value in options.items():
        target = node
        for part in str(key).split("."):
            target = _child(target, part)
        whole = not isinstance(value, dict) or value.get("_delete_")
        if whole or not isinstance(target, dict | list):
            if isinstance(value, dict):
                value = {k: v for k, v in value.items() if k != "_delete_"}
            yield _join(path, str(key)), value
        else:
            yield from _flat(target, value, (*path, str(key)))


def _child(node: Any, part: str) -> Any:
    """One step down, None where there is nothing."""
    if isinstance(node, dict | Config):
        return node.get(part)
    if isinstance(node, list | tuple) and part.isdecimal() and int(part) < len(node):
        return node[int(part)]
    return None


class _Editor:
    """Sets dotted keys of a config, or raises what is wrong with one."""

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self.begun: set[tuple[str, ...]] = set()  # dicts that only the options have

    def set(self, full_key: str, value: Any) -> None:
        """Set one key; dicts on the way that are None or a switch so far are begun."""
        parts = full_key.split(".")
        node: Any = self.cfg._cfg_dict
        steps: list[tuple[Any, Any]] = []  # containers on the way, and the key taken in each
        for depth, part in enumerate(parts):
            path = tuple(parts[:depth])
            if isinstance(node, list | tuple):
                steps.append((node, _index(node, part, path, full_key)))
            else:
                self._check_key(node, path, full_key)
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

    def _descend(self, node: Any, key: Any, path: tuple[str, ...], full_key: str) -> Any:
        """What lies below a key, a new dict where there is nothing yet."""
        below = node.get(key) if isinstance(node, dict) else node[key]
        if below is None or isinstance(below, bool):
            self.begun.add(path)
            return ConfigDict()
        if isinstance(below, dict | list | tuple):
            return below
        raise ValueError(f"{full_key}: {'.'.join(path)} is {below!r}, it has no keys")

    def _check_key(self, node: dict, path: tuple[str, ...], full_key: str) -> None:
        """Raise if a dict may not have the next key of ``full_key``."""
        part, *rest = full_key.split(".")[len(path) :]
        if part in node:
            return
        if not path:
            known: _Known | None = _Known(_top_level_keys(), False, "the config")
        elif path == ("default_hooks",):
            known = _Known(set(_DEFAULT_HOOKS), False, "default_hooks")
        else:
            known = _known_keys(node, path)
        if known is None and path in self.begun:
            if part.isdecimal():
                raise ValueError(f"{full_key}: options cannot begin the list {'.'.join(path)}")
            return
        known = known or _Known(set(), False, ".".join(path))
        near = difflib.get_close_matches(part, known.keys, 1, 0.8)
        if part in known.keys or (known.any_key and not near):
            return
        raise ValueError(
            f"unknown key {full_key!r} in the config options: "
            f"{_explain(known, part, path, self.cfg, rest)}"
        )


def _index(node: Sequence, part: str, path: tuple[str, ...], full_key: str) -> int:
    """The number of an entry of a list."""
    if part.isdecimal() and int(part) < len(node):
        return int(part)
    kinds = [str(n["type"]) for n in node if isinstance(n, dict) and "type" in n]
    entries = f" ({', '.join(f'{i}: {kind}' for i, kind in enumerate(kinds))})" if kinds else ""
    raise ValueError(
        f"{full_key}: {'.'.join(path)} is a list of {len(node)} entries{entries}; "
        f"{part!r} is not the index of one"
    )


def _explain(
    known: _Known, part: str, path: tuple[str, ...], cfg: Config, rest: Sequence[str] = ()
) -> str:
    """Who does not take the key, and what was meant: near keys, or the same key elsewhere."""
    node = cfg._cfg_dict
    for step in path:
        node = _child(node, step)
    present = {str(key) for key in node} if isinstance(node, dict) else set()
    keys = (known.keys | present) - {part, "_scope_", "_delete_"}
    candidates = []
    for near in difflib.get_close_matches(part, sorted(keys), 3, _NEAR):
        whole = ".".join((*path, near, *rest))
        candidates.append(whole if _exists(cfg, whole) else _join(path, near))
    leaf = rest[-1] if rest else part
    if not candidates:
        candidates = [
            _join(other, leaf)
            for other, there in _dicts(cfg._cfg_dict, ())
            if leaf in there and other != path
        ][:3]
    text = f"{known.owner} has no {part!r}; "
    if candidates:
        return f"{text}did you mean {' or '.join(candidates)}?"
    return f"{text}there are {', '.join(sorted(keys))}"


def _exists(cfg: Config, full_key: str) -> bool:
    node: Any = cfg
    for part in full_key.split("."):
        node = _child(node, part)
    return node is not None


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
            f"{full_key}.0.type, or None; got {new!r}"
        )
    if isinstance(old, bool | int | float) and isinstance(new, str):
        wanted = "true or false" if isinstance(old, bool) else "a number"
        raise ValueError(f"{full_key} is {old!r} in the config: give {wanted}, got {new!r}")


def _join(path: Sequence[str], key: str) -> str:
    return ".".join((*path, str(key)))
