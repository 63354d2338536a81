"""A parquet file with a row per video, for Embedding Atlas and everything that reads tables.

Columns (``SCHEMA`` has their types): ``path``, ``file``, ``label``, ``x``, ``y``, ``thumbnail``,
``neighbors`` and, if asked for, ``embedding``. The thumbnail is a struct of ``bytes`` and ``path``,
which Embedding Atlas and Hugging Face's datasets read as an image; the neighbours a struct of
``ids``, rows from 0, and ``distances`` (apple/embedding-atlas, packages/docs/data-formats.md and
packages/docs/tool.md).
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

from sce_video.apis.exporting.bundle import Bundle
from sce_video.utils.atomic_file import atomic_file
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.printable import printable_utf8

#: Rows of a row group, which is what is held in memory.
ROW_GROUP = 1000


def import_pyarrow() -> tuple[Any, Any]:
    """pyarrow and its parquet module.

    Raises:
        MissingPackageError: they are not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackageError(
            f"parquet files need pyarrow ({error}): pip install sce-video[export]"
        ) from error
    return pyarrow, pyarrow.parquet


def schema_of(bundle: Bundle) -> Any:
    """The columns and, as metadata, where the features come from."""
    pa, _ = import_pyarrow()
    fields = [
        pa.field("path", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("label", pa.string()),
        pa.field("x", pa.float32(), nullable=False),
        pa.field("y", pa.float32(), nullable=False),
    ]
    if bundle.thumbnail_side:
        fields.append(pa.field("thumbnail", pa.struct({"bytes": pa.binary(), "path": pa.string()})))
    if bundle.neighbour_rows.shape[1]:
        lists = {"ids": pa.list_(pa.int64()), "distances": pa.list_(pa.float32())}
        fields.append(pa.field("neighbors", pa.struct(lists)))
    if bundle.with_embedding:
        fields.append(pa.field("embedding", pa.list_(pa.float32())))
    about = {"checkpoint": bundle.videos.checkpoint, "map": bundle.map_name}
    return pa.schema(fields, metadata={"sce_video": json.dumps(about)})


def write_parquet(path: Path, bundle: Bundle) -> None:
    """Write the file, a row group at a time.

    Raises:
        MissingPackageError: pyarrow is not installed.
        WriteError: the file cannot be written.
    """
    pa, parquet = import_pyarrow()
    schema, jpegs = schema_of(bundle), bundle.thumbnails()
    with atomic_file(path) as unfinished:
        with parquet.ParquetWriter(
            unfinished, schema, compression="zstd", use_dictionary=["label"]
        ) as writer:
            for start in range(0, len(bundle.videos), ROW_GROUP):
                rows = slice(start, start + ROW_GROUP)
                columns = _columns(bundle, rows, list(islice(jpegs, ROW_GROUP)))
                chosen = {name: columns[name] for name in schema.names}
                writer.write_table(pa.table(chosen, schema=schema))


def _columns(bundle: Bundle, rows: slice, jpegs: list[bytes | None]) -> dict[str, Any]:
    videos = bundle.videos
    paths = list(map(printable_utf8, videos.paths[rows]))
    labels = [None if name is None else printable_utf8(name) for name in videos.labels[rows]]
    return {
        "path": paths,
        "file": list(map(printable_utf8, videos.files[rows])),
        "label": labels,
        "x": bundle.points[rows, 0],
        "y": bundle.points[rows, 1],
        "thumbnail": [
            None if jpeg is None else {"bytes": jpeg, "path": f"{path}.jpg"}
            for jpeg, path in zip(jpegs, paths, strict=True)
        ],
        "neighbors": [
            {"ids": ids, "distances": distances}
            for ids, distances in zip(
                bundle.neighbour_rows[rows], bundle.distances[rows], strict=True
            )
        ],
        "embedding": list(videos.features[rows]) if bundle.with_embedding else [],
    }
