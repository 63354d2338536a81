"""Reading a config and changing it from the command line; mistyped keys are refused.

mmengine adds an unknown ``--cfg-options`` key to the config without a warning. Here a key has to
exist in the config, or be an argument of the class that the dict around it names by ``type``, or be
a setting that the runner reads. :func:`check_config` checks the config file itself by this rule.
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
from sce_video.engine.config_steps import (
    child,
    named_path,
    numbered_path,
    read_config,
    step_index,
)

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
# Read by Runner from the whole config, in addition to the arguments of its constructor.
_RUNNER_KEYS = {
    "activation_checkpointing",
    "adopted",
    "compile",
    "custom_imports",
    "efficient_conv_bn_eval",
    "find_unused_parameters",
    "fit_queue",
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
        cfg_options: ``["train_cfg.max_epochs=100", ...]`` as typed, values as in mmengine's
            ``DictAction`` (``1e-3``, ``true``, ``None``, ``a,b``, ``[(1,2),c]``), or a dict. An
            entry of a list is given by the name of its type, ``pipeline.RandomClips.num_frames``,
            or by its number, ``pipeline.1.num_frames``; child configs may use names too, see
            :func:`~sce_video.engine.config_steps.read_config`.

    Returns:
        The changed config. ``key=None`` sets a setting to None, whatever it was.

    Raises:
        FileNotFoundError: no such file.
        ValueError: an option without "=", an unknown key (the message suggests the near ones), a
            name or number that a list does not have, a name that several of its entries have, a
            plain value where the config has a dict.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no config file at {path}")
    cfg = read_config(path)
    if cfg_options is not None and not isinstance(cfg_options, dict):
        cfg_options = parse_options(cfg_options)
    options = [
        # Names refer to the types in the file, whatever type an option sets before.
        (numbered_path(cfg, key.split(".")), key, value)
        for key, value in _flat(cfg, cfg_options or {})
    ]
    # Types first: a type decides which keys its dict takes.
    options.sort(key=lambda option: option[0][-1] != "type")
    editor = _Editor(cfg)
    for parts, key, value in options:
        editor.set(parts, key, value)
    return cfg


def parse_options(options: Sequence[str]) -> dict[str, Any]:
    """``["a.b=1", "c=[x,y]"]`` to ``{"a.b": 1, "c": ["x", "y"]}``; of equal keys the last counts.

    Raises:
        ValueError: an option without "=" or with brackets that do not match.
    """
    parsed = {}
    for option in options:
        key, equals, text = option.partition("=")
        if not equals or not key:
            raise ValueError(
                f"a config option is KEY=VALUE, like train_cfg.max_epochs=100; got {option!r}"
            )
        try:
            value = DictAction._parse_iterable(text)
        except AssertionError as error:
            raise ValueError(f"brackets do not match in the config option {option!r}") from error
        # mmengine removes spaces from plain text too: a path with spaces would not be found.
        parsed[key] = text.strip("'\"") if isinstance(value, str) else value
    return parsed


def set_backend(cfg: Config, backend: str) -> None:
    """Set the decoding backend of every ``OpenVideo`` of a config.

    Raises:
        ValueError: the backend is unknown or not installed, or the config opens no video files.
    """
    try:
        check_backend(backend)
    except ImportError as error:
        raise ValueError(str(error)) from error
    openers = [node for _, node in _dicts(cfg._cfg_dict, ()) if _opens_videos(node)]
    if not openers:
        raise ValueError(f"the config opens no video files: the backend {backend!r} has no effect")
    for node in openers:
        node["backend"] = backend


def _opens_videos(node: dict) -> bool:
    kind = node.get("type")
    return kind is OpenVideo or (isinstance(kind, str) and kind.split(".")[-1] == "OpenVideo")


def check_config(cfg: Config) -> None:
    """Refuse keys that the class or function named by the ``type`` beside them does not take.

    Not checked: dicts without ``type``, except the runner's (data loaders, ``randomness``,
    ``env_cfg``, ``compile``); types that no registry has; classes with ``**kwargs``, which take
    any key; dicts called ``*_cfg`` inside a model (``norm_cfg``), whose builders take further keys.

    Raises:
        ValueError: lists every unknown key with its path and the near ones.
    """
    faults = []
    for path, node in _dicts(cfg._cfg_dict, ()):
        known = _known_keys(node, path)
        if known is None and node and all(map(_is_step_change, node.keys(), node.values())):
            faults.append(
                f"{'.'.join(path)}: a dict of changes to steps ({', '.join(node)}), but no base "
                "config has a list there"
            )
        if known is None or known.any_key:
            continue
        for key in node:
            if key not in known.keys:
                name = named_path(cfg, (*path, str(key)))
                faults.append(f"{name}: {_explain(known, key, path, cfg)}")
    if faults:
        raise ValueError("unknown keys in the config:\n  " + "\n  ".join(faults))


def _is_step_change(key: Any, value: Any) -> bool:
    """Whether an entry of a dict looks like ``RandomClips=dict(num_frames=16)``."""
    is_change = isinstance(value, dict) and "type" not in value
    return is_change and str(key)[:1].isupper() and bool(_find(key))


class _Known(NamedTuple):
    """The keys that a dict of the config may have."""

    keys: set[str]
    any_key: bool  # the class takes **kwargs: ``keys`` are its named arguments only
    owner: str  # the class or setting that the dict belongs to, for messages


def _known_keys(node: dict, path: tuple[str, ...]) -> _Known | None:
    """The keys that the dict at ``path`` may have; None if they are not known."""
    special = _runner_dicts().get(".".join(path))
    if "type" not in node:
        return None if special is None else _Known(special, False, ".".join(path))
    found = _find(node["type"])
    if not found:
        return None
    setting = tuple(part for part in path if not part.isdecimal())
    if setting[:1] == ("default_hooks",) and len(setting) == 2:
        setting = setting[:1]
    signatures = [_parameters(part) for part in found]
    keys = set().union(*(names for names, _ in signatures)) | _BUILDER_KEYS
    # The builders of norm_cfg, act_cfg etc. take keys that the class does not.
    free_form = len(path) > 1 and path[-1].endswith("_cfg")
    return _Known(
        keys | _BUILDER_KEYS_OF.get(setting, set()),
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
    """The classes and functions that a ``type`` may refer to, of all registries; each once."""
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
    """Names of the arguments of a class or function, and whether it takes others (``**kwargs``).

    A class with ``**kwargs`` usually passes them to its parent: the parent's arguments are then
    among the names.
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
    """All dicts below a node, in order, with their paths."""
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
        for part in numbered_path(node, str(key).split(".")):
            target = child(target, part)
        replaces = not isinstance(value, dict) or value.get("_delete_")
        if replaces or not isinstance(target, dict | list | tuple):
            if isinstance(value, dict):
                value = {k: v for k, v in value.items() if k != "_delete_"}
            yield _join(path, str(key)), value
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
            known: _Known | None = _Known(_top_level_keys(), False, "the config")
        elif path == ("default_hooks",):
            known = _Known(set(_DEFAULT_HOOKS), False, "default_hooks")
        else:
            known = _known_keys(node, path)
        if known is None and path in self.begun:
            # A number or the name of a class: what the user takes for a list does not exist.
            if part.isdecimal() or (part[:1].isupper() and _find(part)):
                raise ValueError(f"{full_key}: options cannot begin the list {'.'.join(path)}")
            return
        known = known or _Known(set(), False, named_path(self.cfg, path))
        near = difflib.get_close_matches(part, known.keys, 1, 0.8)
        if part in known.keys or (known.any_key and not near):
            return
        raise ValueError(
            f"unknown key {full_key!r} in the config options: "
            f"{_explain(known, part, path, self.cfg, rest)}"
        )


