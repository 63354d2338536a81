"""``.npz`` files of arrays: atomic, memory-mapped, without pickle; they need numpy alone."""

from __future__ import annotations

import json
import math
import os
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
#: Bytes of the fixed part of a zip member's header, and of its record of 64-bit sizes.
_LOCAL_HEADER, _ZIP64_RECORD = 30, 20
#: Id of the zip extra field for padding, the same as of Android's zipalign.
_PADDING_FIELD = 0xD935
#: A compressed file that becomes more than this many times as large is no file of arrays.
_MAX_EXPANSION, _SMALL_BYTES = 100, 1 << 26
_MAX_MEMBERS, _MAX_SIDE = 1000, 2**40
#: Bytes of an array that are in memory at once where it is written from an iterator.
BLOCK_BYTES = 8 << 20


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
    members = {**arrays, "protocol": np.array(json.dumps(provenance))}
    # Readers have the old file mapped until this one replaces it.
    with atomic_file(path) as unfinished:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as archive:
            for name, array in members.items():
                info = zipfile.ZipInfo(f"{name}.npy")
                # A zip extra field (its id, its length, its bytes) that aligns the data behind it.
                before = archive.start_dir + len(info.filename.encode())
                length = -(before + _LOCAL_HEADER + _ZIP64_RECORD + 4) % _ALIGNMENT
                info.extra = struct.pack("<HH", _PADDING_FIELD, length) + bytes(length)
                with archive.open(info, "w", force_zip64=True) as member:
                    if not isinstance(array, RowStream):
                        np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
                        continue
                    descr = np.lib.format.dtype_to_descr(array.dtype)
                    header = {"descr": descr, "fortran_order": False, "shape": array.shape}
                    np.lib.format.write_array_header_1_0(member, header)
                    for block in array.blocks():
                        member.write(block.tobytes())


def read_npz(
    path: str | Path, what: str, required: Sequence[str] = ()
) -> tuple[dict[str, np.ndarray], dict]:
    """The arrays of an .npz file by name, and the dict under ``protocol`` ({} if there is none).

    A large array written by :func:`write_npz` is memory-mapped copy-on-write: its pages are read
    when they are used, and writing to the array does not change the file. ``what`` is the expected
    kind of file, for messages: "a feature file".

    Raises:
        FileNotFoundError: no such file.
        ValueError: not an .npz file, a member that is no array, has not the size that it states or
            holds Python objects (never unpickled), no JSON in ``protocol``, an array missing.
    """
    arrays: dict[str, np.ndarray] = {}
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
            for info in members:
                name = info.filename.removesuffix(".npy")
                shape, fortran, dtype = _member_header(stored.zip, info, name)
                offset = _mapped_offset(path, info)
                if offset is None:
                    arrays[name] = stored[name]
                else:  # copy-on-write: a tensor of it may be changed, the file stays
                    layout: Any = (offset, shape, "F" if fortran else "C")
                    arrays[name] = np.memmap(path, dtype, "c", *layout)
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


def read_failures(path: str | Path, provenance: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Files that could not be decoded, with the error, of a provenance; ValueError if no pairs."""
    failures = provenance.get("failures") or []
    if not isinstance(failures, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in failures
    ):
        raise ValueError(f"{path}: 'failures' in its protocol must be pairs of file and error")
    return [(str(file), str(why)) for file, why in failures]
