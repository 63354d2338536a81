"""Parsing of times as people write them."""

from __future__ import annotations

import re

#: Number of seconds in each unit. A number without a unit is in seconds.
_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_seconds(text: str) -> float:
    """Convert a time such as ``5s``, ``2.5``, ``500ms``, ``2m`` or ``1:02:03.5`` to seconds.

    Raises:
        ValueError: If the text does not have one of these forms.
    """
    clock = re.fullmatch(r"(?:(\d{1,4}):)?(\d{1,4}):(\d{1,2}(?:\.\d{1,9})?)", text)
    if clock:
        hours, minutes, seconds = clock.groups()
        return int(hours or 0) * 3600 + int(minutes) * 60 + float(seconds)
    plain = re.fullmatch(r"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9}) ?([a-z]{0,3})", text)
    if plain and plain[2] in _UNITS:
        return float(plain[1]) * _UNITS[plain[2]]
    raise ValueError(f"not a time: {text!r:.60}. Write 5s, 2.5, 500ms, 2m, 1h or 1:02:03.5")
