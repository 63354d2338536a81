"""Check of a config, which refuses unknown keys, unknown types and values of a wrong type.

The first part finds out which keys a dict of the config may have. The second part checks a whole
config. mmengine itself ignores an unknown top-level key, and reports any other fault only when it
builds the object.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Sequence
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
from sce_video.engine.config.changes import named_path, node_at, walk_dicts
from sce_video.engine.config.inheritance import config_files
from sce_video.utils.records import at, describe, fits

#: Registries in which a ``type`` is looked up.
_REGISTRIES = (
    "RUNNERS LOOPS HOOKS OPTIMIZERS OPTIM_WRAPPERS DATASETS DATA_SAMPLERS FUNCTIONS "
    "MODELS METRICS MODEL_WRAPPERS WEIGHT_INITIALIZERS OPTIM_WRAPPER_CONSTRUCTORS "
    "PARAM_SCHEDULERS EVALUATOR TASK_UTILS VISUALIZERS LOG_PROCESSORS TRANSFORMS VISBACKENDS"
).split()
#: Keys that builders remove from a dict before they pass the rest to the class.
_BUILDER_KEYS = {"type", "_scope_", "_delete_", "init_cfg"}
#: Additional keys that the builders of these top-level settings remove.
_BUILDER_KEYS_OF = {
    "optim_wrapper": {"constructor", "paramwise_cfg"},
    "param_scheduler": {"convert_to_iter_based"},
    "custom_hooks": {"priority"},
    "default_hooks": {"priority"},
}
#: Keys that Runner reads from the whole config, in addition to its constructor's arguments.
_RUNNER_KEYS = set(
    "activation_checkpointing compile conv_2d custom_imports efficient_conv_bn_eval "
    "find_unused_parameters fit_queue global_batch keep_global_batch lora model_wrapper_cfg "
    "pretrained runner_type sync_bn teacher_checkpoint".split()
)
#: Keys that only this package's commands read. ``benchmark`` and ``split`` describe the provenance
#: of a result, ``settings`` maps settings to their places
#: (:mod:`~sce_video.engine.config.changes`), ``planned`` states whether ``pretrain`` or
#: ``finetune`` has chosen all settings, and ``run_page`` contains the options for a run's page.
_TOOL_KEYS = {"benchmark", "planned", "run_page", "settings", "split"}
#: Names under which mmengine's Runner registers hooks.
DEFAULT_HOOKS = "runtime_info timer sampler_seed logger param_scheduler checkpoint".split()


class KnownKeys(NamedTuple):
    """Keys that a dict of the config may have.

    Attributes:
        keys: The keys.
        any_key: Whether the class also accepts other keys, as ``**kwargs``.
        owner: Name of the class or setting that the dict belongs to, for messages.
    """

    keys: set[str]
    any_key: bool
    owner: str


def _names(function: Callable) -> set[str]:
    """Return the names of a function's arguments."""
    return set(inspect.signature(function).parameters) - {"kwargs"}


_LOADER_KEYS = _names(DataLoader) | {"num_batch_per_epoch"}
#: Keys of dicts without a ``type`` that the runner reads, by the path of the dict.
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
    place = ".".join(path)
    special = _RUNNER_DICTS.get(place)
    if path and path[-1] in ("gallery", "gallery_dataloader", "selection_dataloader"):
        special = _LOADER_KEYS
    if "type" not in node or path == ("optim_wrapper", "clip_grad"):
        return None if special is None else KnownKeys(special, False, place)
    found = registered(node["type"])
    if not found:
        return None
    names, any_keys = zip(*map(_parameters, found), strict=True)
    keys = _BUILDER_KEYS.union(*names)
    setting = [part for part in path if not part.isdecimal()]
    is_hook = setting[:1] == ["default_hooks"] and len(setting) == 2  # default_hooks.NAME
    if (len(setting) == 1 or is_hook) and setting[0] in _BUILDER_KEYS_OF:
        keys |= _BUILDER_KEYS_OF[setting[0]]
    # The builders of norm_cfg, act_cfg etc. accept keys that the class does not.
    free_form = len(path) > 1 and path[-1].endswith("_cfg")
    owner = node["type"] if isinstance(node["type"], str) else found[0].__name__
    return KnownKeys(keys, free_form or any(any_keys), owner)


