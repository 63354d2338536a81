"""``sce-video evaluate``, ``test`` and ``finetune-splits``, which measure a network on videos."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sce_video.datasets.labelled import (
    NO_COLUMNS,
    GroupColumns,
    LabelledVideos,
    check_pair,
    read_labelled,
    tell_repeated,
)
from sce_video.datasets.named_files import check_exists, check_out, check_run, check_videos
from sce_video.datasets.sources import dataset_settings, listed_extensions
from sce_video.engine.recipes import find_recipe
from sce_video.options.measure import EvaluateOptions, TestOptions
from sce_video.options.protocols import FinetuneSplitsOptions
from sce_video.utils.command import printable
from sce_video.utils.records import at
from sce_video.utils.run_files import (
    RANDOM,
    RESULTS,
    newest_checkpoint,
    packaged_network,
)
from sce_video.utils.storage import is_url, join

if TYPE_CHECKING:
    from mmengine.config import Config

    from sce_video.engine.run_json import RunDescription


@dataclass(frozen=True)
class EvaluateResult:
    """Result of an evaluation.

    Attributes:
        metrics: Values by name of the metric.
        out: JSON file or URL of the results.
        checkpoint: Evaluated checkpoint; ``random`` for random weights.
        run: Description in the run's folder; None without ``run.json``.
    """

    metrics: dict[str, float]
    out: str
    checkpoint: str
    run: RunDescription | None


def evaluate(options: EvaluateOptions) -> EvaluateResult:
    """Evaluate a network on labelled videos with kNN, a linear probe and retrieval.

    The config in the checkpoint is read as data. No code in the run's folder is executed.

    Raises:
        FileNotFoundError: If the checkpoint does not exist.
        ValueError: If a folder of videos does not exist, a video has no label, or the config is not
            plain data.
    """
    if options.out is not None:
        check_out(options.out)
    check_run(options.run)
    tested, gallery = _evaluated_sets(options)
    # Imported here, so that a wrong path is reported before torch loads.
    from sce_video.engine.work_dir import folder_of_run
    from sce_video.inference.encoders.encoder_folder import run_of_model, run_of_weights
    from sce_video.runs.launch import run_test
    from sce_video.utils.files import check_regular

    checkpoint = run_of_model(options.run)
    # Do not write results next to a model in the cache or a network in the package.
    elsewhere = checkpoint != options.run or packaged_network(options.run)
    folder = Path("work_dirs", Path(checkpoint).name) if elsewhere else folder_of_run(checkpoint)
    # Pass the user's own path, because only a file that the user names can be a torchvision state
    # dict.
    checkpoint = run_of_weights(options.run) or newest_checkpoint(checkpoint)
    work_dir = Path("work_dirs" if is_url(folder) else folder, "evaluation")
    check_regular(work_dir, written=True)
    out = options.out or str(join(folder, "results_random.json" if options.random else RESULTS))
    cfg = _evaluation_config(options, checkpoint, work_dir, out, tested, gallery)
    metrics = run_test(cfg, random=not (options.random or options.no_random))
    used = RANDOM if options.random else str(checkpoint)
    return EvaluateResult(metrics, out, used, _run_of(folder))


@dataclass(frozen=True)
class _NamedVideos:
    """Labelled videos that the user named.

    Attributes:
        source: Folder, table, list or CSV file.
        extensions: Extensions by which a folder is listed.
        listed: Content of a list or a CSV file; None for a folder or a table.
    """

    source: str
    extensions: Sequence[str]
    listed: LabelledVideos | None

    def settings(self, folder: Path, name: str) -> Mapping[str, Any]:
        """Return the settings of the dataset, and write the list that it needs into the folder."""
        if self.listed is None:
            return dataset_settings(self.source, self.extensions)
        return self.listed.dataset(folder, name)


def _evaluated_sets(options: EvaluateOptions) -> tuple[_NamedVideos, _NamedVideos | None]:
    """Check the test videos and the gallery, and read those that are given as files.

    Raises:
        ValueError: If the videos do not exist, a label or column is missing, or the two sets have
            different classes.
    """
    columns = GroupColumns(options.group_column, options.fold_column)
    columns.check(options.test)
    extensions = listed_extensions(options.all_files)
    sources = [options.test] if options.gallery is None else [options.test, options.gallery]
    files = [source for source in sources if os.path.isfile(source)]
    if options.data_root is not None and not files:
        raise ValueError("--data-root has an effect only with a list or a CSV file. Remove it")
    sets = []
    for source in sources:
        listed = None
        if source in files:
            own = columns if source is options.test else NO_COLUMNS
            listed = read_labelled(source, options.data_root, columns=own)
            tell_repeated(listed)
        else:
            check_videos(source, extensions)
        sets.append(_NamedVideos(source, extensions, listed))
    tested, gallery = sets[0], sets[1] if len(sets) > 1 else None
    if files and gallery is not None:
        first, second = (
            named.listed or read_labelled(named.source, extensions=extensions)
            for named in (gallery, tested)
        )
        check_pair(first, second)
    return tested, gallery


def _evaluation_config(
    options: EvaluateOptions,
    checkpoint: str,
    work_dir: Path,
    out: str,
    tested: _NamedVideos,
    gallery: _NamedVideos | None,
) -> Config:
    """Build the config of the test, and write its lists to ``work_dir``."""
    from sce_video.evaluation.metrics import PROTOCOLS
    from sce_video.inference.stored_test import stored_test
    from sce_video.runs.configs import testing_config

    # Pass values by key. In the text KEY=VALUE, a folder named 2023 would become a number.
    data = tested.settings(work_dir, "test")
    changes: dict[str, Any] = {f"test_dataloader.dataset.{key}": v for key, v in data.items()}
    loader = "test_cfg.gallery_dataloader"
    if gallery is None:
        groups = None if tested.listed is None else tested.listed.groups_file(work_dir, "test")
        made = {"pattern": options.group_pattern, "group_file": groups, "folds": options.folds}
        changes[loader] = None
        changes["test_cfg.group_pattern"] = made if options.grouped else None
    else:
        data = gallery.settings(work_dir, "gallery")
        changes |= {f"{loader}.dataset.{key}": value for key, value in data.items()}
    cfg = testing_config(
        stored_test(checkpoint),
        RANDOM if options.random else checkpoint,
        work_dir=work_dir,
        out=out,
        cfg_options=changes,
    )
    if options.protocols:
        given = {"pairs": options.pairs, "factors": options.factors}
        of_time = {name: value for name, value in given.items() if value is not None}
        # A user-defined metric is given by the name under which it is registered.
        kinds = {name: PROTOCOLS[name].__name__ for name in PROTOCOLS}
        cfg.test_evaluator = [
            {"type": kinds.get(name, name), **(of_time if name == "time" else {})}
            for name in options.protocols
        ]
    return cfg


def _run_of(folder: str | Path) -> RunDescription | None:
    """Read a folder's ``run.json``; None if it does not exist or cannot be read."""
    from sce_video.engine.run_json import find_run_json

    try:
        return find_run_json(folder)
    except (OSError, ValueError) as error:  # the results are complete without this file
        print(printable(f"note: {error}", sys.stderr), file=sys.stderr, flush=True)
        return None


