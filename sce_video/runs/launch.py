"""Execution of a checked config, as a training run or a test."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import get_world_size, init_dist, is_distributed
from mmengine.hooks import Hook
from mmengine.logging import MMLogger

from sce_video.datasets.labelled import check_same_classes, classes_of
from sce_video.engine.batch_layout import divide_global_batch
from sce_video.engine.checkpoint import (
    find_checkpoints,
    load_checkpoint_file,
    record_training,
)
from sce_video.engine.hooks.checkpoint_hook import claim_mirror, mirror_of
from sce_video.engine.restarts import is_restart, requeued_job, starts_of
from sce_video.engine.runner import VideoRunner
from sce_video.engine.weights import check_backbone_weights, check_classifier_weights
from sce_video.engine.work_dir import OverwriteHook, check_unused, locked_folder
from sce_video.registry import DATASETS
from sce_video.reporting.comparability import compare_training
from sce_video.runs.teacher import prepare_teacher
from sce_video.utils.cores import cores_for_workers
from sce_video.utils.distributed import run_on_main_rank, unwrap_model
from sce_video.utils.files import remove_unfinished
from sce_video.utils.records import at
from sce_video.utils.run_files import KEPT


def fit_queue(cfg: Config) -> str | None:
    """Shorten the queue of keys to the dataset, in place, if ``cfg.fit_queue`` is true.

    A key is a negative for all other clips of its own video, except its partner in the batch. A
    queue that is longer than the dataset contains keys of every video, and several keys of most.
    With small datasets, the loss then stays near chance level, and the representation does not
    become better than a random one (docs/results.md). All ranks call this.

    Returns:
        Sentence about the change for the log; None if nothing was changed.

    Raises:
        ValueError: If the dataset or a step contains no video.
    """
    size = at(cfg, "model.queue_size")
    if not at(cfg, "fit_queue") or size is None:
        return None
    videos = len(DATASETS.build(cfg.train_dataloader.dataset))
    accumulated = cfg.optim_wrapper.get("accumulative_counts", 1)
    batch = cfg.train_dataloader.batch_size * accumulated * get_world_size()
    if batch < 1:
        given = f"train_dataloader.batch_size={cfg.train_dataloader.batch_size} x {accumulated}"
        raise ValueError(f"a step needs at least one video, got {given} accumulated")
    fitting = longest_queue(videos, batch)
    if fitting >= size:
        return None
    cfg.model.queue_size = fitting
    return (
        f"model.queue_size={fitting} instead of {size}, because the dataset has {videos} videos, "
        "and the queue should contain fewer keys (fit_queue=False keeps it)"
    )


def longest_queue(videos: int, batch: int) -> int:
    """Return the largest multiple of the global batch that is below the number of videos.

    If one batch contains all videos, return half the number of videos.
    """
    return (videos - 1) // batch * batch or max(1, videos // 2)


@contextmanager
def _known_warnings_ignored() -> Iterator[None]:
    """Ignore warnings about intended settings.

    These settings are more loader workers than cores, one thread per process, and separate batch
    normalisation statistics in each process.
    """
    known = "This DataLoader will create|`broadcast_buffers` is dep|Setting (OMP|MKL)_NUM_THREADS"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=known)
        yield


@_known_warnings_ignored()
def run_training(cfg: Config, overwrite: bool = False) -> VideoRunner:
    """Train with a config from :func:`~sce_video.runs.configs.training_config`.

    All ranks call this. The work folder is locked during training. Unless the run resumes, the
    folder must not contain an earlier run, except one from an earlier start of the same launch.

    Args:
        cfg: Config of the run.
        overwrite: Whether to remove an earlier run before the first step. The work of an earlier
            start of this launch is kept.

    Raises:
        ValueError: If the folder contains an earlier run, or another run is training in it. All
            ranks raise it.
    """
    restarted = is_restart(cfg.work_dir)  # all ranks must check before rank 0 records this start
    overwrite = overwrite and not (restarted and find_checkpoints(cfg.work_dir))
    join_processes(cfg.launcher, at(cfg, "env_cfg.dist_cfg"))
    # The number of processes is known only after they have joined.
    divide_global_batch(cfg, get_world_size())
    with ExitStack() as stack:
        run_on_main_rank(lambda: _claim_folder(stack, cfg, overwrite or restarted))
        # Fit the queue before the network is built, but after the number of processes is known.
        fitted = fit_queue(cfg)
        teacher = prepare_teacher(cfg)
        runner = _runner(cfg)
        if teacher is not None:
            runner.register_hook(teacher)
        if fitted:
            runner.logger.info(fitted)
        model = unwrap_model(runner.model)
        out = getattr(getattr(model, "backbone", None), "out_channels", None)
        expected = getattr(getattr(model, "cls_head", None), "in_channels", None)
        if isinstance(out, int) and isinstance(expected, int) and out != expected:
            raise ValueError(
                f"the backbone has {out} output channels, but the classifier expects {expected}. "
                f"Set model.cls_head.in_channels={out}"
            )
        if overwrite:
            runner.register_hook(OverwriteHook())
        if at(cfg, "benchmark"):
            runner.register_hook(PaperHook())
        # Rounding depends on the number of threads, so a resumed run uses as many threads as
        # before.
        earlier = starts_of(cfg.work_dir)[-1:] if at(cfg, "resume") else []
        threads = earlier[0].threads if earlier else None
        with cores_for_workers(at(cfg, "train_dataloader.num_workers") or 0, threads):
            runner.train()
    return runner


class PaperHook(Hook):
    """Hook that logs at the start whether a run can be compared with a number in the paper."""

    def before_train(self, runner: Any) -> None:
        config, record = record_training(runner, None)
        benchmark = runner.cfg.benchmark.to_dict()
        found = compare_training(benchmark, at(runner.cfg, "split"), {**record, "config": config})
        if found is None:
            return
        recipe, comparability = found
        if comparability.obstacles:
            runner.logger.warning(
                f"this run cannot be compared with the paper's number ({recipe}), so sce-video "
                f"report lists it separately: {'; '.join(comparability.obstacles)}"
            )
            return
        marks = "; ".join((*comparability.deviations, *comparability.notes))
        said = f". The report states: {marks}" if marks else ""
        runner.logger.info(
            "this run can be compared with the paper's number, because data and settings match "
            f"{recipe}{said}"
        )


def end_training(runner: VideoRunner) -> int:
    """Return a run's exit status: 0 if it has finished, 128 + n if signal n stopped it.

    A Slurm job that was stopped before its time limit is requeued. The status is then 0, so that
    torchrun does not report a failure. All ranks call this.
    """
    stopped_by = getattr(runner.train_loop, "stopped_by", None)
    return 0 if stopped_by is None or requeued_job(runner) else 128 + stopped_by


def _runner(cfg: Config) -> VideoRunner:
    """Build the runner with a unique name, which is the same on all ranks.

    mmengine shares logs and counters between runners with the same name. Its own names are equal
    for runners that are built within a second.
    """
    stem = Path(cfg.filename or "run").stem

    def own_name() -> str | None:
        name = f"{stem}_{time.strftime('%Y%m%d_%H%M%S')}"
        return f"{stem}_{time.time_ns()}" if MMLogger.check_instance_created(name) else None

    if at(cfg, "experiment_name") is None:
        # One rank chooses the name, because the ranks' clocks may differ.
        name = run_on_main_rank(own_name)
        if name is not None:
            cfg.experiment_name = name
    return VideoRunner.from_cfg(cfg)


def _claim_folder(stack: ExitStack, cfg: Config, used: bool) -> None:
    """Lock the work folder until the stack is closed, and claim its copy in an object store.

    The folder may contain an earlier run only if it is ``used``.
    """
    stack.enter_context(locked_folder(cfg.work_dir))
    remove_unfinished(cfg.work_dir)  # e.g. a checkpoint that a killed process was writing
    source, resumed = at(cfg, "load_from"), bool(at(cfg, "resume"))
    elsewhere = source and Path(source).resolve().parent != Path(cfg.work_dir).resolve()
    if not used and (not resumed or elsewhere):
        check_unused(cfg.work_dir)
    # A start that was killed before its first regular checkpoint may have left a best checkpoint.
    if not find_checkpoints(cfg.work_dir):
        Path(cfg.work_dir, KEPT).unlink(missing_ok=True)
    mirror = mirror_of(cfg)
    if mirror is not None:
        claim_mirror(mirror, new=not (used or resumed))


@_known_warnings_ignored()
def run_test(cfg: Config, random: bool = False) -> dict[str, float]:
    """Test with a config from :func:`~sce_video.runs.configs.testing_config`.

    Args:
        cfg: Config of the test.
        random: Whether to test random weights as well.

    Raises:
        ValueError: If the checkpoint lacks weights of the tested network.
    """
    runner = _runner(cfg)
    if cfg.load_from is not None:
        checkpoint = load_checkpoint_file(cfg.load_from)
        check_backbone_weights(runner.model, checkpoint, cfg.load_from)
        check_classifier_weights(runner.model, checkpoint, cfg.load_from)
        if hasattr(unwrap_model(runner.model), "cls_head"):
            # The classes must be in the same order as in training. A missing class folder would
            # shift the labels of all later classes.
            trained = at(checkpoint, "meta.classes") or ()
            tested = classes_of(runner.test_dataloader.dataset)
            check_same_classes(trained, tested, ("the training had", "the test has"))
    if random:
        loop: Any = runner.test_loop
        loop.compare_with_random()
    with cores_for_workers(at(cfg, "test_dataloader.num_workers") or 0):
        return runner.test()


def join_processes(launcher: str, dist_cfg: dict | None = None) -> None:
    """Start the process group before the first runner does.

    Args:
        launcher: "none", "pytorch" or "slurm".
        dist_cfg: Backend, timeout and other arguments on GPUs, as in mmengine. Without a GPU, gloo
            is used.
    """
    if launcher == "none" or is_distributed():
        return
    if torch.cuda.is_available():
        init_dist(launcher, **(dist_cfg or {}))
    else:
        torch.distributed.init_process_group("gloo")
