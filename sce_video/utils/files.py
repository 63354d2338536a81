"""Writing of files that survive a full disk or a crash, and reading of untrusted files."""

from __future__ import annotations

import codecs
import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sce_video.utils.errors import UserError
from sce_video.utils.storage import (
    ObjectStoreError,
    find,
    get_file,
    is_url,
    list_files,
    put_file,
    split,
)

_UNFINISHED = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)-[0-9a-f]{8}\.part", re.S)


class WriteError(UserError, OSError):
    """Error that is raised if a file cannot be written. Old content is unchanged."""


def write_error(path: str | Path, error: OSError) -> WriteError:
    """Convert the error of a failed attempt to write ``path``."""
    reason = error.strerror or str(error)
    name = error.filename  # may be another path, e.g. a folder that cannot be created
    if name not in (None, str(path)) and not os.fsdecode(name).endswith(".part"):
        reason += f": {name}"
    explained = WriteError(f"cannot write {path}: {reason}")
    explained.errno = error.errno
    return explained


class IrregularFileError(UserError, OSError):
    """Error for a FIFO, device or socket instead of a file, or for a link that would be written."""


def check_regular(path: str | os.PathLike[str], written: bool = False) -> None:
    """Check that a path is free, a regular file or a folder and, if it is ``written``, not a link.

    A FIFO would block forever, and opening a device may have side effects. A link in an unpacked
    run folder may point to any file of the user.

    Raises:
        IrregularFileError: If the path is anything else.
    """
    try:
        mode = os.stat(path, follow_symlinks=not written).st_mode
    except OSError:  # opening the file will report the problem
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        problem = "is not a regular file (a FIFO, a device or a socket). Put a file in its place"
        if stat.S_ISLNK(mode):
            problem = "is a symbolic link, and nothing is written through a link. Remove it"
        error = IrregularFileError(f"{os.fsdecode(path)} {problem}")
        error.strerror = f"it {problem}"
        raise error


def regular_file(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file without waiting, as ``open(path, mode, opener=regular_file)``.

    All code that reads, appends to, truncates or locks a named file uses this opener.

    Raises:
        IrregularFileError: If the path is not a regular file or folder.
        OSError: If the file cannot be opened.
    """
    written = bool(flags & (os.O_WRONLY | os.O_RDWR))
    check_regular(path, written)
    flags |= os.O_NONBLOCK | (os.O_NOFOLLOW if written else 0)  # the path may have been replaced
    descriptor = os.open(path, flags, 0o666)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(number, os.strerror(number), os.fspath(path))
    return descriptor


def content_sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a regular file's content as a hexadecimal string."""
    with open(path, "rb", opener=regular_file) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


#: Last bytes of an SQLite journal that names another file
_NAMES_A_FILE = bytes.fromhex("d9d505f920a163d7")


def check_sqlite_file(path: Path, mode: str = "rb+") -> None:
    """Refuse an untrusted file that SQLite should not open.

    A file must begin like SQLite's files, or be empty, which SQLite accepts as well. If a
    transaction over several databases was interrupted, SQLite removes a file that the journal
    names. This package never uses such transactions, so a journal must not name a file.

    Args:
        path: Path of the database, which need not exist.
        mode: Mode in which it will be opened, "rb" or "rb+".

    Raises:
        ValueError: If the file is not a database, or if its journal names another file.
        IrregularFileError: If it is not a regular file, or if a link would be written through.
    """
    if os.path.lexists(path):  # SQLite would follow a link and create its target
        with open(path, mode, opener=regular_file) as file:
            if file.read(16) not in (b"", b"SQLite format 3\0"):
                raise ValueError("it is not an SQLite file")
    journal = path.with_name(f"{path.name}-journal")
    if journal.is_file() and (size := journal.stat().st_size) >= len(_NAMES_A_FILE):
        with open(journal, "rb", opener=regular_file) as file:
            file.seek(size - len(_NAMES_A_FILE))
            if file.read() == _NAMES_A_FILE:
                raise ValueError(f"{journal.name} names another file. Remove it")


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file as bytes (:func:`regular_file`)."""
    with open(path, "rb", opener=regular_file) as file:
        return file.read()


def text_encoding(path: str | os.PathLike[str]) -> str:
    """Return the encoding of a user's text file, UTF-8 or UTF-16, depending on how it begins.

    Spreadsheet programs write UTF-16 if the user chooses Unicode text.
    """
    with open(path, "rb", opener=regular_file) as file:
        begins_with = file.read(2)
    utf_16 = begins_with in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return "utf-16" if utf_16 else "utf-8-sig"


def read_text(path: str | os.PathLike[str], errors: str = "strict") -> str:
    """Read a regular text file with the encoding that :func:`text_encoding` detects."""
    encoding = text_encoding(path)
    with open(path, encoding=encoding, errors=errors, opener=regular_file) as file:
        return file.read()


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder, and rename it to ``path`` if the block succeeds.

    At any moment, a reader sees either the old file or the complete new one. If the block fails,
    the file at ``path`` is unchanged, and the temporary one is removed. The folder is created if
    needed, and the new content is flushed to disk before the old file is replaced.

    For a URL (:func:`~sce_video.utils.storage.is_url`), the temporary file is uploaded if the block
    succeeds. If only the upload fails, the file is kept, and the message names it.

    Raises:
        WriteError: If an OSError occurs in the block, or when creating the folder, renaming the
            file or uploading it.
    """
    if is_url(path):
        with _atomic_object(str(path)) as temporary:
            yield temporary
        return
    path = Path(path)
    temporary = unfinished_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "rb", opener=regular_file) as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except UserError:  # its message already explains the problem, which may concern the input
        raise
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):  # the folder may be read-only
            temporary.unlink(missing_ok=True)


