"""The columns of a table of videos, the frame index of a row, and the list of rows."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sce_video.datasets.tables.table import TableError, cannot, read_table
from sce_video.datasets.video_list import VideoList, video_of

#: Version of the table format: its columns and what they mean.
FORMAT = "1"
#: Key in the schema's metadata under which the version is stored.
FORMAT_KEY = b"sce_video.table"
#: Name of the column that contains the packets.
STREAM = "stream"
#: Name of the column that contains everything else that a reader needs from a row
#: (:meth:`FrameIndex.pack`).
INDEX = "index"
_HEAD = struct.Struct("<II")  # CRC-32 of the rest, and size of the JSON text in bytes


def table_path(path: str) -> str:
    r"""Return the text of a path in a table. Bytes that are not UTF-8 become ``\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class CodecParameters:
    """Parameters of a decoder, which are usually equal for all files of an encoder."""

    #: FFmpeg's name for the decoder.
    codec: str
    #: The codec's header bytes.
    extradata: bytes
    #: Width in pixels, as stated in the container.
    width: int
    #: Height in pixels, as stated in the container.
    height: int
    #: FFmpeg's codes for colour range, colour space, primaries and transfer characteristics.
    colors: tuple[int, int, int, int]


class DamagedRowError(ValueError):
    """The frame index of a row is damaged."""


