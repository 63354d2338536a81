"""Hooks that watch a training: alarms in the log and in ``alarms.jsonl`` (docs/logging.md)."""

from __future__ import annotations

import hashlib
import math
import os
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Literal

from mmengine.dist import is_main_process
from mmengine.hooks import Hook

from sce_video.engine.alarms import (
    Alarm,
    ChanceLevel,
    Collapse,
    DataWait,
    Detector,
    QueueFill,
    RepeatedFrames,
    report_alarm,
    report_cleared,
)
from sce_video.engine.restarts import continue_rows
from sce_video.engine.schedules import ScheduleHook, accumulative_counts
from sce_video.registry import DATASETS, HOOKS
from sce_video.utils.distributed import unwrap_model
from sce_video.utils.errors import NamedWarning
from sce_video.utils.files import read_json_lines
from sce_video.utils.run_files import ALARMS, METRICS

#: Rates of SGD and LARS per 256 samples that the recipes of the papers use, and a factor of five.
LR_PER_256 = {"SGD": (0.01, 6.0), "LARS": (0.06, 18.0)}
#: Largest share of the clips of RGB differences in which frames repeat.
MAX_REPEATS = 0.25


class _DetectorHook(Hook):
    """Gives every logged row of the training to detectors and reports their alarms."""

    priority = "LOW"
    _detectors: Sequence[Detector] = ()

    @abstractmethod
    def detectors(self, runner) -> Sequence[Detector]:
        """The detectors of a training that begins."""

    def before_train(self, runner) -> None:
        """Prepare the detectors; those of a resumed run get its earlier rows again."""
        self._detectors = self.detectors(runner)
        path = Path(runner.work_dir, METRICS)
        if not (runner.iter and is_main_process() and path.is_file()):
            return
        try:
            rows = [row for _, row in read_json_lines(path)]
        except (OSError, ValueError) as error:
            runner.logger.warning(f"alarms of this start do not know the earlier ones: {error}")
            return
        for row in rows:
            if row.get("kind") == "train" and type(row.get("iter")) is int:
                numbers = {k: v for k, v in row.items() if isinstance(v, int | float)}
                for detector in self._detectors:
                    detector.update(numbers)

    def after_row(self, runner, row: Mapping[str, Any]) -> None:
        """Report alarms that begin or end with a row."""
        if row["kind"] != "train":
            return
        for detector in self._detectors:
            was_active = detector.active
            alarm = detector.update(row)
            if alarm is not None:
                report_alarm(runner, alarm, row["iter"])
            elif was_active and not detector.active:
                report_cleared(runner, detector.name, row["iter"])