def _explain(
    known: _Known, part: str, path: tuple[str, ...], cfg: Config, rest: Sequence[str] = ()
) -> str:
    """Which class does not take the key, and near keys, or the same key elsewhere."""
    node: Any = cfg
    for step in path:
        node = child(node, step)
    present = {str(key) for key in node} if isinstance(node, dict) else set()
    keys = (known.keys | present) - {part, "_scope_", "_delete_"}
    candidates = []
    for near in difflib.get_close_matches(part, sorted(keys), 3, _NEAR):
        whole = (*path, near, *rest)
        candidates.append(named_path(cfg, whole if _exists(cfg, whole) else (*path, near)))
    leaf = rest[-1] if rest else part
    if not candidates:
        candidates = [
            named_path(cfg, (*other, leaf))
            for other, there in _dicts(cfg._cfg_dict, ())
            if leaf in there and other != path
        ][:3]
    text = f"{known.owner} has no {part!r}; "
    if candidates:
        return f"{text}did you mean {' or '.join(candidates)}?"
    return f"{text}there are {', '.join(sorted(keys))}"


def _exists(cfg: Config, path: Sequence[str]) -> bool:
    node: Any = cfg
    for part in path:
        node = child(node, part)
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
            f"{full_key}.{named_path(old, ('0',))}.type, or None; got {new!r}"
        )
    if isinstance(old, bool | int | float) and isinstance(new, str):
        wanted = "true or false" if isinstance(old, bool) else "a number"
        raise ValueError(f"{full_key} is {old!r} in the config: give {wanted}, got {new!r}")


def _join(path: Sequence[str], key: str) -> str:
    return ".".join((*path, str(key)))
