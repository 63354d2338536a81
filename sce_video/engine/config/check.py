"""The check of a config: unknown keys, unknown types and values of the wrong type are refused."""

from __future__ import annotations

import ast
import difflib
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

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
from sce_video.dependencies import mmaction_installed
from sce_video.engine.config.changes import (
    available_settings,
    config_files,
    named_path,
    node_at,
)
from sce_video.utils.records import describe, fits

_REGISTRIES = (
    "RUNNERS LOOPS HOOKS OPTIMIZERS OPTIM_WRAPPERS DATASETS DATA_SAMPLERS FUNCTIONS "
    "MODELS METRICS MODEL_WRAPPERS WEIGHT_INITIALIZERS OPTIM_WRAPPER_CONSTRUCTORS "
    "PARAM_SCHEDULERS EVALUATOR TASK_UTILS VISUALIZERS LOG_PROCESSORS TRANSFORMS VISBACKENDS"
).split()
# Keys that the builders remove from a dict before they pass the rest to its class.
_BUILDER_KEYS = {"type", "_scope_", "_delete_", "init_cfg"}
_BUILDER_KEYS_OF: dict[tuple[str, ...], set[str]] = {
    ("optim_wrapper",): {"constructor", "paramwise_cfg"},
    ("param_scheduler",): {"convert_to_iter_based"},
    ("custom_hooks",): {"priority"},
    ("default_hooks",): {"priority"},
}
# Keys that Runner reads from the whole config, in addition to the arguments of its constructor.
_RUNNER_KEYS = set(
    "activation_checkpointing compile conv_2d custom_imports efficient_conv_bn_eval "
    "find_unused_parameters fit_queue global_batch keep_global_batch lora model_wrapper_cfg "
    "pretrained runner_type sync_bn teacher_checkpoint".split()
)
# Keys that the tools of this project read, for the provenance of a result and for splits.
# ``settings`` contains names of options (:mod:`~sce_video.engine.config.changes`), ``planned``
# states whether ``pretrain`` or ``finetune`` has chosen all of them, and ``run_page`` contains the
# options of the page of a run.
_TOOL_KEYS = {"benchmark", "planned", "run_page", "settings", "split"}
DEFAULT_HOOKS = "runtime_info timer sampler_seed logger param_scheduler checkpoint".split()


class KnownKeys(NamedTuple):
    """The keys that a dict of the config may have."""

    keys: set[str]
    any_key: bool  # the class takes **kwargs: ``keys`` are its named arguments only
    owner: str  # the class or setting that the dict belongs to, for messages


def _names(function: Callable) -> set[str]:
    return set(inspect.signature(function).parameters) - {"kwargs"}


_LOADER_KEYS = _names(DataLoader) | {"num_batch_per_epoch"}
#: Dicts without a ``type`` whose keys the runner reads: path to keys.
_RUNNER_DICTS: dict[str, set[str]] = {
    **dict.fromkeys(("train_dataloader", "val_dataloader", "test_dataloader"), _LOADER_KEYS),
    "randomness": _names(set_random_seed),
    "env_cfg": {"cudnn_benchmark", "mp_cfg", "dist_cfg", "resource_limit"},
    "env_cfg.mp_cfg": _names(set_multi_processing) - {"distributed"},
    "env_cfg.dist_cfg": (_names(init_dist) | {"timeout", "port"}) - {"launcher"},
    "optim_wrapper.clip_grad": (
        _names(nn.utils.clip_grad_norm_) | _names(nn.utils.clip_grad_value_) | {"type"}
    )
    - {"parameters"},
    # Keys of NoNormDecayConstructor and of mmengine's DefaultOptimWrapperConstructor
    "optim_wrapper.paramwise_cfg": set(
        "no_decay layer_decay custom_keys bias_lr_mult bias_decay_mult norm_decay_mult "
        "dwconv_decay_mult flat_decay_mult bypass_duplicate dcn_offset_lr_mult".split()
    ),
    "compile": _names(torch.compile) - {"model"},
    "lora": {"rank", "alpha"},
    "auto_scale_lr": {"enable", "base_batch_size"},
    "run_page": {"videos", "compared", "tested"},
}


