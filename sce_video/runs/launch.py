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
from sce_video.utils.run_files import KEPT


def fit_queue(cfg: Config) -> str | None:
    """Shorten the queue of keys to the dataset, in place, if ``cfg.fit_queue`` is true.

    A key is a negative for every other clip of its own video, except its neighbour in the batch. A
    queue that is longer than the dataset contains a key of every video, and several keys of most.
    With small datasets, the loss then stays near chance level, and the representation does not
    become better than a random one (docs/results.md). With several processes, each calls this.

    Returns:
        Sentence about the change for the log; None if nothing was changed.

    Raises:
        ValueError: If the dataset, or a step, has no video.
    """
    size = cfg.model.get("queue_size")
    if not cfg.get("fit_queue") or size is None:
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
    """Return the largest multiple of the global batch below the number of videos.

    If there are no more videos than in a batch, return half the number of videos.
    """
    return (videos - 1) // batch * batch or max(1, videos // 2)


@contextmanager
def _known_warnings_ignored() -> Iterator[None]:
    """Ignore warnings about settings that are intended.

    These are more loader workers than cores, one thread per process, and batch normalisation
    statistics per process.
    """
    known = "This DataLoader will create|`broadcast_buffers` is dep|Setting (OMP|MKL)_NUM_THREADS"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=known)
        yield


@_known_warnings_ignored()
def run_training(cfg: Config, overwrite: bool = False) -> VideoRunner:
    """Train with a config of :func:`~sce_video.runs.configs.training_config`. All ranks call this.

    The work folder is locked during training. Unless it resumes, a run needs a folder without an
    earlier run. A run from an earlier start of the same launch is allowed.

    ``overwrite`` removes an earlier run before the first step, but not the work of an earlier start
    of this launch.

    Raises:
        ValueError: If the folder contains an earlier run, or another run is training in it. All
            ranks raise it.
    """
    restarted = is_restart(cfg.work_dir)  # all ranks must check before rank 0 records this start
    overwrite = overwrite and not (restarted and find_checkpoints(cfg.work_dir))
    join_processes(cfg.launcher, cfg.get("env_cfg"))
    # The number of processes is known only after joining.
    divide_global_batch(cfg, get_world_size())
    with ExitStack() as stack:
        run_on_main_rank(lambda: _claim_folder(stack, cfg, overwrite or restarted))
        # This needs the number of processes, and must happen before the network is built.
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
        if cfg.get("benchmark"):
            runner.register_hook(PaperHook())
        earlier = starts_of(cfg.work_dir)[-1:] if cfg.get("resume") else []
        threads = next((n for s in earlier if isinstance(n := s.get("threads"), int)), None)
        with cores_for_workers(cfg.train_dataloader.get("num_workers", 0), threads):
            runner.train()
    return runner


class PaperHook(Hook):
    """Hook that logs at the start whether a run can be compared with a number of the paper."""

    def before_train(self, runner: Any) -> None:
        config, record = record_training(runner, None)
        benchmark = runner.cfg.benchmark.to_dict()
        found = compare_training(benchmark, runner.cfg.get("split"), {**record, "config": config})
        if found is None:
            return
        recipe, comparability = found
        lacks = "; ".join(comparability.obstacles)
        marks = "; ".join((*comparability.deviations, *comparability.notes))
        if lacks:
            runner.logger.warning(
                f"this run cannot be compared with the paper's number ({recipe}), so sce-video "
                f"report lists it separately: {lacks}"
            )
            return
        said = f", where the report states: {marks}" if marks else ""
        runner.logger.info(
            "this run can be compared with the paper's number, because data and settings match "
            f"{recipe}{said}"
        )


def end_training(runner: VideoRunner) -> int:
    """Return a run's exit status: 0 if it has finished, 128 + n if signal n stopped it.

    If a Slurm job was stopped before its time limit, it is requeued and the status is 0, which
    torchrun does not treat as a failure. All ranks call this.
    """
    stopped_by = getattr(runner.train_loop, "stopped_by", None)
    return 0 if stopped_by is None or requeued_job(runner) else 128 + stopped_by


def _runner(cfg: Config) -> VideoRunner:
    """Build the runner with a unique name, which is the same on all ranks.

    mmengine shares logs and counters between runners with the same name, and its names have a
    resolution of one second.
    """
    stem = Path(cfg.filename or "run").stem

    def own_name() -> str | None:
        name = f"{stem}_{time.strftime('%Y%m%d_%H%M%S')}"
        return f"{stem}_{time.time_ns()}" if MMLogger.check_instance_created(name) else None

    if cfg.get("experiment_name") is None:
        # One rank chooses the name, because the clocks of the others may show another second.
        name = run_on_main_rank(own_name)
        if name is not None:
            cfg.experiment_name = name
    return VideoRunner.from_cfg(cfg)


def _claim_folder(stack: ExitStack, cfg: Config, used: bool) -> None:
    """Lock the work folder until the stack is closed, and check that it is unused, or ``used``.

    The folder's copy in an object store is claimed as well, if there is one.
    """
    stack.enter_context(locked_folder(cfg.work_dir))
    remove_unfinished(cfg.work_dir)  # e.g. a checkpoint that a killed start was writing
    source = cfg.get("load_from")
    elsewhere = source and Path(source).resolve().parent != Path(cfg.work_dir).resolve()
    if not used and (not cfg.get("resume") or elsewhere):
        check_unused(cfg.work_dir)
    if not find_checkpoints(cfg.work_dir):  # an earlier start may have been killed before its first
        Path(cfg.work_dir, KEPT).unlink(missing_ok=True)
    mirror = mirror_of(cfg)
    if mirror is not None:
        claim_mirror(mirror, new=not used and not cfg.get("resume"))


@_known_warnings_ignored()
def run_test(cfg: Config, random: bool = False) -> dict[str, float]:
    """Test with a config of :func:`~sce_video.runs.configs.testing_config`.

    ``random`` also tests random weights.

    Raises:
        ValueError: If the checkpoint lacks weights of the tested network.
    """
    runner = _runner(cfg)
    if cfg.load_from is not None:
        checkpoint = load_checkpoint_file(cfg.load_from)
        check_backbone_weights(runner.model, checkpoint, cfg.load_from)
        check_classifier_weights(runner.model, checkpoint, cfg.load_from)
        if hasattr(unwrap_model(runner.model), "cls_head"):
            # Labels must have the same order. A missing folder would shift all labels after it.
            trained = checkpoint.get("meta", {}).get("classes", ())
            tested = classes_of(runner.test_dataloader.dataset)
            check_same_classes(trained, tested, ("the training had", "the test has"))
    if random:
        loop: Any = runner.test_loop
        loop.compare_with_random()
    with cores_for_workers(cfg.test_dataloader.get("num_workers", 0)):
        return runner.test()


def join_processes(launcher: str, env_cfg: dict | None = None) -> None:
    """Start the process group before the first runner does; use gloo without a GPU.

    On GPUs, the ``dist_cfg`` in ``env_cfg`` (backend, timeout, ...) applies, as in mmengine.
    """
    if launcher == "none" or is_distributed():
        return
    if torch.cuda.is_available():
        init_dist(launcher, **(env_cfg or {}).get("dist_cfg", {}))
    else:
        torch.distributed.init_process_group("gloo")
