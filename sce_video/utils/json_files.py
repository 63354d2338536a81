"""JSON from files that may be damaged or written by anybody."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MAX_DEPTH = 50


def parse_json(text: str, where: str) -> Any:
    """The JSON data in a text; ValueError, with ``where``, for another or nested over 50 deep."""
    try:
        value = json.loads(text)
        _check_depth(value, 0)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {str(error)[:200]}") from error
    return value


def _check_depth(value: Any, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, dict | list):
                _check_depth(item, depth + 1)


def read_json(path: str | os.PathLike[str]) -> Any:
    """The JSON data of a file in UTF-8, with or without a byte order mark.

    Raises:
        OSError: the file cannot be read.
        ValueError: see :func:`parse_json`.
    """
    return parse_json(_read(path), str(path))


def read_json_lines(
    path: str | os.PathLike[str], damaged: list[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(file and line number for messages, object) of the lines of a file that are not blank.

    A last line without line break that is no JSON is left out: its writer was killed. A damaged
    line is a ValueError, unless ``damaged`` is given, to which its message is added.
    """
    lines = _read(path, "strict" if damaged is None else "surrogateescape").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = parse_json(line, where)
            problem = f"{where} is no object {{...}}"
        except ValueError as error:
            if number == len(lines):
                return
            value, problem = None, str(error)
        if isinstance(value, dict):
            yield where, value
        elif damaged is None:
            raise ValueError(problem)
        else:
            damaged.append(problem)


def _read(path: str | os.PathLike[str], errors: str = "strict") -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig", errors=errors)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
