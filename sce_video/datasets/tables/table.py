"""Open a table in this process if that is safe, otherwise in a separate process.

Lance starts threads. A process that is forked from a process with such threads crashes or hangs
when it uses Lance, and loader workers are forked. Therefore, only loader workers and programs that
have imported Lance use it themselves. Any other process starts a separate process.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any

from sce_video.datasets.tables import reader_process
from sce_video.utils.errors import MissingPackageError, UserError, message_from_worker

#: Default options for object stores. If the store is busy or does not answer, the client repeats a
#: request for 15 seconds with growing random waits. Lance repeats all of this 4 to 17 times, which
#: takes one to four minutes.
CLIENT_LIMITS = {
    "connect_timeout": "5 seconds", "request_timeout": "30 seconds",
    "client_max_retries": "100", "client_retry_timeout": "15",
}  # fmt: skip
#: Limits for the first attempt to open a table. They are shorter: the address may not exist.
_FIRST_LIMITS = {"client_max_retries": "3"}
#: Two ranges on a disk are read in one request if fewer bytes than this lie between them.
BLOCK_SIZE = 1024
#: The same limit for object stores. With 64 KiB, reading a clip transfers four times as many bytes
#: as its frames have, but this is faster than ten times as many requests.
REMOTE_BLOCK_SIZE = 2**16
#: Number of simultaneous requests to object storage. Each sample in a batch needs a dozen requests.
_IO_THREADS = "128"
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+://", re.I)
_LONGEST_REASON = 300  # in characters, because Lance may quote a whole web page


class TableError(UserError, RuntimeError):
    """A table cannot be opened, read or written."""

    def __init__(self, message: str) -> None:
        super().__init__(message_from_worker(message, type(self)))


def is_remote(table: str) -> bool:
    """Return whether a table is in an object store, such as ``s3://bucket/table.lance``."""
    return _REMOTE.match(table) is not None


_importer = 0  # id of the process that called import_lance


def import_lance() -> Any:
    """Import ``lance``; MissingPackageError if it is not installed."""
    global _importer
    if "lance" not in sys.modules:
        _importer = os.getpid()
    try:
        import lance
    except ImportError as error:
        raise MissingPackageError(
            "a table of videos needs Lance. Run pip install 'sce-video[lance]'"
        ) from error
    return lance


def client_options(
    table: str, storage_options: Mapping[str, str] | None = None
) -> dict[str, str] | None:
    """Return the options of the object store of a table; None for a local table.

    Credentials, region and endpoint come from ``storage_options`` or the environment
    (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, ...).
    An endpoint that begins with ``http://`` allows plain http.
    """
    if not is_remote(table):
        return None
    given = {key.lower(): str(value) for key, value in (storage_options or {}).items()}
    options = {**CLIENT_LIMITS, **given}
    if table.lower().startswith("s3"):
        # Accept all names, because Lance reads AWS_ENDPOINT, but boto3 and the AWS tools read
        # AWS_ENDPOINT_URL.
        names = ("aws_endpoint", "endpoint", "aws_endpoint_url", "endpoint_url")
        variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        stated = [*map(given.get, names), *map(os.environ.get, variables)]
        endpoint = next(filter(None, stated), "")
        if endpoint:
            options["aws_endpoint"] = endpoint
            if endpoint.startswith("http://"):
                options.setdefault("allow_http", "true")
        # Always set a region. Otherwise, Lance asks Amazon for the bucket's region, even if the
        # endpoint is elsewhere.
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        region = region or ("us-east-1" if endpoint else None)
        if region and not {"aws_region", "region"} & given.keys():
            options["aws_region"] = region
    return options


def dataset_arguments(
    table: str,
    storage_options: Mapping[str, str] | None = None,
    version: int | None = None,
    block_size: int | None = None,
) -> dict[str, Any]:
    """Return arguments for ``lance.dataset``; see :func:`read_table`."""
    block_size = block_size or (REMOTE_BLOCK_SIZE if is_remote(table) else BLOCK_SIZE)
    arguments: dict[str, Any] = {"uri": table, "version": version, "block_size": block_size}
    arguments["storage_options"] = client_options(table, storage_options)
    if is_remote(table):
        os.environ.setdefault("LANCE_IO_THREADS", _IO_THREADS)
        first = {**_FIRST_LIMITS, **(storage_options or {})}
        arguments["first_options"] = client_options(table, first)
    return arguments


def cannot(what: str, table: str, error: BaseException) -> str:
    """Return a one-line message for an error of Lance, with advice if the reason is known."""
    reason = " ".join(str(error).split())
    reasons = _REASONS if is_remote(table) else _REASONS[-3:]
    fitting = (text for pattern, text in reasons if re.search(pattern, reason.lower()))
    advice = "".join(f": {text}" for text in islice(fitting, 1))
    reason = reason if len(reason) <= _LONGEST_REASON else reason[:_LONGEST_REASON] + "..."
    return f"cannot {what} the table {table!r}{advice} ({reason})"


