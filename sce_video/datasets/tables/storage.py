"""Where a table lies, the options of object storage, and errors of Lance in one line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from sce_video.datasets.errors import message_from_worker
from sce_video.utils.errors import MissingPackageError, UserError

#: Options of the object store where the caller does not set them: a request that the store is too
#: busy for, or that has no answer, is repeated for 15 seconds with growing random waits. Lance
#: repeats this 4 to 17 times, for one to four minutes.
CLIENT_LIMITS = {
    "connect_timeout": "5 seconds",
    "request_timeout": "30 seconds",
    "client_max_retries": "100",
    "client_retry_timeout": "15",
}
#: In their place for a first attempt to open a table: nobody may be there.
_FIRST_LIMITS = {"client_max_retries": "3"}
#: Bytes: two ranges are one request where less than this lies between them. Lance's own 64 KiB for
#: object storage read four times the bytes of the frames of a clip.
BLOCK_SIZE = 1024
#: Requests to object storage at a time; a batch of clips has a dozen for each sample.
_IO_THREADS = "128"
_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+://", re.I)
_LONGEST_REASON = 300  # characters of Lance's message, which may hold a whole page of a server


class TableError(UserError, RuntimeError):
    """A table cannot be opened, read or written."""

    def __init__(self, message: str) -> None:
        super().__init__(message_from_worker(message, type(self)))


def is_remote(table: str) -> bool:
    """Whether a table lies in object storage: ``s3://bucket/table.lance``, not a path."""
    return _REMOTE.match(table) is not None


_importer = 0  # process that imported Lance by import_lance


def imported_here() -> bool:
    """Whether this very process has imported Lance by :func:`import_lance`."""
    return _importer == os.getpid()


def import_lance() -> Any:
    """The module ``lance``; imported only where a table is opened.

    Raises:
        MissingPackageError: It is not installed.
    """
    global _importer
    if "lance" not in sys.modules:
        _importer = os.getpid()
    try:
        import lance
    except ImportError as error:
        raise MissingPackageError(
            "a table of videos needs Lance: pip install 'sce-video[lance]'"
        ) from error
    return lance


def client_options(
    table: str, storage_options: Mapping[str, str] | None = None
) -> dict[str, str] | None:
    """Options of the object store for a table; None for a local one.

    Credentials, region and endpoint come from ``storage_options`` or the environment
    (``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_REGION``, ``AWS_ENDPOINT_URL``, ...).
    An endpoint that begins with ``http://`` allows plain http.
    """
    if not is_remote(table):
        return None
    given = {key.lower(): str(value) for key, value in (storage_options or {}).items()}
    options = {**CLIENT_LIMITS, **given}
    if table.lower().startswith("s3"):
        # Lance knows AWS_ENDPOINT; boto3 and the AWS tools read AWS_ENDPOINT_URL.
        names = ("aws_endpoint", "endpoint", "aws_endpoint_url", "endpoint_url")
        endpoint = next((given[name] for name in names if name in given), "")
        variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        endpoint = endpoint or next((os.environ[v] for v in variables if os.environ.get(v)), "")
        if endpoint:
            options["aws_endpoint"] = endpoint
            if endpoint.startswith("http://"):
                options.setdefault("allow_http", "true")
        # Lance knows AWS_REGION, and asks Amazon for the region of a bucket of any endpoint.
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        region = region or ("us-east-1" if endpoint else None)
        if region and not {"aws_region", "region"} & given.keys():
            options["aws_region"] = region
    return options


def dataset_arguments(
    table: str,
    storage_options: Mapping[str, str] | None = None,
    version: int | None = None,
    block_size: int = BLOCK_SIZE,
) -> dict[str, Any]:
    """Arguments of ``lance.dataset``, see ``open_tables.read_table``."""
    arguments = {
        "uri": table,
        "version": version,
        "block_size": block_size,
        "storage_options": client_options(table, storage_options),
    }
    if is_remote(table):
        os.environ.setdefault("LANCE_IO_THREADS", _IO_THREADS)
        first = {**_FIRST_LIMITS, **(storage_options or {})}
        arguments["first_options"] = client_options(table, first)
    return arguments


def cannot(what: str, table: str, error: BaseException) -> str:
    """One line for an error of Lance: ``cannot open the table 's3://...': reason``."""
    reason = " ".join(str(error).split())
    advice = _advice(reason.lower(), is_remote(table))
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


def _advice(reason: str, remote: bool) -> str:
    for pattern, advice in _REASONS if remote else _REASONS[-3:]:
        if re.search(pattern, reason):
            return f": {advice}"
    return ""
