"""Files in object stores, ``s3://bucket/key`` and ``gs://bucket/key``, through fsspec.

As in the stores' own clients, credentials, region and endpoint come from environment variables
(``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``, ...), profiles or the role of the machine. An object
appears completely or not at all, because the last request joins the parts of a large object.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import random
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sce_video.utils.errors import MissingPackageError, UserError
from sce_video.utils.records import at

#: For each URL scheme, the package that reads and writes it, and our extra that installs it
_PACKAGES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gs")}
# With these limits, an error is raised within a minute, and in most cases within seconds.
#: Time limit for connecting, in seconds
_CONNECT = 5
#: Maximum time without receiving a byte, in seconds
_READ = 15
#: Maximum number of attempts per request
_ATTEMPTS = 3
#: Status codes with which S3 asks the client to retry later, for example 503 for SlowDown
_BUSY = (429, 500, 502, 503, 504)
#: Maximum number of attempts after such a status. They take 63 to 126 seconds in total. The
#: client's own retries would end sooner. In its standard mode, each retry waits for at most 2 s,
#: and all requests of a process share a budget. This budget is used up after 250 requests if half
#: of them fail.
_BUSY_ATTEMPTS = 16
#: Maximum time between two of these attempts, in seconds
_LONGEST_WAIT = 10.0
_ABORT = 2.0  # time limit in seconds for removing the parts of an interrupted upload
#: Words in the names of connection errors, such as EndpointConnectionError or ClientConnectorError
_CONNECTION_WORDS = ("Connect", "Timeout", "gaierror")
#: Environment variable that lists, separated by spaces, the addresses of tables that files may name
STORES = "SCE_VIDEO_STORES"
_uploads: set[Future] = set()  # uploads in progress


class ObjectStoreError(UserError, OSError):
    """Error that is raised if a request to an object store fails. The message names the cause."""


@dataclass(frozen=True)
class StoredFile:
    """An object below a folder."""

    name: str  # last part of the object's key
    size: int  # in bytes
    time: float  # when it was written, in seconds since 1970
    version: str  # changes with the content; this is the ETag if the store has one


def is_url(path: Any) -> bool:
    """Return whether a path is in an object store, which means ``s3://...`` or ``gs://...``."""
    return isinstance(path, str) and path.startswith(tuple(f"{name}://" for name in _PACKAGES))


def trusted_stores(given: str | Path | None = None) -> set[str]:
    """Return the addresses that the user named in ``given`` or :data:`STORES`.

    Only these addresses may be contacted.
    """
    return {str(given).rstrip("/"), *os.environ.get(STORES, "").split()}


def absolute(path: str | Path) -> str:
    """Return a URL unchanged, or the absolute path without links."""
    return str(path) if is_url(path) else str(Path(path).resolve())


def join(folder: str | Path, name: str) -> str:
    """Join a folder or URL with a name. If the name is absolute or a URL, it is the result."""
    if is_url(name) or not is_url(folder):
        return name if is_url(name) else str(Path(folder) / name)
    return f"{str(folder).rstrip('/')}/{name}"


def split(url: str) -> tuple[str, str]:
    """Split a URL into the folder and the name of an object."""
    folder, _, name = url.rstrip("/").rpartition("/")
    return folder, name


def exists(path: str | Path) -> bool:
    """Return whether a file or object exists, with the store errors of :func:`find`."""
    if not is_url(path):
        return os.path.isfile(path)
    try:
        find(str(path))
    except FileNotFoundError:
        return False
    return True


def size(path: str | Path) -> int:
    """Return the size of a file or object in bytes, with the errors of :func:`find`."""
    return find(str(path)).size if is_url(path) else os.path.getsize(path)


def find(url: str) -> StoredFile:
    """Return size, time and version of an object.

    Raises:
        FileNotFoundError: If the object does not exist. For a folder, the message lists its
            objects.
        ObjectStoreError: If the bucket does not exist, or the store cannot be reached.
    """
    try:
        with _explained("read", url):
            info = _filesystem(url).info(url)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no {url}") from error
    if info["type"] == "directory":
        names = ", ".join(file.name for file in list_files(url)[:5]) or "none"
        raise FileNotFoundError(f"{url} is a folder. Name a file in it ({names})")
    return _stored(info)