def top_level_keys() -> set[str]:
    """Return the top-level keys that the runner or the tools read."""
    return (_names(Runner) | _RUNNER_KEYS | _TOOL_KEYS) - {"cfg", "self"}


def registered(kind: Any) -> list[Any]:
    """Return a list with the class or function that a ``type`` refers to, or an empty list.

    All kinds of registries are searched, because no name of this package is in two of them. Our own
    registries come first, then mmengine's, then mmaction2's, so that mmaction2 is imported only for
    a name that nobody else has registered.
    """
    if not isinstance(kind, str):
        return [kind] if callable(kind) else []
    scope, name = Registry.split_scope_key(kind)
    chains = [getattr(own_registry, part).chain() for part in _REGISTRIES]
    for chain in chains * 3:
        registry = next(chain, None)
        if registry and kind in registry.module_dict:  # also a full name, MODULE.CLASS
            return [registry.module_dict[kind]]
        if registry and scope == registry.scope and name in registry.module_dict:
            return [registry.module_dict[name]]
    return []


def _parameters(part: Any) -> tuple[set[str], bool]:
    """Return the argument names of a class or function, and whether it accepts ``**kwargs``.

    A class with ``**kwargs`` usually passes them to its parent, so the names then include the
    parent's arguments.
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
        except (TypeError, ValueError):  # some C functions have no signature
            return names, True
        parameters = parameters[inspect.isclass(part) :]  # without self
        names |= {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names, position > 0
    return names, True


def _other_dicts_with(key: str, cfg: Config, besides: tuple[str, ...]) -> list[str]:
    """Return up to three dotted names of other places in the config that have the key."""
    dicts = walk_dicts(cfg._cfg_dict, ())
    return [named_path(cfg, (*p, key)) for p, node in dicts if key in node and p != besides][:3]


def explain_unknown(
    known: KnownKeys, part: str, path: tuple[str, ...], cfg: Config, rest: Sequence[str] = ()
) -> str:
    """Write that a class does not accept the key ``part``, and suggest keys that it accepts.

    Args:
        known: Keys that the class accepts.
        part: The unknown key.
        path: Path of the dict that contains it.
        cfg: The whole config, in which other places with this key are found.
        rest: Keys below the unknown key.
    """
    node = node_at(cfg, path)
    present = set(map(str, node)) if isinstance(node, dict) else set()
    keys = (known.keys | present) - {part, "_scope_", "_delete_"}
    candidates = []
    for near in difflib.get_close_matches(part, sorted(keys), 3):
        whole = (*path, near, *rest)
        candidates.append(named_path(cfg, (*path, near) if node_at(cfg, whole) is None else whole))
    if not candidates or not path:  # A top-level lr is the optimiser's, not a misspelled lora.
        candidates = [*_other_dicts_with(rest[-1] if rest else part, cfg, path), *candidates]
    hint = f"there are {', '.join(sorted(keys))}"
    if candidates:
        hint = f"did you mean {' or '.join(candidates)}?"
    return f"{known.owner} has no {part!r}; {hint}"


#: Registry that builds a dict, by the last key in the dict's path that is not a number.
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
#: Packages whose type annotations do not always match what their classes accept.
_UNCHECKED = ("mmengine", "mmcv", "mmaction")


def _unknown_type(node: dict, path: tuple[str, ...]) -> str | None:
    """Return a message if the ``type`` of the dict at ``path`` is not in its registry."""
    kind = at(node, "type", str)
    if kind is None or registered(kind):
        return None
    names = [part for part in path if not part.isdecimal()]
    of_a_method = False
    if names[:-1] == ["default_hooks"]:
        registry = "HOOKS"
    elif names[-1] in _BUILT:
        registry = _BUILT[names[-1]]
    elif len(path) == 2 and path[0] == "model":
        registry, of_a_method = "MODELS", True
    else:
        return None
    known = {name for part in getattr(own_registry, registry).chain() for name in part.module_dict}
    near = difflib.get_close_matches(kind.split(".")[-1], sorted(known), 3)
    if of_a_method and not near:  # A method may interpret the type in its own way.
        return None
    hint = "if it is your own, name its module with --import MODULE."
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    if not mmaction_installed():
        hint += " It may be part of mmaction2, which is not installed"
    return f"nothing is registered as {kind!r}; {hint}"


def _wrong_values(node: dict) -> Iterator[tuple[str, str]]:
    """Yield (key, message) for the values that the annotations of a dict's class do not allow."""
    found = registered(node["type"]) if "type" in node else ()
    if not found or found[0].__module__.split(".")[0] in _UNCHECKED:
        return
    try:
        hints = get_type_hints(found[0].__init__ if inspect.isclass(found[0]) else found[0])
    except (TypeError, NameError, AttributeError):  # C code, or imported only for type checks
        return
    for key, value in node.items():
        if key in hints and key != "return" and not fits(value, hints[key]):
            yield key, f"give {describe(hints[key])}, got {value!r}"


