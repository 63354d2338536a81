"""A page with rows of clips: groups of videos, each with a heading, which play on hover."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sce_video.pages.frames import ClipReader, Quality, clip_frames, fitting, make_strip
from sce_video.pages.gallery import format_duration
from sce_video.utils.files import write_text
from sce_video.utils.html_template import render_template

_TILE = (132, 110)  # largest width and height of a video on the page, CSS pixels
_LEVELS = (
    Quality(120, 65, 16),
    Quality(96, 60, 12),
    Quality(84, 50, 8),
    Quality(64, 45, 6),
    Quality(48, 40, 1),
)


@dataclass(frozen=True)
class ShownClip:
    """A video of a page.

    Attributes:
        name: Displayed name.
        file: Path, or row of a table.
        fact: What is said about it.
        mark: A word in front of that, emphasised.
    """

    name: str
    file: str
    fact: str = ""
    mark: str = ""


@dataclass(frozen=True)
class ClipRow:
    """Videos that belong together.

    Attributes:
        title: Heading.
        clips: The videos.
        note: A sentence behind the heading.
    """

    title: str
    clips: Sequence[ShownClip]
    note: str = ""


@dataclass(frozen=True)
class ClipSection:
    """A section of a page.

    Attributes:
        id: Letters and hyphens.
        title: Heading.
        note: What is shown.
        rows: Of videos.
    """

    id: str
    title: str
    note: str
    rows: Sequence[ClipRow] = field(default_factory=list)


def write_clip_groups(
    path: str | os.PathLike,
    title: str,
    lead: str,
    facts: Sequence[tuple[str, str]],
    sections: Sequence[ClipSection],
    *,
    notes: Sequence[str] = (),
    max_bytes: int = 6_000_000,
    reader: ClipReader | None = None,
) -> None:
    """Write the page as one self-contained HTML file, which loads and runs nothing.

    Args:
        path: The file.
        title: Heading.
        lead: A sentence under it.
        facts: (number, what it counts), shown in a row.
        sections: In their order.
        notes: Sentences that a reader must see.
        max_bytes: Of all images together.
        reader: Reads the files; None makes one that spends at most a minute.
    """
    reader = reader or ClipReader(60.0)
    clips = [clip for section in sections for row in section.rows for clip in row.clips]
    entries = reader.read_all(clip.file for clip in clips)
    readable = [file for file, entry in entries.items() if not entry.problem]
    strips = fitting(
        readable, lambda file, q: make_strip(*clip_frames(entries[file]), q), _LEVELS, max_bytes
    )
    tiles: dict[str, dict[str, Any]] = {}
    for number, (file, strip) in enumerate(zip(readable, strips, strict=True)):
        scale = min(_TILE[0] / strip.width, _TILE[1] / strip.height)
        width, height = (round(side * scale, 1) for side in (strip.width, strip.height))
        tiles[file] = {"strip": strip, "number": number, "width": width, "height": height}

    def tile(clip: ShownClip) -> dict[str, Any]:
        entry = entries[clip.file]
        return {
            "name": clip.name,
            "fact": clip.fact,
            "mark": clip.mark,
            "duration": "" if entry.duration is None else format_duration(entry.duration),
            "problem": entry.problem,
            "skipped": entry.skipped,
            **tiles.get(clip.file, {}),
        }

    values = {
        "title": title,
        "lead": lead,
        "facts": facts,
        "notes": notes,
        "strips": strips,
        "unread": sum(bool(entry.problem) and not entry.skipped for entry in entries.values()),
        "skipped": sum(entry.skipped for entry in entries.values()),
        "seconds": reader.seconds,
        "shown": len(entries),
        "sections": [
            {
                "id": section.id,
                "title": section.title,
                "note": section.note,
                "rows": [
                    {
                        "title": row.title,
                        "note": row.note,
                        "clips": [tile(clip) for clip in row.clips],
                    }
                    for row in section.rows
                ],
            }
            for section in sections
        ],
    }
    html = render_template("sce_video.pages", "clip_groups.html", values)
    write_text(os.fspath(path), html)
