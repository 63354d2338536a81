"""What can be known before the first step: the learning rate, and files that are evaluated."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from sce_video.engine.alarms.alarm import Alarm
from sce_video.registry import DATASETS
from sce_video.utils.distributed import unwrap_model

_EDGE = 65536  # bytes compared at both ends of a file


def learning_rate(
    peak: tuple[float, int] | None, optimizer: str, ranges: Mapping[str, Sequence[float]]
) -> Alarm | None:
    """The alarm of a rate that the linear rule (rate proportional to batch) makes unlikely.

    Args:
        peak: Peak learning rate and global batch, None if not known.
        optimizer: Name of its class.
        ranges: By optimiser, least and largest rate for a batch of 256.
    """
    if peak is None or optimizer not in ranges:
        return None
    rate, batch = peak
    least, largest = ranges[optimizer]
    scaled = rate * 256 / batch
    if least <= scaled <= largest:
        return None
    return Alarm(
        "learning_rate",
        f"the peak learning rate {rate:g} of {optimizer} at a global batch of {batch} is "
        f"{scaled:.3g} for 256 samples by the linear rule; usual are {least:g} to {largest:g}. "
        "Check optim_wrapper.optimizer.lr and custom_hooks.ScheduleHook.base_batch_size, the batch "
        "that this rate is meant for",
        value=scaled,
        threshold=least if scaled < least else largest,
    )


def evaluated_files(runner: Any, max_compared: int) -> list[Alarm]:
    """Alarms of evaluation sets that share files with the training set.

    Evaluated are ``test_dataloader``, ``val_dataloader`` and the queries of an online evaluation. A
    gallery may be the training set: neighbours are usually taken from there. An evaluation set that
    cannot be listed here, because its files are elsewhere, is left out.

    Args:
        runner: The runner of a training.
        max_compared: Files of both sets up to which sizes and contents are compared; with more,
            paths alone.
    """
    training = runner.train_dataloader.dataset
    if not hasattr(training, "path"):
        return []
    supervised = hasattr(unwrap_model(runner.model), "cls_head")
    found = []
    for name, dataset in _evaluation_sets(runner):
        shared = common_files(_paths(training), _paths(dataset), max_compared)
        if shared:
            found.append(_shared_alarm(name, shared, len(dataset), supervised))
    return found


def _shared_alarm(name: str, shared: Sequence[str], count: int, supervised: bool) -> Alarm:
    meaning = (
        "their labels are trained on, so the result says nothing about new samples"
        if supervised
        else "no labels are trained on, but the result is better than on new samples"
    )
    return Alarm(
        "evaluated_files",
        f"{len(shared)} of {count} files of {name} are in the training set, too, such as "
        f"{shared[0]}: {meaning}. Evaluate on other files",
        value=len(shared) / count,
        threshold=0.0,
        level="error" if supervised else "warning",
    )


def _evaluation_sets(runner: Any) -> Iterator[tuple[str, Any]]:
    for name in ("test_dataloader", "val_dataloader"):
        config = runner.cfg.get(name)
        if config is not None and isinstance(config.get("dataset"), Mapping):
            dataset = _build(config["dataset"])
            if dataset is not None:
                yield name, dataset
    for hook in runner.hooks:
        queries = getattr(hook, "queries", None)
        dataset = queries.get("dataset") if isinstance(queries, Mapping) else None
        dataset = _build(dataset) if isinstance(dataset, Mapping) else None
        dataset = dataset or getattr(queries, "dataset", None)
        if hasattr(dataset, "path"):
            yield "the queries of the online evaluation", dataset


def _build(config: Mapping[str, Any]) -> Any | None:
    try:
        dataset = DATASETS.build(dict(config))
    except Exception:  # not on this machine, or anybody's class: the evaluation will say so
        return None
    return dataset if hasattr(dataset, "path") else None


def _paths(dataset: Any) -> list[str]:
    return [str(dataset.path(index)) for index in range(len(dataset))]


def common_files(training: Iterable[str], evaluated: Iterable[str], max_compared: int) -> list[str]:
    """The evaluated files that are in the training set by resolved path, or by size and content.

    Compared are the first and the last 64 KiB of files of one size.
    """
    seen, wanted = set(training), set(evaluated)
    few = len(seen) + len(wanted) <= max_compared
    resolve = os.path.realpath if few else _in_resolved_folder  # links of single files cost a call
    resolved = {resolve(path) for path in seen}
    shared = {path for path in wanted if path in seen or resolve(path) in resolved}
    if not few:
        return sorted(shared)
    by_size: dict[int, list[str]] = {}
    for path in seen:
        by_size.setdefault(_size(path), []).append(path)
    digest = cache(_digest)
    for path in wanted - shared:
        size = _size(path)
        if size > 0 and any(digest(path) == digest(other) for other in by_size.get(size, ())):
            shared.add(path)
    return sorted(shared)


_resolved_folder = lru_cache(1024)(os.path.realpath)


def _in_resolved_folder(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(_resolved_folder(folder), name)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size if Path(path).is_file() else 0
    except OSError:
        return 0


def _digest(path: str) -> bytes:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        found.update(file.read(_EDGE))
        if os.fstat(file.fileno()).st_size > 2 * _EDGE:
            file.seek(-_EDGE, os.SEEK_END)
        found.update(file.read(_EDGE))
    return found.digest()
