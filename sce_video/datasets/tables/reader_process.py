"""A script for a process that reads or writes a table for another one, and imports only Lance.

    python reader_process.py FILE_DESCRIPTOR_OF_A_PIPE

Requests and answers are pickles. The first request holds the arguments of :func:`open_dataset`,
every other request the method and arguments of :func:`call_method`. An answer is ("done", value) or
("error", text). The process ends when the other end of the pipe is closed.
"""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

#: Number of small files in a table from which on they are joined, because a search opens every
#: file.
_MOST_FILES = 64
#: A file with fewer rows is small. A joined file has this many rows.
_SMALL_ROWS = 8192


def open_dataset(lance: Any, arguments: dict[str, Any]) -> Any:
    """Open ``lance.dataset``. With a ``schema``, create an empty dataset, which must not exist.

    ``first_options`` are storage options with fewer retries, so that an unreachable store is
    noticed soon. Requests are repeated only if the store answers that it is busy.
    """
    schema, first = arguments.get("schema"), arguments.pop("first_options", None)
    if first is not None:
        try:
            lance.dataset(**{**arguments, "storage_options": first})
        except OSError as error:
            if "status code: 50" not in str(error):
                raise
    if schema is None:
        return lance.dataset(**arguments)
    return lance.write_dataset(
        schema.empty_table(), arguments["uri"], mode="create", enable_stable_row_ids=True
    )


def _vector_index(dataset: Any, column: str) -> int | None:
    """Return how many rows the vector index of a column holds; None without one."""
    for index in dataset.describe_indices():
        if column in index.field_names and "Vector" in index.type_url:
            return int(index.num_rows_indexed)
    return None


def _add_columns(dataset: Any, file: str) -> None:
    """Add columns in one commit from a file of Arrow's stream format, in the order of the rows."""
    import pyarrow as pa  # Lance has it

    with pa.memory_map(file) as source, pa.ipc.open_stream(source) as reader:
        dataset.add_columns(reader)


def _replace(dataset: Any, key: str, rows: Any) -> None:
    """Write rows in one commit. They replace the rows with the same key."""
    merge = dataset.merge_insert(key).when_matched_update_all().when_not_matched_insert_all()
    merge.execute(rows)


def _tidy(dataset: Any) -> None:
    """Join the files of many small updates, and remove versions older than two weeks."""
    small = [part for part in dataset.get_fragments() if part.physical_rows < _SMALL_ROWS]
    if len(small) > _MOST_FILES:
        dataset.optimize.compact_files(target_rows_per_fragment=_SMALL_ROWS)
    dataset.cleanup_old_versions()


#: Calls that read from a ``lance.LanceDataset``.
_READS: dict[str, Callable[..., Any]] = {
    # Columns of some rows, by their numbers.
    "take": lambda table, rows, columns: table.take(rows, columns=columns),
    # Columns of all rows, or of a selection: ``filter``, ``offset``, ``limit``, ``nearest``.
    "read": lambda table, columns, selection=None: table.to_table(columns, **(selection or {})),
    # Ranges of a blob column, (row, offset, bytes) each.
    "read_ranges": lambda table, column, requests: table.read_blob_ranges(
        column, requests, selector="indices"
    ),
    "count": lambda table, where: table.count_rows(where),
    "schema": lambda table: table.schema,
    "vector_index": _vector_index,
}
#: Calls that write to one. They return nothing, because a pipe cannot carry their results.
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
    # Rows written after the index was made are added to its existing partitions.
    "extend_vector_index": lambda table: table.optimize.optimize_indices(),
    "tidy": _tidy,
}


def call_method(dataset: Any, method: str, *arguments: Any) -> Any:
    """Call one of the methods above and return its result; None for methods that write."""
    if method in _READS:
        return _READS[method](dataset, *arguments)
    _WRITES[method](dataset, *arguments)
    return None


def main() -> None:
    """Answer requests until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the parent decides
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
            except BaseException as error:  # Lance's panics are not an Exception
                answer = pickle.dumps(("error", str(error) or type(error).__name__))
            pipe.send_bytes(answer)
        except (EOFError, ConnectionError):
            return


if __name__ == "__main__":
    main()
