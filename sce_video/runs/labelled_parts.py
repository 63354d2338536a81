"""Division of labelled videos into the training and test sets of a finetuning run."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from sce_video.datasets.labelled import GroupColumns, LabelledVideos, read_pair
from sce_video.datasets.sources import listed_extensions
from sce_video.datasets.video_list import split_segment, video_of
from sce_video.engine.run_json import Choice
from sce_video.evaluation.functional.linear_probe import held_out
from sce_video.evaluation.functional.statistics import group_ids
from sce_video.options.training import FinetuneOptions

#: Share of the videos, or of the groups, that is held out if no test set is given
_HELD_OUT = 0.25


def labelled_parts(
    options: FinetuneOptions,
) -> tuple[LabelledVideos, LabelledVideos, tuple[Choice, ...]]:
    """Read the training and test videos of a finetuning, and describe them for the plan.

    Without a test set, the seed selects a quarter of the videos in each class, or of the groups, to
    hold out. For segments, a quarter of the recordings is held out. If a recording contains the
    only segments of a class, the end of each recording is held out instead.

    Raises:
        ValueError: If the sets cannot be used, or do not match each other.
    """
    train, few, seed = str(options.train), options.few, options.seed or 0
    columns = GroupColumns(options.group_column, options.fold_column)
    extensions = listed_extensions(options.all_files)
    videos, tested = read_pair(train, options.test, options.data_root, columns, extensions)
    reason = "given"
    if tested is None:
        kept, held, reason = _divided(videos, options.group_pattern, columns, seed)
        if not held.any():
            raise ValueError(
                f"no class of {train} has two videos, so none can be held out for the test. Give "
                "--test"
            )
        tested, videos = videos.subset(np.flatnonzero(held)), videos.subset(np.flatnonzero(kept))
    all_of_them = len(videos)
    if few is not None:
        videos = videos.few(few, seed)
    of = (
        f"{few} of each class, of {all_of_them}, drawn by the seed" if few else "all that are given"
    )
    rows = (Choice("train", _counted(videos), of), Choice("test", _counted(tested), reason))
    return videos, tested, rows


def _divided(
    videos: LabelledVideos, group_pattern: str | None, columns: GroupColumns, seed: int
) -> tuple[np.ndarray, np.ndarray, str]:
    """Return masks (N,) of the training and test videos, and a sentence about them."""
    if videos.folds:
        held = videos.in_fold(columns)
        tested = videos.folds[int(np.argmax(held))]
        return ~held, held, f"no --test: the fold {tested} of {columns.fold_name} is held out"
    given = group_pattern is not None or bool(videos.groups)
    groups, segments = None, not given and _are_segments(videos)
    recordings = np.unique(recordings_of(videos), return_inverse=True)[1]
    reason = "no --test: a quarter of each class is held out, drawn by the seed"
    if group_pattern is not None:
        groups, _ = group_ids(videos.paths(), group_pattern)
        reason = f"no --test: a quarter of the groups {group_pattern} is held out"
    elif videos.groups:
        groups = torch.from_numpy(np.unique(videos.groups, return_inverse=True)[1])
        reason = f"no --test: a quarter of the groups of {columns.group} is held out"
    elif segments and len(np.unique(recordings)) < len(videos):
        groups = torch.from_numpy(recordings)
        reason = "no --test: a quarter of the recordings is held out, drawn by the seed"
    held = held_out(torch.from_numpy(videos.videos.labels), groups, _HELD_OUT, seed).numpy()
    if held.any() or not segments:
        return ~held, held, reason
    kept, held = _cut_in_time(videos, recordings)
    reason = "no --test, no recording to hold out: the last quarter of each is tested"
    across = len(videos) - int((kept | held).sum())
    return kept, held, reason + f", {across} segments reach across the cut" * bool(across)


def recordings_of(videos: LabelledVideos) -> list[str]:
    """Return the file of each video. Segments of a recording share a file and look similar."""
    return [video_of(str(Path(videos.root, path).absolute())) for path in videos.paths()]


def units_of(videos: LabelledVideos, group_pattern: str | None) -> np.ndarray:
    """Return the number (N,) of the group of each video, or else of its recording.

    Args:
        videos: The videos.
        group_pattern: Regular expression with one group, which is searched in the paths; None for
            the groups of a column, if there are any.
    """
    if group_pattern is not None:
        return group_ids(videos.paths(), group_pattern)[0].numpy()
    return np.unique(videos.groups or recordings_of(videos), return_inverse=True)[1]


def _are_segments(videos: LabelledVideos) -> bool:
    return any(split_segment(os.path.join(videos.root, path)) for path in videos.paths())


def _counted(videos: LabelledVideos) -> str:
    """Format a number of videos: ``12 videos`` or ``12 segments of 3 recordings``."""
    if not _are_segments(videos):
        return f"{len(videos)} videos"
    count = len(set(recordings_of(videos)))
    return f"{len(videos)} segments of {count} recording{'s' * (count != 1)}"


def _cut_in_time(videos: LabelledVideos, recordings: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return masks (N,) of the segments before and after a cut in each recording.

    The last quarter of a recording's segments is after the cut. ValueError is raised if a class has
    no segment before it.
    """
    found = (split_segment(os.path.join(videos.root, path)) for path in videos.paths())
    spans = np.array([(0.0, np.inf) if s is None else s[1:] for s in found])
    before, after = np.ones(len(videos), bool), np.zeros(len(videos), bool)
    for recording in np.unique(recordings):
        own = np.flatnonzero(recordings == recording)
        if len(own) > 1:
            cut = np.sort(spans[own, 0])[-max(1, round(_HELD_OUT * len(own)))]
            after[own], before[own] = spans[own, 0] >= cut, spans[own, 1] <= cut
    labels = videos.videos.labels
    missing = sorted(set(labels.tolist()) - set(labels[before].tolist()))
    if missing:
        raise ValueError(
            f"no whole recording of {videos.source} can be held out, and the first three quarters "
            f"of the recordings contain no {videos.name(missing[0])!r}. Label it in another "
            "recording, or give --test"
        )
    return before, after
