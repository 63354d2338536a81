"""The shipped recipe and options that reproduce each number of the paper.

``recipes.csv`` has the recipe of each pretraining and evaluation. An empty cell stands for any
value. ``pretrainings.csv`` has the options of each row of an ablation, and ``variants.csv`` the
options about which the paper and its authors' code disagree.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from sce_video.published import read_published


class Recipe(NamedTuple):
    """A shipped recipe by its name, and options that change it."""

    name: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """An option for which the paper and its authors' code disagree.

    A training run with this option is also listed next to the paper's number.

    Attributes:
        recipes: Names of the recipes that it belongs to, as a regular expression.
        key: Key of the option in the config.
        value: Value that the recipe does not have.
        source: Place that the value comes from.
    """

    recipes: str
    key: str
    value: Any
    source: str


@dataclass(frozen=True)
class Pretraining:
    """A pretraining run of the paper: a method's best setting, or a row of an ablation.

    Attributes:
        name: Name for readers; empty if the settings in its key are its name.
        method: Value of ``method`` of its recipes in ``recipes.csv``.
        options: Options that it changes in the recipe.
    """

    name: str
    method: str
    options: dict[str, Any]


_ROWS = read_published("recipes.csv")
#: By the name in benchmarks, ``sce_tau_m_0.07``.
PRETRAININGS = {
    row["pretraining"]: Pretraining(row["name"], row["method"], json.loads(row["options"] or "{}"))
    for row in read_published("pretrainings.csv")
}
VARIANTS = tuple(
    Variant(row["recipes"], row["key"], json.loads(row["value"]), row["source"])
    for row in read_published("variants.csv")
)


def variants(recipe: str) -> list[Variant]:
    """Return the options of a recipe for which the paper and its authors' code disagree."""
    return [variant for variant in VARIANTS if re.fullmatch(variant.recipes, recipe)]


def pretraining_recipe(
    pretraining: Any, dataset: Any, network: Any, frames: Any, size: Any, epochs: Any = None
) -> Recipe | None:
    """Return the recipe of a pretraining, or None if the paper has none of that name.

    Args:
        pretraining: Name in ``pretrainings.csv``: ``sce``, ``supervised``, ``sce_tau_m_0.07``, ...
        dataset: Training data.
        network: ``r3d18``, ...
        frames: Frames of a clip; 1 for images.
        size: Height and width of a clip, pixels.
        epochs: Training epochs, if the paper has several numbers for one method.
    """
    known = PRETRAININGS.get(str(pretraining))
    if known is None:
        return None
    name = _recipe("pretraining", known.method, dataset, network, frames, size, epochs)
    return None if name is None else Recipe(name, dict(known.options))


def evaluation_recipe(
    protocol: Any, dataset: Any, network: Any, frames: Any, size: Any, pretraining: Any = None
) -> str | None:
    """Return the name of the recipe of an evaluation, or None if the paper has none.

    ``protocol`` is ``linear``, ``finetune``, ``retrieval``, ``supervised``, ``detection``,
    ``many_shot`` or ``low_shot_svm``; ``dataset`` is the test data. ``pretraining`` matters only
    for images: a network that was pretrained with LARS has a linear evaluation of its own.
    """
    return _recipe(protocol, pretraining, dataset, network, frames, size, None)


def _recipe(protocol: Any, method: Any, *setting: Any) -> str | None:
    """Return the first recipe whose cells are empty or equal to the values."""
    names = ("protocol", "method", "dataset", "network", "frames", "size", "epochs")
    wanted = dict(zip(names, map(str, (protocol, method, *setting)), strict=True))
    for row in _ROWS:
        if all(row[name] in ("", value) for name, value in wanted.items()):
            return row["recipe"]
    return None
