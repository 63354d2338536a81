"""File names and class names of others as text that is safe to print."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO, cast

#: What a log may do to a terminal: set the colour.
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


def printable(text: str, stream: TextIO | None = None) -> str:
    r"""The text without characters that a terminal would act on or the stream (stdout) cannot show.

    Control characters (escape sequences, line breaks inside a name) are written as in Python,
    ``\x1b``; characters that the stream cannot encode become question marks.
    """
    encoding = (stream or sys.stdout).encoding or "utf-8"
    return _escape_controls(text).encode(encoding, "replace").decode(encoding)


def printable_lines(text: str, stream: TextIO | None = None) -> str:
    """As :func:`printable`, for a text of several lines: its line breaks are kept."""
    return "\n".join(printable(line, stream) for line in text.split("\n"))


def printable_utf8(text: str) -> str:
    """As :func:`printable`, for UTF-8: bytes of names that are none become U+FFFD."""
    return _escape_controls(text).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def printable_values(value: Any) -> Any:
    """A copy of JSON data in which every text, keys included, is :func:`printable_utf8`."""
    if isinstance(value, dict):
        return {printable_utf8(str(k)): printable_values(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [printable_values(item) for item in value]
    return printable_utf8(value) if isinstance(value, str) else value


@contextmanager
def printable_stdout() -> Iterator[None]:
    """Everything that is printed inside is printable; line breaks, tabs and colours are kept."""
    with redirect_stdout(cast(TextIO, _PrintableStream(sys.stdout))):
        yield


class _PrintableStream:
    """A stream with another ``write``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        parts = re.split(r"([\n\t])", text)
        parts = [part for whole in parts for part in _COLOUR.split(whole)]
        self._stream.write(
            "".join(
                part if part in "\n\t" or _COLOUR.fullmatch(part) else printable(part, self._stream)
                for part in parts
            )
        )
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _escape_controls(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        # Of the surrogates those that stand for bytes of file names are left.
        c if c.isprintable() or 0xDC80 <= ord(c) <= 0xDCFF else ascii(c)[1:-1]
        for c in text
    )
