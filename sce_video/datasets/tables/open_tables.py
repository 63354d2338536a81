"""Open a table in this process where that is safe, else in a process of its own.

Lance starts threads, and a process that is forked from one with such threads crashes or hangs when
it uses Lance. Loader workers are forked. So Lance is imported by loader workers, and by programs
that imported it themselves; any other process, which may fork workers later, lets a process of its
own read, and so does a process that was forked too late.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch.utils.data import get_worker_info

from sce_video.datasets.tables import reader_process
from sce_video.datasets.tables.storage import (
    BLOCK_SIZE,
    TableError,
    cannot,
    dataset_arguments,
    import_lance,
    imported_here,
    is_remote,
)
from sce_video.utils.errors import MissingPackageError


class OpenTable:
    """An open table, read in this process.

    Attributes:
        version: Of the table.
        metadata: Of its schema.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.version = int(dataset.version)
        self.metadata: Mapping[bytes, bytes] = dict(dataset.schema.metadata or {})

    def call(self, method: str, *arguments: Any) -> Any:
        """The result of a function of ``reader_process.METHODS``."""
        return reader_process.METHODS[method](self.dataset, *arguments)


class RemoteTable:
    """As :class:`OpenTable`, read by a process of its own, which ends with this object.

    A call whose thread was abandoned (time limit) keeps its process; the next call starts another.

    Raises:
        OSError: What Lance has raised, or the process ended.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = dict(arguments)
        self._idle: list[subprocess.Popen] = []
        process = self._start()
        self.version, self.metadata = self._ask(process, self._arguments)
        if "schema" not in self._arguments:
            self._arguments["version"] = self.version  # of all processes that are started later

    def _start(self) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", reader_process.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"LANCE_LOG": "error", **os.environ},
        )

    def _ask(self, process: subprocess.Popen, request: Any) -> Any:
        """The answer of an idle process, which is idle again afterwards."""
        assert process.stdin is not None and process.stdout is not None
        try:
            reader_process.send(process.stdin, request)
            kind, value = reader_process.receive(process.stdout)
        except (EOFError, BrokenPipeError):
            status = process.wait()
            raise OSError(f"the process that reads the table ended with status {status}") from None
        if kind == "error" and request is self._arguments:
            _end(process)
        else:
            self._idle.append(process)
        if kind == "error":
            raise OSError(value)
        return value

    def call(self, method: str, *arguments: Any) -> Any:
        """See :meth:`OpenTable.call`."""
        try:
            process = self._idle.pop()
        except IndexError:
            process = self._start()
            self._ask(process, self._arguments)
            process = self._idle.pop()
        return self._ask(process, (method, arguments))

    def __del__(self) -> None:
        for process in getattr(self, "_idle", ()):
            _end(process)


def _end(process: subprocess.Popen) -> None:
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):
            if stream is not None:
                stream.close()
    with suppress(Exception):
        process.wait(timeout=5)


def read_table(
    table: str,
    storage_options: Mapping[str, str] | None = None,
    version: int | None = None,
    block_size: int = BLOCK_SIZE,
) -> OpenTable | RemoteTable:
    """Open a table to read it.

    Args:
        table: Path, or URI as ``s3://bucket/table.lance``.
        storage_options: See :func:`~sce_video.datasets.tables.storage.client_options`.
        version: Of the table; None for the latest.
        block_size: Ranges of a file that are less than this many bytes apart are one request.

    Raises:
        TableError: There is no such table, or it cannot be reached.
        MissingPackageError: Lance is not installed.
    """
    if not is_remote(table) and not os.path.isdir(table):
        raise TableError(f"there is no table {table!r}")
    return _open(dataset_arguments(table, storage_options, version, block_size))


def make_table(table: str, schema: Any) -> OpenTable | RemoteTable:
    """Make an empty local table of a ``pyarrow.Schema``, to write to it.

    Raises:
        TableError: It cannot be made, or there is one.
        MissingPackageError: Lance is not installed.
    """
    return _open({"uri": table, "schema": schema})


def _open(arguments: Mapping[str, Any]) -> OpenTable | RemoteTable:
    table = arguments["uri"]
    try:
        if _may_import():
            return OpenTable(reader_process.open_dataset(import_lance(), dict(arguments)))
        if importlib.util.find_spec("lance") is None:
            import_lance()  # raises
        return RemoteTable(arguments)
    except MissingPackageError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        what = "make" if "schema" in arguments else "open"
        raise TableError(cannot(what, table, error)) from error


def _may_import() -> bool:
    """Whether this process may use Lance itself."""
    if "lance" in sys.modules:  # in a child it may be its parent's
        return multiprocessing.parent_process() is None or imported_here()
    return get_worker_info() is not None


__all__: Sequence[str] = ("OpenTable", "RemoteTable", "make_table", "read_table")
