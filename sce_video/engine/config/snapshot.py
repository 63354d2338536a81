"""Resolved configs of training and test runs as JSON, which are stored, read as data and compared.

Every checkpoint contains its training run's config as JSON text. Commands that use the checkpoint
read network, views and method from it. A result is listed next to a number of the paper only if
its config equals the config of the shipped recipe.
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
#: Top-level keys that define a training run. The other keys are paths, validation and test, the
#: machine and logging.
TRAINING = (
    *("model", "data_preprocessor", "train_dataloader", "train_cfg", "optim_wrapper"),
    *("param_scheduler", "auto_scale_lr", "custom_hooks", "default_hooks", "sync_bn"),
    *("randomness", "model_wrapper_cfg", "efficient_conv_bn_eval", "lora", "custom_imports"),
)
TEST = (
    *("model", "data_preprocessor", "test_dataloader", "test_cfg", "test_evaluator"),
    "custom_imports",
)
#: Keys at any depth that do not define a training run: paths, workers, devices, intervals of
#: validation, the seed, and how the same numbers are computed (decoder, memory layout, chunks).
_LEFT_OUT = re.compile(
    r".*_(file|root|dir|path)|actions|csv|out|dump|storage_options|block_size"
    r"|num_workers|persistent_workers|pin_memory|prefetch_factor|max_views|num_threads|backend|timeout"
    r"|val_interval|val_begin|seed|deterministic|with_cp|channels_last|chunk_size|_scope_"
    r"|allow_failed_imports"
)
#: Optimiser wrappers, which differ only in arithmetic precision, and the key of the precision.
_WRAPPERS = ("OptimWrapper", "AmpOptimWrapper", "MixedPrecisionOptimWrapper")
PRECISION = "optim_wrapper.dtype"
#: Hooks that do not change weights, because they only log, write files and evaluate.
_LOGGING_HOOKS = (
    *("AlarmHook", "BadFileHook", "BudgetHook", "ChanceLevelHook", "CheckpointHook", "LoggerHook"),
    *("LogReductionHook", "MirrorHook", "OnlineEvaluationHook", "ProgressHook"),
    "ScreenProgressHook",
)
#: Name of the hook of schedules
_SCHEDULES = "ScheduleHook"
#: Batch size to which its learning rate refers by default
_SCHEDULES_BASE_BATCH = 256
_ABSENT = object()


def resolved_config(cfg: Mapping[str, Any], global_batch: int | None = None) -> dict[str, Any]:
    """Convert a config to JSON data with the global batch and the learning rate for it.

    ``train_dataloader.batch_size`` becomes the global batch without accumulation: ``global_batch``
    samples, or the config's own batch if it is None. The optimiser's ``lr`` becomes the learning
    rate for this batch, and ScheduleHook's ``base_batch_size`` becomes None. On one process, the
    resolved config gives the same training run.
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
    """Convert part of a config to JSON data, with the names of classes and built objects."""
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
    """Return the config in a checkpoint. It may be untrusted, so it is read as JSON only.

    Raises:
        ValueError: If there is no config, or it is not a JSON object of reasonable size.
    """
    meta = content.get("meta")
    text = meta.get(SNAPSHOT) if isinstance(meta, dict) else None
    if not text:
        raise ValueError(
            f"{checkpoint} contains no config (a converted file, or weights only): give the config "
            "file of its network (config=)"
        )
    _check_size(text, str(checkpoint))  # parsing could exhaust memory
    try:
        config = parse_json(text, "it")
    except ValueError as error:
        reason = f"{checkpoint} is not JSON data ({error.__cause__}): give the config file"
        raise ValueError(f"the config of {reason}") from None
    if not isinstance(config, dict):
        raise ValueError(f"the config of {checkpoint} is a {type(config).__name__}, not an object")
    return config


def recorded_training(content: dict[str, Any]) -> dict[str, Any] | None:
    """Return the record of a checkpoint's training run with its ``config``, or None."""
    meta = content.get("meta")
    record = meta.get("training") if isinstance(meta, dict) else None
    if not isinstance(record, dict):
        return None
    with suppress(ValueError):
        return {"config": stored_config(content, ""), **record}  # exported networks include theirs
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
    """Return classes of other packages in the given config keys, as ``SCE of my_package.sce``.

    A config contains only class names, so a foreign class that is registered under the name of
    one of this package's classes is not detected.
    """
    return sorted({f"{name} of {module}" for name, module in _own_classes(config, keys)})


def imports_of(config: Mapping[str, Any], keys: Sequence[str] = TRAINING) -> list[str]:
    """Return the modules of ``--import`` and of other foreign classes in a config."""
    return named_modules(module for _, module in _own_classes(config, keys))


