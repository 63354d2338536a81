"""Facts about the values of a metric that follow from its name."""

from __future__ import annotations

import re
from typing import Any

#: Metrics that are not fractions, although their values may lie between 0 and 1
NOT_FRACTIONS = frozenset(
    ("feature_std", "effective_rank", "rankme", "lidar", "loss", "h_std", "h_rank")
).union(
    f"time_{kind}_{clips}"
    for kind in ("cosine", "centred_cosine")
    for clips in ("shuffled", "reversed", "still")
)


def is_trivial(name: str, num_classes: Any) -> bool:
    """Return whether a metric is top-k accuracy (k of 2 or more) for fewer than 2k classes.

    The accuracy of guessing then exceeds 0.5, and with k classes the accuracy is always 1. The
    result is False if ``num_classes`` is not an integer.
    """
    found = re.search(r"top(\d+)$", name)
    if found is None or type(num_classes) is not int or num_classes < 2:
        return False
    return int(found[1]) > 1 and num_classes < 2 * int(found[1])
