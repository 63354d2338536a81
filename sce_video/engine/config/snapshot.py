"""Resolved configs of training and test runs, which are stored as JSON and read as data.

Every checkpoint contains its training run's config as JSON text. Commands that use the checkpoint
read network, views and method from it. The file may be untrusted, so nothing in it is executed.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sce_video.utils.files import parse_json
from sce_video.utils.own_parts import advise_imports, named_modules
from sce_video.utils.records import at

#: A config, or a part of it, as JSON data.
ConfigData = dict[str, Any]
#: Key of the JSON text in a checkpoint's ``meta``.
SNAPSHOT = "config"
#: Maximum length of a config text. Parsing a longer one could exhaust memory.
_MAX_CHARACTERS = 2**21
#: Top-level keys that define a training run. The other keys concern paths, validation, tests, the
#: machine and logging.
TRAINING = (
    *("model", "data_preprocessor", "train_dataloader", "train_cfg", "optim_wrapper"),
    *("param_scheduler", "auto_scale_lr", "custom_hooks", "default_hooks", "sync_bn"),
    *("randomness", "model_wrapper_cfg", "efficient_conv_bn_eval", "lora", "custom_imports"),
)
#: Top-level keys that define a test.
TEST = (
    *("model", "data_preprocessor", "test_dataloader", "test_cfg", "test_evaluator"),
    "custom_imports",
)
#: Hook that scales the learning rate with the batch size, and the batch size to which the rate
#: refers by default.
_SCHEDULES = "ScheduleHook"
_SCHEDULES_BASE_BATCH = 256

# -- from a config to data -----------------------------------------------------------------------


def resolved_config(cfg: Mapping[str, Any], global_batch: int | None = None) -> ConfigData:
    """Convert a config to JSON data that gives the same training run on a single process.

    ``train_dataloader.batch_size`` becomes the global batch without accumulation. The optimiser's
    ``lr`` becomes the learning rate for this batch, and ScheduleHook's ``base_batch_size`` becomes
    None.

    Args:
        cfg: The config.
        global_batch: Samples of an optimiser step; None for the config's own batch.
    """
    config = plain(cfg)
    loader, wrapper = at(config, "train_dataloader", dict), at(config, "optim_wrapper", dict)
    if loader is None or wrapper is None:
        return config
    batch = global_batch or (at(loader, "batch_size") or 1) * wrapper.get("accumulative_counts", 1)
    loader["batch_size"] = batch
    wrapper["accumulative_counts"] = 1
    for hook in at(config, "custom_hooks", list) or ():
        if type_of(hook) == _SCHEDULES:
            base = hook.get("base_batch_size", _SCHEDULES_BASE_BATCH)
            if base and "lr" in wrapper["optimizer"]:
                wrapper["optimizer"]["lr"] *= batch / base
            hook["base_batch_size"] = None
    return config


def plain(node: Any) -> Any:
    """Convert part of a config to JSON data, in which names stand for classes and built objects."""
    if isinstance(node, Mapping) or hasattr(node, "_cfg_dict"):
        return {str(key): plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple | set):
        return [plain(value) for value in node]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    if isinstance(node, os.PathLike):
        return os.fspath(node)
    return getattr(node, "__name__", type(node).__name__)


def type_of(node: Any) -> str:
    """Return the class name without its module, ``SCE`` for ``type="sce_video.SCE"``, or ""."""
    kind = node["type"] if isinstance(node, dict) and "type" in node else None
    return "" if kind is None else str(kind).rpartition(".")[2]


# -- the config in a checkpoint ------------------------------------------------------------------


def has_config(content: Mapping[str, object]) -> bool:
    """Return whether a checkpoint contains a config."""
    return bool(at(content, f"meta.{SNAPSHOT}"))


def stored_config(content: Mapping[str, object], checkpoint: str | Path) -> ConfigData:
    """Return the config in a checkpoint. It may be untrusted, so it is read as JSON only.

    Raises:
        ValueError: If there is no config, or it is not a JSON object of reasonable size.
    """
    text = at(content, f"meta.{SNAPSHOT}")
    if not text:
        raise ValueError(
            f"{checkpoint} contains no config (a converted file, or weights only). Give the config "
            "file of its network (config=)"
        )
    _check_size(text, str(checkpoint))
    try:
        config = parse_json(text, "it")
    except ValueError as error:
        raise ValueError(
            f"the config of {checkpoint} is not JSON data ({error.__cause__}). Give the config file"
        ) from None
    if not isinstance(config, dict):
        raise ValueError(f"the config of {checkpoint} is a {type(config).__name__}, not an object")
    return config


def recorded_training(content: Mapping[str, object]) -> dict[str, Any] | None:
    """Return the record of a checkpoint's training run with its ``config``, or None."""
    record = at(content, "meta.training", dict)
    if record is None:
        return None
    with suppress(ValueError):  # The record of an exported network already contains its config.
        return {"config": stored_config(content, ""), **record}
    return record


def lacking_imports(content: Mapping[str, object]) -> str:
    """Return a sentence on the ``--import`` that a checkpoint needs here; empty for none."""
    record = recorded_training(content)
    return "" if record is None else advise_imports(at(record, "imports"))


def _check_size(text: Any, name: str) -> None:
    if not isinstance(text, str):
        raise ValueError(f"the config of {name} must be text, got {type(text).__name__}")
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(
            f"the config text of {name} has {len(text)} characters, more than {_MAX_CHARACTERS}, "
            "so it is not a config"
        )


# -- classes of other packages -------------------------------------------------------------------


def foreign_classes(config: Mapping[str, Any], keys: Sequence[str] = TRAINING) -> list[str]:
    """List the classes of other packages that a config names, as ``SCE of my_package.sce``.

    Each name stands for the class that this process has registered under it.

    Args:
        config: The config.
        keys: Top-level keys whose values are searched for classes.
    """
    return sorted({f"{name} of {module}" for name, module in _own_classes(config, keys)})


def imports_of(config: Mapping[str, Any], keys: Sequence[str] = TRAINING) -> list[str]:
    """Return the modules of ``--import`` and of other foreign classes in a config."""
    return named_modules(module for _, module in _own_classes(config, keys))


def _own_classes(config: Mapping[str, Any], keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and module of each class from another package in these keys of a config."""
    from sce_video.engine.config.check import registered  # needs torch
    from sce_video.registry import is_own_part

    todo: list[Any] = [config.get(key) for key in keys]
    while todo:
        node = todo.pop()
        if isinstance(node, Mapping):
            todo += node.values()
            for part in filter(is_own_part, registered(node.get("type"))):
                yield type_of(node), str(part.__module__)
        elif isinstance(node, list | tuple):
            todo += node


# -- config files as data ------------------------------------------------------------------------


def parse_config_text(text: str, name: str) -> ConfigData:
    """Read the values that a config file assigns to names, without executing the file.

    The text may contain ``key = value`` lines whose values are numbers, strings, True, False, None,
    lists, tuples, sets, ``{...}`` and ``dict(key=value)``. ``mmengine.Config.pretty_text`` writes
    such texts. ``name`` is the name of the file in messages.

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
            f"the config text of {name} is not plain data and is not executed ({error}). Give "
            "the config file"
        ) from None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"the config text of {name} cannot be parsed: {error}") from None
    return found


class _NotDataError(ValueError):
    """Part of a config text that is not plain data."""


class _Literals(ast.NodeTransformer):
    """Transformer that writes ``dict(a=1)``, ``inf`` and ``nan`` as literals and refuses calls."""

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
