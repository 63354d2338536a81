"""File names and class names of others as text that is safe to print."""

from __future__ import annotations

import sys
from typing import TextIO


def printable(text: str, stream: TextIO | None = None) -> str:
    r"""The text without characters that a terminal would act on or cannot show.

    Control characters (escape sequences, line breaks inside a name) are written as in Python,
    ``\x1b``; characters that the stream cannot encode become question marks.

    Args:
        text: One line.
        stream: Where it is printed; stdout by default.
    """
    return _printable(text, (stream or sys.stdout).encoding or "utf-8")


def printable_lines(text: str, stream: TextIO | None = None) -> str:
    """As :func:`printable`, for a text of several lines: its line breaks are kept."""
    return "\n".join(printable(line, stream) for line in text.split("\n"))


def printable_utf8(text: str) -> str:
    """As :func:`printable`, for a file in UTF-8 instead of a stream."""
    return _printable(text, "utf-8")


def _printable(text: str, encoding: str) -> str:
    shown = "".join(
        c if c.isprintable() or 0xDC80 <= ord(c) <= 0xDCFF else _escaped(c) for c in text
    )
    return shown.encode(encoding, "replace").decode(encoding)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
