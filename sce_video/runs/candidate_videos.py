"""The videos on which ``sce-video choose`` compares networks: labels, folds, and a fair sample."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import numpy as np

from sce_video.datasets.labelled import GroupColumns, LabelledVideos, read_labelled, tell_repeated
from sce_video.datasets.named_files import check_videos
from sce_video.datasets.sources import list_videos, listed_extensions
from sce_video.options.choose import ChooseOptions
from sce_video.options.training import FOLDERS

#: Minimum number of videos, in total and per class on average. With fewer, intervals say little.
_LEAST = 20
_LEAST_PER_CLASS = 5
#: Default number of folds if there are many groups: half as many probes as in ``evaluate``.
_FOLDS = 5


def read_choice_videos(options: ChooseOptions) -> LabelledVideos:
    """Return the videos of the options, with the label -1 if no labels are given.

    Raises:
        FileNotFoundError: If the table does not exist.
        ValueError: If there are fewer than two videos, or the labels cannot be used.
    """
    extensions = listed_extensions(options.all_files)
    check_videos(options.videos, extensions)
    columns = GroupColumns(options.group_column, options.fold_column)
    if options.labels == FOLDERS:
        found = read_labelled(options.videos, extensions=extensions)
    elif options.labels is not None:
        found = read_labelled(options.labels, options.videos, columns=columns)
        tell_repeated(found)
    else:
        videos = list_videos(options.videos, extensions)
        unlabelled = replace(videos, labels=np.full(len(videos), -1), classes=())
        found = LabelledVideos(options.videos, options.videos, unlabelled)
    if len(found) < 2:
        raise ValueError(f"{found.source} has one video. A comparison needs two or more")
    return found


@dataclass(frozen=True, eq=False)
class ChoiceVideos:
    """Videos in the order in which they are embedded, so that each beginning is a fair sample.

    Attributes:
        paths: N paths with their folder or table.
        labels: (N,) int64, -1 without labels.
        classes: Names of the labels 0, 1, ...
        groups: (N,) int64, samples that belong together; each video alone without groups.
        folds: (N,) int64, the fold in which each video is tested.
        left_out: Phrase that states what is left out at a time; empty without labels.
        grouped: Whether groups or folds were given.
    """

    paths: tuple[str, ...]
    labels: np.ndarray
    classes: tuple[str, ...]
    groups: np.ndarray
    folds: np.ndarray
    left_out: str = ""
    grouped: bool = False

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def labelled(self) -> bool:
        """Whether the videos have labels."""
        return bool(self.left_out)

    @property
    def least(self) -> int:
        """Return the minimum number of videos that can be compared."""
        classes = len(np.unique(self.labels))
        return min(max(_LEAST, _LEAST_PER_CLASS * classes), len(self))

    def subset(self, rows: np.ndarray) -> ChoiceVideos:
        """Return the videos of some rows, in this order."""
        arrays = {name: getattr(self, name)[rows] for name in ("labels", "groups", "folds")}
        return replace(self, paths=tuple(self.paths[row] for row in rows.tolist()), **arrays)

    def comparable(self) -> np.ndarray:
        """Return the mask (N,) of the videos whose class is in two folds or more."""
        folds_of = {
            label: len(np.unique(self.folds[self.labels == label]))
            for label in np.unique(self.labels).tolist()
        }
        return np.array([folds_of[label] > 1 for label in self.labels.tolist()], dtype=bool)


def in_sampling_order(found: LabelledVideos, options: ChooseOptions) -> ChoiceVideos:
    """Divide videos into folds and put them into the order in which they are sampled.

    Without groups, each video is its own group. The division and the order depend on the videos and
    their labels alone, so that all candidates and all calls use the same ones.

    Raises:
        ValueError: If the groups or folds cannot be used.
    """
    import torch

    from sce_video.evaluation.functional.folds import MANY_GROUPS, divide
    from sce_video.evaluation.functional.statistics import group_ids

    paths, labels = found.paths(), found.videos.labels.astype(np.int64)
    files = tuple(os.path.join(found.root, path) for path in paths)
    groups = np.arange(len(paths))
    if found.groups:
        groups = np.unique(np.array(found.groups), return_inverse=True)[1].reshape(-1)
    elif options.group_pattern is not None:
        groups = group_ids(paths, options.group_pattern)[0].numpy()
    folds, left_out = np.zeros(len(paths), np.int64), ""
    if options.labels is not None:
        given, count = None, options.folds
        if found.folds:
            numbers = np.unique(np.array(found.folds), return_inverse=True)[1].reshape(-1)
            given = torch.from_numpy(numbers)
        elif count is None and len(np.unique(groups)) >= MANY_GROUPS:
            count = _FOLDS
        divided = divide(
            torch.from_numpy(labels), torch.from_numpy(groups), given=given, folds=count
        )
        folds, left_out = divided.numbers.numpy(), divided.text
    grouped = bool(found.groups or found.folds or options.group_pattern)
    ordered = ChoiceVideos(
        files, labels, tuple(found.videos.classes), groups, folds, left_out, grouped
    )
    return ordered.subset(_fair_order(labels, folds))


def _fair_order(labels: np.ndarray, folds: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return an order (N,) each beginning of which has all classes and folds in proportion.

    Args:
        labels: (N,) classes.
        folds: (N,) folds.
        seed: Seed of the draw within a class and fold.
    """
    random = np.random.default_rng(seed)
    strata = np.unique(np.stack([labels, folds]), axis=1, return_inverse=True)[1].reshape(-1)
    place = np.empty(len(labels))
    for stratum in range(strata.max() + 1):
        members = random.permutation(np.flatnonzero(strata == stratum))
        place[members] = (np.arange(len(members)) + random.random()) / len(members)
    return np.argsort(place, kind="stable")
