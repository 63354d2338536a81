"""A page with rows of clips: groups of videos, each with a heading, which play on hover."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sce_video.pages.frames import ClipReader, ClipTiles
from sce_video.utils.files import write_text
from sce_video.utils.html_template import render_template


class ShownClip(NamedTuple):
    """A video of a page: displayed name, and path or row of a table."""

    name: str
    file: str
    fact: str = ""  # text about the clip
    mark: str = ""  # a word in front of that, emphasised
    decision: str = ""  # initial choice on the page; empty if there is nothing to decide
    quality: Mapping[str, int] = {}  # numbers that are larger for the better video


class ClipRow(NamedTuple):
    """Videos that belong together, with a heading and a sentence behind it."""

    title: str
    clips: Sequence[ShownClip]
    note: str = ""
    beyond: Sequence[str] = ()  # names of videos of the row that are not shown


class Choices(NamedTuple):
    """Choices that a reader can make on the clips of a section. The page saves them as a file.

    The file's header is ``path,decision,other``. If a reader changes a row of clips, each clip with
    the first choice gets a line. Each clip with the last choice gets a line for every other video
    in its row.
    """

    file: str  # name
    names: tuple[str, str, str]
    decided: Sequence[tuple[str, str, str]]  # lines from before, kept unless they are changed
    best: Mapping[str, str]  # words of a button, and the key of the quality that it chooses by


class ClipSection(NamedTuple):
    """A section of a page."""

    id: str  # letters and hyphens
    title: str
    note: str  # what is shown
    rows: Sequence[ClipRow] = ()
    choices: Choices | None = None


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
        path: Path of the file.
        title: Heading of the page.
        lead: Sentence below the heading.
        facts: Numbers and what they count, shown in a row.
        sections: Sections of the page, in order.
        notes: Sentences that a reader must see.
        max_bytes: Maximum size of all images together, bytes.
        reader: Reader of the files. None creates one that spends at most a minute.
    """
    clips = [clip for section in sections for row in section.rows for clip in row.clips]
    files = (clip.file for clip in clips)
    tiles = ClipTiles(files, max_bytes, reader or ClipReader(60.0))
    values = {
        "title": title,
        "lead": lead,
        "facts": facts,
        "notes": notes,
        "sections": sections,
        "tiles": {file: tiles.tile(file) for file in tiles.entries},
        **tiles.values,
    }
    html = render_template("sce_video.pages", "clip_groups.html", values)
    write_text(os.fspath(path), html)
