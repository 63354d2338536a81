"""``--keep best``: the videos that a pretraining is evaluated on, and the number that decides."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from mmengine.config import Config

from sce_video.datasets import dataset_settings, list_videos
from sce_video.datasets.video_list import PARTS
from sce_video.evaluation.online_evaluation_hook import KEPT_EVENT
from sce_video.pages.curves import read_history
from sce_video.runs.choices import Choice
from sce_video.runs.folder_facts import FolderFacts
from sce_video.runs.launch import longest_queue

#: What ``--keep`` takes.
KEEP = ("best", "last")
#: Evaluations of a training after that of its start.
EVALUATIONS = 20
#: Number by which the best checkpoint is chosen with classes, and without (docs/metrics.md).
LABELLED, LABEL_FREE = "knn_top1", "rankme"
#: Metrics of each, those that decide among them.
_METRICS = {
    LABELLED: ("KNN", "FeatureStatistics"),
    LABEL_FREE: ("ClipRetrieval", "LiDAR", "RankMe", "FeatureStatistics"),
}
#: Texts that the entries of a config may hold besides those of its recipe.
TEXTS = ("OnlineEvaluationHook", "skip", *PARTS, *_METRICS, *sum(_METRICS.values(), ()))
# Videos held out: a fifth, of few videos more, and so many at most; as many of the others are the
# gallery. Clips of each; classes of fewer videos than these in the mean are none.
_SHARE, _SHARE_OF_FEW, _FEW, _MOST = 5, 3, 16, 100
_CLIPS = 4
_VIDEOS_PER_CLASS = 4
_LEAST = 6


def held_out_count(num_videos: int) -> int:
    """How many of so many videos are held out of a training.

    Raises:
        ValueError: too few to hold any out.
    """
    if num_videos < _LEAST:
        raise ValueError(
            f"keeping the best checkpoint holds videos out, which needs {_LEAST} videos or more, "
            f"there are {num_videos}: --keep last"
        )
    return min(_MOST, max(num_videos // _SHARE, min(_FEW, num_videos // _SHARE_OF_FEW)))


def evaluated_count(facts: FolderFacts) -> int:
    """Videos that each evaluation reads: those held out, and with classes their gallery."""
    held_out = held_out_count(facts.num_videos)
    gallery = min(_MOST, facts.num_videos - held_out)
    return held_out + gallery * (_measure(facts) == LABELLED)


def keep_best(config: Config, facts: FolderFacts, seed: int = 0) -> Choice:
    """Let a planned pretraining keep its best checkpoint, in place; what was chosen, for the plan.

    A part of the videos is held out of the training, drawn by the seed, of each class its share.
    Before the first step and 20 times in the training the network is evaluated on them
    (:class:`~sce_video.evaluation.OnlineEvaluationHook`): with a class per sub-folder by kNN among
    training videos, else by RankMe. A queue of keys is shortened to the videos that are left.

    Raises:
        ValueError: too few videos.
    """
    held_out, measure = held_out_count(facts.num_videos), _measure(facts)
    division = {"held_out": held_out, "seed": int(seed)}
    test, loader = config.test_dataloader, config.train_dataloader
    pipeline = copy.deepcopy(test.dataset.pipeline)
    for step in pipeline:
        if "num_clips" in step:
            step["num_clips"] = _CLIPS

    def part(name: str, gallery: int = 0) -> dict[str, Any]:
        dataset = {"type": loader.dataset.type, **dataset_settings(facts.folder)}
        dataset |= {"on_error": "skip", "pipeline": pipeline}
        dataset["subset"] = {"part": name, "gallery": gallery, **division}
        sizes = {"batch_size": test.batch_size, "num_workers": test.num_workers}
        return {**sizes, "dataset": dataset}

    hook: dict[str, Any] = {"type": "OnlineEvaluationHook", "gallery": part("held_out")}
    if measure == LABELLED:
        hook |= {"gallery": part("gallery", gallery=_MOST), "queries": part("held_out")}
    hook["metrics"] = [{"type": name} for name in _METRICS[measure]]
    hook |= {"evaluations": EVALUATIONS, "keep": measure}
    config.custom_hooks = [*(config.get("custom_hooks") or ()), hook]
    loader.dataset.subset = {"part": "training", **division}
    left, size = facts.num_videos - held_out, config.model.get("queue_size")
    if size is not None:
        config.model.queue_size = min(size, longest_queue(left, loader.batch_size))
    reason = f"by {measure} of {held_out} videos, which are not trained on; never below the start"
    return Choice("keep", "best", reason)


def _measure(facts: FolderFacts) -> str:
    """With too few videos of a class, or more classes than videos are read, labels tell little."""
    most = min(_MOST, facts.num_videos // _VIDEOS_PER_CLASS)
    if not 2 <= facts.num_classes <= most:
        return LABEL_FREE
    # Videos beside the sub-folders have no label.
    return LABELLED if (list_videos(facts.folder).labels >= 0).all() else LABEL_FREE


def kept_message(folder: str | Path) -> str | None:
    """Which checkpoint is the result of a run that keeps its best, in words; None for others.

    None also while it goes on again, after a failure or with more epochs.
    """
    rows = [row for row in read_history(folder, []) if row["event"] in ("start", KEPT_EVENT)]
    return str(rows[-1].get("message")) if rows and rows[-1]["event"] == KEPT_EVENT else None
