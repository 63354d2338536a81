"""The columns of a table of videos, and what a reader needs of a row."""

from __future__ import annotations

import json
import os
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Of the columns and their meaning; stored in the schema's metadata. Rows of another version are
#: written again.
FORMAT = "1"
FORMAT_KEY = b"sce_video.table"
STREAM = "stream"
#: All that a reader needs of a row beside its packets, in one value: see :meth:`FrameIndex.pack`.
INDEX = "index"
_HEAD = struct.Struct("<II")  # CRC-32 of what follows it, bytes of the JSON


def table_path(path: str) -> str:
    """A path as the table stores it: text; bytes that are no UTF-8 are written as ``\\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class CodecParameters:
    """What a decoder needs beside the packets; hashable, equal for files of one encoder.

    Attributes:
        codec: FFmpeg's name of the decoder.
        extradata: The codec's header.
        width: Pixels, as coded in the container.
        height: Pixels.
        colors: Range, space, primaries and transfer characteristics, FFmpeg's numbers.
    """

    codec: str
    extradata: bytes
    width: int
    height: int
    colors: tuple[int, int, int, int]


class DamagedRowError(ValueError):
    """The frame index of a row is damaged."""


@dataclass(frozen=True)
class FrameIndex:
    """Where the frames of a row are, and how to decode them.

    Packets are stored one behind the other, in the order of display, which is that of decoding.

    Attributes:
        offsets: (F + 1,) int64: packet i is at bytes ``offsets[i]`` to ``offsets[i + 1]``.
        checks: (F,) uint32, CRC-32 of each packet.
        pts: (F,) int64, ascending, in units of the time base.
        is_key: (F,) bool, where decoding can start.
        time_base: Numerator and denominator of the unit of ``pts``, seconds.
        duration: Seconds from the first frame's start to the last frame's end.
        parameters: Of the decoder.
        turns: Quarter turns counter-clockwise with which frames are displayed.
    """

    offsets: np.ndarray
    checks: np.ndarray
    pts: np.ndarray
    is_key: np.ndarray
    time_base: tuple[int, int]
    duration: float
    parameters: CodecParameters
    turns: int

    @property
    def timestamps(self) -> np.ndarray:
        """(F,) float64 seconds, the first is 0; computed as the file reader computes them."""
        numerator, denominator = self.time_base
        return (self.pts - self.pts[0]) * numerator / denominator

    def packets_for(self, indices: np.ndarray) -> np.ndarray:
        """Ascending positions of the packets that must be decoded for some frames.

        With key frames only, these are the frames themselves; else each run from the last key
        frame at or before a wanted frame to that frame::

            packets   K . . . . K . . . .
            wanted        x         x        -> 0 1 2  5 6 7
        """
        if self.is_key.all():
            return indices
        keys = np.flatnonzero(self.is_key)
        starts = keys[np.searchsorted(keys, indices, side="right") - 1]
        needed = np.zeros(len(self.pts) + 1, dtype=np.int64)
        np.add.at(needed, starts, 1)
        np.add.at(needed, indices + 1, -1)
        return np.flatnonzero(np.cumsum(needed[:-1]) > 0)

    def pack(self) -> bytes:
        """The index as one value of the table.

        In order: CRC-32 of the rest and the length of the JSON, uint32 each; JSON of all that is
        not an array (and ``frames``, their number F); F uint32 sizes; F uint32 checksums; F int64
        time stamps, without ``step``, their constant distance; F uint8 flags of key frames, unless
        ``all_keys``. All little-endian.
        """
        steps = np.unique(np.diff(self.pts))
        even, all_keys = len(steps) < 2, bool(self.is_key.all())
        parameters = self.parameters
        facts = {
            "frames": len(self.pts),
            "first_pts": int(self.pts[0]),
            "step": (int(steps[0]) if len(steps) else 1) if even else None,
            "all_keys": all_keys,
            "time_base": self.time_base,
            "duration": self.duration,
            "codec": parameters.codec,
            "extradata": parameters.extradata.hex(),
            "size": [parameters.width, parameters.height],
            "colors": parameters.colors,
            "turns": self.turns,
        }
        text = json.dumps(facts, separators=(",", ":")).encode()
        arrays = [np.diff(self.offsets).astype("<u4"), self.checks.astype("<u4")]
        arrays += [] if even else [self.pts.astype("<i8")]
        arrays += [] if all_keys else [self.is_key.astype(np.uint8)]
        rest = b"".join([text, *(array.tobytes() for array in arrays)])
        length = struct.pack("<I", len(text))
        return struct.pack("<I", zlib.crc32(length + rest)) + length + rest

    @classmethod
    def unpack(cls, packed: bytes) -> FrameIndex:
        """The index of a value that :meth:`pack` has returned.

        Raises:
            DamagedRowError: It is another one.
        """
        if (
            len(packed) < _HEAD.size
            or zlib.crc32(memoryview(packed)[4:]) != _HEAD.unpack_from(packed)[0]
        ):
            raise DamagedRowError("its frame index is damaged")
        begin = _HEAD.size + _HEAD.unpack_from(packed)[1]
        try:
            facts = json.loads(packed[_HEAD.size : begin])
            count, step = facts["frames"], facts["step"]
            sizes = np.frombuffer(packed, "<u4", count, begin).astype(np.int64)
            checks = np.frombuffer(packed, "<u4", count, begin + 4 * count)
            begin += 8 * count
            if step is None:
                pts = np.frombuffer(packed, "<i8", count, begin)
                begin += 8 * count
            else:
                pts = facts["first_pts"] + step * np.arange(count, dtype=np.int64)
            is_key = np.ones(count, dtype=bool)
            if not facts["all_keys"]:
                is_key = np.frombuffer(packed, np.uint8, count, begin).astype(bool)
            width, height = facts["size"]
            parameters = CodecParameters(
                facts["codec"], bytes.fromhex(facts["extradata"]), width, height,
                tuple(facts["colors"]),
            )  # fmt: skip
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
            base = (facts["time_base"][0], facts["time_base"][1])
            duration, turns = facts["duration"], facts["turns"]
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError) as error:
            raise DamagedRowError(f"its frame index is damaged: {error}") from error
        return cls(offsets, checks, pts, is_key, base, duration, parameters, turns)


def schema() -> Any:
    """The ``pyarrow.Schema`` of a table; see docs/tables.md for the columns."""
    import pyarrow as pa

    from sce_video.datasets.tables.storage import import_lance

    fields = [
        ("path", pa.string()),
        ("label", pa.int64()),
        ("class_name", pa.string()),
        ("failure", pa.string()),
        ("source_size", pa.int64()),
        ("source_mtime_ns", pa.int64()),
        ("settings", pa.string()),
        (INDEX, pa.binary()),
        ("frames", pa.int64()),
        ("duration", pa.float64()),
        ("codec", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("pixel_format", pa.string()),
        ("rotation", pa.int32()),
        ("size", pa.int64()),
        ("hash", pa.binary()),
    ]
    stream = import_lance().blob_field(STREAM)
    columns = [pa.field(name, kind) for name, kind in fields]
    return pa.schema([*columns, stream], metadata={FORMAT_KEY: FORMAT.encode()})
