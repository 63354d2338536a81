"""Comparison of two resolved configs, which decides whether they define the same training run.

A result is listed next to a number of the paper only if its config equals the shipped recipe's.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sce_video.engine.config.snapshot import TRAINING, ConfigData, plain, type_of

#: Keys, at any depth, that do not define a training run: paths, workers, devices, validation
#: intervals, the seed, and how the same values are computed (decoder, memory layout, chunks).
_LEFT_OUT = re.compile(
    r".*_(file|root|dir|path)|actions|csv|out|dump|storage_options|block_size"
    r"|num_workers|persistent_workers|pin_memory|prefetch_factor|max_views|num_threads|backend|timeout"
    r"|val_interval|val_begin|seed|deterministic|with_cp|channels_last|chunk_size|_scope_"
    r"|allow_failed_imports"
)
#: Optimiser wrappers that differ only in arithmetic precision. The first one computes in float32.
_WRAPPERS = ("OptimWrapper", "AmpOptimWrapper", "MixedPrecisionOptimWrapper")
#: Key for the arithmetic precision in :class:`ConfigDifference`.
PRECISION = "optim_wrapper.dtype"
#: Hooks that only log, write files and evaluate, so they do not change weights.
_LOGGING_HOOKS = (
    *("AlarmHook", "BadFileHook", "BudgetHook", "ChanceLevelHook", "CheckpointHook", "LoggerHook"),
    *("LogReductionHook", "MirrorHook", "OnlineEvaluationHook", "ProgressHook"),
    "ScreenProgressHook",
)
_ABSENT = object()


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
    """List the settings in which a resolved config differs from a recipe's.

    A missing setting counts as its class's default. Paths, workers, devices, logging and the memory
    layout are not compared, and float32 arithmetic is never a difference.

    Args:
        ours: Resolved config, which may be untrusted.
        recipe: Resolved config of the recipe.
        keys: Top-level keys to compare: ``TRAINING`` or ``TEST`` of
            :mod:`~sce_video.engine.config.snapshot`.
    """
    own, theirs = (dict(_flat(_compared(config, keys), (), keys)) for config in (ours, recipe))
    found = []
    for path in dict.fromkeys((*own, *theirs)):
        values = [side.get(path, _ABSENT) for side in (own, theirs)]
        if _ABSENT in values:
            owner = (*path[:-1], "type")
            # Use only the defaults of the recipe's class, because the other config may be
            # untrusted.
            known = owner in theirs and owner in own and own[owner] == theirs[owner]
            default = _default(theirs[owner], path[-1]) if known else None
            values = [default if value is _ABSENT else value for value in values]
        if not _equal(*values):
            shown = ("not set" if value is None else f"{value}"[:100] for value in values)
            found.append(ConfigDifference(".".join(path), *shown))
    return [d for d in found if (d.key, d.ours) != (PRECISION, "float32")]


def _compared(config: Mapping[str, Any], keys: Sequence[str]) -> ConfigData:
    """Return the compared parts of a config, without hooks that only log.

    The wrapper of the optimiser is replaced by its settings and its precision.
    """
    found = {key: config[key] for key in keys if config.get(key) is not None}
    hooks: list[Any] = []
    for key in ("custom_hooks", "default_hooks"):
        given = found.pop(key, ())
        hooks += given.values() if isinstance(given, dict) else given or ()
    hooks = [h for h in hooks if isinstance(h, dict) and type_of(h) not in _LOGGING_HOOKS]
    if hooks:
        found["custom_hooks"] = hooks
    wrapper = found.get("optim_wrapper")
    if isinstance(wrapper, dict) and type_of(wrapper) in _WRAPPERS:
        in_float32 = type_of(wrapper) == _WRAPPERS[0]
        precision = "float32" if in_float32 else wrapper.get("dtype", "bfloat16")
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
                # A table contains the same packets as the files, so both count as the same dataset.
                kind = str(value).rpartition(".")[2]
                yield (*path, key), "VideoDataset" if kind == "LanceVideoDataset" else kind
            elif key == "batch_size" and "test_dataloader" in keys:
                continue  # The batch size does not change the result of a test.
            elif not _LEFT_OUT.fullmatch(key):
                yield from _flat(value, (*path, key), keys)
    elif isinstance(node, list | tuple) and any(isinstance(value, dict) for value in node):
        names = [type_of(value) for value in node]
        yield path, ", ".join(names)  # records the order of the entries
        for index, value in enumerate(node):
            unique = names[index] and names.count(names[index]) == 1
            yield from _flat(value, (*path, names[index] if unique else str(index)), keys)
    else:
        yield path, node


def _default(kind: str, argument: str) -> Any:
    """Return, as JSON data, the default value of a class argument that a config omits."""
    from sce_video.engine.config.check import registered  # needs torch

    for part in registered(kind):
        parameters = inspect.signature(part).parameters
        if argument in parameters and parameters[argument].default is not inspect.Parameter.empty:
            return plain(parameters[argument].default)
    return None


def _equal(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, int | float) and isinstance(theirs, int | float):
        with suppress(OverflowError):  # an integer may exceed the range of floats
            return math.isclose(mine, theirs, rel_tol=1e-9)
    if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        return all(map(_equal, mine, theirs))
    return mine == theirs
