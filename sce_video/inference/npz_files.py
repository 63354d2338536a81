"""``.npz`` files of arrays: atomic, memory-mapped, without pickle; they need numpy alone."""

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

#: Array data starts at a multiple of this many bytes, so that it can be memory-mapped.
_ALIGNMENT = 64
#: Smaller members are read: mapping them saves nothing.
_MAPPED_BYTES = 1 << 20
#: Bytes of the fixed part of a zip member's header.
_LOCAL_HEADER = 30
#: Bytes of a zip member's record of 64-bit sizes.
_ZIP64_RECORD = 20
#: Id of the zip extra field for padding, the same as of Android's zipalign.
_PADDING_FIELD = 0xD935
# Limits that no file of arrays reaches, against files that fill the memory.
#: How many times as large a file becomes at most when it is decompressed.
_MAX_EXPANSION = 100
#: Decompressed bytes that are allowed in addition, so that small files of equal numbers are read.
_SMALL_BYTES = 1 << 26
#: Arrays in a file at most.
_MAX_MEMBERS = 1000
#: Length of one axis of an array at most.
_MAX_SIDE = 2**40
#: Bytes of an array that are in memory at once where it is written from an iterator.
BLOCK_BYTES = 8 << 20
#: Bytes of an array that share a checksum: as much is read when one row of it is used.
DIGEST_BYTES = 1 << 18
#: End of the name of the member with the checksums of an array.
_DIGESTS = ".crc32"


@dataclass(frozen=True)
class RowStream:
    """An array that is written row by row, so that memory never holds all of it.

    The rows are as many as ``shape`` says first, and consumed when the array is written.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    rows: Iterable[Any]

    def blocks(self) -> Iterator[np.ndarray]:
        """Consecutive rows as arrays of at most :data:`BLOCK_BYTES`; ValueError if they differ."""
        row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
        count = max(1, BLOCK_BYTES // max(1, row_bytes))
        rows, written = iter(self.rows), 0
        while len(block := np.array(list(islice(rows, count)), self.dtype)):
            if block.shape[1:] != self.shape[1:]:
                raise ValueError(f"a row of shape {block.shape[1:]} in an array {self.shape}")
            written += len(block)
            yield block
        if written != self.shape[0]:
            raise ValueError(f"{written} rows of an array of {self.shape[0]}")


class CheckedArray:
    """A memory-mapped array of which each block is compared with its checksum when first used.

    Only what is used is read, so that an index of millions of videos opens immediately.

    Args:
        array: Of C order, of a file.
        digests: CRC-32 of every ``DIGEST_BYTES`` of it.
        name: File and array, for messages.
    """

    def __init__(self, array: np.ndarray, digests: np.ndarray, name: str) -> None:
        self.base, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim
        self._bytes, self._digests, self._name = array.reshape(-1).view(np.uint8), digests, name
        self._row_bytes = array.nbytes // max(1, len(array))
        self._due = np.ones(-(-array.nbytes // DIGEST_BYTES), dtype=bool)
        if digests.shape != self._due.shape or digests.dtype != np.uint32:
            raise ValueError(f"{name} has {digests.shape} checksums of {len(self._due)} blocks")

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Rows by number, slice, mask or array of numbers; ValueError if they are damaged."""
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
        """Check the blocks of some stretches of rows."""
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
        """All of it, checked. ValueError: a block is damaged."""
        self._check(np.arange(len(self._due)))
        return self.base

    def _check(self, blocks: np.ndarray) -> None:
        for block in blocks[self._due[blocks]].tolist():
            begin = block * DIGEST_BYTES
            if zlib.crc32(self._bytes[begin : begin + DIGEST_BYTES].data) != self._digests[block]:
                raise ValueError(
                    f"{self._name} is damaged: the checksum of its bytes {begin:,} to "
                    f"{begin + DIGEST_BYTES:,} differs. Restore the file from a copy, or make it "
                    "again"
                )
            self._due[block] = False


class _Digests:
    """Checksums of consecutive blocks of bytes that arrive in any portions."""

    def __init__(self) -> None:
        self._found: list[int] = []
        self._size = 0

    def add(self, data: memoryview) -> None:
        """Take the next bytes."""
        while len(data):
            inside = self._size % DIGEST_BYTES
            part, data = data[: DIGEST_BYTES - inside], data[DIGEST_BYTES - inside :]
            before = self._found.pop() if inside else 0
            self._found.append(zlib.crc32(part, before))
            self._size += len(part)

    def array(self) -> np.ndarray | None:
        """CRC-32 of every block, of what is large enough to be mapped; else None."""
        if self._size < _MAPPED_BYTES:
            return None
        return np.array(self._found, dtype=np.uint32)


