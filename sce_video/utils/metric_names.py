"""What the name of a metric tells about its value."""

from __future__ import annotations

import re
from typing import Any

#: Metrics that are not fractions from 0 to 1, although their values may be.
NOT_FRACTIONS = frozenset(
    ("feature_std", "effective_rank", "rankme", "lidar", "loss", "h_std", "h_rank")
).union(
    f"time_{kind}_{clips}"
    for kind in ("cosine", "centred_cosine")
    for clips in ("shuffled", "reversed", "still")
)


def is_trivial(name: str, num_classes: Any) -> bool:
    """Return whether a metric is ``top<k>`` accuracy (k of 2 or more) of fewer than 2k classes.

    Of k classes it is always 1, and of fewer than 2k guessing reaches more than half of it.
    With anything but an integer as ``num_classes`` no metric is.
    """
    found = re.search(r"top(\d+)$", name)
    if found is None or type(num_classes) is not int or num_classes < 2:
        return False
    return int(found[1]) > 1 and num_classes < 2 * int(found[1])