def known_keys(node: dict, path: tuple[str, ...]) -> KnownKeys | None:
    """Return the keys that the dict at ``path`` may have; None if they are not known."""
    special = _RUNNER_DICTS.get(".".join(path))
    if path and path[-1] in ("gallery", "gallery_dataloader", "selection_dataloader"):
        special = _LOADER_KEYS
    if "type" not in node or path == ("optim_wrapper", "clip_grad"):
        return None if special is None else KnownKeys(special, False, ".".join(path))
    found = registered(node["type"])
    if not found:
        return None
    setting = tuple(part for part in path if not part.isdecimal())
    if setting[:1] == ("default_hooks",) and len(setting) == 2:
        setting = setting[:1]
    names, any_keys = zip(*map(_parameters, found), strict=True)
    keys = _BUILDER_KEYS.union(_BUILDER_KEYS_OF.get(setting, ()), *names)
    # The builders of norm_cfg, act_cfg etc. take keys that the class does not.
    free_form = len(path) > 1 and path[-1].endswith("_cfg")
    owner = node["type"] if isinstance(node["type"], str) else found[0].__name__
    return KnownKeys(keys, free_form or any(any_keys), owner)


def top_level_keys() -> set[str]:
    """Return the top-level keys that the runner or the tools read."""
    return (_names(Runner) | _RUNNER_KEYS | _TOOL_KEYS) - {"cfg", "self"}


def registered(kind: Any) -> list[Any]:
    """Return a list with the class or function that a ``type`` refers to, or an empty list.

    All registries are searched, because no name of this package is in two of them. They are
    searched one after the other, so that a name found early imports no package of mmaction2.
    """
    if not isinstance(kind, str):
        return [kind] if callable(kind) else []
    scope, name = Registry.split_scope_key(kind)
    chains = [getattr(own_registry, part).chain() for part in _REGISTRIES]
    for chain in chains * 3:
        registry = next(chain, None)
        if registry and kind in registry.module_dict:  # also a name with the user's module
            return [registry.module_dict[kind]]
        if registry and scope == registry.scope and name in registry.module_dict:
            return [registry.module_dict[name]]
    return []


def _parameters(part: Any) -> tuple[set[str], bool]:
    """Return a class's or function's argument names, and whether it accepts ``**kwargs``."""
    # A class with ``**kwargs`` usually passes them to its parent, so the names include the parent's
    # arguments.
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
        parameters = parameters[inspect.isclass(part) :]  # without self
        names |= {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names, position > 0
    return names, True


def walk_dicts(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict]]:
    """Yield all dicts below a node, in order, with their paths."""
    if isinstance(node, dict):
        yield path, node
        for key, value in node.items():
            yield from walk_dicts(value, (*path, str(key)))
    elif isinstance(node, list | tuple):
        for i, value in enumerate(node):
            yield from walk_dicts(value, (*path, str(i)))


def _other_dicts_with(key: str, cfg: Config, besides: tuple[str, ...]) -> list[str]:
    """Return up to three dotted names where the config has the key elsewhere."""
    dicts = walk_dicts(cfg._cfg_dict, ())
    return [named_path(cfg, (*p, key)) for p, node in dicts if key in node and p != besides][:3]


def explain_unknown(
    known: KnownKeys, part: str, path: tuple[str, ...], cfg: Config, rest: Sequence[str] = ()
) -> str:
    """Describe the class that does not accept the key, and similar keys or the key elsewhere."""
    node = node_at(cfg, path)
    present = set(map(str, node)) if isinstance(node, dict) else set()
    keys = (known.keys | present) - {part, "_scope_", "_delete_"}
    candidates = []
    for near in difflib.get_close_matches(part, sorted(keys), 3):
        whole = (*path, near, *rest)
        candidates.append(named_path(cfg, (*path, near) if node_at(cfg, whole) is None else whole))
    if not candidates or not path:  # a misspelt lr more likely means the optimiser's lr than lora
        candidates = [*_other_dicts_with(rest[-1] if rest else part, cfg, path), *candidates]
    hint = f"there are {', '.join(sorted(keys))}"
    if candidates:
        hint = f"did you mean {' or '.join(candidates)}?"
    return f"{known.owner} has no {part!r}; {hint}"


