"""The paper's numbers, each with its setting and the shipped recipes that reproduce it.

If several tables print the same number, ``paper_results.csv`` lists it once, with the other tables
in ``also``. The ablations' baseline is a row in all of their tables. tab:video-sota-action has
means over three splits, except for the K200 network, whose numbers are on split 1, as in
tab:video-best. ``pretrainings.csv`` contains the name of each pretraining run and the options that
it changes in its recipe. ``variants.csv`` contains settings for which the paper and its authors'
code disagree.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sce_video.published import number_or_text, read_published

#: ``PaperResult.split`` for a mean over the three splits of UCF101 or HMDB51.
MEAN_OF_SPLITS = "mean of 3"
#: Dataset and metric for the last cell in tab:many-shot, which is the mean of the other cells.
MEAN_OF_SETS = "many_shot_mean"
#: Facts that a result must state to be comparable.
REQUIRED = ("protocol", "dataset", "network", "frames", "size", "pretrained_on", "pretraining")


class Recipe(NamedTuple):
    """Name of a shipped recipe, and the options that change it."""

    name: str
    options: dict[str, object]


class Variant(NamedTuple):
    """A setting for which the paper and its authors' code disagree.

    A training run with this setting is also listed next to the paper's number.

    Attributes:
        recipes: Names of the recipes that it belongs to, as a regular expression.
        key: Key of the setting in the resolved config.
        value: Value in the resolved config, which differs from the recipe's value.
        source: Source of the value.
    """

    recipes: str
    key: str
    value: Any
    source: str


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Conditions of a measurement, which must be the same for a result and a number of the paper.

    Attributes:
        protocol: ``linear``, ``finetune``, ``retrieval``, ``supervised`` or ``detection``. Images
            also have ``many_shot``, ``low_shot_svm`` and ``instance_segmentation``.
        dataset: Test data: ``kinetics400``, ``ucf101``, ``cifar10``, ...
        network: ``r3d18``, ``r3d50``, ``r18_small`` or ``r50_2d``.
        frames: Number of frames per clip. An image is a clip of one frame.
        size: Height and width of a training crop, pixels.
        pretrained_on: Dataset of the pretraining run; None if not pretrained.
        pretraining: ``sce`` (the best setting in tab:video-best), ``sce_baseline`` (the baseline of
            the ablations), ``supervised``, or a row of an ablation; None if not pretrained.
        pretraining_epochs: Pretraining epochs, if the paper has numbers for several; else None.
    """

    protocol: str | None
    dataset: str | None
    network: str | None
    frames: int | None
    size: int | None
    pretrained_on: str | None
    pretraining: str | None
    pretraining_epochs: int | None = None

    @classmethod
    def stated(cls, values: Mapping[str, Any]) -> Setting:
        """Return the setting that a file or a config states. Missing fields are None.

        Lists and dicts become text, because settings are used as keys.
        """
        plain = (str, int, float, type(None))
        stated = {name: values.get(name) for name in (*REQUIRED, "pretraining_epochs")}
        found: Mapping[str, Any] = {
            name: value if isinstance(value, plain) else str(value)
            for name, value in stated.items()
        }
        return cls(**found)

    @property
    def key(self) -> tuple[Any, ...]:
        """Return all fields except the epochs."""
        return tuple(getattr(self, name) for name in REQUIRED)

    @property
    def clip(self) -> tuple[str | None, int | None, int | None]:
        """Return the network, and the frames and size of its clips."""
        return self.network, self.frames, self.size


@dataclass(frozen=True, kw_only=True)
class PaperResult(Setting):
    """A number in the paper, and the setting for which it was measured.

    Attributes:
        split: 1, ``mean of 3`` or ``val``.
        metric: Name in results.json: ``top1``, ``retrieval_r1``, ``mAP``, ...
        value: Percentage as printed.
        table: Label of the table in the paper.
        row: Row of the table.
        recipe: Recipe of the evaluation; None if no recipe reproduces it.
        pretraining_recipe: Recipe of the pretraining run; None if not pretrained.
        note: Remark for the reader of the report.
        decimals: Decimals as printed.
        also: Other tables that print the same measurement, with the values there.
    """

    protocol: str
    dataset: str
    network: str
    frames: int
    size: int
    split: int | str
    metric: str
    value: float
    table: str
    row: str
    recipe: str | None
    pretraining_recipe: str | None
    note: str | None = None
    decimals: int = 1
    also: tuple[tuple[str, float], ...] = ()

    def is_of(self, setting: Setting | None) -> bool:
        """Return whether a result's setting equals this number's setting, except for the split."""
        if setting is None or self.key != setting.key:
            return False
        return self.pretraining_epochs in (None, setting.pretraining_epochs)

    @property
    def origin(self) -> Recipe | None:
        """Return the recipe of the pretraining run with the options of its row."""
        if self.pretraining_recipe is None:
            return None
        options = PRETRAININGS[str(self.pretraining)]["options"]
        return Recipe(self.pretraining_recipe, json.loads(options or "{}"))

    @property
    def remark(self) -> str:
        """Return the note and the other tables that print the number."""
        elsewhere = ", ".join(
            table if value == self.value else f"{table} ({value})" for table, value in self.also
        )
        also = f"also in {elsewhere}" if elsewhere else None
        return "; ".join(text for text in (also, self.note) if text)


def _read_results() -> tuple[PaperResult, ...]:
    """Read the numbers in the order of the report."""
    results = []
    for cells in read_published("paper_results.csv"):
        own: dict[str, Any] = {name: number_or_text(text) for name, text in cells.items()}
        elsewhere = (cell.split(" ") for cell in cells["also"].split("; ") if cell)
        own["also"] = tuple((table, float(value)) for table, value in elsewhere)
        own["value"], own["row"] = float(cells["value"]), cells["row"]
        own["decimals"] = len(cells["value"].partition(".")[2])
        results.append(PaperResult(**own))
    return tuple(results)


#: Name and options of each pretraining run, by its benchmark key, such as ``sce_tau_m_0.07``.
PRETRAININGS = {row["pretraining"]: row for row in read_published("pretrainings.csv")}
VARIANTS = tuple(
    Variant(row["recipes"], row["key"], json.loads(row["value"]), row["source"])
    for row in read_published("variants.csv")
)
_RESULTS = _read_results()
#: All published numbers for videos, and all for images.
PAPER_RESULTS = tuple(result for result in _RESULTS if result.frames > 1)
IMAGE_RESULTS = tuple(result for result in _RESULTS if result.frames == 1)
#: Numbers in tab:many-shot, without their mean, as tuples of dataset, metric and value.
MANY_SHOT = tuple(
    (result.dataset, result.metric.removeprefix("many_shot_"), f"{result.value:.1f}")
    for result in IMAGE_RESULTS
    if result.table == "tab:many-shot" and result.dataset != MEAN_OF_SETS
)


def variant_of(recipe: str, key: str, value: str) -> Variant | None:
    """Return the variant of the paper in which a recipe's setting has this value, or None."""
    for variant in VARIANTS:
        if (variant.key, str(variant.value)) == (key, value):
            if re.fullmatch(variant.recipes, recipe):
                return variant
    return None


def pretraining_recipe(setting: Setting) -> Recipe | None:
    """Return the recipe of a setting's pretraining run; None if the paper has no number for it."""
    names = ("pretraining", "pretrained_on", "clip")
    for paper in _RESULTS:
        same = all(getattr(paper, name) == getattr(setting, name) for name in names)
        if same and paper.pretraining_epochs in (None, setting.pretraining_epochs):
            return paper.origin
    return None


def evaluation_recipes(setting: Setting) -> list[str]:
    """Return the recipes for evaluating a setting. The first one fits the pretraining run.

    There are several only for images, because networks that were pretrained with LARS have a
    separate linear evaluation.
    """
    where = (setting.protocol, setting.dataset, setting.clip)
    same = [paper for paper in _RESULTS if (paper.protocol, paper.dataset, paper.clip) == where]
    same.sort(key=lambda paper: not paper.is_of(setting))
    return list(dict.fromkeys(paper.recipe for paper in same if paper.recipe is not None))


@dataclass(frozen=True)
class PublishedSize:
    """Number of samples in a set.

    Attributes:
        low: Published number, or the smallest number, because copies of some sets differ.
        high: Largest published number.
        least: Smallest number with which a result counts as a result on this set.
        most: Largest number with which a result counts as a result on this set.
        classes: Number of classes; None if samples have no single class.
    """

    low: int
    high: int
    least: int
    most: int
    classes: int | None = None

    def published(self) -> str:
        """Return the published number, or range, as text."""
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,} to {self.high:,}"

    def contains(self, samples: int) -> bool:
        """Return whether a copy of the set may have this number of samples."""
        return self.least <= samples <= self.most


#: Sizes by part (``test``, ``training`` or ``pretraining``), dataset and split (None for images).
#: For videos, the training set is also the gallery for retrieval. For images, the test set is the
#: labelled validation split if the test split has no labels, and the training set includes the
#: validation split if it is used for training. A dataset has the part ``pretraining`` only if
#: pretraining and classifiers use different training images.
SIZES = {
    (row["part"], row["dataset"], number_or_text(row["split"])): PublishedSize(
        low=int(row["low"]),
        high=int(row["high"]),
        least=int(row["least"]),
        most=int(row["most"]),
        classes=int(row["classes"]) if row["classes"] else None,
    )
    for row in read_published("sets.csv")
}


def size_of(part: str, dataset: Any, split: int | str | None = None) -> PublishedSize | None:
    """Return the size of a part of a dataset, or None if none is published."""
    return SIZES.get((part, dataset, split)) or SIZES.get((part, dataset, None))


#: Datasets with three official splits. Any other dataset has a single test set, called ``val``.
WITH_SPLITS = frozenset({"ucf101", "hmdb51"})
#: Protocols of ``sce-video transfer``. They use feature files, so their recipes have no test.
TRANSFER = ("many_shot", "low_shot_svm")
#: SHA-256 of the class names, for datasets with a subset of a larger dataset's classes. The names
#: are the sorted WordNet ids in tab:classes, one per line.
CLASS_LISTS = {"imagenet100": "d61d354b64beb3ce2c2c9cf04a874298362dc9fcd589e15ee34c5e4592145746"}


def class_list_problem(dataset: str, names: Any) -> str | None:
    """Return the reason why class names do not belong to a dataset; None if they do.

    Only the sets in :data:`CLASS_LISTS` are checked.

    Args:
        dataset: Name of the dataset.
        names: Class names in the order of their labels.
    """
    if dataset not in CLASS_LISTS:
        return None
    if not names or not isinstance(names, list | tuple):
        return f"the classes are not known, but {dataset} is a choice of them"
    if hashlib.sha256("\n".join(map(str, names)).encode()).hexdigest() == CLASS_LISTS[dataset]:
        return None
    return f"its classes differ from the classes of {dataset}"