_REASONS = (
    (r"nosuchbucket", "the bucket does not exist"),
    (r"failed to (get|load).*(credential|token)|credentials? (were )?not",
     "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"),
    (r"accessdenied|status code: 40[13]|signaturedoesnotmatch|invalidaccesskeyid|forbidden",
     "the storage refuses the credentials: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    (r"error sending request|connection refused|timed out|dns error|request timeout",
     "the storage does not answer: check the network and AWS_ENDPOINT_URL"),
    (r"slowdown|status code: 50[0-4]", "the storage is too busy: try again later"),
    (r"no space left|disk quota", "the disk is full"),
    (r"not found: \S*/data/|object at location \S*/data/",
     "a file is missing: the table is damaged"),
    (r"not found|status code: 404", "there is no table at this address"),
)  # fmt: skip


class OpenTable:
    """A table that is open in this process, with its ``version`` and the schema's ``metadata``."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.version = int(dataset.version)
        self.metadata: Mapping[bytes, bytes] = dict(dataset.schema.metadata or {})

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of :mod:`~sce_video.datasets.tables.reader_process`."""
        return reader_process.call_method(self.dataset, method, *arguments)


class RemoteTable:
    """Variant of :class:`OpenTable` in a separate process, which ends with this object.

    If a call exceeds its time limit and is abandoned, it keeps its process, and the next call
    starts another process. OSError means that Lance raised an error, or that the process ended.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = dict(arguments)
        self._idle: list[tuple[subprocess.Popen, Connection]] = []
        self.version, self.metadata = self._start()
        if "schema" not in self._arguments:
            self._arguments["version"] = self.version  # for processes that are started later

    def _start(self) -> Any:
        """Start an idle process, and return the version and metadata of the table."""
        ours, theirs = multiprocessing.Pipe()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", reader_process.__file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={"LANCE_LOG": "error", **os.environ},
            )
        return self._ask((process, ours), self._arguments)

    def _ask(self, idle: tuple[subprocess.Popen, Connection], request: Any) -> Any:
        """Return the answer of an idle process, which is then idle again."""
        process, pipe = idle
        try:
            pipe.send_bytes(pickle.dumps(request, protocol=5))
            kind, value = pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionError):
            status = process.wait()
            raise OSError(f"the process that reads the table ended with status {status}") from None
        if kind == "error" and request is self._arguments:  # the process could not open the table
            _end(*idle)
        else:
            self._idle.append(idle)
        if kind == "error":
            raise OSError(value)
        return value

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method in the separate process, like :meth:`OpenTable.call`."""
        try:
            idle = self._idle.pop()
        except IndexError:
            self._start()
            idle = self._idle.pop()
        return self._ask(idle, (method, arguments))

    def __del__(self) -> None:
        for idle in getattr(self, "_idle", ()):
            _end(*idle)


def _end(process: subprocess.Popen, pipe: Connection) -> None:
    with suppress(Exception):
        pipe.close()
        process.wait(timeout=5)


def read_table(
    table: str,
    storage_options: Mapping[str, str] | None = None,
    version: int | None = None,
    block_size: int | None = None,
) -> OpenTable | RemoteTable:
    """Open a table for reading.

    Args:
        table: Path, or a URI such as ``s3://bucket/table.lance``.
        storage_options: Options that :func:`client_options` explains.
        version: Version of the table. None means the latest version.
        block_size: Number of bytes between two ranges below which they are read by one request.
            None means 1024, or 65536 in an object store.

    Raises:
        TableError: If the table does not exist or cannot be reached.
        MissingPackageError: If Lance is not installed.
    """
    if not is_remote(table) and not os.path.isdir(table):
        raise TableError(f"there is no table {table!r}")
    return _open(dataset_arguments(table, storage_options, version, block_size))


def make_table(table: str, schema: Any) -> OpenTable | RemoteTable:
    """Make an empty local table with a ``pyarrow.Schema``; see :func:`read_table` for errors."""
    return _open({"uri": table, "schema": schema})


def _open(arguments: Mapping[str, Any]) -> OpenTable | RemoteTable:
    try:
        if _may_import():
            return OpenTable(reader_process.open_dataset(import_lance(), dict(arguments)))
        if importlib.util.find_spec("lance") is None:
            import_lance()  # raises MissingPackageError
        return RemoteTable(arguments)
    except MissingPackageError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        what = "make" if "schema" in arguments else "open"
        raise TableError(cannot(what, arguments["uri"], error)) from error


def _may_import() -> bool:
    """Return whether this process may use Lance itself."""
    if "lance" in sys.modules:  # a forked process may have inherited it
        return multiprocessing.parent_process() is None or _importer == os.getpid()
    data = sys.modules.get("torch.utils.data")  # do not import it, because a search needs no torch
    return data is not None and data.get_worker_info() is not None