@HOOKS.register_module()
class AlarmHook(_DetectorHook):
    """Collapse, waiting for data, queue, repeated frames, learning rate, evaluated training files.

    Each alarm is reported once, and again only if its condition has ended meanwhile. None of them
    changes the training.

    Args:
        min_z_std: Spread of the embeddings z below which the network has collapsed. Of
            100 finished trainings of eight methods the least is 0.16; None for no alarm.
        min_h_std: The same for the spread of h; there the least is 0.23.
        min_h_rank: The same for the effective rank of h, 1 if all lie on a line; the least is 2.6.
        collapse_share: Share of its largest value so far below which it must be, too.
        collapse_steps: Iterations that this must last.
        first_steps: Iterations at the start in which nothing counts as collapse.
        max_data_wait: Largest share of the time spent on waiting for data; by default 0.3 on a GPU,
            and 0.7 on a CPU, which decodes on the cores that it trains on.
        data_wait_steps: Iterations of the mean of that share.
        lr_per_256: By optimiser, the least and the largest peak learning rate scaled to a batch of
            256 (linear rule); optimisers that are not named, such as AdamW, have no rule.
        max_compared_files: Files of training and evaluation up to which their content is compared,
            not only their paths.

    Raises:
        ValueError: a number of steps below 1, or ``max_data_wait`` outside 0 to 1.
    """

    def __init__(
        self,
        min_z_std: float | None = 0.15,
        min_h_std: float | None = 0.1,
        min_h_rank: float | None = 1.5,
        collapse_share: float = 0.5,
        collapse_steps: int = 50,
        first_steps: int = 100,
        max_data_wait: float | None = None,
        data_wait_steps: int = 200,
        lr_per_256: Mapping[str, Sequence[float]] | None = None,
        max_compared_files: int = 20_000,
    ) -> None:
        if min(collapse_steps, data_wait_steps) < 1:
            given = f"{collapse_steps} and {data_wait_steps}"
            raise ValueError(f"collapse_steps and data_wait_steps must be at least 1, got {given}")
        if max_data_wait is not None and not 0 <= max_data_wait <= 1:
            raise ValueError(f"max_data_wait must be from 0 to 1, got {max_data_wait}")
        minima = (("z_std", min_z_std), ("h_std", min_h_std), ("h_rank", min_h_rank))
        self.minima = {name: least for name, least in minima if least is not None}
        self.collapse_share, self.collapse_steps = collapse_share, collapse_steps
        self.first_steps, self.data_wait_steps = first_steps, data_wait_steps
        self.max_data_wait, self.max_compared_files = max_data_wait, max_compared_files
        self.lr_per_256 = dict(LR_PER_256 if lr_per_256 is None else lr_per_256)

    def detectors(self, runner) -> Sequence[Detector]:
        on_gpu = next(unwrap_model(runner.model).parameters()).device.type != "cpu"
        limit = self.max_data_wait
        if limit is None:
            limit = 0.3 if on_gpu else 0.7
        return (
            Collapse(self.minima, self.collapse_share, self.collapse_steps, self.first_steps),
            DataWait(limit, self.data_wait_steps, on_gpu),
            QueueFill(partial(_queue_iterations, runner), lambda: runner.train_loop.max_iters),
            RepeatedFrames(MAX_REPEATS, self.data_wait_steps),
        )

    def before_train(self, runner) -> None:
        """Begin the file, or continue that of a resumed run; check what is known before."""
        self._queue_told = runner.iter > 0
        if is_main_process():
            continue_rows(runner, ALARMS)
        super().before_train(runner)
        if not is_main_process():
            return
        known: set[str] = set()  # messages of an earlier start
        with suppress(OSError, ValueError):
            rows = read_json_lines(Path(runner.work_dir, ALARMS))
            known = {str(row.get("message")) for _, row in rows}
        for text in getattr(runner.train_loop, "warnings", ()):  # in the log already
            if isinstance(text, NamedWarning) and text not in known:
                alarm = Alarm(text.alarm, str(text), text.value, text.threshold)
                report_alarm(runner, alarm, runner.iter, to_log=False)
        found = evaluated_files(runner, self.max_compared_files)
        if hasattr(unwrap_model(runner.model), "after_optimizer_step"):  # no classifier
            schedules = [hook for hook in runner.hooks if isinstance(hook, ScheduleHook)]
            peak = (schedules[0].peak_lr, schedules[0].global_batch) if schedules else None
            optimizer = type(runner.optim_wrapper.optimizer).__name__
            unusual = learning_rate(peak, optimizer, self.lr_per_256)
            found += [] if unusual is None else [unusual]
        for alarm in found:
            if alarm.message not in known:
                report_alarm(runner, alarm, runner.iter)

    def after_row(self, runner, row: Mapping[str, Any]) -> None:
        """Report alarms; once tell when the queue will be full of keys."""
        super().after_row(runner, row)
        if row["kind"] == "train" and not self._queue_told:
            iterations = _queue_iterations(runner)
            self._queue_told = iterations is not None
            if row["iter"] < (iterations or 0) <= runner.train_loop.max_iters:
                runner.logger.info(
                    f"random vectors stay in the queue for {iterations - row['iter']} more "
                    f"iterations: it is full of keys after {iterations}"
                )


def _queue_iterations(runner: Any) -> int | None:
    """Iterations that fill the queue of the method; None if it has none, or is not known yet."""
    steps = getattr(unwrap_model(runner.model), "queue_steps", lambda: None)()
    return None if steps is None else steps * accumulative_counts(runner)


@HOOKS.register_module()
class ChanceLevelHook(_DetectorHook):
    """An alarm where the loss stays at that of a network that tells no samples apart.

    The chance level is the method's (``chance_level()``, see
    :class:`~sce_video.models.algorithms.base.SelfSupervisedModel`); a method without one is not
    watched.

    Args:
        share: Share of the training, from 0 to 1, that the loss may spend there.
        window: Iterations over which the loss is averaged.
        margin: The loss counts as that of chance within this share of the chance level.
        min_steps: Iterations that it may spend there in a short training, too.

    Raises:
        ValueError: ``share`` or ``margin`` outside 0 to 1, or ``window`` below 1.
    """

    def __init__(
        self, share: float = 0.3, window: int = 20, margin: float = 0.01, min_steps: int = 300
    ) -> None:
        if not 0 <= share <= 1 or not 0 <= margin <= 1:
            raise ValueError(f"share and margin must be from 0 to 1, got {share} and {margin}")
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.share, self.window = share, window
        self.margin, self.min_steps = margin, min_steps

    def detectors(self, runner) -> Sequence[Detector]:
        chance = getattr(unwrap_model(runner.model), "chance_level", lambda: None)
        steps = max(self.min_steps, 1, math.ceil(self.share * runner.train_loop.max_iters))
        return (ChanceLevel(chance, steps, self.margin, self.window),)


