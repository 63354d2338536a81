"""Which keys a dict of a config may have: the arguments of its class, or what the runner reads."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.dist import init_dist
from mmengine.registry import Registry
from mmengine.runner import Runner
from mmengine.runner.utils import set_random_seed
from mmengine.utils.dl_utils import set_multi_processing
from torch import nn
from torch.utils.data import DataLoader

import sce_video.registry as own_registry
from sce_video.engine.config_steps import child, named_path

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
# ``settings``: names of options (:mod:`~sce_video.engine.config_settings`); ``plan``: what
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
    return {
        "train_dataloader": _loader_keys(),
        "val_dataloader": _loader_keys(),
        "test_dataloader": _loader_keys(),
        "randomness": _names(set_random_seed),
        "env_cfg": {"cudnn_benchmark", "mp_cfg", "dist_cfg", "resource_limit"},
        "env_cfg.mp_cfg": _names(set_multi_processing) - {"distributed"},
        "env_cfg.dist_cfg": (_names(init_dist) | {"timeout", "port"}) - {"launcher"},
        "optim_wrapper.clip_grad": _clipping_keys(),
        "compile": _names(torch.compile) - {"model"},
        "auto_scale_lr": {"enable", "base_batch_size"},
        "run_page": {"videos", "compared"},
    }


def _clipping_keys() -> set[str]:
    known = _names(nn.utils.clip_grad_norm_) | _names(nn.utils.clip_grad_value_) | {"type"}
    return known - {"parameters"}


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
    node: Any = cfg
    for step in path:
        node = child(node, step)
    present = {str(key) for key in node} if isinstance(node, dict) else set()
    keys = (known.keys | present) - {part, "_scope_", "_delete_"}
    candidates = []
    for near in difflib.get_close_matches(part, sorted(keys), 3, NEAR):
        whole = (*path, near, *rest)
        candidates.append(named_path(cfg, whole if _exists(cfg, whole) else (*path, near)))
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


def _exists(cfg: Config, path: Sequence[str]) -> bool:
    node: Any = cfg
    for part in path:
        node = child(node, part)
    return node is not None
