"""The check of a config: unknown keys, unknown types and values of the wrong type are refused."""

from __future__ import annotations

import ast
import difflib
import inspect
import logging
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import torch
from mmengine.config import Config
from mmengine.dist import init_dist
from mmengine.logging import print_log
from mmengine.registry import Registry
from mmengine.runner import Runner
from mmengine.runner.utils import set_random_seed
from mmengine.utils.dl_utils import set_multi_processing
from torch import nn
from torch.utils.data import DataLoader

import sce_video.registry as own_registry
from sce_video.engine.config.changes import config_files, named_path, node_at

_REGISTRIES = (
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
    "conv_2d",
    "custom_imports",
    "efficient_conv_bn_eval",
    "find_unused_parameters",
    "fit_queue",
    "global_batch",
    "keep_global_batch",
    "model_wrapper_cfg",
    "pretrained",
    "runner_type",
    "sync_bn",
}
# Read by the tools of this project: what the provenance of a result and the splits need.
# ``settings``: names of options (:mod:`~sce_video.engine.config.changes`); ``plan``: what
# ``sce-video pretrain`` has chosen, and why; ``run_page``: options of the page of a run.
_TOOL_KEYS = {"benchmark", "plan", "run_page", "settings", "split"}
DEFAULT_HOOKS = "runtime_info timer sampler_seed logger param_scheduler checkpoint".split()
NEAR = 0.6


class KnownKeys(NamedTuple):
    """The keys that a dict of the config may have."""

    keys: set[str]
    any_key: bool  # the class takes **kwargs: ``keys`` are its named arguments only
    owner: str  # the class or setting that the dict belongs to, for messages


def known_keys(node: dict, path: tuple[str, ...]) -> KnownKeys | None:
    """The keys that the dict at ``path`` may have; None if they are not known."""
    special = _runner_dicts().get(".".join(path))
    if path and path[-1] in ("gallery", "gallery_dataloader", "selection_dataloader"):
        special = _loader_keys()
    if "type" not in node or path == ("optim_wrapper", "clip_grad"):
        return None if special is None else KnownKeys(special, False, ".".join(path))
    found = registered(node["type"])
    if not found:
        return None
    setting = tuple(part for part in path if not part.isdecimal())
    if setting[:1] == ("default_hooks",) and len(setting) == 2:
        setting = setting[:1]
    signatures = [_parameters(part) for part in found]
    keys = set().union(*(names for names, _ in signatures)) | _BUILDER_KEYS
    # The builders of norm_cfg, act_cfg etc. take keys that the class does not.
    free_form = len(path) > 1 and path[-1].endswith("_cfg")
    return KnownKeys(
        keys | _BUILDER_KEYS_OF.get(setting, set()),
        free_form or any(any_key for _, any_key in signatures),
        node["type"] if isinstance(node["type"], str) else found[0].__name__,
    )


def _runner_dicts() -> dict[str, set[str]]:
    """Dicts without a ``type`` whose keys the runner reads: path to keys."""
    clipping = _names(nn.utils.clip_grad_norm_) | _names(nn.utils.clip_grad_value_) | {"type"}
    return {
        "train_dataloader": _loader_keys(),
        "val_dataloader": _loader_keys(),
        "test_dataloader": _loader_keys(),
        "randomness": _names(set_random_seed),
        "env_cfg": {"cudnn_benchmark", "mp_cfg", "dist_cfg", "resource_limit"},
        "env_cfg.mp_cfg": _names(set_multi_processing) - {"distributed"},
        "env_cfg.dist_cfg": (_names(init_dist) | {"timeout", "port"}) - {"launcher"},
        "optim_wrapper.clip_grad": clipping - {"parameters"},
        "compile": _names(torch.compile) - {"model"},
        "auto_scale_lr": {"enable", "base_batch_size"},
        "run_page": {"videos", "compared"},
    }


def _loader_keys() -> set[str]:
    return _names(DataLoader) | {"num_batch_per_epoch"}


def _names(function: Callable) -> set[str]:
    return set(inspect.signature(function).parameters) - {"kwargs"}


def top_level_keys() -> set[str]:
    """Top-level keys that are read: by the runner, or by the tools."""
    return (_names(Runner) | _RUNNER_KEYS | _TOOL_KEYS) - {"cfg", "self"}


def registered(kind: Any) -> list[Any]:
    """The classes and functions that a ``type`` may refer to, of all registries; each once."""
    if not isinstance(kind, str):
        return [kind] if callable(kind) else []
    scope, name = Registry.split_scope_key(kind)
    found: list[Any] = []
    for part in _REGISTRIES:
        for registry in getattr(own_registry, part).chain():
            match = registry.module_dict.get(name)
            if match is not None and scope in (None, registry.scope) and match not in found:
                found.append(match)
    return found


def registered_names(registry: str) -> set[str]:
    """All names of a registry and of those that it asks."""
    return {name for part in getattr(own_registry, registry).chain() for name in part.module_dict}


def _parameters(part: Any) -> tuple[set[str], bool]:
    """Names of the arguments of a class or function, and whether it takes others (``**kwargs``)."""
    # A class with ``**kwargs`` usually passes them to its parent: the parent's arguments are then
    # among the names.
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


def walk_dicts(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict]]:
    """All dicts below a node, in order, with their paths."""
    if isinstance(node, dict):
        yield path, node
        for key, value in node.items():
            yield from walk_dicts(value, (*path, str(key)))
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            yield from walk_dicts(value, (*path, str(i)))