def list_files(url: str) -> list[StoredFile]:
    """Return the objects directly below a folder, sorted by name, or none if there is no folder.

    Raises:
        ObjectStoreError: If the bucket does not exist, or the store cannot be reached.
    """
    try:
        with _explained("read", url):
            files = _filesystem(url)
            found = files.ls(url.rstrip("/"), detail=True, refresh=True)
    except FileNotFoundError:
        return []
    key = files._strip_protocol(url).rstrip("/")
    here = [info for info in found if info["type"] == "file" and info["name"].rstrip("/") != key]
    return sorted((_stored(info) for info in here), key=lambda file: file.name)


def get_file(url: str, path: str | Path) -> None:
    """Download an object into a file, which the caller replaces atomically.

    Raises:
        FileNotFoundError: If the object does not exist.
        ObjectStoreError: If the bucket does not exist, the store cannot be read, or the received
            data are incomplete or do not match S3's checksum.
    """
    expected = size(url)
    # Read one range at a time. By default, several ranges of an object are read in parallel, but
    # ranges have no checksum.
    options = {"max_concurrency": 1} if url.startswith("s3:") else {}
    with _explained("read", url):
        _filesystem(url).get_file(url, os.fspath(path), **options)
    if os.path.getsize(path) != expected:
        raise ObjectStoreError(
            f"only {os.path.getsize(path)} of {expected} bytes of {url} were read. Try again"
        )


def put_file(path: str | Path, url: str) -> None:
    """Upload a file. At any moment, the object is either the old one or the complete new one.

    Raises:
        FileNotFoundError: If the file does not exist.
        ObjectStoreError: If the bucket does not exist, or the store cannot be written.
    """
    os.stat(path)
    with _explained("written", url):
        files = _filesystem(url)
        upload = asyncio.run_coroutine_threadsafe(files._put_file(os.fspath(path), url), files.loop)
        _uploads.add(upload)
        try:
            upload.result()
        except FileNotFoundError as error:
            raise ObjectStoreError(f"{url} cannot be written: {_text(error)}") from error
        except (KeyboardInterrupt, SystemExit, CancelledError):
            upload.cancel()
            if url.startswith("s3:"):
                removal = asyncio.run_coroutine_threadsafe(_remove_parts(files, url), files.loop)
                with suppress(Exception):
                    removal.result(_ABORT)
            raise
        finally:
            _uploads.discard(upload)


def cancel_uploads() -> None:
    """End the uploads of other threads, whose calls then raise an ObjectStoreError."""
    for upload in list(_uploads):
        upload.cancel()


async def _remove_parts(files: Any, url: str) -> None:
    """Remove the parts of an object's unfinished uploads, as s3fs does only after errors."""
    bucket, key, _ = files.split_path(url)
    found = await files._call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key)
    for upload in found.get("Uploads", []):
        if upload["Key"] == key:
            await files._abort_mpu(bucket, key, upload["UploadId"])


def remove(url: str) -> None:
    """Remove an object if it exists. ObjectStoreError means that the store cannot be written."""
    with _explained("removed", url), suppress(FileNotFoundError):
        _filesystem(url).rm_file(url)


def _filesystem(url: str) -> Any:
    """Return the fsspec file system for a URL, one per process and thread, without a cache."""
    scheme = url.partition("://")[0]
    package, extra = _PACKAGES[scheme]
    if url.rstrip("/") == f"{scheme}:":
        raise ValueError(f"{url!r} does not name a bucket")
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise MissingPackageError(
            f"{url} needs the package {package} ({error}). Run pip install 'sce-video[{extra}]'"
        ) from error
    import fsspec

    options: dict[str, Any] = {"use_listings_cache": False}
    if scheme == "s3":
        retries = {"total_max_attempts": _ATTEMPTS, "mode": "standard"}
        options["config_kwargs"] = {
            "connect_timeout": _CONNECT, "read_timeout": _READ, "retries": retries
        }  # fmt: skip
    files = fsspec.filesystem(scheme, **options)
    if scheme == "s3":
        events = files.connect().meta.events
        events.register_first("needs-retry.s3", _wait_if_busy, unique_id=__name__)
    files.retries = 1  # s3fs must not retry, because the client already does
    return files


