"""Table that compares the counts found with the published ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass

from sce_video.data_tools.preparation.official import OfficialLists, Split

HEADER = ("", "in the list", "found on disk", "missing", "unreadable", "published", "result")


@dataclass(frozen=True)
class Row:
    """A row of the table, as text; ``agrees`` is None where no count is published."""

    title: str
    listed: str
    found: str = ""
    missing: str = ""
    unreadable: str = ""
    published: str = ""
    agrees: bool | None = None

    def cells(self) -> tuple[str, ...]:
        """The cells, in the order of :data:`HEADER`."""
        result = {None: "", True: "ok", False: "differs"}[self.agrees]
        counts = (self.listed, self.found, self.missing, self.unreadable)
        return (self.title, *counts, self.published, result)


def count_rows(
    official: OfficialLists,
    missing: Container[str],
    unreadable: Container[str],
    checked: bool = True,
) -> list[Row]:
    """Rows for the classes, for all videos and for each split.

    A split agrees with the published number if its list has that many videos, and as many as can
    still be downloaded are on disk and readable.

    Args:
        official: The official lists.
        missing: Names of missing videos.
        unreadable: Names of unreadable videos.
        checked: Whether the files were opened.
    """
    rows = [
        Row(
            title=class_map.file_name.removesuffix(".txt"),
            listed=f"{len(class_map.names):,}",
            published="" if class_map.published is None else f"{class_map.published:,}",
            agrees=None
            if class_map.published is None
            else len(class_map.names) == class_map.published,
        )
        for class_map in official.class_maps
    ]
    names = official.names()
    if official.published_videos is not None:
        published = official.published_videos
        rows.append(_row("videos", names, published, published, missing, unreadable, checked))
    for split in official.splits:
        wanted = split.published if split.published_files is None else split.published_files
        listed = [entry.name for entry in split.entries]
        rows.append(
            _row(split.title, listed, split.published, wanted, missing, unreadable, checked)
        )
        if split.per_class is not None:
            rows.append(_per_class_row(split))
    return rows


def _row(
    title: str,
    names: Sequence[str],
    published: int | None,
    wanted: int | None,
    missing: Container[str],
    unreadable: Container[str],
    checked: bool,
) -> Row:
    absent = sum(name in missing for name in names)
    bad = sum(name in unreadable for name in names)
    agrees, text = None, ""
    if published is not None and wanted is not None:
        agrees = len(names) == published and len(names) - absent - bad >= wanted
        text = f"{published:,}" if wanted == published else f"{published:,} ({wanted:,})"
    return Row(
        title=title,
        listed=f"{len(names):,}",
        found=f"{len(names) - absent:,}",
        missing=f"{absent:,}",
        unreadable=f"{bad:,}" if checked else "not checked",
        published=text,
        agrees=agrees,
    )


def _per_class_row(split: Split) -> Row:
    counts = sorted(Counter(entry.label for entry in split.entries).values())
    low, high = counts[0], counts[-1]
    return Row(
        title=f"{split.title}, per class",
        listed=f"{low:,}" if low == high else f"{low:,} to {high:,}",
        published=f"{split.per_class:,}",
        agrees=low == high == split.per_class,
    )


def format_table(rows: Sequence[Row]) -> str:
    """The table as text, first column aligned left, the others right."""
    cells = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(HEADER))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )
