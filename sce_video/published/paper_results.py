"""The paper's numbers, each with its setting and the shipped recipes that reproduce it.

``paper_results.csv`` lists a number that several tables print once, with the others in ``also``.
The baseline of the ablations is a row of all their tables. tab:video-sota-action has means over
three splits, except for the K200 network, whose numbers are on split 1, as in tab:video-best.
``pretrainings.csv`` has the name of each pretraining run and the options that it changes in its
recipe, and ``variants.csv`` the settings about which the paper and its authors' code disagree.
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
#: Dataset and metric of the last cell of tab:many-shot, which is the mean of the others.
MEAN_OF_SETS = "many_shot_mean"
#: Facts that a result must state to be compared.
REQUIRED = ("protocol", "dataset", "network", "frames", "size", "pretrained_on", "pretraining")


class Recipe(NamedTuple):
    """A shipped recipe by its name, and options that change it."""

    name: str
    options: dict[str, Any]


class Variant(NamedTuple):
    """A setting for which the paper and its authors' code disagree.

    A training run with this setting is also listed next to the paper's number.

    Attributes:
        recipes: Names of the recipes that it belongs to, as a regular expression.
        key: Key of the setting in the resolved config.
        value: Value in the resolved config that the recipe does not have.
        source: Place that the value comes from.
    """

    recipes: str
    key: str
    value: Any
    source: str


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Conditions of a measurement, which a result must share with a number of the paper.

    Attributes:
        protocol: ``linear``, ``finetune``, ``retrieval``, ``supervised`` or ``detection``. Images
            also have ``many_shot``, ``low_shot_svm`` and ``instance_segmentation``.
        dataset: Test data: ``kinetics400``, ``ucf101``, ``cifar10``, ...
        network: ``r3d18``, ``r3d50``, ``r18_small`` or ``r50_2d``.
        frames: Number of frames per clip. An image is a clip of one frame.
        size: Height and width of a training crop, pixels.
        pretrained_on: Dataset of the pretraining run; None if not pretrained.
        pretraining: ``sce`` (the best setting of tab:video-best), ``sce_baseline`` (the baseline of
            the ablations), ``supervised``, a row of an ablation; None if not pretrained.
        pretraining_epochs: Pretraining epochs, if the paper has several numbers for one method;
            else None.
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

        Lists and dicts become text, because settings are compared and looked up.
        """
        plain = (str, int, float, type(None))
        found: dict[str, Any] = {}
        for name in (*REQUIRED, "pretraining_epochs"):
            value = values.get(name)
            found[name] = value if isinstance(value, plain) else str(value)
        return cls(**found)

    @property
    def key(self) -> tuple[Any, ...]:
        """Return all fields except the epochs."""
        return tuple(getattr(self, name) for name in REQUIRED)

    @property
    def clip(self) -> tuple[str | None, int | None, int | None]:
        """Return the network and its clips."""
        return self.network, self.frames, self.size


@dataclass(frozen=True, kw_only=True)
class PaperResult(Setting):
    """One number from the paper, and the setting in which it was measured.

    Attributes:
        split: 1, ``mean of 3`` or ``val``.
        metric: Name in results.json: ``top1``, ``retrieval_r1``, ``mAP``, ...
        value: Percent, as printed.
        table: Label of the table in the paper.
        row: Row of the table.
        recipe: Recipe of the evaluation; None if no recipe reproduces it.
        pretraining_recipe: Recipe of the pretraining run; None if not pretrained.
        note: Remark for the reader of the report.
        decimals: Decimals as printed.
        also: Other tables that print the same measurement, and the value there.
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
        """Return whether a result's setting equals this number's setting, apart from the split."""
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
        """Return the note, and where else the number is printed."""
        elsewhere = ", ".join(
            table if value == self.value else f"{table} ({value})" for table, value in self.also
        )
        also = f"also in {elsewhere}" if elsewhere else None
        return "; ".join(text for text in (also, self.note) if text)


def _read_results() -> tuple[PaperResult, ...]:
    """Read the numbers in the order of the report: first on videos, then on images."""
    results = []
    for cells in read_published("paper_results.csv"):
        own: dict[str, Any] = {name: number_or_text(text) for name, text in cells.items()}
        elsewhere = (cell.split(" ") for cell in cells["also"].split("; ") if cell)
        own["also"] = tuple((table, float(value)) for table, value in elsewhere)
        own["value"], own["row"] = float(cells["value"]), cells["row"]
        own["decimals"] = len(cells["value"].partition(".")[2])
        results.append(PaperResult(**own))
    return tuple(results)


#: Name and options of each pretraining run, by its name in benchmarks, ``sce_tau_m_0.07``.
PRETRAININGS = {row["pretraining"]: row for row in read_published("pretrainings.csv")}
VARIANTS = tuple(
    Variant(row["recipes"], row["key"], json.loads(row["value"]), row["source"])
    for row in read_published("variants.csv")
)
_RESULTS = _read_results()
#: All numbers on videos, and all on images.
PAPER_RESULTS = tuple(result for result in _RESULTS if result.frames > 1)
IMAGE_RESULTS = tuple(result for result in _RESULTS if result.frames == 1)
#: tab:many-shot without its mean, as dataset, metric and value.
MANY_SHOT = tuple(
    (result.dataset, result.metric.removeprefix("many_shot_"), f"{result.value:.1f}")
    for result in IMAGE_RESULTS
    if result.table == "tab:many-shot" and result.dataset != MEAN_OF_SETS
)


def variant_of(recipe: str, key: str, value: str) -> Variant | None:
    """Return the variant of the paper to which a recipe with another value belongs, or None."""
    for variant in VARIANTS:
        if (variant.key, str(variant.value)) == (key, value):
            if re.fullmatch(variant.recipes, recipe):
                return variant
    return None


def pretraining_recipe(setting: Setting) -> Recipe | None:
    """Return the recipe of a setting's pretraining; None if the paper has no number for it."""
    names = ("pretraining", "pretrained_on", "clip")
    for paper in _RESULTS:
        same = all(getattr(paper, name) == getattr(setting, name) for name in names)
        if same and paper.pretraining_epochs in (None, setting.pretraining_epochs):
            return paper.origin
    return None


def evaluation_recipes(setting: Setting) -> list[str]:
    """Return the recipes of a setting's evaluation, the recipe after its pretraining first.

    There are several only for images, where networks that were pretrained with LARS have a separate
    linear evaluation.
    """
    where = (setting.protocol, setting.dataset, setting.clip)
    same = [paper for paper in _RESULTS if (paper.protocol, paper.dataset, paper.clip) == where]
    same.sort(key=lambda paper: not paper.is_of(setting))
    return list(dict.fromkeys(paper.recipe for paper in same if paper.recipe is not None))


@dataclass(frozen=True)
class PublishedSize:
    """Number of samples or images of a set.

    It is published as ``low``, or as a range up to ``high``, since copies of some sets differ. A
    result on fewer than ``least`` or more than ``most`` samples does not count as a result on this
    set. ``classes`` is None if samples have no single class.
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


#: Sizes by part (``test``, ``training`` or ``pretraining``), dataset and split, which is None for
#: images. A training set of videos is also the gallery for retrieval. The test set of images is the
#: labelled validation split if the test split has no labels. A training set of images includes the
#: validation split if training uses it, too. Only sets that pretrain on other images than they
#: train a classifier on have the part ``pretraining``.
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


#: Datasets with three official splits. The only test set of the others is called ``val``.
WITH_SPLITS = frozenset({"ucf101", "hmdb51"})
#: Protocols on feature files (``sce-video transfer``), whose recipes name no test set.
TRANSFER = ("many_shot", "low_shot_svm")
#: SHA-256 of the class names of sets that are a choice of classes. The names are the sorted WordNet
#: ids of tab:classes, one per line.
CLASS_LISTS = {"imagenet100": "d61d354b64beb3ce2c2c9cf04a874298362dc9fcd589e15ee34c5e4592145746"}


def class_list_problem(dataset: str, names: Any) -> str | None:
    """Return why class names, in the order of their labels, are not a dataset's.

    Only the sets of :data:`CLASS_LISTS` are checked.
    """
    if dataset not in CLASS_LISTS:
        return None
    if not names or not isinstance(names, list | tuple):
        return f"the classes are not known, but {dataset} is a choice of them"
    digest = hashlib.sha256("\n".join(map(str, names)).encode()).hexdigest()
    return (
        None
        if digest == CLASS_LISTS[dataset]
        else f"its classes differ from the classes of {dataset}"
    )
