"""Atomic, memory-mapped ``.npz`` files of arrays without pickle, which need only NumPy."""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.utils.files import atomic_file, regular_file
from sce_video.utils.records import at

#: Alignment in bytes of array data, as memory mapping requires
_ALIGNMENT = 64
#: Smaller members are read instead of mapped, because mapping them saves nothing.
_MAPPED_BYTES = 1 << 20
#: Number of bytes in the fixed part of a zip member's header
_LOCAL_HEADER = 30
#: Number of bytes in a zip member's record of 64-bit sizes
_ZIP64_RECORD = 20
#: Id of the zip extra field that we use for padding, as Android's zipalign does
_PADDING_FIELD = 0xD935
# Limits far above any real array file, which protect against files that exhaust memory.
#: Largest ratio of a file's decompressed size to its size
_MAX_EXPANSION = 100
#: Number of decompressed bytes that is always allowed, so that files of equal values can be read
_SMALL_BYTES = 1 << 26
#: Maximum number of arrays in a file
_MAX_MEMBERS = 1000
#: Maximum length of an array's axis
_MAX_SIDE = 2**40
#: Number of bytes to collect in memory while writing an array from an iterator
BLOCK_BYTES = 8 << 20
#: Number of array bytes per checksum. Using a single row reads at least this many bytes.
DIGEST_BYTES = 1 << 18
#: Suffix of the member that contains an array's checksums
_DIGESTS = ".crc32"
#: Arrays of a file by name. An array is a :class:`CheckedArray` if it is read lazily, otherwise an
#: ``np.ndarray``.
Arrays = dict[str, Any]


