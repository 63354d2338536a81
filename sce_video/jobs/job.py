"""Batch jobs: items, a function of one item, and the records of the results in one SQLite file.

The driver always holds SQLite's exclusive lock on its file. The file is in WAL mode, which needs no
shared memory with this lock. A record costs one write and no flush, and it survives if the driver
is killed. A power failure loses only the latest records. A closed store is one plain SQLite file.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from sce_video.utils.errors import UserError
from sce_video.utils.files import check_sqlite_file, parse_json
from sce_video.utils.records import JsonObject

#: State of a file; None if the file does not exist.
State = JsonObject | None


@dataclass(frozen=True)
class Record:
    """Result of one item.

    Attributes:
        key: Key of the item.
        done: Whether the item succeeded.
        source: Source of the item when it was processed.
        settings: Settings of the job.
        facts: Facts that the job returned; empty after a failure.
        kind: Kind of the failure: ``error`` (an exception), ``timeout``, ``crash`` (the process
            ended), ``lost`` (its machine was lost), ``missing`` (no source), ``changed`` (the
            source changed meanwhile), ``name`` (the output's name is too long), or one of the job's
            own kinds; empty if done.
        reason: Description of the failure.
        output: Output file of the item; None without one.
        output_bytes: Size of the output.
        time_limit: Time limit of the item in seconds.
        time: Time of recording, in seconds since 1970.
        data: Bytes that the job returned; None after a failure.
    """

    key: str
    done: bool
    source: State
    settings: JsonObject
    facts: JsonObject = field(default_factory=dict)
    kind: str = ""
    reason: str = ""
    output: str | None = None
    output_bytes: int | None = None
    time_limit: float | None = None
    time: float = 0.0
    data: bytes | None = None


@dataclass(frozen=True)
class Item:
    """One unit of work.

    Attributes:
        key: Name of the item, unique in the job.
        source: Value that changes when the item's source changes, for example from
            :func:`file_state`; None if the source does not exist now.
        argument: Anything else that the process needs. It is pickled.
        output: File to write, relative to the job's folder; None without one.
        temporary: Path to which :meth:`BatchJob.process` writes the output. The runner sets it.
    """

    key: str
    source: State
    argument: Any = None
    output: str | None = None
    temporary: str = ""


class ItemError(Exception):
    """Error for an item that has failed, which :meth:`BatchJob.process` raises.

    The run continues with the other items.

    Args:
        kind: Word for the kind of the failure, for the record.
        reason: Description of the failure.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class RunError(UserError, RuntimeError):
    """Error that ends the run, because no item can succeed, for example if the network fails."""


class StorageError(RunError):
    """Error that ends the run, because the disk does not accept results of any item."""


@dataclass(frozen=True)
class Facts:
    """Facts with data, which :meth:`BatchJob.process` may return instead of facts alone.

    Attributes:
        values: Facts as JSON values.
        data: Bytes that are stored unchanged, such as a feature.
    """

    values: JsonObject
    data: bytes | None = None


class BatchJob:
    """Function of one item that runs in worker processes, on this machine or a Ray cluster.

    It is pickled, so its class must be defined at the top level of a module. :meth:`setup` and
    :meth:`process` are called in the worker processes, and all other methods in the driver.

    Attributes:
        name: Name of the job in its store and in messages.
        settings: Everything except the source that determines a record, as JSON values. Items that
            were finished with different settings are due again.
        folder: Folder for the outputs.
        cpus: Number of cores that a process uses, for Ray.
        gpus: Number of GPUs that a process uses, for Ray.
    """

    name = "job"
    settings: Mapping[str, Any] = {}
    folder: str = ""
    cpus: float = 1
    gpus: float = 0

    def setup(self) -> None:
        """Load into attributes what all items need (a model, a decoder), once per process.

        An exception ends the run and does not count as the failure of an item.
        """

    def process(self, item: Item) -> JsonObject | Facts:
        """Return facts about one item as JSON values, and write its output to ``item.temporary``.

        The facts of an item must not depend on the process.

        Raises:
            ItemError: If the item fails. Any other exception is recorded as a failure of the kind
                ``error``.
            RunError: If no item can succeed or, as StorageError, nothing can be written. The run
                ends, and the item is not recorded.
        """
        raise NotImplementedError

    def source(self, item: Item) -> State:
        """Return the current state of the source. It is called after the item to detect changes."""
        return item.source

    def holds(self, item: Item, record: Record) -> bool:
        """Return whether a record with the same settings is still valid, so its item is not due.

        The runner itself compares source and output. By default, all failures are due again.
        """
        return record.done

    def made_output(self, item: Item, record: Record | None) -> bool:
        """Return whether this job has made the output file. If so, a failure removes it."""
        return record is not None and record.done and record.output == item.output


def file_state(path: str | os.PathLike[str]) -> State:
    """Return a file's size and modification time, which reveal a change; None without a file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


#: SQLite application_id that identifies our files.
_APPLICATION = 0x5CE51DE0
#: Statements that create the tables, by name.
_SCHEMA = {
    "meta": "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "settings": "CREATE TABLE settings (id INTEGER PRIMARY KEY, value TEXT UNIQUE NOT NULL)",
    "records": (
        "CREATE TABLE records (key TEXT PRIMARY KEY, done INTEGER NOT NULL, source TEXT NOT NULL, "
        "settings INTEGER NOT NULL, facts TEXT NOT NULL, kind TEXT NOT NULL, reason TEXT NOT NULL, "
        "output TEXT, output_bytes INTEGER, time_limit REAL, time REAL NOT NULL, data BLOB)"
    ),
}
#: Statement that writes a record. Text is bound as bytes and cast, because SQLite can store names
#: that are not UTF-8, but Python refuses to bind them.
_PUT = (
    "INSERT OR REPLACE INTO records "
    "VALUES (CAST(? AS TEXT), ?, ?, ?, ?, ?, ?, CAST(? AS TEXT), ?, ?, ?, ?)"
)
#: SQLite error codes that mean that the disk cannot be written.
_CANNOT_WRITE = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
}


class StoreError(UserError, ValueError):
    """Error for a file that is damaged or not a store of this job."""


class BusyStoreError(StoreError):
    """Error for a store that another process is writing."""


class RecordStore:
    """Records by key. A new record replaces the item's earlier one.

    Args:
        path: Path of the file, which is created if needed. None keeps the records in memory.
        job: Name of the job.
        restart: Whether to discard the records that the file contains.
        wait: Seconds to wait for another process, which may only be reading the file.

    Attributes:
        id: Identifier of the store, which is part of the names of unfinished outputs.

    Raises:
        BusyStoreError: If another run is writing the file.
        StoreError: If the file is not a record store, or is damaged.
        StorageError: If the file cannot be written.
    """

    def __init__(
        self, path: str | Path | None, job: str, *, restart: bool = False, wait: float = 2.0
    ) -> None:
        self.path = None if path is None else Path(path)
        self.job = job
        self._settings: dict[str, int] = {}
        with _explained(self.path, job):
            if self.path is not None:
                _check_header(self.path, "rb+")
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = _connect(self.path, "rwc", wait)
            with contextlib.ExitStack() as on_error:
                on_error.callback(self._connection.close)
                execute = self._connection.execute
                execute("PRAGMA locking_mode = EXCLUSIVE")
                execute("BEGIN EXCLUSIVE")  # this lock is kept until the store is closed
                if not execute("SELECT 1 FROM sqlite_master").fetchone():
                    for sql in _SCHEMA.values():
                        execute(sql)
                    rows = [("job", job), ("id", secrets.token_hex(4))]
                    self._connection.executemany("INSERT INTO meta VALUES (?, ?)", rows)
                    execute(f"PRAGMA application_id = {_APPLICATION}")
                self.id = _check_format(self._connection, job)
                if restart:
                    execute("DELETE FROM records")
                execute("COMMIT")
                execute("PRAGMA journal_mode = WAL")
                execute("PRAGMA synchronous = NORMAL")
                on_error.pop_all()

    def get(self, key: str) -> Record | None:
        """Return the record of an item; None without one."""
        with _explained(self.path, self.job):
            sql = _SELECT + " WHERE key = CAST(? AS TEXT)"
            row = self._connection.execute(sql, (_bytes(key),)).fetchone()
            return None if row is None else _record(row)

    def __iter__(self) -> Iterator[Record]:
        """Yield all records in the order of their keys, and read them while iterating."""
        with _explained(self.path, self.job):
            yield from _records(self._connection)

    def __len__(self) -> int:
        with _explained(self.path, self.job):
            return int(self._connection.execute("SELECT count(*) FROM records").fetchone()[0])

    def settings(self) -> list[JsonObject]:
        """Return the settings of all records, without duplicates."""
        sql = "SELECT value FROM settings WHERE id IN (SELECT settings FROM records)"
        with _explained(self.path, self.job):
            return [_parsed_settings(text) for (text,) in self._connection.execute(sql)]

    def clear(self) -> None:
        """Discard all records, and free their space on the disk."""
        with _explained(self.path, self.job):
            self._connection.execute("DELETE FROM records")
            self._connection.execute("VACUUM")

    def outputs(self) -> Iterator[tuple[str, str]]:
        """Yield (output, key) of all finished items that have an output."""
        sql = "SELECT output, key FROM records WHERE done AND output IS NOT NULL"
        with _explained(self.path, self.job):
            yield from self._connection.execute(sql)

    def put(self, record: Record) -> Record:
        """Write a record and return it with its time.

        Raises:
            StorageError: If the record was not written.
        """
        record = record if record.time else replace(record, time=time.time())
        execute, text = self._connection.execute, json.dumps(record.settings, sort_keys=True)
        with _explained(self.path, self.job):
            if text not in self._settings:
                execute("INSERT OR IGNORE INTO settings (value) VALUES (?)", (text,))
                row = execute("SELECT id FROM settings WHERE value = ?", (text,)).fetchone()
                self._settings[text] = row[0]
            execute(_PUT, _row(record, self._settings[text]))
        return record

    def absorb(self, path: Path) -> None:
        """Copy the records of another store that are newer than this store's records.

        Raises:
            BusyStoreError: If another run is writing the other store.
            StoreError: If the other file is not a record store, or is damaged.
        """
        execute = self._connection.execute
        with _explained(path, self.job):
            _check_header(path, "rb")
            with contextlib.closing(_connect(path, "ro", 1.0)) as other:
                _check_format(other, self.job)
                execute("BEGIN")
                try:
                    for record in _records(other):
                        known = self.get(record.key)
                        if known is None or known.time < record.time:
                            self.put(record)
                except BaseException:
                    with contextlib.suppress(sqlite3.Error):  # SQLite may have rolled back already
                        execute("ROLLBACK")
                    raise
                with _explained(self.path, self.job):
                    execute("COMMIT")

    def close(self) -> None:
        """Close the store, and leave one plain file."""
        with contextlib.suppress(sqlite3.Error):  # all records have already been written
            if self.path is not None:  # merges the -wal file into the database
                self._connection.execute("PRAGMA journal_mode = DELETE")
        self._connection.close()

    def __enter__(self) -> RecordStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_SELECT = (
    "SELECT key, done, source, s.value, facts, kind, reason, output, output_bytes, time_limit, "
    "time, data FROM records JOIN settings s ON s.id = records.settings"
)


def _connect(path: Path | None, mode: str, wait: float) -> sqlite3.Connection:
    name = ":memory:" if path is None else f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(name, uri=True, timeout=wait, isolation_level=None)
    connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    # An untrusted file may define views and functions, which must not run while reading it.
    connection.executescript("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON")
    return connection


def _check_header(path: Path, mode: str) -> None:
    """Raise sqlite3.DatabaseError for a file that SQLite must not open."""
    try:
        check_sqlite_file(path, mode)
    except ValueError as error:
        raise sqlite3.DatabaseError(str(error)) from error


def _check_format(connection: sqlite3.Connection, job: str) -> str:
    """Return the store's id, or raise sqlite3.DatabaseError if it is not a store of this job."""
    sql = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 9"
    found = dict(connection.execute(sql))
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if found != _SCHEMA or application != _APPLICATION:
        raise sqlite3.DatabaseError("it has different tables")
    sql = "SELECT name, value FROM meta WHERE name IN ('job', 'id') AND length(value) <= 100"
    meta = dict(connection.execute(sql))
    if meta.get("job") != job or "id" not in meta:
        raise sqlite3.DatabaseError(f"it contains records of {meta.get('job')!r}")
    return str(meta["id"])


@contextlib.contextmanager
def _explained(path: Path | None, job: str) -> Iterator[None]:
    """Raise errors of SQLite and of damaged values as errors of this module."""
    try:
        yield
    except sqlite3.Error as error:
        # The low byte of an extended error code is the primary code.
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise BusyStoreError(f"another run is writing {path}. Wait for it") from error
        if code in _CANNOT_WRITE:
            raise StorageError(f"cannot write {path}: {error}") from error
        raise StoreError(
            f"{path} is not the record store of {job}, or it is damaged: {error}. Delete it to "
            "create its records again"
        ) from error
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    except UserError:
        raise
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{path} is a damaged record store: {error}. Delete it to create its records again"
        ) from error