#: Similarity, from 0 to 1, above which an unused top-level key counts as a misspelling.
_MISSPELLED = 0.75
#: Suffixes of config files.
_FORMATS = (".py", ".json", ".yaml", ".yml")


def check_config(cfg: Config) -> None:
    """Refuse keys that nothing reads, types that nothing registers and values of a wrong type.

    A dict with ``type`` may contain the arguments of that class or function, with values of the
    annotated types. A top-level key must be one that the runner or a command reads, or a helper
    variable. A helper variable begins with ``_`` or is read in one of the config's files. Any other
    top-level key is refused if it resembles a known key, or if a setting further down has its name.
    Otherwise, a warning is logged.

    Four things are not checked:

    - dicts without ``type``, except those that the runner reads (data loaders, ``randomness``,
      ``env_cfg``, ``compile``);
    - unknown types in a model that the method may interpret in its own way;
    - the keys of classes with ``**kwargs``, which accept any key;
    - dicts called ``*_cfg`` inside a model (``norm_cfg``), whose builders accept further keys.

    Raises:
        ValueError: If a key or type is unknown, or a value has a wrong type. The message lists all
            faults with their paths, and similar keys for each unknown key.
    """
    faults, wrong = _unknown_top_level_keys(cfg), []
    for path, node in walk_dicts(cfg._cfg_dict, ()):
        known = known_keys(node, path)
        # A change to a step, such as RandomClips=dict(num_frames=16), remains in the config if no
        # base has a list that contains the step.
        changes = (isinstance(v, dict) and "type" not in v for v in node.values())
        steps = (str(key)[:1].isupper() and bool(registered(key)) for key in node)
        if known is None and node and all(changes) and all(steps):
            faults.append(
                f"{'.'.join(path)}: it contains changes to steps ({', '.join(node)}), but no base "
                "config has a list of steps there"
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
    own_file = Path(cfg.filename or "")  # may be a checkpoint, which contains the config
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
                f"{cfg.filename}: {key!r} has no effect, because no setting has this name and the "
                "file does not use it. Settings that a base config makes from a variable of this "
                "name do not change. A leading underscore silences this warning",
                logger="current",
                level=logging.WARNING,
            )
    return faults


def _variables(text: str) -> tuple[set[str], set[str]]:
    """Return the variables that a config file sets at its top level, and those that it reads.

    A file reads a variable by its name, ``_base_.name`` or ``{{_base_.name}}``.
    """
    read = set(re.findall(r"\b_base_\.(\w+)", text))
    try:
        tree = ast.parse(text)
    except SyntaxError:  # JSON, YAML, or a file with mmengine's {{...}} outside of strings
        return set(), read
    targets = [t for s in tree.body if isinstance(s, ast.Assign) for t in s.targets]
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    read |= {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return {target.id for target in targets if isinstance(target, ast.Name)}, read