@dataclass(frozen=True)
class RowStream:
    """Array that is written row by row, so that it is never completely in memory.

    The length of ``shape`` must match the number of rows. Rows are consumed when they are written.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    rows: Iterable[Any]

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield consecutive rows in blocks of up to :data:`BLOCK_BYTES`; ValueError if unequal."""
        row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        count = max(1, BLOCK_BYTES // max(1, row_bytes))
        rows, written = iter(self.rows), 0
        while len(block := np.array(list(islice(rows, count)), self.dtype)):
            if block.shape[1:] != self.shape[1:]:
                raise ValueError(f"{self.shape} array contains a row of shape {block.shape[1:]}")
            written += len(block)
            yield block
        if written != self.shape[0]:
            raise ValueError(f"{written} rows were given for an array of {self.shape[0]}")


class CheckedArray:
    """Memory-mapped array that compares each block with its checksum when it is first used.

    Only used blocks are read, so an index of millions of videos opens immediately.

    Args:
        array: Memory-mapped array in C order.
        digests: CRC-32 of each block of ``DIGEST_BYTES``.
        name: Name of the file and array, for messages.
    """

    def __init__(self, array: np.ndarray, digests: np.ndarray, name: str) -> None:
        self.base, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim
        self._bytes, self._digests, self._name = array.reshape(-1).view(np.uint8), digests, name
        self._row_bytes = array.nbytes // max(1, len(array))
        self._due = np.ones(-(-array.nbytes // DIGEST_BYTES), dtype=bool)
        if digests.shape != self._due.shape or digests.dtype != np.uint32:
            raise ValueError(f"{name} has {digests.shape} checksums, but {len(self._due)} blocks")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Return rows by number, slice, mask or array of numbers; ValueError if damaged."""
        if isinstance(rows, slice):
            numbers = range(len(self))[rows]
            if len(numbers):
                first, last = sorted((numbers[0], numbers[-1]))
                self._check_rows(np.array([first]), np.array([last]))
            return self.base[rows]
        chosen = np.atleast_1d(np.asarray(rows))
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        chosen = np.where(chosen < 0, chosen + len(self), chosen)
        self._check_rows(chosen, chosen)
        return self.base[rows]

    def _check_rows(self, firsts: np.ndarray, lasts: np.ndarray) -> None:
        """Check the blocks of the given ranges of rows."""
        begins = firsts * self._row_bytes // DIGEST_BYTES
        ends = ((lasts + 1) * self._row_bytes - 1) // DIGEST_BYTES
        self._check(np.unique([begins, ends]))
        for begin, end in zip(begins, ends, strict=True):
            if end > begin + 1:
                self._check(np.arange(begin, end))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = self.whole() if dtype is None else self.whole().astype(dtype, copy=False)
        return found.copy() if copy else found

    def whole(self) -> np.ndarray:
        """Return the whole array after checking it; raise ValueError if a block is damaged."""
        self._check(np.arange(len(self._due)))
        return self.base

    def _check(self, blocks: np.ndarray) -> None:
        for block in blocks[self._due[blocks]].tolist():
            begin = block * DIGEST_BYTES
            if zlib.crc32(self._bytes[begin : begin + DIGEST_BYTES].data) != self._digests[block]:
                raise ValueError(
                    f"{self._name} is damaged: the checksum of its bytes {begin:,} to "
                    f"{begin + DIGEST_BYTES:,} differs. Restore the file from a copy, or create it "
                    "again"
                )
            self._due[block] = False


class _Digests:
    """Checksums of consecutive blocks of bytes, which may arrive in portions of any size."""

    def __init__(self) -> None:
        self._found: list[int] = []
        self._size = 0

    def add(self, data: memoryview) -> None:
        """Add the next bytes."""
        while len(data):
            inside = self._size % DIGEST_BYTES
            part, data = data[: DIGEST_BYTES - inside], data[DIGEST_BYTES - inside :]
            before = self._found.pop() if inside else 0
            self._found.append(zlib.crc32(part, before))
            self._size += len(part)

    def array(self) -> np.ndarray | None:
        """Return the CRC-32 of every block; None if the data is too small to be mapped."""
        if self._size < _MAPPED_BYTES:
            return None
        return np.array(self._found, dtype=np.uint32)


def text_stream(texts: Sequence[str]) -> RowStream:
    """Stream strings as a column that is as wide as the longest string, 4 bytes per character."""
    width = max(map(len, texts), default=0)
    return RowStream((len(texts),), np.dtype(f"<U{max(1, width)}"), texts)


def write_npz(
    path: str | Path, arrays: Mapping[str, np.ndarray | RowStream], provenance: dict
) -> None:
    """Write arrays and, as JSON text under ``protocol``, their provenance.

    ``np.load`` can read the file. It is written atomically, uncompressed and aligned, so
    :func:`read_npz` can memory-map the arrays. They are written in the given order, each from the
    first row to the last. ValueError is raised if the name does not end in .npz or an array
    contains Python objects.
    """
    if Path(path).suffix != ".npz":
        raise ValueError(f"arrays are saved as .npz, got {path}")
    # Write a new file instead of changing the old one, because readers may have mapped it.
    with atomic_file(path) as unfinished:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                digests = _write_member(archive, name, array).array()
                if digests is not None:
                    _write_member(archive, name + _DIGESTS, digests)
            _write_member(archive, "protocol", np.array(json.dumps(provenance)))


def _write_member(archive: zipfile.ZipFile, name: str, array: np.ndarray | RowStream) -> _Digests:
    """Write an array with alignment, and return the checksums of its bytes."""
    info = zipfile.ZipInfo(f"{name}.npy")
    # An extra field of the zip format (id, length, bytes) pads the header, so that the data after
    # it is aligned.
    before = archive.start_dir + len(info.filename.encode())
    length = -(before + _LOCAL_HEADER + _ZIP64_RECORD + 4) % _ALIGNMENT
    info.extra = struct.pack("<HH", _PADDING_FIELD, length) + bytes(length)
    digests = _Digests()
    if not isinstance(array, RowStream):
        array = np.asanyarray(array)
    if array.dtype.hasobject:
        raise ValueError("Object arrays cannot be saved")
    with archive.open(info, "w", force_zip64=True) as member:
        descr = np.lib.format.dtype_to_descr(array.dtype)
        header = {"descr": descr, "fortran_order": False, "shape": array.shape}
        np.lib.format.write_array_header_1_0(member, header)
        for block in array.blocks() if isinstance(array, RowStream) else _blocks(array):
            data = memoryview(block.tobytes())
            member.write(data)
            digests.add(data)
    return digests


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield consecutive rows of an array, up to :data:`BLOCK_BYTES` unless one row is larger."""
    if array.ndim == 0:
        yield array
        return
    count = max(1, BLOCK_BYTES * len(array) // max(1, array.nbytes))
    for begin in range(0, len(array), count):
        yield array[begin : begin + count]


def read_npz(
    path: str | Path, what: str, required: Sequence[str] = (), lazy: Collection[str] = ()
) -> tuple[Arrays, dict]:
    """Read the arrays of an .npz file by name, and the dict under ``protocol`` ({} if none).

    A large array written by :func:`write_npz` is memory-mapped copy-on-write. Its pages need no
    memory, and writing to the array does not change the file. Its checksum is compared first, in
    one pass over the file. ``lazy`` arrays are returned as :class:`CheckedArray` instead, which
    compares each block when it is first used, if the file contains checksums of blocks. ``what`` is
    the expected kind of file, for messages: "a feature file".

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is not an .npz file, an array is missing, a member is not an array,
            does not have the stated size or contains Python objects (which are never unpickled), or
            ``protocol`` is not JSON.
    """
    arrays: Arrays = {}
    try:
        # Check the format first, because np.load also accepts single .npy files.
        with open(path, "rb", opener=regular_file) as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("not an .npz archive, or truncated")
        with np.load(path, allow_pickle=False) as stored:
            members, size = stored.zip.infolist(), os.path.getsize(path)
            total = sum(info.file_size for info in members)
            # The members of a decompression bomb are far larger than its file.
            if len(members) > _MAX_MEMBERS or total > _MAX_EXPANSION * size + _SMALL_BYTES:
                raise ValueError(
                    f"its {len(members)} members unpack to {total:,} bytes, but the file has only "
                    f"{size:,}, so it is not a file of arrays"
                )
            arrays = _members(path, stored, lazy)
        provenance = json.loads(str(arrays.pop("protocol", "{}")))
        if not isinstance(provenance, dict):
            raise ValueError(f"its 'protocol' must be a JSON object, got {provenance!s:.60}")
        for name in required:
            if name not in arrays:
                raise ValueError(f"no {name!r} in it, only {sorted(arrays)}")
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {path}, expected {what}") from None
    except Exception as error:  # a damaged file can raise any error: struct.error, MemoryError, ...
        raise ValueError(
            f"{path} is not {what}: {str(error)[:500] or type(error).__name__}"
        ) from error
    return arrays, provenance


def _member_header(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str
) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read a member's shape, order and type; ValueError unless its length matches them exactly.

    The check comes first because NumPy allocates the shape before it reads the values.
    """
    with archive.open(info) as member:
        try:
            version = np.lib.format.read_magic(member)
        except ValueError:
            raise ValueError(f"{name!r} is not an array") from None
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{name!r} is an array in an unsupported format")
        read = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
        shape, fortran, dtype = read(member)
        stored = info.file_size - member.tell()
    if dtype.hasobject:
        raise ValueError(f"{name!r} contains Python objects. Object arrays are never unpickled")
    # Check each side before the product, which could overflow and match the size by coincidence.
    if not all(0 <= side <= _MAX_SIDE for side in shape):
        raise ValueError(f"{name!r} has the impossible shape {shape}")
    size = math.prod(shape) * dtype.itemsize
    empty_rows = size == 0 and shape[:1] != (0,)
    if size != stored or empty_rows:
        raise ValueError(
            f"{name!r} of shape {shape} and type {dtype} needs {size:,} bytes, but has {stored:,}"
        )
    return shape, fortran, dtype


def _members(path: str | Path, stored: np.lib.npyio.NpzFile, lazy: Collection[str]) -> Arrays:
    """Read or map the arrays of an open file by name, as :func:`read_npz` returns them."""
    arrays: Arrays = {}
    archive = stored.zip
    assert archive is not None
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        shape, fortran, dtype = _member_header(archive, info, name)
        offset = _mapped_offset(path, info)
        if offset is None:
            arrays[name] = stored[name]
            continue
        # Copy-on-write protects the file if somebody modifies a tensor that shares the memory.
        layout: Any = (offset, shape, "F" if fortran else "C")
        arrays[name] = np.memmap(path, dtype, "c", *layout)
        if name not in lazy:
            with archive.open(info) as member:  # zipfile verifies the checksum at the end
                while member.read(1 << 20):
                    pass
    for name in [name for name in arrays if name.endswith(_DIGESTS)]:
        digests, array = arrays.pop(name), name.removesuffix(_DIGESTS)
        if array in lazy and array in arrays:
            arrays[array] = CheckedArray(arrays[array], digests, f"{array!r} of {path}")
    return arrays


def _mapped_offset(path: str | Path, info: zipfile.ZipInfo) -> int | None:
    """Return where the values of a member begin in the file, or None if it cannot be mapped."""
    # Compressed data cannot be mapped, and mapping a small array costs more than reading it.
    if info.compress_type != zipfile.ZIP_STORED or info.file_size < _MAPPED_BYTES:
        return None
    with open(path, "rb", opener=regular_file) as file:
        file.seek(info.header_offset)
        # Name and extra-field lengths in the local header may differ from those in the directory.
        name_length, extra_length = struct.unpack("<HH", file.read(_LOCAL_HEADER)[26:30])
        file.seek(name_length, os.SEEK_CUR)
        # Map only files written by write_npz, because other programs may change files in place.
        if struct.pack("<H", _PADDING_FIELD) not in file.read(extra_length):
            return None
        if np.lib.format.read_magic(file) != (1, 0):
            return None
        np.lib.format.read_array_header_1_0(file)
        return None if file.tell() % _ALIGNMENT else file.tell()


def as_matrix(path: str | Path, array: np.ndarray, name: str) -> np.ndarray:
    """Return a contiguous float32 matrix (N, C), without copying one; ValueError otherwise."""
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise ValueError(
            f"{path}: {name!r} must be a matrix of numbers, got shape {array.shape} of "
            f"{array.dtype}"
        )
    return np.ascontiguousarray(array, dtype=np.float32)


def as_integers(path: str | Path, array: np.ndarray, name: str, count: int) -> np.ndarray:
    """Convert to (count,) int64; ValueError for other lengths and types, or 2**63 and more."""
    _check_length(path, array, name, count)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{path}: {name!r} must contain integers, got {array.dtype}")
    if array.dtype == np.uint64 and (array > np.iinfo(np.int64).max).any():
        raise ValueError(f"{path}: {name!r} contains {array.max()}, which exceeds 64-bit integers")
    return np.array(array, dtype=np.int64)


def as_strings(path: str | Path, array: np.ndarray, name: str, count: int) -> list[str]:
    """Convert to a list of ``count`` strings; ValueError for another length or no text."""
    _check_length(path, array, name, count)
    try:
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8")
        if array.dtype.kind != "U":
            raise ValueError(f"got {array.dtype}")
        return [str(text) for text in array.tolist()]
    except ValueError as error:  # bytes that are not UTF-8 or numbers that are not characters
        raise ValueError(f"{path}: {name!r} must contain text, {error}") from error


def _check_length(path: str | Path, array: np.ndarray, name: str, count: int) -> None:
    if array.shape != (count,):
        raise ValueError(f"{path}: {count} rows do not match {name!r} of shape {array.shape}")


def read_failures(
    path: str | Path, provenance: Mapping[str, Any], name: str = "failures"
) -> list[tuple[str, str]]:
    """Return the pairs of file and reason under an entry of a provenance.

    Raises:
        ValueError: If they are not pairs.
    """
    failures = at(provenance, name) or []
    if not isinstance(failures, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in failures
    ):
        raise ValueError(f"{path}: {name!r} in its protocol must be pairs of file and error")
    return [(str(file), str(why)) for file, why in failures]
