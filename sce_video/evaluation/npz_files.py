"""The .npz files of features and of scores: written atomically, read without pickle or copies."""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.utils.atomic_file import atomic_file

#: Array data starts at a multiple of this many bytes, so that it can be mapped and used as it is.
_ALIGNMENT = 64
#: A member of fewer bytes is read: a mapping gains nothing.
_MAPPED_BYTES = 1 << 20
#: Lengths of the fixed part of a zip member's header and of its record of 64-bit sizes.
_LOCAL_HEADER, _ZIP64_RECORD = 30, 20
#: Number of the zip field that holds padding, as Android's zipalign writes it.
_PADDING_FIELD = 0xD935


def write_npz(path: str | Path, arrays: Mapping[str, np.ndarray], protocol: dict) -> None:
    """Write arrays and, as JSON text under ``protocol``, a dict; ``np.load`` reads it.

    Written beside its place and moved there, so a broken run leaves no half file. Uncompressed
    and aligned: :func:`read_npz` maps the arrays into memory instead of reading them.

    Raises:
        ValueError: the name does not end in .npz, or an array holds Python objects.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"arrays are saved as .npz, got {path}")
    members = {**arrays, "protocol": np.array(json.dumps(protocol))}
    with atomic_file(path) as unfinished:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as archive:
            for name, array in members.items():
                info = zipfile.ZipInfo(f"{name}.npy")
                info.extra = _padding(archive.start_dir, info.filename)
                with archive.open(info, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _padding(start: int, name: str) -> bytes:
    """A header field that moves the data of a member at ``start`` to an aligned place."""
    before = start + _LOCAL_HEADER + len(name.encode()) + _ZIP64_RECORD
    length = -(before + 4) % _ALIGNMENT  # a field is its number, its length and as many bytes
    return struct.pack("<HH", _PADDING_FIELD, length) + bytes(length)


def read_npz(
    path: str | Path, what: str, required: Sequence[str] = ()
) -> tuple[dict[str, np.ndarray], dict]:
    """The arrays of an .npz file by name, and the dict that ``protocol`` holds ({} if none).

    A large array that :func:`write_npz` wrote is mapped copy-on-write: its pages come from disk
    when they are used, and writing to the array does not change the file. All others are read into
    memory, from compressed files too.

    Args:
        path: The file.
        what: What it should be, for messages: "a feature file".
        required: Arrays that it must have.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not an .npz file, a member that is no array or holds Python objects (they are
            never unpickled), a protocol that is not a JSON object, a required array missing.
    """
    arrays: dict[str, np.ndarray] = {}
    try:
        with open(path, "rb") as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("not an .npz archive, or cut short")
        with np.load(path, allow_pickle=False) as stored:
            for info in stored.zip.infolist():
                name = info.filename.removesuffix(".npy")
                mapped = _mapped(path, info)
                arrays[name] = stored[name] if mapped is None else mapped
                if not isinstance(arrays[name], np.ndarray):
                    raise ValueError(f"{name!r} is not an array")
        protocol = _protocol(arrays.pop("protocol", None))
        for name in required:
            if name not in arrays:
                raise ValueError(f"no {name!r} in it, only {sorted(arrays)}")
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {path}, expected {what}") from None
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is not {what}: {error}") from error
    return arrays, protocol


def _mapped(path: str | Path, info: zipfile.ZipInfo) -> np.ndarray | None:
    """The array of a member mapped into memory, None if it has to be read."""
    if info.compress_type != zipfile.ZIP_STORED or info.file_size < _MAPPED_BYTES:
        return None
    with open(path, "rb") as file:
        file.seek(info.header_offset)
        # The lengths of name and extra field may differ from those in the archive's directory.
        name_length, extra_length = struct.unpack("<HH", file.read(_LOCAL_HEADER)[26:30])
        file.seek(name_length, os.SEEK_CUR)
        # Only what was written here is mapped: it is never changed in place, others' files may be.
        if struct.pack("<H", _PADDING_FIELD) not in file.read(extra_length):
            return None
        if np.lib.format.read_magic(file) != (1, 0):
            return None
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        offset = file.tell()
    if dtype.hasobject or offset % _ALIGNMENT:
        return None
    return np.memmap(path, dtype, "c", offset, shape, "F" if fortran else "C")


def _protocol(stored: np.ndarray | None) -> dict:
    if stored is None:
        return {}
    protocol = json.loads(str(stored))
    if not isinstance(protocol, dict):
        raise ValueError(f"its 'protocol' must be a JSON object, got {stored!s:.60}")
    return protocol


def as_matrix(path: str | Path, array: np.ndarray, name: str) -> np.ndarray:
    """``array`` as a float32 matrix (N, C), itself where it is one.

    Raises:
        ValueError: not a matrix of numbers.
    """
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise ValueError(
            f"{path}: {name!r} must be a matrix of numbers, got shape {array.shape} of "
            f"{array.dtype}"
        )
    return np.ascontiguousarray(array, dtype=np.float32)


def as_integers(path: str | Path, array: np.ndarray, name: str, count: int) -> np.ndarray:
    """``array`` as (count,) int64.

    Raises:
        ValueError: another length, or not integers.
    """
    _check_length(path, array, name, count)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{path}: {name!r} must hold integers, got {array.dtype}")
    return np.array(array, dtype=np.int64)


def as_strings(path: str | Path, array: np.ndarray, name: str, count: int) -> list[str]:
    """``array`` as a list of ``count`` strings.

    Raises:
        ValueError: another length, or not text.
    """
    _check_length(path, array, name, count)
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    if array.dtype.kind != "U":
        raise ValueError(f"{path}: {name!r} must hold text, got {array.dtype}")
    return [str(text) for text in array.tolist()]


def _check_length(path: str | Path, array: np.ndarray, name: str, count: int) -> None:
    if array.shape != (count,):
        raise ValueError(f"{path}: {count} rows do not go with {name!r} of shape {array.shape}")


def read_failures(path: str | Path, protocol: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The failures that a protocol lists: files that could not be decoded, with the error.

    Raises:
        ValueError: not a list of pairs.
    """
    failures = protocol.get("failures") or []
    if not isinstance(failures, list) or not all(
        isinstance(pair, list) and len(pair) == 2 for pair in failures
    ):
        raise ValueError(f"{path}: 'failures' in its protocol must be pairs of file and error")
    return [(str(file), str(why)) for file, why in failures]