@dataclass(frozen=True)
class FrameIndex:
    """Positions of a row's packets in display order, and everything for decoding them.

    Attributes:
        offsets: (F + 1,) int64. Packet i consists of the bytes ``offsets[i]`` to ``offsets[i +
            1]``.
        checks: (F,) uint32, CRC-32 of each packet.
        pts: (F,) int64, timestamps, ascending.
        is_key: (F,) bool, whether decoding can start at a packet.
        time_base: Unit of ``pts`` in seconds, numerator and denominator.
        duration: Seconds from the first frame's start to the last frame's end.
        parameters: Parameters of the decoder.
        turns: Orientation of the frames, see :func:`~.av_reader.orientation_of`.
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
        """Return the seconds (F,) float64 from the first frame, as the file reader returns them."""
        numerator, denominator = self.time_base
        return (self.pts - self.pts[0]) * numerator / denominator

    def packets_for(self, indices: np.ndarray) -> np.ndarray:
        """Return the ascending positions of the packets that must be decoded for some frames.

        These are the packets from the last key frame at or before a frame to the frame::

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
        """Return the index as one value of the table.

        The value consists of the following little-endian parts:

        - the CRC-32 of the rest and the length of the JSON, each uint32
        - JSON of everything that is not an array, including the number F of ``frames``
        - F uint32 sizes, and F uint32 checksums
        - F int64 timestamps, unless they have a constant distance ``step``
        - F uint8 flags of key frames, unless ``all_keys`` is set
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
        """Unpack a value of :meth:`pack`; DamagedRowError if it is damaged."""
        check, length = _HEAD.unpack_from(packed.ljust(_HEAD.size, b"\0"))
        if len(packed) < _HEAD.size or zlib.crc32(memoryview(packed)[4:]) != check:
            raise DamagedRowError("its frame index is damaged")
        begin = _HEAD.size + length
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
    """Return the ``pyarrow.Schema`` of a table. docs/tables.md describes the columns."""
    import pyarrow as pa

    from sce_video.datasets.tables.table import import_lance

    text, whole, short, raw = pa.string(), pa.int64(), pa.int32(), pa.binary()
    fields = [
        ("path", text), ("label", whole), ("class_name", text), ("failure", text),
        ("source_size", whole), ("source_mtime_ns", whole), ("settings", text),
        (INDEX, raw), ("frames", whole), ("duration", pa.float64()), ("codec", text),
        ("width", short), ("height", short), ("pixel_format", text), ("rotation", short),
        ("size", whole), ("hash", raw),
    ]  # fmt: skip
    stream = import_lance().blob_field(STREAM)
    columns = [pa.field(name, kind) for name, kind in fields]
    return pa.schema([*columns, stream], metadata={FORMAT_KEY: FORMAT.encode()})


_COLUMNS = ("path", "label", "class_name", "failure")


@dataclass(frozen=True)
class RowList:
    """The videos in one version of a table."""

    videos: VideoList  # paths and labels
    rows: np.ndarray  # row number of each video, (N,) int64
    version: int  # version of the table


def list_rows(
    table: str, storage_options: Mapping[str, str] | None = None, listed: VideoList | None = None
) -> RowList:
    """List the rows of a table, or the rows of the videos in an annotation list.

    Without a list, these are all rows except failed imports, sorted by path like a folder. Labels
    are ranks of the class folders, or the labels of the imported list. With a list, order and
    labels are those of the list, and a video whose import failed is a bad file.

    Raises:
        TableError: If the table cannot be read, or is not a table of videos.
        ValueError: If the table contains no video, or lacks a listed video.
        MissingPackageError: If Lance is not installed.
    """
    opened = read_table(table, storage_options)
    check_format(table, opened.metadata)
    try:
        content = opened.call("read", list(_COLUMNS))
    except (OSError, RuntimeError, ValueError) as error:
        raise TableError(cannot("list the rows of", table, error)) from error
    import pyarrow as pa

    found = _of_content(table, content, opened.version, listed)
    del content
    # Otherwise, Arrow's memory pool would keep four times as much memory as the list takes.
    pa.default_memory_pool().release_unused()
    return found


def _of_content(table: str, content: Any, version: int, listed: VideoList | None) -> RowList:
    import pyarrow as pa
    import pyarrow.compute as pc

    paths = content["path"].cast(pa.large_string()).combine_chunks()
    order = pc.sort_indices(paths)  # stable, so rows with the same path stay in order
    ordered = paths.take(order)
    last = pc.not_equal(ordered[:-1], ordered[1:])  # marks the last row of each path
    newest = order.filter(pa.concat_arrays([last, pa.array([True] * min(1, len(paths)))]))
    if listed is not None:
        wanted = (table_path(video_of(listed.path(index))) for index in range(len(listed)))
        kept = pc.index_in(pa.array(wanted, pa.large_string()), paths.take(newest))
        if kept.null_count:
            first = table_path(video_of(listed.path(pc.index(kept.is_null(), True).as_py())))
            raise ValueError(
                f"{kept.null_count} of the {len(listed)} listed videos are not in the table "
                f"{table!r}, for example {first!r}. Import them with sce-video import"
            )
        rows = newest.take(kept).to_numpy().astype(np.int64)
        return RowList(listed, rows, version)
    failures = content["failure"].combine_chunks().take(newest)
    kept = newest.filter(pc.equal(pc.fill_null(failures, ""), ""))
    if len(kept) == 0:
        raise ValueError(f"the table {table!r} contains no video that can be read")
    names = content["class_name"].combine_chunks().take(kept)
    classes = pc.unique(names).drop_null().sort()
    labels = content["label"].combine_chunks().take(kept)
    if len(classes):
        labels = pc.fill_null(pc.index_in(names, classes), -1)
    labels = labels.to_numpy(zero_copy_only=False).astype(np.int64)
    shown = paths.take(kept)  # build the list without a Python object per path
    _, offsets, data = shown.buffers()
    ends = np.frombuffer(offsets, np.int64)[shown.offset : shown.offset + len(shown) + 1]
    blob = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].copy()
    videos = VideoList(blob, ends[1:] - ends[0], labels, tuple(classes.to_pylist()))
    return RowList(videos, kept.to_numpy().astype(np.int64), version)


def check_format(table: str, metadata: Mapping[bytes, bytes]) -> None:
    """Raise TableError unless the metadata of a schema contain this format."""
    if FORMAT_KEY not in metadata:
        raise TableError(f"{table!r} is not a table of videos. Make one with sce-video import")
    found = metadata[FORMAT_KEY].decode()
    if found != FORMAT:
        raise TableError(
            f"the table {table!r} has format {found}, but this version of sce_video "
            f"reads format {FORMAT}. Make the table again with sce-video import"
        )
