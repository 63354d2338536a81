"""Script of a process that accesses a table for another process, and imports only Lance.

    python reader_process.py FILE_DESCRIPTOR_OF_A_PIPE

Requests and answers are pickles. The first request contains the arguments of :func:`open_dataset`,
and every other request a method and its arguments for :func:`call_method`. An answer is ("done",
value) or ("error", text). The process ends when the other end of the pipe is closed.
"""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

#: Maximum number of small files in a table. If there are more, they are joined to speed up
#: searches.
_MOST_FILES = 64
#: Number of rows per joined file. A file with fewer rows counts as small.
_SMALL_ROWS = 8192


def open_dataset(lance: Any, arguments: dict[str, Any]) -> Any:
    """Open ``lance.dataset``. With a ``schema``, create an empty dataset, which must not exist.

    ``first_options`` are storage options with fewer retries for the first attempt, so that an
    unreachable store is noticed early. If the store is only busy, the second attempt follows.
    """
    if "schema" in arguments:
        empty = arguments["schema"].empty_table()
        return lance.write_dataset(
            empty, arguments["uri"], mode="create", enable_stable_row_ids=True
        )
    first = arguments.pop("first_options", None)
    if first is not None:
        try:
            lance.dataset(**{**arguments, "storage_options": first})
        except OSError as error:
            if "status code: 50" not in str(error):
                raise
    return lance.dataset(**arguments)


def _vector_index(dataset: Any, column: str) -> int | None:
    """Return the number of rows in the vector index of a column; None without a vector index."""
    for index in dataset.describe_indices():
        if column in index.field_names and "Vector" in index.type_url:
            return int(index.num_rows_indexed)
    return None


def _add_columns(dataset: Any, file: str) -> None:
    """Add columns in one commit from a file in Arrow's stream format, in the order of the rows."""
    import pyarrow as pa  # always installed together with Lance

    with pa.memory_map(file) as source, pa.ipc.open_stream(source) as reader:
        dataset.add_columns(reader)


def _replace(dataset: Any, key: str, rows: Any) -> None:
    """Write rows in one commit. They replace rows with the same key."""
    merge = dataset.merge_insert(key).when_matched_update_all().when_not_matched_insert_all()
    merge.execute(rows)


def _tidy(dataset: Any) -> None:
    """Join the files of many small updates, and remove versions older than two weeks."""
    small = [part for part in dataset.get_fragments() if part.physical_rows < _SMALL_ROWS]
    if len(small) > _MOST_FILES:
        dataset.optimize.compact_files(target_rows_per_fragment=_SMALL_ROWS)
    dataset.cleanup_old_versions()


#: Methods that read from a ``lance.LanceDataset``, by the name that requests use.
_READS: dict[str, Callable[..., Any]] = {
    # Read columns of the rows with these numbers.
    "take": lambda table, rows, columns: table.take(rows, columns=columns),
    # Read columns of all rows, or of a selection (``filter``, ``offset``, ``limit``, ``nearest``).
    "read": lambda table, columns, selection=None: table.to_table(columns, **(selection or {})),
    # Read ranges of a blob column. Each request is (row, offset, bytes).
    "read_ranges": lambda table, column, requests: table.read_blob_ranges(
        column, requests, selector="indices"
    ),
    "count": lambda table, where: table.count_rows(where),
    "schema": lambda table: table.schema,
    "vector_index": _vector_index,
}
#: Methods that write to a dataset. Their results cannot be pickled, so they are not returned.
_WRITES: dict[str, Callable[..., Any]] = {
    "append": lambda table, rows: table.insert(rows),
    "replace": _replace,
    "delete": lambda table, where: table.delete(where),
    "add_columns": _add_columns,
    "drop_column": lambda table, column: table.drop_columns([column]),
    "rename_column": lambda table, old, new: table.alter_columns({"path": old, "name": new}),
    "describe": lambda table, column, facts: table.update_field_metadata({column: facts}),
    "make_vector_index": lambda table, column, options: table.create_index(
        column, replace=True, **options
    ),
    # Add newer rows to the existing partitions of the index.
    "extend_vector_index": lambda table: table.optimize.optimize_indices(),
    "tidy": _tidy,
}


def call_method(dataset: Any, method: str, *arguments: Any) -> Any:
    """Call one of the methods above, and return its result; None if the method writes."""
    if method in _READS:
        return _READS[method](dataset, *arguments)
    _WRITES[method](dataset, *arguments)
    return None


def main() -> None:
    """Answer requests until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    opened: Any = None
    pipe = Connection(int(sys.argv[1]))
    while True:
        try:
            request = pickle.loads(pipe.recv_bytes())
            try:
                if opened is None:
                    import lance

                    opened = open_dataset(lance, request)
                    value: Any = (opened.version, dict(opened.schema.metadata or {}))
                else:
                    method, arguments = request
                    value = call_method(opened, method, *arguments)
                answer = pickle.dumps(("done", value), protocol=5)
            except BaseException as error:  # a panic in Lance is not an Exception
                answer = pickle.dumps(("error", str(error) or type(error).__name__))
            pipe.send_bytes(answer)
        except (EOFError, ConnectionError):
            return


if __name__ == "__main__":
    main()
