"""Subject of a finetuning run: labelled videos, source and machine, and what follows from them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sce_video.datasets.labelled import GroupColumns, LabelledVideos, read_pair
from sce_video.datasets.sources import is_table, listed_extensions
from sce_video.datasets.video_list import split_segment, video_of
from sce_video.engine.run_json import Choice
from sce_video.evaluation.functional.linear_probe import held_out
from sce_video.evaluation.functional.statistics import group_ids
from sce_video.inference.network_input import TEST_CROPS
from sce_video.options.training import NONE, FinetuneOptions, given_settings
from sce_video.runs.choices import Machine, this_machine
from sce_video.runs.finetune_choices import finetuning_notes
from sce_video.runs.folder_facts import FolderFacts, examine_folder
from sce_video.runs.start_weights import Source, find_source

#: Number of videos that are embedded and shown on the page of a finetuning run
PAGE_VIDEOS = 64
#: Estimated seconds for the page in addition to embedding its videos
PAGE_SECONDS = 20.0
#: Share of the videos or groups that are held out if there is no test set
_HELD_OUT = 0.25


@dataclass(frozen=True)
class Subject:
    """Source, videos and machine for which a finetuning run is planned.

    Attributes:
        videos: Training videos.
        units: (N,) int64 group or recording of each training video. Videos with the same number
            are never separated in a comparison.
        tested: Test videos.
        rows: Rows of the plan that describe both sets.
        facts: Facts about the training videos.
        machine: Machine on which the run trains.
        source: Network from which the run starts; None for random weights.
        given: Settings that the user gave, by name.
        num_classes: Number of classes in the whole set, of which ``videos`` may be a part.
    """

    videos: LabelledVideos
    units: np.ndarray
    tested: LabelledVideos
    rows: tuple[Choice, ...]
    facts: FolderFacts
    machine: Machine
    source: Source | None
    given: dict[str, Any]
    num_classes: int

    @property
    def counts(self) -> np.ndarray:
        """(K,) number of training videos in each class that has any."""
        counts = np.bincount(self.videos.videos.labels)
        return counts[counts > 0]

    @property
    def drawn(self) -> int:
        """Number of training videos that the page of the run embeds and draws."""
        return min(PAGE_VIDEOS, len(self.videos))

    def part(self, indices: np.ndarray) -> Subject:
        """Return the subject with only the training videos at these indices (n,)."""
        return replace(self, videos=self.videos.subset(indices), units=self.units[indices])

    def remarks(self, size: int, loading: float) -> list[str]:
        """Return sentences about anything unusual in the videos and their loading.

        Args:
            size: Side of a view in pixels.
            loading: Time to make a batch of views, as a multiple of the network's step.
        """
        shared = {*recordings_of(self.videos)} & {*recordings_of(self.tested)}
        counts, tested = self.counts.tolist(), len(self.tested)
        return [*finetuning_notes(counts, tested, len(shared), size, loading)]


def examine_labelled(options: FinetuneOptions) -> Subject:
    """Read the labelled videos and the source, and examine the machine."""
    words = {"precision": options.precision, "head": options.head}
    given = given_settings(options)
    given |= {name: word for name, word in words.items() if word is not None}
    videos, tested, rows = labelled_parts(options)
    source = None if options.source == NONE else find_source(str(options.source))
    of_list = videos.videos if videos.listed and not is_table(videos.root) else None
    facts = examine_folder(videos.root, of_list, videos.extensions).check_readable()
    facts = replace(facts, num_videos=len(videos))
    units = units_of(videos, options.group_pattern)
    tested = _in_units(tested, options.group_pattern)
    classes = videos.num_classes
    return Subject(videos, units, tested, rows, facts, this_machine(), source, given, classes)


def describe_source(source: Source | None) -> Choice:
    """Return the row of the plan that states the source, its kind and its size."""
    if source is None:
        return Choice("source", NONE, "random weights")
    head = "; its classifier is replaced" if source.is_classifier else ""
    return Choice("source", source.name, f"{source.kind}, {source.parameters:,} weights{head}")


def data_settings(
    subject: Subject, out: str, *, parts: Sequence[str] = ("val", "test"), write: bool = True
) -> dict[str, Any]:
    """Return the recipe changes that select the videos, by key.

    Args:
        subject: Training and test videos.
        out: Folder that contains or will contain the video lists.
        parts: Parts of the recipe that read the test videos.
        write: Whether to write these lists.
    """
    sets = {"train": subject.videos.dataset(out, "train", write)}
    sets |= dict.fromkeys(parts, subject.tested.dataset(out, "test", write))
    changes = {
        f"{part}_dataloader.dataset.{name}": value
        for part, settings in sets.items()
        for name, value in settings.items()
    }
    head = {"model.cls_head.num_classes": subject.num_classes}
    # List unreadable files in the results instead of ending the test with an error.
    test: dict[str, Any] = {"test_dataloader.dataset.on_error": "skip"}
    if (groups := subject.tested.groups_file(out, "test")) is not None:
        test["test_cfg.group_pattern"] = {"group_file": groups}  # intervals draw whole groups
    return {**changes, **head, **test}


def step_of_source(step: Mapping[str, Any], source: Source, own_size: bool) -> dict[str, Any]:
    """Return a step of a test pipeline, changed to produce the frames that the source accepts.

    Args:
        step: Step of the pipeline.
        source: Network from which the run starts.
        own_size: Whether the test crop has the source's size, which may exceed the training crop.
    """
    settings, changed, kind = source.settings, dict(step), step["type"]
    if kind in TEST_CROPS and own_size:
        changed[TEST_CROPS[kind]] = settings.crop_size
    if kind != "ResizeShortSide":
        return changed
    side = settings.short_side if own_size else step["size"]
    if settings.resize == "linear":
        return {**changed, "size": side}
    whole = settings.resize in ("square", "network")
    crop = settings.crop_size if own_size else step["size"]
    how = settings.resize if settings.resize in ("bilinear", "bicubic") else "bilinear"
    return {
        "type": "ResizeAsProcessor",
        "size": [crop, crop] if whole else side,
        "interpolation": how,
    }


def labelled_parts(
    options: FinetuneOptions,
) -> tuple[LabelledVideos, LabelledVideos, tuple[Choice, ...]]:
    """Read the training and test videos of a finetuning, and describe them for the plan.

    Without a test set, a quarter of the videos in each class, or a quarter of the groups, is held
    out. The seed selects them. For segments, a quarter of the recordings is held out. If a
    recording contains the only segments of a class, the end of each recording is held out instead.

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
            none = f"no class of {train} has two videos, so none can be held out for the test"
            if options.group_pattern is not None or videos.groups:
                none = f"each group of {train} contains all videos of a class, so none is tested"
            raise ValueError(f"{none}. Give --test")
        tested, videos = videos.subset(np.flatnonzero(held)), videos.subset(np.flatnonzero(kept))
        _check_trained(videos, tested, reason)
    drawn = "all that are given"
    if few is not None:
        drawn = f"{few} of each class, of {len(videos)}, drawn by the seed"
        videos = videos.few(few, seed)
    rows = (Choice("train", _counted(videos), drawn), Choice("test", _counted(tested), reason))
    return videos, tested, rows


