"""Which videos a table holds: paths, labels, classes and row numbers, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sce_video.datasets.tables.open_tables import read_table
from sce_video.datasets.tables.rows import FORMAT, FORMAT_KEY, table_path
from sce_video.datasets.tables.storage import TableError, cannot
from sce_video.datasets.video_list import VideoList

_COLUMNS = ("path", "label", "class_name", "failure")


@dataclass(frozen=True)
class RowList:
    """The videos of one version of a table.

    Attributes:
        videos: Paths and labels, by sample.
        rows: (N,) int64, row number of each sample in the order of the table.
        version: Of the table.
        failed: Rows of videos that could not be imported and are left out.
    """

    videos: VideoList
    rows: np.ndarray
    version: int
    failed: int


def list_rows(
    table: str,
    storage_options: Mapping[str, str] | None = None,
    listed: VideoList | None = None,
) -> RowList:
    """The rows of a table, or those of an annotation list in its order.

    Without a list: all rows but those of failed imports, sorted by path as a folder is; the labels
    are numbers of the sorted class folders, or those that the imported list gave. With a list: its
    order and its labels, so that the samples are those of the files; a listed video whose import
    failed is a bad file.

    Raises:
        TableError: The table cannot be read, or is no table of videos.
        ValueError: No row, or videos of the list have none.
        MissingPackageError: Lance is not installed.
    """
    opened = read_table(table, storage_options)
    check_format(table, opened.metadata)
    try:
        content = opened.call("read", list(_COLUMNS))
    except (OSError, RuntimeError, ValueError) as error:
        raise TableError(cannot("list the rows of", table, error)) from error
    import pyarrow as pa

    found = _of_content(table, content, opened.version, listed)
    del content
    pa.default_memory_pool().release_unused()  # or it keeps four times the list
    return found


def _of_content(table: str, content: Any, version: int, listed: VideoList | None) -> RowList:
    import pyarrow as pa
    import pyarrow.compute as pc

    paths = content["path"].cast(pa.large_string()).combine_chunks()
    newest = _newest(paths)  # sorted by path
    if listed is not None:
        return RowList(listed, _of_list(table, listed, paths, newest), version, 0)
    failures = content["failure"].combine_chunks().take(newest)
    kept = newest.filter(pc.equal(pc.fill_null(failures, ""), ""))
    if len(kept) == 0:
        raise ValueError(f"the table {table!r} holds no video that can be read")
    names = content["class_name"].combine_chunks().take(kept)
    classes = pc.unique(names).drop_null().sort()
    if len(classes):
        labels = pc.fill_null(pc.index_in(names, classes), -1)
    else:
        labels = content["label"].combine_chunks().take(kept)
    videos = _video_list(paths.take(kept), labels.to_numpy(zero_copy_only=False), classes)
    rows = kept.to_numpy().astype(np.int64)
    return RowList(videos, rows, version, len(newest) - len(kept))


def _newest(paths: Any) -> Any:
    """Row numbers by ascending path; of several rows of one path the last."""
    import pyarrow as pa
    import pyarrow.compute as pc

    order = pc.sort_indices(paths)  # stable: equal paths stay in the order of their rows
    ordered = paths.take(order)
    last = pc.not_equal(ordered[:-1], ordered[1:])
    return order.filter(pa.concat_arrays([last, pa.array([True] * min(1, len(paths)))]))


def _video_list(paths: Any, labels: np.ndarray, classes: Any) -> VideoList:
    """The list of an array of paths, without a Python object for each."""
    _, offsets, data = paths.buffers()
    ends = np.frombuffer(offsets, np.int64)[paths.offset : paths.offset + len(paths) + 1]
    blob = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].copy()
    return VideoList(
        blob=blob,
        ends=ends[1:] - ends[0],
        labels=labels.astype(np.int64),
        classes=tuple(classes.to_pylist()),
    )


def check_format(table: str, metadata: Mapping[bytes, bytes]) -> None:
    """Raise TableError unless the metadata of a schema are those of a table of this format."""
    found = metadata.get(FORMAT_KEY)
    if found is None:
        raise TableError(f"{table!r} is no table of videos: make one with sce-video import")
    if found.decode() != FORMAT:
        raise TableError(
            f"the table {table!r} has format {found.decode()}, this version of sce_video reads "
            f"format {FORMAT}: make it again with sce-video import"
        )


def _of_list(table: str, listed: VideoList, paths: Any, newest: Any) -> np.ndarray:
    """The row of each video of a list."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = (table_path(listed.path(index)) for index in range(len(listed)))
    found = pc.index_in(pa.array(wanted, pa.large_string()), paths.take(newest))
    if found.null_count:
        first = pc.index(found.is_null(), True).as_py()
        raise ValueError(
            f"{found.null_count} of the {len(listed)} videos of the list are not in the table "
            f"{table!r}, for example {table_path(listed.path(first))!r}: import them with "
            "sce-video import"
        )
    return newest.take(found).to_numpy().astype(np.int64)
