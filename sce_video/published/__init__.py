"""The paper's numbers, the recipes that reproduce them, and the published sizes of datasets."""

from __future__ import annotations

import csv
from pathlib import Path


def read_published(name: str) -> list[dict[str, str]]:
    """Read the rows of a CSV file in this folder as dicts of texts."""
    with open(Path(__file__).parent / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def number_or_text(cell: str) -> int | str | None:
    """Return a cell's whole number or its text; None for an empty cell."""
    return int(cell) if cell.isdecimal() else cell or None
