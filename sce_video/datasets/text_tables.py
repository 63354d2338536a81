"""Read and write CSV and TSV files."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sce_video.utils.files import regular_file, text_encoding, write_text

#: Possible separators of cells, by file extension.
DELIMITERS = {".csv": ("\t", ",", ";"), ".tsv": ("\t",)}


def tsv_cell(value: object) -> str:
    """Return the text of a cell of a tab-separated table, which is empty for None.

    Tabs and line breaks, which may occur in a path, are written as escape sequences.
    """
    escapes = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})
    return "" if value is None else str(value).translate(escapes)


def read_csv_lines(source: str | os.PathLike) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the stripped cells of each row that is not empty.

    The cells of a ``.tsv`` file are separated by tabs. In any other file, the first line decides
    between tabs, commas and semicolons, because spreadsheets write all of them.

    Raises:
        ValueError: If the file is not a table.
    """
    delimiters = DELIMITERS[".tsv" if Path(source).suffix.lower() == ".tsv" else ".csv"]
    encoding = text_encoding(source)
    with open(
        source, encoding=encoding, errors="surrogateescape", newline="", opener=regular_file
    ) as file:
        first = file.readline()
        file.seek(0)
        reader = csv.reader(file, delimiter=max(delimiters, key=first.count))
        try:
            for row in reader:
                cells = [cell.strip() for cell in row]
                if any(cells):
                    # Report the line number instead of the row number, because a quoted cell may
                    # contain line breaks.
                    yield reader.line_num, cells
        except csv.Error as error:
            raise ValueError(
                f"{source}, line {reader.line_num}, is not a line of a CSV file: {error}. Save the "
                "file as UTF-8"
            ) from error


def read_csv_table(
    source: str | os.PathLike, columns: Sequence[str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield ``FILE, line NUMBER`` and the cells by column for each row below a header.

    Raises:
        ValueError: If one of the columns is missing, or a row and the header differ in length.
    """
    lines = read_csv_lines(source)
    _, header = next(lines, (0, []))
    missing = [name for name in columns if name not in header]
    if missing:
        raise ValueError(
            f"{source}: the column {missing[0]!r} is missing. The header must be "
            f"{','.join(columns)}"
        )
    for number, cells in lines:
        where = f"{source}, line {number}"
        if len(cells) != len(header):
            raise ValueError(f"{where} has {len(cells)} columns, but the header has {len(header)}")
        yield where, dict(zip(header, cells, strict=True))


def write_csv(file: str | os.PathLike, rows: Iterable[Iterable[Any]]) -> None:
    """Write a CSV file atomically. The first row is the header.

    Raises:
        WriteError: If the file cannot be written.
    """
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(os.fspath(file), text.getvalue())
