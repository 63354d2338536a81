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
    encoding = (stream or sys.stdout).encoding or "utf-8"
    shown = "".join(
        c if c.isprintable() or 0xDC80 <= ord(c) <= 0xDCFF else _escaped(c) for c in text
    )
    return shown.encode(encoding, "replace").decode(encoding)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