def text_stream(texts: Sequence[str]) -> RowStream:
    """Text as a column of the width of the longest; an array of it takes four bytes a character."""
    width = max(map(len, texts), default=0)
    return RowStream((len(texts),), np.dtype(f"<U{max(1, width)}"), texts)


def write_npz(
    path: str | Path, arrays: Mapping[str, np.ndarray | RowStream], provenance: dict
) -> None:
    """Write arrays and, as JSON text under ``protocol``, their provenance; ``np.load`` reads it.

    The file is written atomically, uncompressed and aligned, so :func:`read_npz` can memory-map the
    arrays. They are written in their order, each from the first row to the last. Raises ValueError:
    the name does not end in .npz, or an array holds Python objects.
    """
    if Path(path).suffix != ".npz":
        raise ValueError(f"arrays are saved as .npz, got {path}")
    # Readers have the old file mapped until this one replaces it.
    with atomic_file(path) as unfinished:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                digests = _write_member(archive, name, array).array()
                if digests is not None:
                    _write_member(archive, name + _DIGESTS, digests)
            _write_member(archive, "protocol", np.array(json.dumps(provenance)))


def _write_member(archive: zipfile.ZipFile, name: str, array: np.ndarray | RowStream) -> _Digests:
    """Write an array, aligned; returns the checksums of its bytes."""
    info = zipfile.ZipInfo(f"{name}.npy")
    # A zip extra field (its id, its length, its bytes) that aligns the data behind it.
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
    """Consecutive rows of an array, of at most :data:`BLOCK_BYTES` where a row is smaller."""
    if array.ndim == 0:
        yield array
        return
    count = max(1, BLOCK_BYTES * len(array) // max(1, array.nbytes))
    for begin in range(0, len(array), count):
        yield array[begin : begin + count]


def read_npz(
    path: str | Path, what: str, required: Sequence[str] = (), lazy: Collection[str] = ()
) -> tuple[dict[str, Any], dict]:
    """The arrays of an .npz file by name, and the dict under ``protocol`` ({} if there is none).

    A large array written by :func:`write_npz` is memory-mapped copy-on-write: its pages need no
    memory, and writing to the array does not change the file. Its checksum is compared first, in
    one pass over the file. The ``lazy`` arrays are a :class:`CheckedArray` instead, of which each
    block is compared when it is first used, if the file has checksums of blocks. Files of earlier
    versions have none. ``what`` is the expected kind of file, for messages: "a feature file".

    Raises:
        FileNotFoundError: no such file.
        ValueError: not an .npz file, a member that is no array, has not the size that it states or
            holds Python objects (never unpickled), no JSON in ``protocol``, an array missing.
    """
    arrays: dict[str, Any] = {}
    try:
        # np.load would also take a single .npy file.
        with open(path, "rb", opener=regular_file) as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("not an .npz archive, or truncated")
        with np.load(path, allow_pickle=False) as stored:
            members, size = stored.zip.infolist(), os.path.getsize(path)
            total = sum(info.file_size for info in members)
            # A bomb: its members are far larger than the file.
            if len(members) > _MAX_MEMBERS or total > _MAX_EXPANSION * size + _SMALL_BYTES:
                raise ValueError(
                    f"its {len(members)} members become {total:,} bytes, the file has {size:,}: "
                    "that is no file of arrays"
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
    except Exception as error:  # a damaged file can raise anything: struct.error, MemoryError, ...
        raise ValueError(
            f"{path} is not {what}: {str(error)[:500] or type(error).__name__}"
        ) from error
    return arrays, provenance


def _member_header(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str
) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type of a member; ValueError unless it is an array of just that length.

    numpy allocates the shape before it reads the values.
    """
    with archive.open(info) as member:
        try:
            version = np.lib.format.read_magic(member)
        except ValueError:
            raise ValueError(f"{name!r} is not an array") from None
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{name!r} is an array of a kind that is not read here")
        read = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
        shape, fortran, dtype = read(member)
        stored = info.file_size - member.tell()
    if dtype.hasobject:
        raise ValueError(f"{name!r} holds Python objects: object arrays are never unpickled")
    # Before the product: sides that overflow could make a size that fits.
    if not all(0 <= side <= _MAX_SIDE for side in shape):
        raise ValueError(f"{name!r} has the impossible shape {shape}")
    size = math.prod(shape) * dtype.itemsize
    empty_rows = size == 0 and shape[:1] != (0,)
    if size != stored or empty_rows:
        raise ValueError(
            f"{name!r} of shape {shape} and type {dtype} takes {size:,} bytes, not {stored:,}"
        )
    return shape, fortran, dtype


def _members(
    path: str | Path, stored: np.lib.npyio.NpzFile, lazy: Collection[str]
) -> dict[str, Any]:
    """The arrays of an open file by name, read or mapped, as :func:`read_npz` returns them."""
    arrays: dict[str, Any] = {}
    archive = stored.zip
    assert archive is not None
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        shape, fortran, dtype = _member_header(archive, info, name)
        offset = _mapped_offset(path, info)
        if offset is None:
            arrays[name] = stored[name]
            continue
        # Copy-on-write: a tensor of it may be changed, the file stays.
        layout: Any = (offset, shape, "F" if fortran else "C")
        arrays[name] = np.memmap(path, dtype, "c", *layout)
        if name not in lazy:
            with archive.open(info) as member:  # at its end zipfile compares the checksum
                while member.read(1 << 20):
                    pass
    for name in [name for name in arrays if name.endswith(_DIGESTS)]:
        digests, array = arrays.pop(name), name.removesuffix(_DIGESTS)
        if array in lazy and array in arrays:
            arrays[array] = CheckedArray(arrays[array], digests, f"{array!r} of {path}")
    return arrays


def _mapped_offset(path: str | Path, info: zipfile.ZipInfo) -> int | None:
    """Where in the file the values of a member begin, to map them; None if it has to be read."""
    # Compressed bytes are no array, and a small one costs more to map than to read.
    if info.compress_type != zipfile.ZIP_STORED or info.file_size < _MAPPED_BYTES:
        return None
    with open(path, "rb", opener=regular_file) as file:
        file.seek(info.header_offset)
        # Lengths of name and extra field may differ from those in the archive's directory.
        name_length, extra_length = struct.unpack("<HH", file.read(_LOCAL_HEADER)[26:30])
        file.seek(name_length, os.SEEK_CUR)
        # Only files of write_npz are mapped: other programs may change a file in place.
        if struct.pack("<H", _PADDING_FIELD) not in file.read(extra_length):
            return None
        if np.lib.format.read_magic(file) != (1, 0):
            return None
        np.lib.format.read_array_header_1_0(file)
        return None if file.tell() % _ALIGNMENT else file.tell()


def as_matrix(path: str | Path, array: np.ndarray, name: str) -> np.ndarray:
    """``array`` as a contiguous float32 matrix (N, C), not copied if it is one; else ValueError."""
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise ValueError(
            f"{path}: {name!r} must be a matrix of numbers, got shape {array.shape} of "
            f"{array.dtype}"
        )
    return np.ascontiguousarray(array, dtype=np.float32)


def as_integers(path: str | Path, array: np.ndarray, name: str, count: int) -> np.ndarray:
    """``array`` as (count,) int64; ValueError for other lengths and types, or 2**63 or more."""
    _check_length(path, array, name, count)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{path}: {name!r} must hold integers, got {array.dtype}")
    if array.dtype == np.uint64 and (array > np.iinfo(np.int64).max).any():
        raise ValueError(f"{path}: {name!r} holds {array.max()}, more than 64-bit integers can")
    return np.array(array, dtype=np.int64)


def as_strings(path: str | Path, array: np.ndarray, name: str, count: int) -> list[str]:
    """``array`` as a list of ``count`` strings; ValueError for another length, or no text."""
    _check_length(path, array, name, count)
    try:
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8")
        if array.dtype.kind != "U":
            raise ValueError(f"got {array.dtype}")
        return [str(text) for text in array.tolist()]
    except ValueError as error:  # also bytes that are no UTF-8, and numbers that are no characters
        raise ValueError(f"{path}: {name!r} must hold text, {error}") from error


def _check_length(path: str | Path, array: np.ndarray, name: str, count: int) -> None:
    if array.shape != (count,):
        raise ValueError(f"{path}: {count} rows do not match {name!r} of shape {array.shape}")


def read_failures(
    path: str | Path, provenance: Mapping[str, Any], name: str = "failures"
) -> list[tuple[str, str]]:
    """Return the pairs of file and reason under a name of a provenance.

    Raises:
        ValueError: If they are not pairs.
    """
    failures = provenance.get(name) or []
    if not isinstance(failures, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in failures
    ):
        raise ValueError(f"{path}: {name!r} in its protocol must be pairs of file and error")
    return [(str(file), str(why)) for file, why in failures]
