"""States of the rows of a table in flat arrays, against a dict."""

from __future__ import annotations

import random

import pytest

from sce_video.data_tools.table_fill import KnownRow, KnownRows

pa = pytest.importorskip("pyarrow", reason="needs Lance: pip install 'sce-video[lance]'")


def batch_of(rows):
    schema = pa.schema(
        [
            *((name, pa.string()) for name in ("path", "class_name", "settings", "failure")),
            *((name, pa.int64()) for name in ("source_size", "source_mtime_ns", "label")),
            ("_rowid", pa.uint64()),
        ]
    )
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def row_of(number, path):
    return {
        "path": path,
        "source_size": -1 if number % 11 == 0 else number,
        "source_mtime_ns": 10**18 + number,
        "label": number % 3 - 1,
        "class_name": None if number % 3 == 0 else f"class {number % 3}",
        "settings": f"s{number % 2}",
        "failure": "broken" if number % 7 == 0 else "",
        "_rowid": number,
    }


def test_the_newest_row_of_each_path_is_found():
    generator = random.Random(0)
    rows = [row_of(i, f"{generator.randrange(300)}\0ü.mp4") for i in range(500)]
    newest = {row["path"]: row for row in rows}
    shuffled = generator.sample(rows, len(rows))
    batches = [batch_of(shuffled[begin : begin + 60]) for begin in range(0, 500, 60)]
    known = KnownRows(batches, lambda settings: settings == "s1")
    assert len(known) == len(newest)
    assert sorted(known.older) == sorted({row["_rowid"] for row in rows} - {
        row["_rowid"] for row in newest.values()
    })  # fmt: skip
    for path, row in newest.items():
        assert known.get(path) == KnownRow(
            row["_rowid"],
            (row["source_size"], row["source_mtime_ns"]),
            (row["label"], row["class_name"]),
            row["failure"] != "",
            row["failure"] != "" or row["settings"] == "s1",
        )
    assert [known.get(path) for path in ("300", "", "0")] == [None] * 3
