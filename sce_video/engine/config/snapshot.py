"""The resolved config of a training or a test as JSON: stored, read as data, compared.

Every checkpoint holds that of its training as JSON text. Network, views and method of whatever is
made from the checkpoint are read from it, and a result stands beside a number of the paper if it
equals that of the shipped recipe.
"""

from __future__ import annotations

import ast
import inspect
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sce_video.utils.files import parse_json
from sce_video.utils.own_parts import advise_imports, named_modules

#: Key of the JSON text in the ``meta`` of a checkpoint.
SNAPSHOT = "config"
_MAX_CHARACTERS = 2**21
#: Top-level keys that make a training what it is; the others are paths, validation and test, where
#: it runs and what it logs.
TRAINING = (
    *("model", "data_preprocessor", "train_dataloader", "train_cfg", "optim_wrapper"),
    *("param_scheduler", "auto_scale_lr", "custom_hooks", "default_hooks", "sync_bn"),
    *("randomness", "model_wrapper_cfg", "efficient_conv_bn_eval", "lora", "custom_imports"),
)
TEST = (
    *("model", "data_preprocessor", "test_dataloader", "test_cfg", "test_evaluator"),
    "custom_imports",
)
#: Keys at any depth that are paths, workers, devices, intervals of validation, the seed, or say how
#: the same numbers are computed: by which decoder, in which layout, in how many parts.
_LEFT_OUT = re.compile(
    r".*_(file|root|dir|path)|actions|csv|out|dump|storage_options|block_size"
    r"|num_workers|persistent_workers|pin_memory|prefetch_factor|max_views|num_threads|backend|timeout"
    r"|val_interval|val_begin|seed|deterministic|with_cp|channels_last|chunk_size|_scope_"
    r"|allow_failed_imports"
)
#: Optimiser wrappers, which differ in the precision of the arithmetic only, and its key.
_WRAPPERS = ("OptimWrapper", "AmpOptimWrapper", "MixedPrecisionOptimWrapper")
PRECISION = "optim_wrapper.dtype"
#: Hooks that change no weight: they log, write files and evaluate.
_LOGGING_HOOKS = (
    *("AlarmHook", "BadFileHook", "BudgetHook", "ChanceLevelHook", "CheckpointHook", "LoggerHook"),
    *("LogReductionHook", "MirrorHook", "OnlineEvaluationHook", "ProgressHook"),
    "ScreenProgressHook",
)
_SCHEDULES, _SCHEDULES_BASE_BATCH = "ScheduleHook", 256  # the hook, and its default
_ABSENT = object()


def resolved_config(cfg: Mapping[str, Any], global_batch: int | None = None) -> dict[str, Any]:
    """A config as JSON data, with the batch of all processes and the learning rate for it.

    ``train_dataloader.batch_size`` is the global batch, not accumulated (``global_batch`` samples;
    None: the config's batch is that of all), and the optimiser's ``lr`` is the rate for it
    (``base_batch_size`` of the ScheduleHook is None): on one process the same training.
    """
    config = plain(cfg)
    loader, wrapper = config.get("train_dataloader"), config.get("optim_wrapper")
    if not isinstance(loader, dict) or not isinstance(wrapper, dict):
        return config
    batch = global_batch or (loader.get("batch_size") or 1) * wrapper.get("accumulative_counts", 1)
    loader["batch_size"] = batch
    wrapper["accumulative_counts"] = 1
    hooks = (hook for hook in config.get("custom_hooks") or [] if _type(hook) == _SCHEDULES)
    for hook in hooks:
        base, optimizer = hook.get("base_batch_size", _SCHEDULES_BASE_BATCH), wrapper["optimizer"]
        if base and "lr" in optimizer:
            optimizer["lr"] *= batch / base
        hook["base_batch_size"] = None
    return config


def plain(node: Any) -> Any:
    """A part of a config as JSON data; what is not (a class, a built object) becomes its name."""
    if isinstance(node, Mapping) or hasattr(node, "_cfg_dict"):
        return {str(key): plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple | set):
        return [plain(value) for value in node]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if isinstance(node, os.PathLike):
        return os.fspath(node)
    return getattr(node, "__name__", type(node).__name__)


def has_config(content: dict[str, Any]) -> bool:
    """Return whether a checkpoint contains a config."""
    meta = content.get("meta")
    return isinstance(meta, dict) and bool(meta.get(SNAPSHOT))