def _check_trained(videos: LabelledVideos, tested: LabelledVideos, reason: str) -> None:
    """Raise ValueError if a class of the test videos has no training video."""
    untrained = np.setdiff1d(tested.videos.labels, videos.videos.labels)
    if len(untrained):
        names = ", ".join(repr(tested.name(label)) for label in untrained[:3].tolist())
        raise ValueError(
            f"{reason}, but it contains all videos of {len(untrained)} "
            f"class{'es' * (len(untrained) > 1)} ({names}), which could then never be predicted. "
            "Hold out other videos, or give --test"
        )


def _divided(
    videos: LabelledVideos, group_pattern: str | None, columns: GroupColumns, seed: int
) -> tuple[np.ndarray, np.ndarray, str]:
    """Return masks (N,) of the training and test videos, and the reason for the division."""
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
    """Return the file of each video. Segments of one recording share a file and look similar."""
    return [video_of(str(Path(videos.root, path).absolute())) for path in videos.paths()]


def units_of(videos: LabelledVideos, group_pattern: str | None) -> np.ndarray:
    """Return the number (N,) of each video's group or, without groups, of its recording.

    Args:
        videos: Labelled videos.
        group_pattern: Regular expression with one group, which is searched in the paths. None uses
            the column of groups, if there is one.
    """
    if group_pattern is not None:
        return group_ids(videos.paths(), group_pattern)[0].numpy()
    return np.unique(videos.groups or recordings_of(videos), return_inverse=True)[1]


def _in_units(videos: LabelledVideos, group_pattern: str | None) -> LabelledVideos:
    """Return videos with the groups of :func:`units_of`, unless each video is a group by itself."""
    units = units_of(videos, group_pattern)
    if videos.groups or len(np.unique(units)) == len(videos):
        return videos
    return replace(videos, listed=True, groups=tuple(map(str, units)))


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

    The last quarter of a recording's segments is after the cut.

    Raises:
        ValueError: If a class has no segment before a cut.
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