# -- before the first step -----------------------------------------------------------------------

_EDGE = 65536  # bytes compared at both ends of a file


def learning_rate(
    peak: tuple[float, int] | None, optimizer: str, ranges: Mapping[str, Sequence[float]]
) -> Alarm | None:
    """The alarm of a rate that the linear rule (rate proportional to batch) makes unlikely.

    ``peak`` is the peak learning rate and the global batch, None if not known; ``ranges`` has the
    least and the largest rate for a batch of 256 by the name of the optimiser.
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
    cannot be listed here, because its files are elsewhere, is left out. With more files of both
    sets than ``max_compared``, paths alone are compared, not sizes and contents.
    """
    training = runner.train_dataloader.dataset
    if not hasattr(training, "path"):
        return []
    supervised = hasattr(unwrap_model(runner.model), "cls_head")
    found = []
    for name, dataset in _evaluation_sets(runner):
        own, other = ([str(d.path(i)) for i in range(len(d))] for d in (training, dataset))
        shared = common_files(own, other, max_compared)
        if not shared:
            continue
        meaning = (
            "their labels are trained on, so the result says nothing about new samples"
            if supervised
            else "no labels are trained on, but the result is better than on new samples"
        )
        text = (
            f"{len(shared)} of {len(dataset)} files of {name} are in the training set, too, such "
            f"as {shared[0]}: {meaning}. Evaluate on other files"
        )
        level: Literal["warning", "error"] = "error" if supervised else "warning"
        found.append(Alarm("evaluated_files", text, len(shared) / len(dataset), 0.0, level))
    return found


def _evaluation_sets(runner: Any) -> Iterator[tuple[str, Any]]:
    """Names of the evaluation sets, and those of them that name files."""
    sets = [(name, runner.cfg.get(name)) for name in ("test_dataloader", "val_dataloader")]
    queries = [getattr(hook, "queries", None) for hook in runner.hooks]
    sets += [("the queries of the online evaluation", loader) for loader in queries]
    for name, loader in sets:
        dataset = None
        if not isinstance(loader, Mapping):
            dataset = getattr(loader, "dataset", None)
        else:
            # Not on this machine, or anybody's class: the evaluation will say so.
            with suppress(Exception):
                dataset = DATASETS.build(dict(loader["dataset"]))
        if hasattr(dataset, "path"):
            yield name, dataset


def common_files(training: Iterable[str], evaluated: Iterable[str], max_compared: int) -> list[str]:
    """The evaluated files that are in the training set by resolved path, or by size and content.

    Compared are the first and the last 64 KiB of files of one size.
    """
    seen, wanted = set(training), set(evaluated)
    few = len(seen) + len(wanted) <= max_compared
    folder = lru_cache(1024)(os.path.realpath)

    def resolve(path: str) -> str:
        # Links of single files cost a call each: of many files folders alone are resolved.
        if few:
            return os.path.realpath(path)
        return os.path.join(folder(os.path.dirname(path)), os.path.basename(path))

    def size(path: str) -> int:
        return os.path.getsize(path) if os.path.isfile(path) else 0

    @cache
    def digest(path: str) -> bytes:
        with open(path, "rb") as file:
            begin = file.read(_EDGE)
            file.seek(max(file.tell(), size(path) - _EDGE))
            return hashlib.sha256(begin + file.read(_EDGE)).digest()

    resolved = {resolve(path) for path in seen}
    shared = {path for path in wanted if path in seen or resolve(path) in resolved}
    by_size = defaultdict(list)
    for path in seen if few else ():
        by_size[size(path)].append(path)
    for path in wanted - shared if few else ():
        alike = by_size[size(path)] if size(path) > 0 else ()
        if any(digest(path) == digest(other) for other in alike):
            shared.add(path)
    return sorted(shared)