def explain_unknown(
    known: KnownKeys, part: str, path: tuple[str, ...], cfg: Config, rest: Sequence[str] = ()
) -> str:
    """Which class does not take the key, and near keys, or the same key elsewhere."""
    node = node_at(cfg, path)
    present = {str(key) for key in node} if isinstance(node, dict) else set()
    keys = (known.keys | present) - {part, "_scope_", "_delete_"}
    candidates = []
    for near in difflib.get_close_matches(part, sorted(keys), 3, NEAR):
        whole = (*path, near, *rest)
        candidates.append(named_path(cfg, (*path, near) if node_at(cfg, whole) is None else whole))
    leaf = rest[-1] if rest else part
    if not candidates:
        candidates = [
            named_path(cfg, (*other, leaf))
            for other, there in walk_dicts(cfg._cfg_dict, ())
            if leaf in there and other != path
        ][:3]
    text = f"{known.owner} has no {part!r}; "
    if candidates:
        return f"{text}did you mean {' or '.join(candidates)}?"
    return f"{text}there are {', '.join(sorted(keys))}"


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


# Unused top-level keys at least this similar to one that is read are taken for misspellings.
_MISSPELLED = 0.75
_FORMATS = (".py", ".json", ".yaml", ".yml")


def check_config(cfg: Config) -> None:
    """Refuse keys that nothing reads, types that nothing registers and values of a wrong type.

    A dict with ``type`` may have the arguments of that class or function, with values of the
    annotated types. A top-level key may be one that the runner or a tool reads, or a helper
    variable: a name that begins with ``_`` or is read in one of the config's files. Others that
    resemble a known key, or have the name of a setting further down, are refused; what remains is
    warned of.

    Not checked: dicts without ``type``, except the runner's (data loaders, ``randomness``,
    ``env_cfg``, ``compile``); unknown types where a method of one's own may give them a meaning;
    classes with ``**kwargs``, which take any key; dicts called ``*_cfg`` inside a model
    (``norm_cfg``), whose builders take further keys.

    Raises:
        ValueError: lists every unknown key with its path and the near ones, every unknown type and
            every value of a wrong type.
    """
    faults, wrong = _unknown_top_level_keys(cfg), []
    for path, node in walk_dicts(cfg._cfg_dict, ()):
        known = known_keys(node, path)
        if known is None and node and all(map(_is_step_change, node.keys(), node.values())):
            faults.append(
                f"{'.'.join(path)}: a dict of changes to steps ({', '.join(node)}), but no base "
                "config has a list there"
            )
        if path and (message := unknown_type(node, path)):
            wrong.append(f"{named_path(cfg, (*path, 'type'))}: {message}")
        wrong += [f"{named_path(cfg, (*path, key))}: {m}" for key, m in wrong_values(node)]
        if known is None or known.any_key:
            continue
        for key in node:
            if key not in known.keys:
                name = named_path(cfg, (*path, str(key)))
                faults.append(f"{name}: {explain_unknown(known, key, path, cfg)}")
    if faults:
        raise ValueError("unknown keys in the config:\n  " + "\n  ".join(faults + wrong))
    if wrong:
        raise ValueError("wrong values in the config:\n  " + "\n  ".join(wrong))


def _unknown_top_level_keys(cfg: Config) -> list[str]:
    """A message for each misspelled or misplaced top-level key; warns of others without effect."""
    known = top_level_keys()
    own_file = Path(cfg.filename or "")  # of a stored config the checkpoint, which is no text
    files = config_files(own_file) if own_file.suffix in _FORMATS and own_file.is_file() else []
    texts = [Path(file).read_text(encoding="utf-8") for file in files]
    used = set().union(*map(_names_read, texts))
    own = _names_assigned(texts[0]) - _names_read(texts[0]) if texts else set()
    faults = []
    for key in map(str, cfg.keys()):
        if key in known or key.startswith("_"):
            continue
        near = difflib.get_close_matches(key, sorted(known), 1, _MISSPELLED)
        elsewhere = [
            named_path(cfg, (*path, key))
            for path, node in walk_dicts(cfg._cfg_dict, ())
            if path and key in node
        ]
        if key not in used and (near or elsewhere):
            suggestion = " or ".join(near or elsewhere[:3])
            faults.append(f"{key}: no setting has this name; did you mean {suggestion}?")
        elif key in own:
            print_log(
                f"{cfg.filename}: {key!r} has no effect: no setting has this name and the file "
                "does not use it (settings of a base config made from a variable of the same name "
                "do not change with it; a leading underscore silences this)",
                logger="current",
                level=logging.WARNING,
            )
    return faults


def _names_read(text: str) -> set[str]:
    """Variables that a config file reads: by name, as ``_base_.name`` or ``{{_base_.name}}``."""
    names = set(re.findall(r"\b_base_\.(\w+)", text))
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:  # JSON, YAML, or mmengine's {{...}} outside of text
        return names
    return names | {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def _names_assigned(text: str) -> set[str]:
    """Variables that a Python config file sets at its top level."""
    try:
        statements = ast.parse(text).body
    except SyntaxError:
        return set()
    targets = [t for s in statements if isinstance(s, ast.Assign) for t in s.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _is_step_change(key: Any, value: Any) -> bool:
    """Whether an entry of a dict looks like ``RandomClips=dict(num_frames=16)``."""
    is_change = isinstance(value, dict) and "type" not in value
    return is_change and str(key)[:1].isupper() and bool(registered(key))
