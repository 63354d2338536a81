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
    """Whether a metric is ``top<k>`` accuracy of k classes or fewer, which is always 1.

    With anything but an integer as ``num_classes`` no metric is.
    """
    found = re.search(r"top(\d+)$", name)
    return found is not None and type(num_classes) is int and 1 < num_classes <= int(found[1])