def stored_config(content: dict[str, Any], checkpoint: str | Path) -> dict[str, Any]:
    """The config in a checkpoint, which may be a stranger's: JSON data, nothing is executed.

    Raises:
        ValueError: there is none, or it is no JSON object of a config's size.
    """
    meta = content.get("meta")
    text = meta.get(SNAPSHOT) if isinstance(meta, dict) else None
    if not text:
        raise ValueError(
            f"{checkpoint} contains no config (a converted file, or weights only): give the config "
            "file of its network (config=)"
        )
    _check_size(text, str(checkpoint))  # before it is parsed
    try:
        config = parse_json(text, "it")
    except ValueError as error:
        reason = f"{checkpoint} is not JSON data ({error.__cause__}): give the config file"
        raise ValueError(f"the config of {reason}") from None
    if not isinstance(config, dict):
        raise ValueError(f"the config of {checkpoint} is a {type(config).__name__}, not an object")
    return config


def recorded_training(content: dict[str, Any]) -> dict[str, Any] | None:
    """What a checkpoint says about its training, with its ``config``; None if it has no record."""
    meta = content.get("meta")
    record = meta.get("training") if isinstance(meta, dict) else None
    if not isinstance(record, dict):
        return None
    with suppress(ValueError):
        return {"config": stored_config(content, ""), **record}  # an exported network's names it
    return record


def lacking_imports(content: dict[str, Any]) -> str:
    """Return a sentence on the ``--import`` that a checkpoint needs here; empty for none."""
    record = recorded_training(content)
    return "" if record is None else advise_imports(record.get("imports"))


def _check_size(text: Any, name: str) -> None:
    if not isinstance(text, str):
        raise ValueError(f"the config of {name} must be text, got {type(text).__name__}")
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(
            f"the config text of {name} has {len(text)} characters, more than {_MAX_CHARACTERS}: "
            "that is not a config"
        )


def foreign_classes(config: Mapping[str, Any], keys: Sequence[str] = TRAINING) -> list[str]:
    """Classes of other packages that some parts of a config name, as ``SCE of my_package.sce``.

    A config names its classes only: another class registered under the name of one of ours gives
    the same config.
    """
    return sorted({f"{name} of {module}" for name, module in _own_classes(config, keys)})


def imports_of(config: Mapping[str, Any], keys: Sequence[str] = TRAINING) -> list[str]:
    """Return the modules of ``--import``, and those of other foreign classes of a config."""
    return named_modules(module for _, module in _own_classes(config, keys))