def unfinished_path(path: Path) -> Path:
    """Return a path next to ``path``, which :func:`remove_unfinished` removes after a crash."""
    # The random part makes names unique even if processes on several machines have the same id.
    name = f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part"
    _MADE_HERE.add(name)
    return path.with_name(name)


#: Names that this process has chosen. They are recorded, because in a restarted container, a
#: process often has the id of the killed one. The id in a name therefore does not show whether this
#: process is writing the file.
_MADE_HERE: set[str] = set()


def remove_unfinished(folder: str | Path, name: str | None = None) -> None:
    """Remove files that killed processes left at paths of :func:`unfinished_path` in a folder.

    With a ``name``, only files and folders that were to be renamed to it are removed. Files that a
    running process on this machine is writing are kept. Call this before writing to the folder.
    """
    for path in Path(folder).glob(".*.part"):
        found = _UNFINISHED.fullmatch(path.name)
        if found and name in (None, found["name"]) and path.name not in _MADE_HERE:
            try:
                if int(found["pid"]) != os.getpid():
                    os.kill(int(found["pid"]), 0)
                    continue
            except (ProcessLookupError, OverflowError):
                pass
            except PermissionError:  # the process belongs to another user
                continue
            with contextlib.suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


@contextmanager
def _atomic_object(url: str) -> Iterator[Path]:
    """Write an object to a store like :func:`atomic_file`."""
    with contextlib.ExitStack() as removal:
        try:
            folder = tempfile.mkdtemp(prefix="sce_video_")
            removal.callback(shutil.rmtree, folder, ignore_errors=True)
            temporary = Path(folder, split(url)[1])
            yield temporary
        except UserError:
            raise
        except OSError as error:
            raise write_error(url, error) from error
        try:
            put_file(temporary, url)
        except ObjectStoreError as error:
            removal.pop_all()  # keep the complete file
            raise WriteError(f"{error}. The complete file is {temporary}") from error


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file atomically."""
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically. Paths that are not UTF-8 keep their bytes."""
    write_bytes(path, text.encode("utf-8", errors="surrogateescape"))


def write_json(path: str | Path, content: Mapping[str, object]) -> None:
    """Write a JSON file atomically. A value that is an iterator is written as a list, in steps."""
    with atomic_file(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        between = "{\n  "
        for key, value in content.items():
            file.write(f"{between}{json.dumps(key)}: ")
            between = ",\n  "
            if not isinstance(value, Iterator):
                file.write(json.dumps(value, indent=2).replace("\n", "\n  "))
                continue
            comma = "["
            for item in value:
                file.write(f"{comma}\n    " + json.dumps(item, indent=2).replace("\n", "\n    "))
                comma = ","
            file.write("[]" if comma == "[" else "\n  ]")
        file.write("{}\n" if between == "{\n  " else "\n}\n")


def append_text(path: str | Path, text: str) -> None:
    """Append to a text file, created if needed. After a WriteError, the file is unchanged."""
    left = memoryview(text.encode("utf-8"))
    try:
        descriptor = regular_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            before = os.fstat(descriptor).st_size
            try:
                while left:
                    left = left[os.write(descriptor, left) :]  # a full disk may cut off the write
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, before)
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise write_error(path, error) from error


