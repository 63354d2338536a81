"""A process that reads or writes a table for another one; a script, which imports Lance alone.

    python reader_process.py < requests > answers

Requests and answers are pickles, each behind its length in 8 bytes. The first request holds the
arguments of :func:`open_dataset`, every other one (name of :data:`METHODS`, arguments). An answer
is ("done", value) or ("error", text). The process ends with its input.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
from collections.abc import Callable
from typing import IO, Any

#: More files than this of fewer rows than that are joined; a search opens every file of a table.
_MOST_FILES, _SMALL_ROWS = 64, 8192


def open_dataset(lance: Any, arguments: dict[str, Any]) -> Any:
    """``lance.dataset``; with a ``schema`` an empty one is made, and there must be none.

    ``first_options`` are storage options with fewer retries: with them it is told soon that nobody
    answers, and only a store that does, but is busy, is asked again.
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


def _take(dataset: Any, rows: list[int], columns: list[str]) -> Any:
    return dataset.take(rows, columns=columns)


def _read(dataset: Any, columns: list[str], selection: dict[str, Any] | None = None) -> Any:
    return dataset.to_table(columns=columns, **(selection or {}))


def _read_ranges(dataset: Any, column: str, requests: list[tuple[int, int, int]]) -> Any:
    return dataset.read_blob_ranges(column, requests, selector="indices")


def _vector_index(dataset: Any, column: str) -> int | None:
    """Rows that the vector index of a column holds; None without one."""
    for index in dataset.describe_indices():
        if column in index.field_names and "Vector" in index.type_url:
            return int(index.num_rows_indexed)
    return None


def _append(dataset: Any, rows: Any) -> None:
    dataset.insert(rows)


def _replace(dataset: Any, key: str, rows: Any) -> None:
    """Write rows, in one commit, in place of those with the same key."""
    merge = dataset.merge_insert(key).when_matched_update_all().when_not_matched_insert_all()
    merge.execute(rows)


def _delete(dataset: Any, where: str) -> None:
    dataset.delete(where)


def _add_columns(dataset: Any, key: str, rows: Any) -> None:
    """Write new columns, in one commit; rows whose key is missing get null."""
    dataset.merge(rows, key)


def _drop_column(dataset: Any, column: str) -> None:
    dataset.drop_columns([column])


def _rename_column(dataset: Any, column: str, name: str) -> None:
    dataset.alter_columns({"path": column, "name": name})


def _describe(dataset: Any, column: str, facts: dict[str, str]) -> None:
    dataset.update_field_metadata({column: facts})


def _make_vector_index(dataset: Any, column: str, options: dict[str, Any]) -> None:
    dataset.create_index(column, replace=True, **options)


def _extend_vector_index(dataset: Any) -> None:
    """Add the rows that were written since it was made, to the partitions that it has."""
    dataset.optimize.optimize_indices()


def _tidy(dataset: Any) -> None:
    """Join the files of many small updates, and remove versions older than two weeks."""
    small = [part for part in dataset.get_fragments() if part.physical_rows < _SMALL_ROWS]
    if len(small) > _MOST_FILES:
        dataset.optimize.compact_files(target_rows_per_fragment=_SMALL_ROWS)
    dataset.cleanup_old_versions()


#: What can be asked of a ``lance.LanceDataset``. ``take``: columns of some rows, by their numbers.
#: ``read``: columns of all rows, or of a selection: ``filter``, ``offset``, ``limit``, ``nearest``.
#: ``read_ranges``: of a blob column, (row, offset, bytes) each. Those from ``append`` on write.
METHODS: dict[str, Callable[..., Any]] = {
    "take": _take,
    "read": _read,
    "read_ranges": _read_ranges,
    "count": lambda dataset, where: dataset.count_rows(where),
    "schema": lambda dataset: dataset.schema,
    "vector_index": _vector_index,
    "append": _append,
    "replace": _replace,
    "delete": _delete,
    "add_columns": _add_columns,
    "drop_column": _drop_column,
    "rename_column": _rename_column,
    "describe": _describe,
    "make_vector_index": _make_vector_index,
    "extend_vector_index": _extend_vector_index,
    "tidy": _tidy,
}


def send(stream: IO[bytes], value: Any) -> None:
    """Write a value and flush."""
    data = pickle.dumps(value, protocol=5)
    stream.write(struct.pack("<Q", len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """The next value; EOFError at the end. Only for the two ends of one pipe."""
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    (size,) = struct.unpack("<Q", head)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


def main() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the parent decides
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    requests = sys.stdin.buffer
    opened: Any = None
    while True:
        try:
            request = receive(requests)
        except EOFError:
            return
        try:
            if opened is None:
                import lance

                opened = open_dataset(lance, request)
                value: Any = (opened.version, dict(opened.schema.metadata or {}))
            else:
                method, arguments = request
                value = METHODS[method](opened, *arguments)
            send(answers, ("done", value))
        except BrokenPipeError:
            return
        except BaseException as error:  # Lance's panics are no Exception
            send(answers, ("error", str(error) or type(error).__name__))


if __name__ == "__main__":
    main()