def _own_classes(config: Mapping[str, Any], keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and module of each class of another package that parts of a config name."""
    from sce_video.engine.config.check import registered  # needs torch
    from sce_video.registry import is_own_part

    todo: list[Any] = [config.get(key) for key in keys]
    while todo:
        node = todo.pop()
        if isinstance(node, Mapping):
            todo += node.values()
            for part in filter(is_own_part, registered(node.get("type"))):
                yield _type(node), str(part.__module__)
        elif isinstance(node, list | tuple):
            todo += node


# -- comparison ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConfigDifference:
    """A setting in which two resolved configs differ: ``train_cfg.max_epochs: 100 -> 200``.

    Attributes:
        key: Its dotted name.
        ours: Its value in the first config, as text.
        recipes: Its value in the second config, the recipe.
    """

    key: str
    ours: str
    recipes: str

    def __str__(self) -> str:
        return f"{self.key}: {self.ours} -> {self.recipes}"


def differences(
    ours: Mapping[str, Any], recipe: Mapping[str, Any], keys: Sequence[str] = TRAINING
) -> list[ConfigDifference]:
    """Settings in which two resolved configs differ, but for paths, workers, devices and logging.

    Compared are the parts in ``keys``, :data:`TRAINING` or :data:`TEST`. A setting that is not
    there has the default of its class. Neither the memory layout nor more precise arithmetic than
    the recipe's is a difference.
    """
    both = [dict(_flat(_compared(config, keys), (), keys)) for config in (ours, recipe)]
    found = []
    for path in dict.fromkeys((*both[0], *both[1])):
        mine, theirs = (side.get(path, _ABSENT) for side in both)
        if _ABSENT in (mine, theirs):
            owner = (*path[:-1], "type")
            # Of the recipe's class only: the other config may come from any file.
            known = owner in both[1] and both[0].get(owner) == both[1][owner]
            default = _default(both[1][owner], path[-1]) if known else None
            mine, theirs = (default if v is _ABSENT else v for v in (mine, theirs))
        if not _equal(mine, theirs):
            mine, theirs = ("not set" if v is None else f"{v}"[:100] for v in (mine, theirs))
            found.append(ConfigDifference(".".join(path), mine, theirs))
    return [d for d in found if (d.key, d.ours) != (PRECISION, "float32")]


def _compared(config: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """The parts of a config that are compared, without hooks that log."""
    found = {key: config[key] for key in keys if config.get(key) is not None}
    for key in ("custom_hooks", "default_hooks"):
        hooks = found.pop(key, None) or []
        hooks = list(hooks.values()) if isinstance(hooks, dict) else hooks
        kept = [h for h in hooks if isinstance(h, dict) and _type(h) not in _LOGGING_HOOKS]
        if kept:
            found["custom_hooks"] = [*found.get("custom_hooks", []), *kept]
    wrapper = found.get("optim_wrapper")
    if isinstance(wrapper, dict) and _type(wrapper) in _WRAPPERS:
        precision = (
            "float32" if _type(wrapper) == _WRAPPERS[0] else wrapper.get("dtype", "bfloat16")
        )
        left_out = ("type", "dtype", "loss_scale")
        settings = {key: value for key, value in wrapper.items() if key not in left_out}
        found["optim_wrapper"] = {**settings, "dtype": precision}
    return found


def _flat(
    node: Any, path: tuple[str, ...], keys: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Single values by path; entries of a list by their types, where these are unique."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            if key == "type":
                # A table holds the same packets as the files.
                kind = str(value).rpartition(".")[2]
                yield (*path, key), "VideoDataset" if kind == "LanceVideoDataset" else kind
            elif key == "batch_size" and "test_dataloader" in keys:
                continue  # of a test
            elif not _LEFT_OUT.fullmatch(key):
                yield from _flat(value, (*path, key), keys)
    elif isinstance(node, list | tuple) and any(isinstance(value, dict) for value in node):
        names = [_type(value) for value in node]
        yield path, ", ".join(names)  # their order
        for index, value in enumerate(node):
            unique = names[index] and names.count(names[index]) == 1
            yield from _flat(value, (*path, names[index] if unique else str(index)), keys)
    else:
        yield path, node


def _type(node: Any) -> str:
    """``SCE`` of ``type="sce_video.SCE"``; empty if there is none."""
    kind = node.get("type") if isinstance(node, dict) else None
    return "" if kind is None else str(kind).rpartition(".")[2]


def _default(kind: str, argument: str) -> Any:
    """What the class of that name has for an argument that a config leaves out."""
    from sce_video.engine.config.check import registered  # needs torch

    for part in registered(kind):
        parameter = inspect.signature(part).parameters.get(argument)
        if parameter is not None and parameter.default is not parameter.empty:
            return plain(parameter.default)
    return None


def _equal(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, int | float) and isinstance(theirs, int | float):
        with suppress(OverflowError):  # of a whole number beyond all floats
            return math.isclose(mine, theirs, rel_tol=1e-9)
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        return all(map(_equal, mine, theirs))
    return mine == theirs


# -- config files as data ------------------------------------------------------------------------


def parse_config_text(text: str, name: str) -> dict[str, Any]:
    """The values that a config file assigns to names, read as data.

    Allowed are ``key = value`` lines whose values are numbers, strings, True, False, None, lists,
    tuples, sets, ``{...}`` and ``dict(key=value)``, as ``mmengine.Config.pretty_text`` writes them.
    Messages begin with ``name``, that of the file.

    Raises:
        ValueError: the text holds anything else; the message names the line. Nothing is executed.
    """
    _check_size(text, name)
    found = {}
    try:
        for statement in _Literals().visit(ast.parse(text)).body:
            targets = statement.targets if isinstance(statement, ast.Assign) else ()
            where = f"line {statement.lineno}: "
            if len(targets) != 1 or not isinstance(targets[0], ast.Name):
                raise _NotDataError(f"{where}{type(statement).__name__} instead of name = value")
            try:
                found[targets[0].id] = ast.literal_eval(statement.value)
            except ValueError:
                name_of = targets[0].id
                raise _NotDataError(f"{where}the value of {name_of} is not a literal") from None
    except _NotDataError as error:
        raise ValueError(
            f"the config text of {name} is not plain data and is not executed ({error}): give "
            "the config file"
        ) from None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"the config text of {name} cannot be parsed: {error}") from None
    return found


class _NotDataError(ValueError):
    """A part of the text that is not plain data."""


class _Literals(ast.NodeTransformer):
    """``dict(a=1)``, ``dict({...})``, ``inf`` and ``nan`` as literals; refuses other calls."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        function = node.func.id if isinstance(node.func, ast.Name) else None
        names = [keyword.arg for keyword in node.keywords]
        if function == "set" and not node.args and not names:
            return node  # an empty one, which has no literal
        if function != "dict" or None in names or len(set(names)) != len(names):
            called = function or "an expression"
            raise _NotDataError(f"line {node.lineno}: a call of {called}")
        if not node.args:
            keys = [ast.copy_location(ast.Constant(name), node) for name in names]
            values = [self.visit(keyword.value) for keyword in node.keywords]
            return ast.copy_location(ast.Dict(list(keys), values), node)
        if len(node.args) > 1 or names or not isinstance(node.args[0], ast.Dict):
            raise _NotDataError(f"line {node.lineno}: a call of dict")
        return self.visit(node.args[0])

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.id in ("inf", "nan"):  # as repr() writes them
            return ast.copy_location(ast.Constant(float(node.id)), node)
        return node
