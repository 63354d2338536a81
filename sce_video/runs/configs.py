"""Checked configs of training runs and tests."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import print_log

from sce_video.engine.checkpoint import BEST, find_checkpoints, load_checkpoint_file
from sce_video.engine.config.changes import parse_options
from sce_video.engine.config.load import check_config, load_config, set_backend
from sce_video.engine.config.snapshot import lacking_imports
from sce_video.engine.hooks.checkpoint_hook import add_mirror, mirror_of, restore_run
from sce_video.engine.logs import add_trackers
from sce_video.engine.optimizers import computes_bfloat16
from sce_video.engine.restarts import is_restart
from sce_video.engine.runner import RANDOM
from sce_video.engine.weights import feature_channels
from sce_video.inference.model import checkpoint_of
from sce_video.registry import DATASETS
from sce_video.runs.checkpoint_settings import Content, Use, adopted_config
from sce_video.utils.records import at
from sce_video.utils.run_files import RESULTS, newest_checkpoint
from sce_video.utils.storage import absolute, exists, is_url, list_files, split

#: Name of the results file in the work folder for the checkpoint that a validation metric selected
BEST_RESULTS = "best.json"
#: Possible names of a classifier's weights. In a grid of classifiers, the first one is used.
_WEIGHTS = ("cls_head.fc_cls.weight", "cls_head.probes.0.fc_cls.weight")
#: Entries in ``default_hooks`` that have no effect in a test
_TRAINING_HOOKS = ("alarms", "bad_files", "chance_level", "log_reduction", "progress")
#: Settings that a test does not use. They include custom hooks, which are meant for training.
_TRAINING_ONLY = (
    *("train_dataloader", "train_cfg", "optim_wrapper", "param_scheduler", "custom_hooks"),
    *("val_dataloader", "val_cfg", "val_evaluator"),
)


def checkpoints_to_test(path: str) -> list[str]:
    """List a given checkpoint, or a work folder's newest checkpoint and then its best one.

    Args:
        path: Checkpoint, the word "random", or folder of a training run.

    Raises:
        ValueError: If a folder contains no checkpoints, or several best ones.
    """
    folder = Path(path)
    if not folder.is_dir():
        return [path]
    best = sorted(folder.glob(f"{BEST}*.pth"))
    try:
        own = newest_checkpoint(folder)
    except FileNotFoundError:
        text = f"{folder} contains no checkpoint epoch_N.pth. Give the folder of a training run"
        raise ValueError(text) from None
    if len(best) > 1:
        names = ", ".join(file.name for file in best)
        raise ValueError(f"{folder} contains several best checkpoints ({names}). Give one file")
    return [own, *map(str, best)]


def training_config(
    config: str | Path | Config,
    *,
    work_dir: str | Path | None = None,
    resume: str | None = None,
    amp: str | None = None,
    seed: int | None = None,
    pretrained: str | None = None,
    backend: str | None = None,
    cfg_options: Sequence[str] | Mapping[str, Any] = (),
    launcher: str = "none",
    track: Sequence[str] = (),
    mirror: str | None = None,
) -> Config:
    """Build the checked config of a training run.

    If torchrun or Slurm restarts a launch, the run resumes from the newest checkpoint in the work
    folder, whatever ``resume`` is.

    Args:
        config: Config file, or a config.
        work_dir: Folder for logs and checkpoints; None for the config's folder, or
            ``work_dirs/<config name>``.
        resume: "auto" for the newest readable checkpoint in the work folder, or a run or
            checkpoint; None starts a new run.
        amp: "bfloat16" or "float16" for mixed precision, or "float32"; None for the config's.
        seed: Random seed of weights, sampling and augmentation; None for the config's.
        pretrained: Run or checkpoint (:func:`~sce_video.inference.model.checkpoint_of`) that
            contains the initial backbone, or "random".
        backend: Decoder for all videos, see :func:`~sce_video.datasets.open_reader`; None for the
            config's.
        cfg_options: Config overrides as ``KEY=VALUE`` strings, or as values by key.
        launcher: "none", "pytorch" or "slurm".
        track: Trackers to use in addition to the run's files: "wandb", "mlflow".
        mirror: Folder in an object store to which checkpoints and logs are copied. With ``resume``
            "auto", a newer run there is restored to the work folder first.

    Raises:
        FileNotFoundError: If the config does not exist.
        ValueError: If keys or trackers are unknown, there is nothing to train, the checkpoint does
            not exist, or ``pretrained`` is given for a config without a pretrained backbone.
    """
    cfg = load_config(config, cfg_options)
    source = config.filename if isinstance(config, Config) else config
    work_dir = _work_dir(work_dir, cfg, source)
    # A restart takes precedence over --resume, because this launch's checkpoints are newer than any
    # that the user could have specified.
    if is_restart(work_dir) and (resume is None or find_checkpoints(work_dir)):
        print_log(f"restarted: continuing the training in {work_dir}", logger="current")
        resume = "auto"
    resumed, content = _resumed(resume, work_dir, mirror or mirror_of(cfg))
    pretrained = pretrained or at(cfg, "pretrained")
    if pretrained not in (None, RANDOM):
        pretrained = checkpoint_of(pretrained)
    if resumed is not None:
        cfg = _adopt(config, cfg_options, resumed, "resume", content)
    elif "pretrained" in cfg and pretrained not in (None, RANDOM):
        _check_file(pretrained, "trains without one")
        # A planned run has already adopted the checkpoint's network and views.
        cfg = cfg if at(cfg, "planned") else _adopt(config, cfg_options, pretrained, "finetune")
    if backend is not None:
        set_backend(cfg, backend)
    cfg.launcher, cfg.work_dir = launcher, work_dir
    if at(cfg, "train_cfg") is None:
        raise ValueError(f"{source} has no train_cfg, so it cannot be trained, only tested")
    _set_precision(cfg, amp)
    if seed is not None:
        cfg.merge_from_dict({"randomness.seed": seed})
    if pretrained is not None:
        if "pretrained" not in cfg:
            raise ValueError(
                f"{source} trains from random weights, so --pretrained has no effect. To start "
                "from all weights of a checkpoint: --cfg-options load_from=CHECKPOINT"
            )
        cfg.pretrained = pretrained
    if resume:
        # Without a path, the runner loads the newest readable checkpoint.
        cfg.resume, cfg.load_from = True, None if resume == "auto" else str(resumed)
    add_trackers(cfg, track)
    add_mirror(cfg, mirror)
    check_config(cfg)
    complete_classifier(cfg)
    # Keep the queue length of a resumed run, or the length that the user has given.
    if resumed is not None or "model.queue_size" in parse_options(cfg_options):
        cfg.fit_queue = False
    return cfg


def _work_dir(given: str | Path | None, cfg: Config, source: str | Path) -> str:
    """Return the work folder: the given one, the config's, or one with the config's name."""
    return str(given or at(cfg, "work_dir") or Path("work_dirs") / Path(source).stem)


def _resumed(
    resume: str | None, work_dir: str, mirror: str | None
) -> tuple[str | Path | None, Content]:
    """Return the checkpoint that ``resume`` selects, if there is one, and its content.

    Raises:
        FileNotFoundError: If the checkpoint does not exist.
        ValueError: If a named checkpoint is damaged, or a module that the run has imported is not
            imported now.
    """
    found: tuple[str | Path | None, Content] = None, {}
    if resume not in (None, "auto"):
        named = newest_checkpoint(resume, to_resume=True)
        found = named, load_checkpoint_file(named)
    elif mirror is not None and resume:
        restore_run(mirror, work_dir)
    for path in find_checkpoints(work_dir) if resume == "auto" else ():
        with suppress(ValueError):  # the runner reports a damaged file
            found = path, load_checkpoint_file(path)
            break
    if lacking := lacking_imports(found[1]):
        raise ValueError(f"{found[0]} was trained with the user's own code. {lacking}")
    return found


def _adopt(
    config: str | Path | Config,
    options: Sequence[str] | Mapping[str, Any],
    checkpoint: str | Path,
    use: Use,
    content: Content | None = None,
) -> Config:
    """Adopt settings from a checkpoint, list them in the log, and return the changed config."""
    adopted = adopted_config(config, options, checkpoint, use, content)
    if adopted.settings:
        taken = f"settings taken from {checkpoint}: {', '.join(adopted.settings)}"
        print_log(f"{taken} (--cfg-options change them)", logger="current")
    if adopted.refused:
        text = f"settings in {checkpoint} that are out of bounds are ignored: "
        print_log(text + ", ".join(adopted.refused), logger="current", level=logging.WARNING)
    return adopted.config


def _set_precision(cfg: Config, amp: str | None) -> None:
    """Set mixed precision. Without a GPU, it is used only if it is requested explicitly."""
    text, usual = "", at(cfg, "optim_wrapper.dtype")
    mixed = at(cfg, "optim_wrapper.type") == "MixedPrecisionOptimWrapper" and usual != "float32"
    if not torch.cuda.is_available():
        if amp is None and mixed:
            amp = "float32"
            text = (
                f"no GPU: training in float32, not in the recipe's {usual} (--amp float16 or "
                "bfloat16 enforces it)"
            )
        elif amp not in (None, "float32"):
            text = "--amp without a GPU is usually slower, often many times slower"
    elif "bfloat16" in (amp, usual if amp is None and mixed else None) and not computes_bfloat16():
        text = (
            "this GPU has no instructions for bfloat16 and emulates it, which is many times "
            "slower. Use --amp float16 or --amp float32"
        )
    if text:
        print_log(text, logger="current", level=logging.WARNING)
    if amp:
        cfg.optim_wrapper.type = "MixedPrecisionOptimWrapper"
        cfg.optim_wrapper.dtype = amp


def _check_file(checkpoint: str, random: str) -> None:
    if not exists(checkpoint):
        raise ValueError(f"no checkpoint at {checkpoint} ('{RANDOM}' {random})")


def complete_classifier(cfg: Config, content: Content | None = None) -> None:
    """Fill in ``num_classes`` and ``in_channels`` of ``model.cls_head`` if they are None.

    Args:
        cfg: Config to change, in place. The backbone's number of channels becomes ``in_channels``.
        content: Content of the checkpoint ``cfg.load_from``, whose classifier determines
            ``num_classes``. None counts the classes of the training data.
    """
    head: Any = at(cfg, "model.cls_head") or {}
    if head.get("in_channels", 0) is None:
        head.in_channels = feature_channels(cfg.model.backbone)
        if head.in_channels is None:
            raise ValueError(
                f"the backbone {cfg.model.backbone.type} does not state its out_channels. Set "
                "model.cls_head.in_channels"
            )
    if head.get("num_classes", 0) is not None:
        return
    if content is None:
        head.num_classes = _count_classes(cfg.train_dataloader.dataset)
        return
    # Use the stored classifier instead of the data, because a test set may lack classes.
    weights = content.get("state_dict", content)
    weight = next((weights[name] for name in _WEIGHTS if name in weights), None)
    if weight is None:
        raise ValueError(
            f"{cfg.load_from} contains no classifier (no {_WEIGHTS[0]}). Train one from it first: "
            f"python tools/train.py CONFIG --pretrained {cfg.load_from}"
        )
    head.num_classes = len(weight)


def _count_classes(settings: Mapping[str, Any]) -> int:
    """Count the classes of a dataset by its class names, or by its labels from 0 upwards."""
    dataset = DATASETS.build({**settings, "pipeline": []})
    source = at(settings, "ann_file") or at(settings, "data_root")
    names, labels = dataset.metainfo["classes"], np.asarray(dataset.labels)
    count = len(names) or int(labels.max()) + 1
    if count < 2:
        raise ValueError(
            f"{source!r} has {count} classes, but a classifier needs at least two. Give a folder "
            "with a sub-folder for each class, or a list with 'path label' on every line"
        )
    if count > max(len(names), len(dataset)):
        raise ValueError(
            f"{source!r} contains the label {count - 1}, but only {len(dataset)} videos. Labels "
            "must be class numbers that count from 0"
        )
    shown = f": {', '.join(names)}" if names else ""
    print_log(f"{count} classes in {len(dataset)} videos of {source}{shown}", logger="current")
    empty = sorted(set(range(count)) - set(labels.tolist()))
    if empty:
        listed = ", ".join(map(str, empty[:5])) + ", ..." * bool(empty[5:])
        text = f"no training video in {source} has the label {listed}. Labels count from 0 to"
        print_log(f"{text} {count - 1}", logger="current", level=logging.WARNING)
    return count


def testing_config(
    config: str | Path | Config,
    checkpoint: str,
    *,
    work_dir: str | Path | None = None,
    out: str | Path | None = None,
    dump: str | Path | None = None,
    backend: str | None = None,
    cfg_options: Sequence[str] | Mapping[str, Any] = (),
    launcher: str = "none",
) -> Config:
    """Build the checked config of a test.

    Args:
        config: Config file with ``test_dataloader`` and ``test_cfg``; or a config, which adopts no
            settings from the checkpoint (:func:`~sce_video.inference.stored_test.stored_test`).
        checkpoint: Run or checkpoint (:func:`~sce_video.inference.model.checkpoint_of`), or
            "random" to test random weights.
        work_dir: Folder for logs; None for the config's folder, or ``work_dirs/<config name>``.
        out: JSON file for results; None for ``results.json`` in the work folder, or ``best.json``
            for a checkpoint that a validation metric selected.
        dump: A .npz file for each video's scores (for a classifier) or features; None for no file.
        backend: Decoder for all videos; None for the config's.
        cfg_options: Config overrides as ``KEY=VALUE`` strings, or as values by key.
        launcher: "none", "pytorch" or "slurm".

    Raises:
        FileNotFoundError: If the config does not exist.
        ValueError: If the config has no test, keys are unknown, or the checkpoint does not exist.
    """
    source = config.filename if isinstance(config, Config) else config
    content = None
    if checkpoint != RANDOM:
        checkpoint = checkpoint_of(checkpoint)
        _check_file(checkpoint, "tests random weights")
        content = load_checkpoint_file(checkpoint)
    if content is None or isinstance(config, Config):
        cfg = load_config(config, cfg_options)
    else:
        cfg = _adopt(config, cfg_options, checkpoint, "test", content)
    if backend is not None:
        set_backend(cfg, backend)
    check_config(cfg)
    if at(cfg, "test_cfg") is None or at(cfg, "test_dataloader") is None:
        raise ValueError(f"{source} has no test_cfg and test_dataloader, so it cannot be tested")
    if at(cfg, "test_evaluator") is None:
        raise ValueError(f"{source} has no test_evaluator. Name the metrics to evaluate")
    cfg.launcher, cfg.resume = launcher, False
    cfg.load_from = None if content is None else absolute(checkpoint)
    complete_classifier(cfg, content)
    for name in _TRAINING_ONLY:
        cfg[name] = None
    hooks = at(cfg, "default_hooks") or {}
    for name in _TRAINING_HOOKS:
        hooks.pop(name, None)
    cfg.pop("lora", None)  # reading a checkpoint merges its adapters into the weights
    cfg.pop("pretrained", None)  # the weights come from the tested checkpoint, or are random
    cfg.work_dir = _work_dir(work_dir, cfg, source)
    selected, loop = at(content, "meta.selected", dict) is not None, cfg.test_cfg
    # Use another file, so that the best epoch's results do not overwrite the last epoch's results.
    if selected and (loop.get("type"), loop.get("out", RESULTS)) == ("MultiViewTestLoop", RESULTS):
        loop.out = BEST_RESULTS
    for name, file in (("out", out), ("dump", dump)):
        if file is not None:
            if is_url(file):
                list_files(split(str(file))[0])  # report a wrong URL before hours of work
            loop[name] = absolute(file)
    return cfg
