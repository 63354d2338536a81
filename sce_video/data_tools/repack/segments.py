"""A table of segments of long videos: each becomes a file of its own."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Mapping

from sce_video.data_tools.repack.plan import Item, Plan, inside
from sce_video.datasets.video_list import MAX_LABEL

#: Columns of a table of segments; ``label`` may be missing.
COLUMNS = ("path", "start", "end", "output", "label")


def plan_segments(source: str, destination: str, data_root: str | None = None) -> Plan:
    """The outputs of a table of segments, which ends in ``.csv``.

    ::

        path,start,end,output,label
        P01/videos/P01_01.MP4,0.14,3.37,P01_01_0.mp4,3

    Args:
        source: The table; its header names the columns ``path``, ``start`` and ``end`` (seconds
            from the first frame of the video), ``output`` (path below the output folder) and, if
            all segments have one, ``label``.
        destination: Output folder.
        data_root: Folder that the paths are relative to; the folder of the table by default.

    Raises:
        ValueError: A column or a value is missing or wrong, two segments have one output, or the
            same segment is listed twice; the message names the line.
    """
    root = data_root or os.path.dirname(os.path.abspath(source))
    items: dict[str, Item] = {}
    labels: list[int] = []
    outputs: dict[str, int] = {}
    with open(source, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.DictReader(file)
        missing = [name for name in COLUMNS[:4] if name not in (rows.fieldnames or ())]
        if missing:
            raise ValueError(
                f"{source}: no column {missing[0]!r}; the first line of a table of segments is "
                f"{','.join(COLUMNS)}"
            )
        for row in rows:
            where = f"{source}, line {rows.line_num}"
            item = _item(row, where, root)
            if item.key in items:
                raise ValueError(f"{where}: {item.key} is listed twice")
            if item.output in outputs:
                raise ValueError(
                    f"{where}: output {item.output!r} is that of line {outputs[item.output]}, too"
                )
            items[item.key], outputs[item.output] = item, rows.line_num
            labels.append(_label(row, where))
    if not items:
        raise ValueError(f"{source} lists no segment")
    stem = os.path.splitext(os.path.basename(source))[0]
    return Plan(source, root, list(items.values()), list(items), labels, stem, f"{stem}.txt")


def _item(row: Mapping[str, str | None], where: str, root: str) -> Item:
    empty = [name for name in COLUMNS[:4] if not row[name]]
    if empty:
        raise ValueError(f"{where}: column {empty[0]!r} is empty")
    start, end = (_seconds(row[name] or "", name, where) for name in ("start", "end"))
    if end <= start:
        raise ValueError(f"{where}: end {end:g} must lie after start {start:g}")
    output = os.path.normpath(row["output"] or "")
    if os.path.isabs(output) or output.startswith(os.pardir) or not output.endswith(".mp4"):
        raise ValueError(
            f"{where}: output {row['output']!r} must be a path below the output folder that ends "
            "in .mp4"
        )
    return Item(inside(row["path"] or "", root), output, (start, end))


def _seconds(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"{where}: {name} {text!r:.40} must be seconds from 0 on")
    return value


def _label(row: Mapping[str, str | None], where: str) -> int:
    text = row.get("label")
    if text is None:
        return -1
    if not text.isdecimal() or int(text[:18]) > MAX_LABEL:
        raise ValueError(f"{where}: label {text!r:.40} must be a whole number up to {MAX_LABEL}")
    return int(text)