def _own_classes(config: Mapping[str, Any], keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield name and module of each class of another package in parts of a config."""
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
        key: Dotted name of the setting.
        ours: Value in the first config, as text.
        recipes: Value in the recipe's config, as text.
    """

    key: str
    ours: str
    recipes: str

    def __str__(self) -> str:
        return f"{self.key}: {self.ours} -> {self.recipes}"


def differences(
    ours: Mapping[str, Any], recipe: Mapping[str, Any], keys: Sequence[str] = TRAINING
) -> list[ConfigDifference]:
    """Compare two resolved configs, except for paths, workers, devices and logging.

    Only the keys in ``keys``, :data:`TRAINING` or :data:`TEST`, are compared. A missing setting
    counts as its class's default. A different memory layout or arithmetic that is more precise
    than the recipe's is not a difference.
    """
    both = [dict(_flat(_compared(config, keys), (), keys)) for config in (ours, recipe)]
    found = []
    for path in dict.fromkeys((*both[0], *both[1])):
        mine, theirs = (side.get(path, _ABSENT) for side in both)
        if _ABSENT in (mine, theirs):
            owner = (*path[:-1], "type")
            # Use defaults of the recipe's class only, because the other config may be untrusted.
            known = owner in both[1] and both[0].get(owner) == both[1][owner]
            default = _default(both[1][owner], path[-1]) if known else None
            mine, theirs = (default if v is _ABSENT else v for v in (mine, theirs))
        if not _equal(mine, theirs):
            mine, theirs = ("not set" if v is None else f"{v}"[:100] for v in (mine, theirs))
            found.append(ConfigDifference(".".join(path), mine, theirs))
    return [d for d in found if (d.key, d.ours) != (PRECISION, "float32")]


def _compared(config: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return the parts of a config to compare, without hooks that only log."""
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
    """Yield single values by path, with list entries named by their types if these are unique."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            if key == "type":
                # A table holds the same packets as the files.
                kind = str(value).rpartition(".")[2]
                yield (*path, key), "VideoDataset" if kind == "LanceVideoDataset" else kind
            elif key == "batch_size" and "test_dataloader" in keys:
                continue  # an argument of a test only
            elif not _LEFT_OUT.fullmatch(key):
                yield from _flat(value, (*path, key), keys)
    elif isinstance(node, list | tuple) and any(isinstance(value, dict) for value in node):
        names = [_type(value) for value in node]
        yield path, ", ".join(names)  # records the order of the entries
        for index, value in enumerate(node):
            unique = names[index] and names.count(names[index]) == 1
            yield from _flat(value, (*path, names[index] if unique else str(index)), keys)
    else:
        yield path, node


def _type(node: Any) -> str:
    """Return the class name without its module, ``SCE`` for ``type="sce_video.SCE"``, or ""."""
    kind = node.get("type") if isinstance(node, dict) else None
    return "" if kind is None else str(kind).rpartition(".")[2]


def _default(kind: str, argument: str) -> Any:
    """Return, as JSON data, the default of a class argument that a config omits."""
    from sce_video.engine.config.check import registered  # needs torch

    for part in registered(kind):
        parameter = inspect.signature(part).parameters.get(argument)
        if parameter is not None and parameter.default is not parameter.empty:
            return plain(parameter.default)
    return None


def _equal(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, int | float) and isinstance(theirs, int | float):
        with suppress(OverflowError):  # an integer may exceed the range of floats
            return math.isclose(mine, theirs, rel_tol=1e-9)
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        return all(map(_equal, mine, theirs))
    return mine == theirs


# -- config files as data ------------------------------------------------------------------------


def parse_config_text(text: str, name: str) -> dict[str, Any]:
    """Read the values that a config file assigns to names, without executing the file.

    The text may contain ``key = value`` lines whose values are numbers, strings, True, False, None,
    lists, tuples, sets, ``{...}`` and ``dict(key=value)``, as written by
    ``mmengine.Config.pretty_text``. Messages begin with ``name``, the name of the file.

    Raises:
        ValueError: If the text contains anything else. The message names the line.
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
    """Part of a config text that is not plain data."""


class _Literals(ast.NodeTransformer):
    """Transformer of ``dict(a=1)``, ``inf`` and ``nan`` into literals. It refuses other calls."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        function = node.func.id if isinstance(node.func, ast.Name) else None
        names = [keyword.arg for keyword in node.keywords]
        if function == "set" and not node.args and not names:
            return node  # set() has no literal form
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