def _wait_if_busy(attempts: int, response: tuple | None, **event: Any) -> float | None:
    """Return how many seconds to wait before a request to a busy store is repeated, or None."""
    if response is None or response[0].status_code not in _BUSY or attempts >= _BUSY_ATTEMPTS:
        return None
    longest = min(0.5 * 2 ** (attempts - 1), _LONGEST_WAIT)
    return random.uniform(longest / 2, longest)  # random, so that machines do not retry together


def _stored(info: dict[str, Any]) -> StoredFile:
    time = info.get("LastModified") or info.get("mtime")  # s3fs and gcsfs use different keys
    seconds = time.timestamp() if isinstance(time, datetime) else 0.0
    version = str(info.get("ETag") or info.get("etag") or f"{seconds}-{info['size']}")
    return StoredFile(split(info["name"])[1], int(info["size"]), seconds, version)


@contextmanager
def _explained(done: str, url: str) -> Iterator[None]:
    """Raise the client's errors, which may have any type, as an ObjectStoreError."""
    try:
        yield
    except (UserError, ValueError):
        raise
    except Exception as error:
        missing = isinstance(error, FileNotFoundError)
        if missing and _response(error)[0] != "NoSuchBucket":
            raise
        reason = _text(error) if missing else _reason(error)
        raise ObjectStoreError(f"{url} cannot be {done}: {reason}") from error


def _response(error: BaseException) -> tuple[str, int]:
    """Return code and status of the store's response that made s3fs raise an error."""
    answer = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    status = at(answer, "ResponseMetadata.HTTPStatusCode", int)
    return str(at(answer, "Error.Code") or ""), status or 0


def _reason(error: Exception) -> str:
    name = type(error).__name__
    if isinstance(error, CancelledError):
        return "the upload was interrupted"
    if "Checksum" in name:
        return (
            f"the received data differ from the stored data ({_text(error)}). Try again. If this "
            "does not help, write the object again"
        )
    if _response(error)[1] in _BUSY:
        return f"the store has been too busy for over a minute ({_text(error)}). Try again later"
    if "Credential" in name or "Profile" in name:
        return (
            f"{_text(error)}. Set the store's credentials (for S3, AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY) or a profile"
        )
    if isinstance(error, PermissionError):
        return f"access denied ({_text(error)}). Check whether the credentials belong to the bucket"
    if isinstance(error, TimeoutError | ConnectionError) or any(
        word in name for word in _CONNECTION_WORDS
    ):
        return (
            f"the store does not answer ({_text(error)}). Check the network and the endpoint "
            "(AWS_ENDPOINT_URL)"
        )
    return _text(error)


def _text(error: Exception) -> str:
    """Return the message of an error in one line, or its type if there is no message."""
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__


def walk_files(
    root: str | os.PathLike[str],
    extensions: Sequence[str],
    skipped_folders: Collection[str] = (),
    follow_links: bool = True,
) -> Iterator[str]:
    """Yield the paths of the files below a folder, relative to it.

    Hidden files and folders are left out, and each folder is visited only once.

    Args:
        root: Folder to search. If it does not exist, no files are found.
        extensions: Extensions of the files in lower case, with the dot. Upper case also matches.
        skipped_folders: Names of folders that are left out.
        follow_links: Whether links to folders are followed.
    """
    seen: set[str] = set()
    for folder, subfolders, files in os.walk(root, followlinks=follow_links):
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = sorted(
            name for name in subfolders if name[0] != "." and name not in skipped_folders
        )
        for name in files:
            if not name.startswith(".") and name.lower().endswith(tuple(extensions)):
                yield os.path.relpath(os.path.join(folder, name), root)
