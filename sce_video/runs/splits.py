"""Training and testing on all splits of a dataset. Results are per split, with their mean."""

from __future__ import annotations

import copy
import hashlib
import json
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config

from sce_video.engine.checkpoint import BEST
from sce_video.engine.config.changes import walk_dicts
from sce_video.runs import launch
from sce_video.runs.configs import BEST_RESULTS
from sce_video.utils.distributed import run_on_main_rank, wait_for_all_ranks
from sce_video.utils.files import read_json, write_json
from sce_video.utils.metric_names import is_trivial
from sce_video.utils.records import at
from sce_video.utils.run_files import RESULTS, newest_checkpoint

#: File in a split's folder that identifies the settings of its run
SETTINGS = "split_settings.json"
#: File in the work folder with the metrics of all splits
SUMMARY = "splits.json"
#: Settings that may change when a run is resumed
_FREE = frozenset("work_dir launcher resume load_from experiment_name log_level visualizer".split())


def for_split(cfg: Config, split: int | str) -> Config:
    """Return a copy of the config with the annotation lists of another split.

    In every ``ann_file``, the ``split<N>`` of the config's own split is renamed:
    ``data/ucf101/train_split1.txt`` becomes ``data/ucf101/train_split2.txt``.

    Raises:
        ValueError: If the config has no ``split``, which states the split of its lists, or no list
            has the split in its name.
    """
    own = at(cfg, "split")
    if own is None:
        raise ValueError(
            f"{cfg.filename} does not describe splits. It needs split = 1 and lists with names "
            "like train_split1.txt"
        )
    cfg = copy.deepcopy(cfg)
    # Match split1, but not split10.
    pattern, renamed = re.compile(rf"split{re.escape(str(own))}(?![0-9A-Za-z])"), 0
    for _, node in walk_dicts(cfg._cfg_dict, ()):
        if at(node, "ann_file", str) is not None:
            node["ann_file"], count = pattern.subn(f"split{split}", node["ann_file"])
            renamed += count
    if not renamed:
        raise ValueError(
            f"no ann_file in {cfg.filename} has 'split{own}' in its name, so split {split} cannot "
            "be selected"
        )
    cfg.split = int(split) if str(split).isdecimal() else str(split)
    return cfg


class StoppedError(Exception):
    """Error that is raised if a signal has stopped training on a split. It can be resumed."""

    def __init__(self, by: signal.Signals) -> None:
        super().__init__(f"stopped by {by.name}; the same command resumes from here")
        self.by = by


def run_splits(
    training: Config, testing: Callable[[str, Path], Config], splits: Sequence[int | str]
) -> dict[str, Any]:
    """Train and test on every split. Finished splits are kept, and an interrupted one is resumed.

    Each split has a folder ``<work dir>/split<N>`` with checkpoints, logs and ``results.json``.
    ``splits.json`` in the work folder contains the metrics of each split and their mean, for the
    last epoch. If the recipe keeps the best epoch (``save_best``), that epoch is tested as well.
    Its results are written to ``best.json``, and to the entry ``best`` in ``splits.json``. All
    ranks of a distributed run call this.

    Args:
        training: Config of the training on any split.
        testing: Function that returns the config of a test for a checkpoint and a folder.
        splits: Numbers or names of the splits.

    Returns:
        Content of ``splits.json``.

    Raises:
        ValueError: If a list is missing, or a folder contains results with other settings.
        StoppedError: If a signal has stopped training.
    """
    root = Path(training.work_dir)
    configs = {str(split): for_split(training, split) for split in splits}
    for split, cfg in configs.items():
        for name in ("train_dataloader", "test_dataloader"):  # check before hours of training
            dataset = cfg[name]["dataset"]
            candidates = [Path(dataset.ann_file), Path(dataset.data_root) / dataset.ann_file]
            if not any(path.is_file() for path in candidates):
                raise ValueError(
                    f"the list {dataset.ann_file} of split {cfg.split} does not exist ({name})"
                )
        _claim(root / f"split{split}", cfg)
    for split, cfg in configs.items():
        folder = root / f"split{split}"
        if not run_on_main_rank((folder / RESULTS).is_file):
            _run_split(cfg, testing, folder)

    def found(name: str) -> dict[str, dict]:
        """Read results from files, so that splits from earlier starts are included."""
        files = {split: root / f"split{split}" / name for split in configs}
        return {split: read_json(file) for split, file in files.items() if file.is_file()}

    summary, best = summarise(found(RESULTS)), found(BEST_RESULTS)
    if len(best) == len(configs):
        summary["best"] = summarise(best, BEST_RESULTS)
    run_on_main_rank(lambda: write_json(root / SUMMARY, summary))
    return summary