@dataclass(frozen=True)
class TestResult:
    """Result of testing one or two checkpoints.

    Attributes:
        metrics: Metrics by name for each checkpoint.
    """

    __test__ = False  # keeps pytest from collecting this class

    metrics: dict[str, dict[str, float]]


def test(options: TestOptions) -> TestResult:
    """Test a checkpoint, or a run's last and best checkpoints, with a config.

    Raises:
        FileNotFoundError: If the config, checkpoint or list does not exist.
        ValueError: If the config has no test, or one output file is given for two checkpoints.
    """
    find_recipe(options.config)
    for file in (options.test_list, options.classes):
        check_exists(file, "file")
    extensions = listed_extensions(options.all_files)
    if options.data_root is not None and options.test_list is None:
        check_videos(options.data_root, extensions)
    else:
        check_exists(options.data_root, "folder")
    if options.checkpoint != RANDOM:
        check_run(options.checkpoint)
    # Imported here, so that a wrong path is reported before torch loads.
    from sce_video.engine.config.changes import parse_options
    from sce_video.runs import launch
    from sce_video.runs.configs import checkpoints_to_test, testing_config

    changes = parse_options(options.cfg_options)
    root, listed, classes = options.data_root, options.test_list, options.classes
    if root is not None or listed is not None:
        data = {} if root is None else dataset_settings(root, extensions)
        named = {} if classes is None else {"class_file": classes}
        data |= {"ann_file": listed, **named}
        changes |= {f"test_dataloader.dataset.{key}": value for key, value in data.items()}
    checkpoints = checkpoints_to_test(options.checkpoint)
    # The second checkpoint's results would overwrite the first checkpoint's results.
    if len(checkpoints) > 1 and (options.out or options.dump):
        raise ValueError(
            f"{' and '.join(checkpoints)} are tested, but --out and --dump can store only one "
            "result. Give one of the checkpoints"
        )
    names = ("work_dir", "out", "dump", "backend", "launcher")
    given = {name: getattr(options, name) for name in names}
    found = {}
    for checkpoint in checkpoints:
        cfg = testing_config(options.config, checkpoint, cfg_options=changes, **given)
        found[checkpoint] = launch.run_test(cfg)
    return TestResult(found)


@dataclass(frozen=True)
class FinetuneSplitsResult:
    """Result of finetuning on the splits of a dataset.

    Attributes:
        file: JSON file with the metrics of each split and their mean.
        table: The same metrics as text; empty if a signal has stopped a training run.
        stopped_by: Number of the signal; 0 if all splits are finished.
    """

    file: Path
    table: str
    stopped_by: int = 0


def finetune_splits(options: FinetuneSplitsOptions) -> FinetuneSplitsResult:
    """Finetune and test on all splits of a dataset. All ranks of a distributed run call this.

    Raises:
        FileNotFoundError: If the config or checkpoint does not exist.
        ValueError: If the config has no splits, a list is missing, or the folder contains a run
            with other settings.
    """
    find_recipe(options.config)
    if options.pretrained not in (None, RANDOM):
        check_run(str(options.pretrained))
    # Imported here, so that a wrong path is reported before torch loads.
    from sce_video.runs.configs import testing_config, training_config
    from sce_video.runs.launch import join_processes
    from sce_video.runs.splits import SUMMARY, StoppedError, format_splits, run_splits

    default = Path("work_dirs", f"{Path(options.config).stem}_splits")
    work_dir = Path(options.work_dir or default)
    shared = {name: getattr(options, name) for name in ("backend", "cfg_options", "launcher")}
    own = {name: getattr(options, name) for name in ("amp", "seed", "pretrained")}
    training = training_config(options.config, work_dir=work_dir, **own, **shared)

    def testing(checkpoint: str, folder: Path) -> Config:
        return testing_config(options.config, checkpoint, work_dir=folder, **shared)

    join_processes(options.launcher, at(training, "env_cfg.dist_cfg"))
    try:
        summary = run_splits(training, testing, options.splits)
    except StoppedError as stop:
        return FinetuneSplitsResult(work_dir / SUMMARY, "", int(stop.by))
    return FinetuneSplitsResult(work_dir / SUMMARY, format_splits(summary))
