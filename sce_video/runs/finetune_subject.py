"""The subject of a finetuning: source, videos and machine, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sce_video.datasets.labelled import LabelledVideos
from sce_video.datasets.sources import is_table
from sce_video.engine.run_json import Choice
from sce_video.inference.network_input import TEST_CROPS
from sce_video.options.training import NONE, FinetuneOptions, given_settings
from sce_video.runs.choices import Machine, this_machine
from sce_video.runs.folder_facts import FolderFacts, examine_folder
from sce_video.runs.labelled_parts import labelled_parts, units_of
from sce_video.runs.start_weights import Source, find_source


@dataclass(frozen=True)
class Subject:
    """Source, videos and machine that a finetuning is planned for.

    Attributes:
        videos: Videos to train with.
        units: (N,) int64. Training videos with the same number belong together (a group or a
            recording), so a comparison never separates them.
        tested: Videos to test with.
        rows: Rows of the plan that describe them.
        facts: Facts of the videos to train with.
        machine: Machine that trains.
        source: Network to start from; None for random weights.
        given: Settings that the user gave, by name.
    """

    videos: LabelledVideos
    units: np.ndarray
    tested: LabelledVideos
    rows: tuple[Choice, ...]
    facts: FolderFacts
    machine: Machine
    source: Source | None
    given: dict[str, Any]

    @property
    def counts(self) -> np.ndarray:
        """(K,) numbers of training videos of the classes that have any."""
        counts = np.bincount(self.videos.videos.labels)
        return counts[counts > 0]

    def part(self, indices: np.ndarray) -> Subject:
        """Return the subject with only some of its training videos.

        Args:
            indices: (n,) numbers of the training videos to keep.
        """
        return replace(self, videos=self.videos.subset(indices), units=self.units[indices])


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
    return Subject(videos, units, tested, rows, facts, this_machine(), source, given)


def describe_source(source: Source | None) -> Choice:
    """Return the source as a choice, with its kind and size."""
    if source is None:
        return Choice("source", NONE, "random weights")
    head = "; its classifier is replaced" if source.is_classifier else ""
    return Choice("source", source.name, f"{source.kind}, {source.parameters:,} weights{head}")


def data_settings(
    subject: Subject, out: str, *, parts: Sequence[str] = ("val", "test"), write: bool = True
) -> dict[str, Any]:
    """Return the recipe changes that select the videos, by key.

    Args:
        subject: The videos.
        out: Folder of the lists.
        parts: Parts of the recipe that read the test videos.
        write: Whether to write the lists of the videos.
    """
    sets = {"train": subject.videos.dataset(out, "train", write)}
    sets |= dict.fromkeys(parts, subject.tested.dataset(out, "test", write))
    changes = {
        f"{part}_dataloader.dataset.{name}": value
        for part, settings in sets.items()
        for name, value in settings.items()
    }
    head = {"model.cls_head.num_classes": subject.videos.num_classes}
    # Broken files are listed in the results, and do not end a test.
    return {**changes, **head, "test_dataloader.dataset.on_error": "skip"}


def step_of_source(step: Mapping[str, Any], source: Source, own_size: bool) -> dict[str, Any]:
    """Return a step of a test pipeline, changed to produce the frames that the source accepts.

    Args:
        step: The step.
        source: Network to start from.
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