def _row(record: Record, settings: int) -> tuple[Any, ...]:
    stored = {
        "key": _bytes(record.key),
        "done": int(record.done),
        "source": json.dumps(record.source),
        "settings": settings,
        "facts": json.dumps(record.facts),
        "reason": record.reason.encode("utf-8", "replace").decode(),
        "output": None if record.output is None else _bytes(record.output),
    }
    return tuple((vars(record) | stored).values())  # columns are in field order


def _record(row: tuple[Any, ...]) -> Record:
    key, done, source, settings, facts, kind, reason, output, size, limit, when, data = row
    source, facts = parse_json(source, "a source"), parse_json(facts, "a record")
    number, text = int | float, str
    kinds = (dict, dict | None, text, text, text, text | None, int | None, number | None, number)
    values = (facts, source, key, kind, reason, output, size, limit, when)
    if not all(map(isinstance, (*values, data), (*kinds, bytes | None))):
        raise ValueError("a record has fields of the wrong types")
    settings = _parsed_settings(settings)
    return Record(
        *(key, bool(done), source, settings, facts, kind, reason, output, size, limit, when, data)
    )


def _records(connection: sqlite3.Connection) -> Iterator[Record]:
    """Yield all records in the order of their keys, and raise ValueError for any other order.

    The pages of a damaged file may refer to each other. Without this check, reading could never
    end.
    """
    before = None
    for row in connection.execute(_SELECT + " ORDER BY key"):
        record = _record(row)
        key = _bytes(record.key)
        if before is not None and key <= before:
            raise ValueError("its keys are not in order")
        before = key
        yield record


@cache
def _parsed_settings(text: str) -> JsonObject:
    settings = parse_json(text, "settings")
    if not isinstance(settings, dict):
        raise ValueError("settings must be a JSON object")
    return settings


def _bytes(text: str) -> bytes:
    """Encode a file name. Names that are not UTF-8 keep their bytes."""
    return text.encode("utf-8", "surrogateescape")
