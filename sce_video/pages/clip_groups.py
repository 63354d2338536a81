"""Page with groups of videos, shown as rows of clips that play on hover."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sce_video.pages.frames import ClipReader, ClipTiles
from sce_video.utils.files import write_text
from sce_video.utils.html_template import render_template


class ShownClip(NamedTuple):
    """Video on the page."""

    name: str  # displayed name
    file: str  # path of a file or of a table row
    fact: str = ""  # text about the clip
    decision: str = ""  # initial choice on the page; empty if there is none
    quality: Mapping[str, int] = {}  # properties by name; larger numbers are better


class ClipRow(NamedTuple):
    """Row of videos that belong together."""

    title: str  # heading
    clips: Sequence[ShownClip]
    note: str = ""  # text after the heading
    beyond: Sequence[str] = ()  # names of further videos in the row, which are not shown


class Choices(NamedTuple):
    """Choices that a reader can make for the clips of a section, and saves as a file.

    The columns of the file are ``path,decision,other``. In every row that the reader has changed,
    each clip with the first choice gets a line. Each clip with the last choice gets a line for
    every other video in the row.
    """

    file: str  # name of the saved file
    names: tuple[str, str, str]  # names of the choices
    decided: Sequence[tuple[str, str, str]]  # earlier lines, which are kept unless they are changed
    best: Mapping[str, str]  # for each button's text, the quality by which it chooses


class ClipSection(NamedTuple):
    """Section of the page."""

    id: str  # only letters and hyphens
    title: str
    note: str  # explanation of what is shown
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
    """Write the page as one self-contained HTML file.

    Args:
        path: Path of the file.
        title: Heading of the page.
        lead: Sentence below the heading.
        facts: Numbers in a row, each with a description.
        sections: Sections of the page, in order.
        notes: Sentences that a reader must see.
        max_bytes: Largest total size of all images in bytes.
        reader: Reader of the files; None for one that spends at most a minute.
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
