"""From command-line options to a checked config, and running it."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import torch
from mmengine.config import Config
from mmengine.dist import init_dist, is_distributed
from mmengine.logging import MMLogger, print_log

from sce_video.apis.adoption import adopted_config
from sce_video.apis.classifier import complete_classifier
from sce_video.apis.fit import fit_queue
from sce_video.apis.last_and_best import BEST_RESULTS, RESULTS
from sce_video.datasets.labels import check_same_classes
from sce_video.engine.checkpoint import find_checkpoints, load_checkpoint_file
from sce_video.engine.config import check_config, load_config, parse_options, set_backend
from sce_video.engine.runner import RANDOM, VideoRunner
from sce_video.engine.trackers import add_trackers
from sce_video.engine.weights import check_backbone_weights, check_classifier_weights
from sce_video.engine.work_dir import OverwriteHook, check_unused, locked_folder
from sce_video.utils.distributed import run_on_main_rank, unwrap_model
from sce_video.utils.threads import cores_for_workers

#: Settings that testing does not use; custom hooks belong to the training.
_TRAINING_ONLY = (
    "train_dataloader",
    "train_cfg",
    "optim_wrapper",
    "param_scheduler",
    "custom_hooks",
    "val_dataloader",
    "val_cfg",
    "val_evaluator",
)
#: Parts of a config's data that can be embedded.
_PARTS = ("test", "bank", "train")


def training_config(
    config: str | Path,
    *,
    work_dir: str | Path | None = None,
    resume: str | None = None,
    amp: str | None = None,
    seed: int | None = None,
    pretrained: str | None = None,
    backend: str | None = None,
    cfg_options: Sequence[str] = (),
    launcher: str = "none",
    track: Sequence[str] = (),
) -> Config:
    """The checked config of a training.

    Args:
        config: A config file.
        work_dir: Folder for logs and checkpoints; by default the config's, or
            ``work_dirs/<config name>``.
        resume: "auto" for the newest readable checkpoint of the work dir, or a checkpoint file.
        amp: "bfloat16" or "float16" for mixed precision, "float32" for none; None: the config's.
        seed: Random seed of weights, sampling and augmentation.
        pretrained: Checkpoint whose backbone the training starts from, or "random".
        backend: Decoder of all videos, see :func:`~sce_video.datasets.open_reader`; "auto" measures
            which is the fastest on the given files; None: the config's.
        cfg_options: Changes of the config, ``KEY=VALUE`` each.
        launcher: "none", "pytorch" or "slurm".
        track: Trackers beside the files of the run: "wandb", "mlflow".

    Raises:
        FileNotFoundError: no such config.
        ValueError: unknown keys or trackers, nothing to train, no such checkpoint, or
            ``pretrained`` for a config that does not start from a pretrained backbone.
    """
    cfg = load_config(config, cfg_options)
    work_dir = str(work_dir or cfg.get("work_dir") or Path("work_dirs") / Path(config).stem)
    resumed, content = _resumed_checkpoint(resume, work_dir)
    pretrained = pretrained or cfg.get("pretrained")
    if resumed is not None:
        cfg = adopted_config(config, cfg_options, resumed, "resume", content)
    elif "pretrained" in cfg and pretrained not in (None, RANDOM):
        _check_file(pretrained, "trains without one")
        cfg = adopted_config(config, cfg_options, pretrained, "finetune")
    if backend is not None:
        set_backend(cfg, backend)
    cfg.launcher = launcher
    cfg.work_dir = work_dir
    if cfg.get("train_cfg") is None:
        raise ValueError(f"{config} has no train_cfg: there is nothing to train, only to test")
    if amp is None and _is_slow_here(cfg):
        amp = "float32"
        print_log(
            f"no GPU: training in float32, not in the recipe's {cfg.optim_wrapper.get('dtype')} "
            "(--amp float16 or bfloat16 enforces it)",
            logger="current",
            level=logging.WARNING,
        )
    if amp:
        cfg.optim_wrapper.type = "MixedPrecisionOptimWrapper"
        cfg.optim_wrapper.dtype = amp
    if seed is not None:
        cfg.randomness = {**cfg.get("randomness", {}), "seed": seed}
    if pretrained is not None:
        if "pretrained" not in cfg:
            raise ValueError(
                f"{config} trains from random weights and takes no --pretrained; to start it from "
                "a whole checkpoint: --cfg-options load_from=CHECKPOINT"
            )
        cfg.pretrained = pretrained
    if resume:
        cfg.resume = True
        cfg.load_from = None if resume == "auto" else resume
    add_trackers(cfg, track)
    check_config(cfg)
    complete_classifier(cfg)
    if resumed is not None or "model.queue_size" in parse_options(cfg_options):
        cfg.fit_queue = False
    return cfg


def _resumed_checkpoint(resume: str | None, work_dir: str) -> tuple[Path | None, dict]:
    """The checkpoint that ``resume`` names, or the newest readable one, and its content.

    Raises:
        FileNotFoundError: no such checkpoint.
        ValueError: the checkpoint that is named is damaged.
    """
    if resume not in (None, "auto"):
        return Path(resume), load_checkpoint_file(resume)
    for path in find_checkpoints(work_dir) if resume else ():
        with suppress(ValueError):  # a damaged file; the runner says so
            return path, load_checkpoint_file(path)
    return None, {}


def _check_file(checkpoint: str, random: str) -> None:
    if not Path(checkpoint).is_file():
        raise ValueError(f"no checkpoint at {checkpoint} ('{RANDOM}' {random})")


def _is_slow_here(cfg: Config) -> bool:
    """Whether a recipe uses mixed precision and there is no GPU."""
    wrapper = cfg.get("optim_wrapper") or {}
    mixed = wrapper.get("type") == "MixedPrecisionOptimWrapper"
    return mixed and wrapper.get("dtype") != "float32" and not torch.cuda.is_available()


def testing_config(
    config: str | Path,
    checkpoint: str,
    *,
    work_dir: str | Path | None = None,
    out: str | Path | None = None,
    dump: str | Path | None = None,
    backend: str | None = None,
    cfg_options: Sequence[str] = (),
    launcher: str = "none",
) -> Config:
    """The checked config of a test.

    Args:
        config: A config file with ``test_dataloader`` and ``test_cfg``.
        checkpoint: A file, or "random" to test random initialisation.
        work_dir: Folder for logs; by default the config's, or ``work_dirs/<config name>``.
        out: JSON file of results; by default ``results.json`` in the work dir, or ``best.json``
            for a checkpoint that a validation metric selected.
        dump: A .npz file for per-video scores (of a classifier) or features.
        backend: Decoder of all videos, as in :func:`training_config`.
        cfg_options: Changes of the config, ``KEY=VALUE`` each.
        launcher: "none", "pytorch" or "slurm".

    Raises:
        FileNotFoundError: no such config.
        ValueError: the config has no test, unknown keys, or no such checkpoint.
    """
    selected = False
    if checkpoint == RANDOM:
        cfg = load_config(config, cfg_options)
    else:
        _check_file(checkpoint, "tests random weights")
        content = load_checkpoint_file(checkpoint)
        meta = content.get("meta")  # of a stranger's file, anything
        selected = isinstance(meta, dict) and isinstance(meta.get("selected"), dict)
        cfg = adopted_config(config, cfg_options, checkpoint, "test", content)
    if backend is not None:
        set_backend(cfg, backend)
    check_config(cfg)
    if cfg.get("test_cfg") is None or cfg.get("test_dataloader") is None:
        raise ValueError(f"{config} has no test_cfg and test_dataloader: nothing to test with")
    if cfg.get("test_evaluator") is None:
        raise ValueError(f"{config} has no test_evaluator: name the metrics to evaluate by")
    cfg.launcher = launcher
    cfg.resume = False
    cfg.load_from = None
    if checkpoint != RANDOM:
        cfg.load_from = str(Path(checkpoint).resolve())
    complete_classifier(cfg, cfg.load_from)
    for name in _TRAINING_ONLY:
        cfg[name] = None
    cfg.pop("pretrained", None)  # the tested weights are those of the checkpoint, or random
    cfg.work_dir = str(work_dir or cfg.get("work_dir") or Path("work_dirs") / Path(config).stem)
    if out is not None:
        cfg.test_cfg.out = str(Path(out).resolve())
    elif selected and cfg.test_cfg.get("type") == "MultiViewTestLoop":
        if cfg.test_cfg.get("out", RESULTS) == RESULTS:  # which has those of the last epoch
            cfg.test_cfg.out = BEST_RESULTS
    if dump is not None:
        cfg.test_cfg.dump = str(Path(dump).resolve())
    return cfg


def extraction_config(
    config: str | Path,
    checkpoint: str,
    out: str | Path,
    *,
    part: str = "test",
    data_root: str | None = None,
    ann_file: str | None = None,
    backend: str | None = None,
    cfg_options: Sequence[str] = (),
    launcher: str = "none",
) -> Config:
    """The checked config that embeds a data set with the backbone of a checkpoint.

    Args:
        config: Config of a pretraining, a linear evaluation, a finetuning or a retrieval; its
            backbone, normalisation and test pipeline are used.
        checkpoint: A file with that backbone, or "random".
        out: The .npz file.
        part: "test", "bank" (the gallery of a retrieval recipe) or "train" (the training list with
            the test pipeline).
        data_root: Another folder than the config's, for your own videos; without ``ann_file`` all
            videos below it.
        ann_file: Another annotation list.
        backend: Decoder of all videos, as in :func:`training_config`.
        cfg_options: Changes of the config, ``KEY=VALUE`` each.
        launcher: "none", "pytorch" or "slurm".

    Raises:
        FileNotFoundError: no such config.
        ValueError: as :func:`testing_config`, or the config has no such part.
    """
    cfg = testing_config(
        config, checkpoint, backend=backend, cfg_options=cfg_options, launcher=launcher
    )
    if part not in _PARTS:
        raise ValueError(f"part must be one of {', '.join(_PARTS)}, got {part!r}")
    found = {
        "test": cfg.test_dataloader,
        "bank": cfg.test_cfg.get("gallery_dataloader"),
        "train": load_config(config, cfg_options).get("train_dataloader"),
    }[part]
    if found is None:
        raise ValueError(f"{config} has no {part} data to embed; it has a test part")
    loader = copy.deepcopy(cfg.test_dataloader)
    for key in ("data_root", "ann_file"):
        loader.dataset[key] = found.dataset.get(key)
    if data_root is not None:
        loader.dataset.data_root, loader.dataset.ann_file = data_root, ann_file
    elif ann_file is not None:
        loader.dataset.ann_file = ann_file
    if data_root is not None or ann_file is not None:  # not the data of the recipe
        cfg.split = None
        if "dataset" in (cfg.get("benchmark") or {}):  # that of a transfer names none
            cfg.benchmark = None
    loader.dataset.on_error = "skip"  # counted and listed with the features
    cfg.test_dataloader = loader
    preprocessor = cfg.model.get("data_preprocessor") or cfg.get("data_preprocessor") or {}
    kept = {k: preprocessor[k] for k in ("mean", "std", "channels_last") if k in preprocessor}
    cfg.data_preprocessor = None
    cfg.model = {
        "type": "Encoder",
        "backbone": cfg.model.backbone,
        "data_preprocessor": {"type": "VideoDataPreprocessor", **kept},
    }
    out = Path(out).resolve()
    cfg.test_cfg = {"type": "FeatureExtractionLoop", "out": str(out)}
    cfg.test_evaluator = []
    cfg.work_dir = str(out.parent / f"{out.stem}_logs")
    return cfg


def train(cfg: Config, overwrite: bool = False) -> VideoRunner:
    """Train with a config of :func:`training_config`; all ranks call this.

    The work folder is locked meanwhile. A run that does not resume needs a folder without one.

    Args:
        cfg: The config.
        overwrite: Remove an earlier training from the work folder before the first step.

    Raises:
        ValueError: the folder holds an earlier training or another one is running in it; raised on
            all ranks.
    """
    join_processes(cfg.launcher, cfg.get("env_cfg"))
    with ExitStack() as stack:
        run_on_main_rank(lambda: _claim_folder(stack, cfg, overwrite))
        fitted = fit_queue(cfg)
        _avoid_shared_log(cfg)
        runner = VideoRunner.from_cfg(cfg)
        _log_adopted(runner)
        if fitted:
            runner.logger.info(fitted)
        _check_channels(runner.model)
        if overwrite:
            runner.register_hook(OverwriteHook())
        with cores_for_workers(cfg.train_dataloader.get("num_workers", 0)):
            runner.train()
    return runner


def exit_status(runner: VideoRunner) -> int:
    """0 after a training that has ended, 128 + n if signal n stopped it, as shells report it."""
    stopped_by = getattr(runner.train_loop, "stopped_by", None)
    return 0 if stopped_by is None else 128 + stopped_by


def _avoid_shared_log(cfg: Config) -> None:
    """Give a run its own name, the same on all ranks.

    mmengine shares logs and counters between runs of one name, and its names count seconds.
    """
    stem = Path(cfg.filename or "run").stem

    def own_name() -> str | None:
        name = f"{stem}_{time.strftime('%Y%m%d_%H%M%S')}"
        return f"{stem}_{time.time_ns()}" if MMLogger.check_instance_created(name) else None

    if cfg.get("experiment_name") is None:
        name = run_on_main_rank(own_name)
        if name is not None:
            cfg.experiment_name = name


def _claim_folder(stack: ExitStack, cfg: Config, overwrite: bool) -> None:
    """Lock the work folder until the stack is left, and see that no other run is in it."""
    stack.enter_context(locked_folder(cfg.work_dir))
    source = cfg.get("load_from")
    elsewhere = source and Path(source).resolve().parent != Path(cfg.work_dir).resolve()
    if not overwrite and (not cfg.get("resume") or elsewhere):
        check_unused(cfg.work_dir)


def _log_adopted(runner: VideoRunner) -> None:
    adopted = runner.cfg.get("adopted")
    if adopted:
        settings = ", ".join(adopted["settings"])
        runner.logger.info(
            f"settings taken from {adopted['checkpoint']}: {settings} (--cfg-options change them)"
        )


def _check_channels(model: torch.nn.Module) -> None:
    """Raise ValueError if classifier and backbone have different numbers of channels."""
    model = unwrap_model(model)
    out = getattr(getattr(model, "backbone", None), "out_channels", None)
    expected = getattr(getattr(model, "cls_head", None), "in_channels", None)
    if isinstance(out, int) and isinstance(expected, int) and out != expected:
        raise ValueError(
            f"the backbone has {out} output channels, the classifier expects {expected}: set "
            f"model.cls_head.in_channels={out}"
        )


def test(cfg: Config) -> dict[str, float]:
    """Test with a config of :func:`testing_config`.

    Raises:
        ValueError: the checkpoint lacks weights of the tested network.
    """
    _avoid_shared_log(cfg)
    runner = VideoRunner.from_cfg(cfg)
    _log_adopted(runner)
    if cfg.load_from is not None:
        checkpoint = load_checkpoint_file(cfg.load_from)
        check_backbone_weights(runner.model, checkpoint, cfg.load_from)
        check_classifier_weights(runner.model, checkpoint, cfg.load_from)
        if hasattr(unwrap_model(runner.model), "cls_head"):
            classes = checkpoint.get("meta", {}).get("classes", ())
            check_same_classes(
                SimpleNamespace(metainfo={"classes": classes}),
                runner.test_dataloader.dataset,
                ("the training had", "the test has"),
            )
    return runner.test()


def warn_of_slow_amp(amp: str | None) -> str | None:
    """A warning for mixed precision without a GPU, else None."""
    if amp not in (None, "float32") and not torch.cuda.is_available():
        return "--amp without a GPU is usually slower, often many times"
    return None


def join_processes(launcher: str, env_cfg: dict | None = None) -> None:
    """Start the process group before the first runner does; gloo where there is no GPU.

    Args:
        launcher: "none", "pytorch" or "slurm".
        env_cfg: Its ``dist_cfg`` (backend, timeout, ...) counts on GPUs, as in mmengine's runner.
    """
    if launcher == "none" or is_distributed():
        return
    if torch.cuda.is_available():
        init_dist(launcher, **(env_cfg or {}).get("dist_cfg", {}))
    else:
        torch.distributed.init_process_group("gloo")
