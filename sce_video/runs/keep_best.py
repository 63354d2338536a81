"""``--keep best``: held-out videos on which a pretraining run is evaluated, and the metric."""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config

from sce_video.datasets.labelled import NO_COLUMNS, GroupColumns, read_labelled
from sce_video.datasets.sources import dataset_settings, list_videos
from sce_video.datasets.video_list import VideoList, video_of, write_annotation_list
from sce_video.engine.run_json import Choice
from sce_video.evaluation.functional.linear_probe import held_out
from sce_video.evaluation.online_evaluation_hook import KEPT_EVENT
from sce_video.options.training import FOLDERS
from sce_video.pages.run_record import read_history
from sce_video.runs.folder_facts import FolderFacts
from sce_video.runs.launch import longest_queue
from sce_video.utils.records import at

#: Number of evaluations during a run, not counting the one at the start
EVALUATIONS = 20
#: Metric that selects the best checkpoint if the videos have classes (docs/metrics.md)
LABELLED = "knn_top1"
#: Metric that selects the best checkpoint if the videos have no classes
LABEL_FREE = "rankme"
#: Metrics that are evaluated in each case, including the one that selects the checkpoint
_METRICS = {
    LABELLED: ("KNN", "FeatureStatistics"),
    LABEL_FREE: ("ClipRetrieval", "LiDAR", "RankMe", "FeatureStatistics"),
}
#: One in this many videos is held out
_SHARE = 5
#: In a small set, one in this many videos is held out
_SHARE_OF_FEW = 3
#: Largest number of videos that are held out at the higher rate for small sets
_FEW = 16
#: Largest number of held-out videos, and of training videos in the gallery
_MOST = 100
#: Number of clips per held-out video
_CLIPS = 4
#: Sub-folders count as classes only if they contain at least this many videos on average.
_VIDEOS_PER_CLASS = 4
#: Number of videos that a set must contain before some of them can be held out
_LEAST = 6