def _run_split(cfg: Config, testing: Callable[[str, Path], Config], folder: Path) -> None:
    """Train or resume. Then test the best epoch, if there is one, and the last epoch."""
    cfg = copy.deepcopy(cfg)
    cfg.work_dir = str(folder)
    # Resuming in an empty folder starts a new run.
    cfg.resume, cfg.load_from = True, None
    stopped_by = getattr(launch.run_training(cfg).train_loop, "stopped_by", None)
    if stopped_by is not None:
        raise StoppedError(stopped_by)
    last = run_on_main_rank(lambda: newest_checkpoint(folder, to_resume=True))
    tests = {RESULTS: Path(last)}
    best = run_on_main_rank(lambda: sorted(folder.glob(f"{BEST}*.pth")))
    if len(best) == 1:
        # Write RESULTS last, because it marks the split as done.
        tests = {BEST_RESULTS: best[0], **tests}
    for out, checkpoint in tests.items():
        # The test config belongs to the first split, so its lists are renamed as well.
        test = for_split(testing(str(checkpoint), folder), cfg.split)
        test.test_cfg.out = out
        launch.run_test(test)
        wait_for_all_ranks()


def _claim(folder: Path, cfg: Config) -> None:
    """Record the settings of the run in its folder.

    Raises:
        ValueError: If the folder contains a run with other settings. All ranks raise it.
    """
    kept = {key: value for key, value in cfg._cfg_dict.to_dict().items() if key not in _FREE}
    text = json.dumps(kept, sort_keys=True, default=str)
    fingerprint = hashlib.sha256(text.encode()).hexdigest()

    def claim() -> None:
        path = folder / SETTINGS
        if not path.is_file():
            write_json(path, {"sha256": fingerprint})
        elif read_json(path)["sha256"] != fingerprint:
            raise ValueError(
                f"{folder} contains a run with other settings. Give another --work-dir, or remove "
                "it"
            )

    run_on_main_rank(claim)


def summarise(results: dict[str, dict], name: str = RESULTS) -> dict[str, Any]:
    """Collect the metrics of each split, with their mean and standard deviation.

    Args:
        results: Content of the file ``name`` for each split.
        name: Name of the results file in each ``split<N>`` folder.
    """
    first = next(iter(results.values()))
    values = {n: [r["metrics"][n] for r in results.values()] for n in first["metrics"]}
    protocols = [r["protocol"] for r in results.values()]
    return {
        "kind": "splits",
        "splits": {
            split: {
                "metrics": r["metrics"],
                "videos": r["protocol"]["videos"],
                "results": str(Path(f"split{split}") / name),
            }
            for split, r in results.items()
        },
        "mean": {n: float(np.mean(v)) for n, v in values.items()},
        "std": {n: float(np.std(v)) for n, v in values.items()},
        "protocol": {
            **first["protocol"],
            "split": list(results),
            "videos": [p["videos"] for p in protocols],
            "failures": sum(p["failures"] for p in protocols),
            "checkpoint": [p["checkpoint"] for p in protocols],
            "benchmark_problems": {
                k: why
                for p in protocols
                for k, why in (at(p, "benchmark_problems", dict) or {}).items()
            },
        },
    }


def format_splits(summary: dict[str, Any]) -> str:
    """Format the metrics of each split and their mean, in percent, for the last and best epochs."""
    titles = {"top1": "top-1", "top5": "top-5", "mean_class_accuracy": "mean class"}
    titles["one_view_top1"] = "1 view top-1"
    classes, known = at(summary, "protocol.num_classes"), summary["mean"]
    columns = [key for key in titles if key in known and not is_trivial(key, classes)]
    text = [f"{'':<10}" + "".join(f"{titles[key]:>14}" for key in columns)]
    best = "the epoch that is best on the validation list (in the recipes, the test split):"
    for part in filter(None, (summary, at(summary, "best"))):
        text += [] if part is summary else [best]
        rows = [(f"split {split}", entry["metrics"]) for split, entry in part["splits"].items()]
        for name, metrics in (*rows, ("mean", part["mean"])):
            text.append(f"{name:<10}" + "".join(f"{100 * metrics[k]:>14.2f}" for k in columns))
    return "\n".join(text)