#: Local copy of each URL that this process has read. Its forked workers use the same copy.
_read: dict[str, Path] = {}


def file_identity(path: str | os.PathLike[str]) -> list[int] | None:
    """Return size, modification time and inode, by which a replaced file is detected.

    The inode is needed because archives restore modification times, and two networks of one kind
    have the same size. The result is None if there is no file.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def cache_folder() -> Path:
    """Return the cache folder: ``SCE_VIDEO_CACHE``, or ``sce_video`` in the user's cache."""
    given = os.environ.get("SCE_VIDEO_CACHE")
    default = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(default) / "sce_video"


def local_copy(path: str | Path, newest: bool = False) -> Path:
    """Return a plain path unchanged, or for a URL the path of a local copy with the same name.

    A copy is kept until the object changes, and all processes of a machine share it. The cache
    folder may be removed at any time. ``newest`` asks the store for the current version. By
    default, a process keeps using the version that it read first.

    Raises:
        FileNotFoundError: If the object does not exist.
        ObjectStoreError: If the store cannot be read.
        WriteError: If the copy cannot be written.
    """
    if not is_url(path):
        return Path(path)
    url = str(path)
    if not newest and url in _read and _read[url].is_file():
        return _read[url]
    found = find(url)
    folder = cache_folder() / _digest(url)
    copy = folder / _digest(found.version) / split(url)[1]
    if not copy.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ObjectStoreError(
                f"{url} cannot be stored in {folder}: {error.strerror}. Set SCE_VIDEO_CACHE to "
                "another folder"
            ) from error
        from filelock import FileLock  # imported here because only downloads need it

        with FileLock(folder / "lock"):
            if not copy.is_file():
                with contextlib.suppress(OSError):  # remove earlier versions of the object
                    for version in filter(Path.is_dir, folder.iterdir()):
                        shutil.rmtree(version, ignore_errors=True)
                with atomic_file(copy) as unfinished:
                    get_file(url, unfinished)
    _read[url] = copy
    return copy


@contextmanager
def output_file(path: str | Path) -> Iterator[Path]:
    """Yield a plain path, or for a URL a local path that is uploaded if the block succeeds.

    The local path of a URL is always the same, so work that stores its state next to its output can
    be resumed. If the upload fails, the local file is kept.

    Raises:
        ObjectStoreError: If the bucket does not exist or the store cannot be read. This is checked
            before the block.
        WriteError: If the upload fails. The message names the local file.
    """
    if not is_url(path):
        yield Path(path)
        return
    url = str(path)
    folder, name = split(url)
    list_files(folder)
    local = cache_folder() / "outputs" / _digest(url) / name
    yield local
    try:
        put_file(local, url)
    except ObjectStoreError as error:
        raise WriteError(f"{error}. The complete file is {local}") from error
    local.unlink()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogateescape")).hexdigest()[:16]


#: Maximum depth of lists and objects in JSON files, so that no file can exceed the recursion limit
_MAX_DEPTH = 50


def parse_json(text: str, where: str) -> Any:
    """Parse JSON, or raise ValueError, with ``where``, if it is invalid or more than 50 deep."""
    try:
        value = json.loads(text)
        _check_depth(value, 0)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {str(error)[:200]}") from error
    return value


def _check_depth(value: Any, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, dict | list):
                _check_depth(item, depth + 1)


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file in UTF-8, with or without a byte order mark.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If the text is not valid JSON or is nested more than 50 levels deep.
    """
    return parse_json(_read_text(path), str(path))


def read_json_lines(
    path: str | os.PathLike[str], damaged: list[str] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the object on each line that is not blank, with its file and line number for messages.

    If the last line has no line break and is not JSON, its writer was killed, and it is left out.
    Other damaged lines raise ValueError, or their messages are added to ``damaged`` if it is given.
    """
    lines = _read_text(path, "strict" if damaged is None else "surrogateescape").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = parse_json(line, where)
            problem = f"{where} is not an object {{...}}"
        except ValueError as error:
            if number == len(lines):
                return
            value, problem = None, str(error)
        if isinstance(value, dict):
            yield where, value
        elif damaged is None:
            raise ValueError(problem)
        else:
            damaged.append(problem)


def _read_text(path: str | os.PathLike[str], errors: str = "strict") -> str:
    try:
        return read_text(path, errors)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
