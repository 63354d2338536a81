"""``sce-video train``: train with a recipe or a config file, or show the whole recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sce_video.datasets.named_files import check_exists, check_run, check_videos
from sce_video.datasets.sources import dataset_settings, listed_extensions
from sce_video.engine.recipes import find_recipe
from sce_video.options.training import NEWEST, TrainOptions
from sce_video.utils.records import at
from sce_video.utils.run_files import RANDOM, find_checkpoints

if TYPE_CHECKING:
    from sce_video.runs.resolved import ResolvedRecipe


@dataclass(frozen=True)
class TrainResult:
    """Result of a training run.

    Attributes:
        folder: Folder of logs and checkpoints; None if only the recipe was requested.
        status: 0 if training has finished, or 128 + n if signal n has stopped it.
        recipe: Resolved recipe if only the recipe was requested; otherwise None.
    """

    folder: Path | None
    status: int = 0
    recipe: ResolvedRecipe | None = None


@dataclass(frozen=True)
class _Change:
    """Config value that an option other than ``--cfg-options`` sets."""

    key: str
    value: Any
    option: str


def train(options: TrainOptions) -> TrainResult:
    """Train with a config, or resolve it without training.

    All ranks of a distributed run call this.

    Raises:
        FileNotFoundError: If the config or a file does not exist.
        ValueError: If the config cannot be trained with these options.
        KeyboardInterrupt: After Ctrl-C before the first step, or a second Ctrl-C.
    """
    _check_names(options)
    # Imported here, so that a wrong name is reported before torch loads.
    from sce_video.engine.config.changes import parse_options
    from sce_video.runs.configs import training_config
    from sce_video.runs.launch import end_training
    from sce_video.runs.page import train_with_page
    from sce_video.runs.resolved import TrainingOptions, resolved

    changes = parse_options(options.cfg_options)
    own = [*_other_videos(options)]
    changes |= {change.key: change.value for change in own}
    own += _switches(options, changes)
    changes |= {change.key: change.value for change in own}
    given: Any = {name: getattr(options, name) for name in TrainingOptions.__annotations__}
    if options.print_only:
        names = {change.key: change.option for change in own}
        recipe = resolved(options.config, changes, option_of=names, **given)
        return TrainResult(None, recipe=recipe)
    cfg = None
    try:
        cfg = training_config(options.config, cfg_options=changes, **given)
        runner = train_with_page(cfg, options.overwrite)
    except KeyboardInterrupt as error:  # raised before training, or by a second Ctrl-C
        checkpoints = [] if cfg is None else find_checkpoints(cfg.work_dir)
        left = "there is no checkpoint to resume from yet"
        if checkpoints:
            left = f"--resume continues from the last checkpoint, {checkpoints[0]}"
        raise KeyboardInterrupt(str(error) or f"interrupted; {left}") from None
    return TrainResult(Path(runner.work_dir), end_training(runner))


def _check_names(options: TrainOptions) -> None:
    """Raise an error if the config, a checkpoint or the videos cannot be used."""
    find_recipe(options.config)
    lists = [path for path in (options.train_list, options.val_list) if path is not None]
    for path in (*lists, options.classes):
        check_exists(path, "file")
    if options.data_root is not None and lists:
        check_exists(options.data_root, "folder")
    elif options.data_root is not None:
        check_videos(options.data_root, listed_extensions(options.all_files))
    # RANDOM and NEWEST are special values, not file names.
    if options.pretrained not in (None, RANDOM):
        check_run(str(options.pretrained))
    if options.resume not in (None, NEWEST):
        check_run(str(options.resume))


def _other_videos(options: TrainOptions) -> Iterator[_Change]:
    """Yield the changes that replace the config's videos.

    Without a list, all videos in the folder are used for training.
    """
    lists = {"train": options.train_list, "val": options.val_list}
    root = options.data_root
    for part, file in lists.items():
        prefix = f"{part}_dataloader.dataset"
        if file is None and (part != "train" or root is None or any(lists.values())):
            continue
        if root is not None:
            settings = dataset_settings(root, listed_extensions(options.all_files))
            for name, value in settings.items():
                yield _Change(f"{prefix}.{name}", value, "--data-root")
        listed = "--data-root" if file is None else f"--{part}-list"
        yield _Change(f"{prefix}.ann_file", file, listed)
        if options.classes is not None:
            yield _Change(f"{prefix}.class_file", options.classes, "--classes")


def _switches(options: TrainOptions, changes: Mapping[str, Any]) -> Iterator[_Change]:
    """Yield the changes that mmaction2's switches request.

    ``--auto-scale-lr`` changes nothing if a ScheduleHook already scales the learning rate.

    Raises:
        ValueError: If the learning rate cannot be scaled, because the config states no batch size.
    """
    from sce_video.engine.config.load import load_config

    if options.deterministic:
        yield _Change("randomness.deterministic", True, "--deterministic")
    if not options.auto_scale_lr:
        return
    cfg = load_config(options.config, changes)
    for hook in at(cfg, "custom_hooks") or ():
        if str(at(hook, "type")).endswith("ScheduleHook") and hook.get("base_batch_size", 256):
            return
    if not at(cfg, "auto_scale_lr.base_batch_size"):
        raise ValueError(
            f"--auto-scale-lr needs the batch size for which the learning rate in {options.config} "
            "was chosen. Give --cfg-options auto_scale_lr.base_batch_size=N"
        )
    yield _Change("auto_scale_lr.enable", True, "--auto-scale-lr")