#: The registry that builds a dict, by the last name of its path (without numbers).
_BUILT = {
    name: registry
    for registry, names in {
        "MODELS": "model backbone data_preprocessor cls_head roi_head",
        "DATASETS": "dataset",
        "TRANSFORMS": "pipeline",
        "DATA_SAMPLERS": "sampler",
        "FUNCTIONS": "collate_fn",
        "OPTIM_WRAPPERS": "optim_wrapper",
        "OPTIMIZERS": "optimizer",
        "HOOKS": "custom_hooks",
        "LOOPS": "train_cfg val_cfg test_cfg",
        "METRICS": "val_evaluator test_evaluator",
        "LOG_PROCESSORS": "log_processor",
        "VISUALIZERS": "visualizer",
        "VISBACKENDS": "vis_backends",
        "PARAM_SCHEDULERS": "param_scheduler",
    }.items()
    for name in names.split()
}
#: Annotations of these packages do not always say what their classes take.
_UNCHECKED = ("mmengine", "mmcv", "mmaction")


def _unknown_type(node: dict, path: tuple[str, ...]) -> str | None:
    """Return a message if the ``type`` of the dict at ``path`` is not in its registry."""
    kind = node.get("type")
    names = [part for part in path if not part.isdecimal()]
    registry = "HOOKS" if names[:-1] == ["default_hooks"] else _BUILT.get(names[-1])
    of_a_method = registry is None and len(path) == 2 and path[0] == "model"
    registry = "MODELS" if of_a_method else registry
    if registry is None or not isinstance(kind, str) or registered(kind):
        return None
    known = {name for part in getattr(own_registry, registry).chain() for name in part.module_dict}
    near = difflib.get_close_matches(kind.split(".")[-1], sorted(known), 3)
    if of_a_method and not near:  # a method may give a type a meaning of its own
        return None
    hint = f"did you mean {' or '.join(near)}?" if near else ""
    hint = hint or "if it is your own, name its module by --import MODULE."
    if not mmaction_installed():
        hint += " mmaction2, which is not installed, may have it"
    return f"nothing is registered as {kind!r}; {hint}"


def _wrong_values(node: dict) -> Iterator[tuple[str, str]]:
    """Yield (key, message) for the values that the annotations of a dict's class do not allow."""
    found = registered(node["type"]) if "type" in node else ()
    if not found or found[0].__module__.split(".")[0] in _UNCHECKED:  # the first is ours, if any
        return
    try:
        hints = get_type_hints(found[0].__init__ if inspect.isclass(found[0]) else found[0])
    except (TypeError, NameError, AttributeError):  # written in C, or names for type checks only
        return
    for key, value in node.items():
        if key in hints and key != "return" and not fits(value, hints[key]):
            yield key, f"give {describe(hints[key])}, got {value!r}"


# Unused top-level keys at least this similar to one that is read are taken for misspellings.
_MISSPELLED = 0.75
_FORMATS = (".py", ".json", ".yaml", ".yml")