def held_out_count(num_videos: int) -> int:
    """Return how many of ``num_videos`` videos are held out from training.

    Raises:
        ValueError: If there are too few videos to hold any out.
    """
    if num_videos < _LEAST:
        raise ValueError(
            f"cannot hold out videos to find the best checkpoint: this needs at least {_LEAST} "
            f"videos, got {num_videos}. Use --keep last"
        )
    return min(_MOST, max(num_videos // _SHARE, min(_FEW, num_videos // _SHARE_OF_FEW)))


@dataclass(frozen=True)
class HeldOut:
    """Videos that a pretraining run does not train on, and how the run is evaluated on them.

    Attributes:
        count: Number of held-out videos.
        evaluated: Number of videos that each evaluation reads.
        measure: Name of the metric that chooses the best checkpoint.
        words: Description of the held-out videos.
        facts: Facts about all videos.
        seed: Seed that divides the folder.
        lists: Paths and labels of each split in a CSV file; empty if the seed divides the folder.
    """

    count: int
    evaluated: int
    measure: str
    words: str
    facts: FolderFacts
    seed: int
    lists: Mapping[str, VideoList] = field(default_factory=dict)

    def part(self, name: str, folder: str, gallery: int = 0) -> Mapping[str, Any]:
        """Return the settings of a dataset with one part, and write the part's list, if any.

        Args:
            name: ``training``, ``held_out`` or ``gallery``.
            folder: Folder of the run.
            gallery: Largest number of videos in the gallery.
        """
        if not self.lists:
            division = {"held_out": self.count, "seed": self.seed}
            return {"subset": {"part": name, "gallery": gallery, **division}}
        listed = self.lists[name]
        file = str(Path(folder, f"keep_{name}.txt").resolve())
        paths = [listed.path(i) for i in range(len(listed))]
        if refused := write_annotation_list(file, paths, listed.labels.tolist()):
            raise ValueError(
                f"a list cannot contain the name {refused[0]!r:.200}. Rename the video"
            )
        return {"ann_file": file}

    def loader(self, name: str, config: Config, gallery: int = 0) -> Mapping[str, Any]:
        """Return the settings of the loader that evaluates one part."""
        test = config.test_dataloader
        pipeline = copy.deepcopy(test.dataset.pipeline)
        for step in pipeline:
            if "num_clips" in step:
                step["num_clips"] = _CLIPS
        dataset = {
            "type": config.train_dataloader.dataset.type,
            **dataset_settings(self.facts.folder, self.facts.extensions),
            "on_error": "skip",
            "pipeline": pipeline,
            **self.part(name, config.work_dir, gallery),
        }
        return {"batch_size": test.batch_size, "num_workers": test.num_workers, "dataset": dataset}


def hold_out(
    facts: FolderFacts, labels: str | None = None, columns: GroupColumns = NO_COLUMNS, seed: int = 0
) -> HeldOut:
    """Decide which videos a pretraining run holds out to find its best checkpoint.

    Args:
        facts: Facts about the videos.
        labels: ``folders`` if the sub-folders are classes, or a CSV file of paths and labels. None
            uses a metric without labels, because sub-folders may be cameras or dates.
        columns: Column of the CSV file with groups, which are held out as a whole, or with folds,
            one of which is held out.
        seed: Seed of the draw.

    Raises:
        ValueError: If there are too few videos, or the labels cannot be used.
    """
    if labels not in (None, FOLDERS):
        return _hold_out_listed(facts, str(labels), columns, seed)
    count = held_out_count(facts.num_videos)
    if labels is None:
        return HeldOut(count, count, LABEL_FREE, f"{count} videos", facts, seed)
    most = min(_MOST, facts.num_videos // _VIDEOS_PER_CLASS)
    # Videos that are not in a sub-folder have no label.
    unlabelled = int((list_videos(facts.folder, facts.extensions).labels < 0).sum())
    if unlabelled or not 2 <= facts.num_classes <= most:
        raise ValueError(
            f"--labels {FOLDERS} needs 2 to {most} sub-folders that contain all "
            f"{facts.num_videos} videos, got {facts.num_classes} sub-folders and {unlabelled} "
            "videos outside them. Remove --labels, or give a CSV file of paths and labels"
        )
    gallery = min(_MOST, facts.num_videos - count)
    return HeldOut(count, count + gallery, LABELLED, f"{count} videos", facts, seed)


def _hold_out_listed(facts: FolderFacts, source: str, columns: GroupColumns, seed: int) -> HeldOut:
    """Hold out whole groups or recordings from the videos in a CSV file (:func:`hold_out`)."""
    found = read_labelled(source, facts.folder, columns=columns)
    files = [os.path.normpath(video_of(os.path.join(found.root, path))) for path in found.paths()]
    units, number = np.unique(found.groups or files, return_inverse=True)
    classes, words = found.videos.labels, f"of {len(units)} groups"
    if found.folds:
        held = found.in_fold(columns)
        words = f"of the fold {found.folds[int(held.argmax())]} of {columns.fold_name}"
    else:
        groups = torch.from_numpy(number) if len(units) < len(found) else None
        share = held_out_count(len(found)) / len(found)
        held = held_out(torch.from_numpy(classes), groups, share, seed).numpy()
        words = "" if groups is None else words
    rest = np.flatnonzero(~held)
    # kNN recognises a class only if the gallery contains a video of it.
    alone = sorted({*classes[held].tolist()} - {*classes[rest].tolist()})
    if not held.any() or alone:
        name = f"the class {found.name(alone[0])!r}" if alone else "every class"
        raise ValueError(
            f"{name} of {source} is in only one group or fold. If that is held out, no other video "
            "shows the class. Use other groups or folds, or leave out --labels"
        )
    parts = {
        "held_out": _balanced(classes, np.flatnonzero(held), seed),
        "gallery": _balanced(classes, rest, seed),
    }
    out = {file for file, is_held in zip(files, held.tolist(), strict=True) if is_held}
    every = list_videos(facts.folder, facts.extensions)
    paths = [every.path(i) for i in range(len(every))]
    kept = [p for p in paths if os.path.normpath(os.path.join(found.root, p)) not in out]
    lists = {name: found.videos.select(indices) for name, indices in parts.items()}
    lists["training"] = VideoList.from_paths(kept, [-1] * len(kept))
    evaluated, count = sum(map(len, parts.values())), len(paths) - len(kept)
    words = f"{count} videos {words}".strip()
    return HeldOut(count, evaluated, LABELLED, words, facts, seed, lists)


def _balanced(labels: np.ndarray, indices: np.ndarray, seed: int) -> np.ndarray:
    """Return up to :data:`_MOST` of the indices, with the classes as balanced as possible."""
    order = np.random.default_rng(seed).permutation(indices)
    seen: Counter[int] = Counter()
    ranks = []
    for label in labels[order].tolist():
        ranks.append(seen[label])
        seen[label] += 1
    return np.sort(order[np.argsort(ranks, kind="stable")][:_MOST])


def keep_best(config: Config, held: HeldOut) -> Choice:
    """Change a planned pretraining run, in place, to keep its best checkpoint.

    The network is evaluated on the held-out videos before the first step and 20 times during
    training (:class:`~sce_video.evaluation.OnlineEvaluationHook`). With labels, the metric is kNN
    among training videos, otherwise RankMe. A queue of keys is shortened to the remaining videos.
    Lists are written to the run's folder.

    Returns:
        Row of the plan.

    Raises:
        ValueError: If a list cannot contain the name of a video.
    """
    loader, evaluated = config.train_dataloader, held.loader("held_out", config)
    sets = {"gallery": evaluated}
    if held.measure == LABELLED:
        sets = {"gallery": held.loader("gallery", config, _MOST), "queries": evaluated}
    hook = {
        "type": "OnlineEvaluationHook",
        **sets,
        "metrics": [{"type": name} for name in _METRICS[held.measure]],
        "evaluations": EVALUATIONS,
        "keep": held.measure,
    }
    config.custom_hooks = [*(at(config, "custom_hooks") or ()), hook]
    loader.dataset.update(held.part("training", config.work_dir))
    left, size = held.facts.num_videos - held.count, at(config, "model.queue_size")
    if size is not None:
        config.model.queue_size = min(size, longest_queue(left, loader.batch_size))
    reason = f"by {held.measure} on {held.words}, which are held out; never worse than the start"
    return Choice("keep", "best", reason)


def keeps_best(config: Config) -> bool:
    """Return whether a run keeps its best checkpoint, or its start if none is better."""
    return any(at(hook, "keep") is not None for hook in at(config, "custom_hooks") or ())


def kept_message(folder: str | Path) -> str | None:
    """Return a sentence that states which checkpoint is the result of a run that keeps its best.

    The result is None for other runs, and while a run continues after a failure or with more
    epochs.
    """
    rows = [row for row in read_history(folder, []) if row["event"] in ("start", KEPT_EVENT)]
    return str(at(rows[-1], "message")) if rows and rows[-1]["event"] == KEPT_EVENT else None
