"""What the names of classes tell: pairs of opposite actions, and factors such as appearance."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from sce_video.published.ssv2_opposites import OPPOSITES

#: Lists of pairs that can be named.
_KNOWN_PAIRS = {"ssv2": OPPOSITES}


def class_pairs(
    classes: Sequence[str], pairs: str | Sequence[Sequence[str]]
) -> list[tuple[int, int]]:
    """Labels of the pairs of which both classes are in a data set.

    Args:
        classes: Names of the labels.
        pairs: Pairs of names, or "ssv2" for those of
            :data:`~sce_video.published.ssv2_opposites.OPPOSITES`.

    Raises:
        ValueError: an unknown list, an entry that is no pair, or no pair with both classes.
    """
    if isinstance(pairs, str):
        if pairs not in _KNOWN_PAIRS:
            raise ValueError(
                f"no pairs of opposite classes are known as {pairs!r}: choose from "
                f"{', '.join(_KNOWN_PAIRS)}, or give pairs of class names"
            )
        pairs = _KNOWN_PAIRS[pairs]
    label = {name: number for number, name in enumerate(classes)}
    for pair in pairs:
        if isinstance(pair, str) or len(pair) != 2 or pair[0] == pair[1]:
            raise ValueError(f"a pair of opposite classes is two different names, got {pair!r}")
    found = [(label[a], label[b]) for a, b in pairs if a in label and b in label]
    if not found:
        raise ValueError(
            f"the labels lack the pairs of opposite classes: of {len(pairs)} pairs, such as "
            f"{tuple(pairs[0]) if pairs else ()}, none has both classes among the {len(label)} of "
            f"the data set, such as {', '.join(map(repr, list(classes)[:3]))}"
        )
    return found


def class_factors(classes: Sequence[str], template: str) -> dict[str, tuple[list[str], Tensor]]:
    """Values of the factors of a class name, and the value of every label.

    Args:
        classes: Names of the labels.
        template: The form of the names, "{appearance}_{motion}": a word in braces is a factor, of
            one character or more, as few as possible; all else is text.

    Returns:
        Factor to its values in alphabetical order, and their numbers by label, (classes,) int64.

    Raises:
        ValueError: a template without factors, a name of another form, or a factor of one value.
    """
    parts = re.split(r"\{(\w+)\}", template)
    names = parts[1::2]
    if not names or len(set(names)) < len(names):
        raise ValueError(
            "the form of the class names must have different factors in braces, as in "
            f"'{{appearance}}_{{motion}}', got {template!r}"
        )
    pattern = "".join(
        f"(?P<{part}>.+?)" if number % 2 else re.escape(part) for number, part in enumerate(parts)
    )
    matches = [re.fullmatch(pattern, name) for name in classes]
    for name, match in zip(classes, matches, strict=True):
        if match is None:
            raise ValueError(f"the class {name!r} has not the form {template!r}")
    factors = {}
    for factor in names:
        of_label = [match[factor] for match in matches if match is not None]
        values = sorted(set(of_label))
        if len(values) < 2:
            raise ValueError(f"all classes have the same {factor} {values}: it cannot be predicted")
        factors[factor] = values, torch.tensor([values.index(value) for value in of_label])
    return factors