def check_config(cfg: Config) -> None:
    """Refuse keys that nothing reads, types that nothing registers and values of a wrong type.

    A dict with ``type`` may have the arguments of that class or function, with values of the
    annotated types. A top-level key may be one that the runner or a tool reads, or a helper
    variable: a name that begins with ``_`` or is read in one of the config's files. Other keys are
    refused if they resemble a known key or have the name of a setting further down. The rest causes
    a warning.

    Four things are not checked: dicts without ``type``, except the
    runner's (data loaders, ``randomness``, ``env_cfg``, ``compile``); unknown types, if the user's
    own method may give them a meaning; classes with ``**kwargs``, which accept any key; and dicts
    called ``*_cfg`` inside a model (``norm_cfg``), whose builders accept further keys.

    Raises:
        ValueError: If a key or type is unknown, or a value has a wrong type. The message lists all
            of them, unknown keys with their path and similar keys.
    """
    faults, wrong = _unknown_top_level_keys(cfg), []
    for path, node in walk_dicts(cfg._cfg_dict, ()):
        known = known_keys(node, path)
        # RandomClips=dict(num_frames=16), which nothing has merged into a list
        changes = (isinstance(v, dict) and "type" not in v for v in node.values())
        steps = (str(key)[:1].isupper() and bool(registered(key)) for key in node)
        if known is None and node and all(changes) and all(steps):
            faults.append(
                f"{'.'.join(path)}: a dict of changes to steps ({', '.join(node)}), but no base "
                "config has a list there"
            )
        if path and (message := _unknown_type(node, path)):
            wrong.append(f"{named_path(cfg, (*path, 'type'))}: {message}")
        wrong += [f"{named_path(cfg, (*path, key))}: {m}" for key, m in _wrong_values(node)]
        if known is None or known.any_key:
            continue
        faults += [
            f"{named_path(cfg, (*path, str(key)))}: {explain_unknown(known, key, path, cfg)}"
            for key in node
            if key not in known.keys
        ]
    if faults:
        raise ValueError("unknown keys in the config:\n  " + "\n  ".join(faults + wrong))
    if wrong:
        raise ValueError("wrong values in the config:\n  " + "\n  ".join(wrong))


def _unknown_top_level_keys(cfg: Config) -> list[str]:
    """Return a message per wrong top-level key, and warn of keys that have no effect."""
    known = top_level_keys()
    own_file = Path(cfg.filename or "")  # a stored config names its checkpoint
    files = config_files(own_file) if own_file.suffix in _FORMATS and own_file.is_file() else []
    variables = [_variables(Path(file).read_text(encoding="utf-8")) for file in files]
    used = set().union(*(read for _, read in variables))
    own = variables[0][0] - variables[0][1] if variables else set()
    faults = []
    for key in map(str, cfg.keys()):
        if key in known or key.startswith("_"):
            continue
        near = difflib.get_close_matches(key, sorted(known), 1, _MISSPELLED)
        near = near or _other_dicts_with(key, cfg, ())
        if key not in used and near:
            faults.append(f"{key}: no setting has this name; did you mean {' or '.join(near)}?")
        elif key in own:
            print_log(
                f"{cfg.filename}: {key!r} has no effect: no setting has this name and the file "
                "does not use it (settings of a base config made from a variable of the same name "
                "do not change with it; a leading underscore silences this)",
                logger="current",
                level=logging.WARNING,
            )
    return faults


def _variables(text: str) -> tuple[set[str], set[str]]:
    """Collect the variables that a config file sets at its top level or reads.

    Variables are read by name, ``_base_.name`` or ``{{_base_.name}}``.
    """
    read = set(re.findall(r"\b_base_\.(\w+)", text))
    try:
        tree = ast.parse(text)
    except SyntaxError:  # JSON, YAML, or mmengine's {{...}} outside of text
        return set(), read
    targets = [t for s in tree.body if isinstance(s, ast.Assign) for t in s.targets]
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    read |= {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return {target.id for target in targets if isinstance(target, ast.Name)}, read


def options_of_settings(cfg: Config, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config changes, for ``load_config``, that set these settings everywhere.

    Raises:
        ValueError: If the recipe does not have a setting.
    """
    known = available_settings(cfg, known_keys)
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise ValueError(
                f"there is no setting {name!r} here.{meant} The settings are {', '.join(known)}"
            )
    return {place: value for name, value in values.items() for place in known[name]}
