"""The default reader, which uses PyAV (FFmpeg) and has exact timestamps."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from typing import Any, Unpack

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from sce_video.datasets.readers.av_file import (
    AvFile,
    AvStream,
    NoRestartPointError,
    WrongIndexError,
)
from sce_video.datasets.readers.base import (
    FALLBACK_FPS,
    STREAMED_FRAMES,
    DecodedFrames,
    DecodeLimits,
    FrameCountError,
    ReaderOptions,
    VideoDecodeError,
    VideoReader,
    check_damage,
    check_regular_file,
)
from sce_video.datasets.readers.frame_table import nal_units
from sce_video.registry import READERS


def orientation_of(frame: av.VideoFrame) -> int:
    """Return how a frame is displayed, one of the eight orientations of a display matrix.

    0 to 3 are quarter turns counter-clockwise. From 4 on, the frame is mirrored left to right
    before it is turned by 0 to 3 quarters, as in videos of front cameras.
    """
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return 0
    # The pixel in column x and row y is displayed in column a x + c y and row b x + d y.
    a, b, _, c, d = np.frombuffer(matrix, dtype=np.int32)[:5].tolist()
    if a * d >= b * c:
        return round(frame.rotation / 90) % 4
    degrees = math.degrees(math.atan2(-b / math.hypot(b, d), -a / math.hypot(a, c)))
    return 4 + round(-degrees / 90) % 4


def upright(array: np.ndarray, orientation: int) -> np.ndarray:
    """Turn an array (H, W, ...) by a value of :func:`orientation_of`, without a copy."""
    return np.rot90(array[:, ::-1] if orientation >= 4 else array, k=orientation % 4)


class AvFrames(DecodedFrames):
    """Decoded frames of a reader, which stay valid after the reader is closed.

    Args:
        frames: The decoded frames.
        size: Displayed height and width, to which all frames are scaled. None uses the size of the
            first frame.
        num_threads: Number of threads that convert a frame to RGB.
        orientation: Value of :func:`orientation_of` for all frames. None uses each frame's
            metadata.
    """

    def __init__(
        self,
        frames: list[av.VideoFrame],
        size: tuple[int, int] | None,
        num_threads: int,
        orientation: int | None = None,
    ) -> None:
        self._frames, self._num_threads, self._orientation = frames, num_threads, orientation
        self._reformatter = VideoReformatter()
        coded = (frames[0].height, frames[0].width)
        self.size = size or (coded[::-1] if self.orientation % 2 else coded)

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def first(self) -> av.VideoFrame:
        """Return the first decoded frame."""
        return self._frames[0]

    @property
    def orientation(self) -> int:
        """Return the first frame's orientation, a value of :func:`orientation_of`."""
        return self._orientation_of(self._frames[0])

    def _orientation_of(self, frame: av.VideoFrame) -> int:
        return orientation_of(frame) if self._orientation is None else self._orientation

    def __getitem__(self, index: int) -> np.ndarray:
        frame = self._frames[index]
        orientation = self._orientation_of(frame)
        height, width = self.size[::-1] if orientation % 2 else self.size
        # Set the number of threads. By default, every reformatter starts a thread pool, which takes
        # much longer than converting a frame.
        rgb = self._reformatter.reformat(
            frame, width=width, height=height, format="rgb24", threads=self._num_threads
        )
        plane: Any = rgb.planes[0]  # not copied, whereas to_ndarray copies padded rows
        strides = (plane.line_size, 3, 1)
        array: np.ndarray = np.ndarray((height, width, 3), np.uint8, plane, strides=strides)
        return np.ascontiguousarray(upright(array, orientation)) if orientation else array


class HeldFrames:
    """Limit on the memory of the decoded frames that one call keeps."""

    def __init__(self, path: str, limits: DecodeLimits) -> None:
        self._path, self._limits = path, limits
        self._count = self._bytes = 0

    def checked(self, frame: av.VideoFrame) -> av.VideoFrame:
        """Return the frame; VideoDecodeError if it is too large, or all frames together are."""
        self._limits.check_frame(self._path, frame.height, frame.width)
        self._count += 1
        self._bytes += frame.width * frame.height * frame.format.padded_bits_per_pixel // 8
        self._limits.check_held(self._path, self._count, self._bytes)
        return frame


@READERS.register_module("av")
class AvReader(VideoReader):
    """Reader of videos that uses PyAV.

    The timestamps come from the index of an mp4, mov or AVI file, so that only the media data of
    requested frames is read. In any other file, the packets are read without decoding them: once
    per reader if they fit into 64 MiB, otherwise once per process. Variable frame rates are exact.
    Time continues if a file's clock restarts or jumps, as in joined recordings.

    Decoding starts at the last restart point at or before a requested frame, and seeks if there is
    another restart point between two requested frames. All frames after a restart point are exact
    (:func:`~.frame_table.is_restart_point`). The key-frame flags of the container are not used,
    because they are wrong with intra refresh. Frames that no other frame refers to (most B frames)
    are decoded only if they are requested, which saves a third of the time on Kinetics.

    For an AVI file with B frames, the demuxer makes up timestamps that do not match the frames.
    Such a file, and a file with two equal timestamps, is decoded from its start, and its frames are
    counted. Without timestamps, frames are spaced evenly.
    """

    _pts: np.ndarray  # timestamps of the frames in display order, (F,) int64

    def __init__(self, path: str, **options: Unpack[ReaderOptions]) -> None:
        check_regular_file(path)
        super().__init__(path, **options)
        correction = self.correction
        self._closed = False
        #: Whether frames are found by counting them instead of by their timestamps.
        self.by_count = False
        self._stream = AvStream(path, self.num_threads, self.deadline, self.limits)
        try:
            # A correction refers to the table from the packets, which may differ from the index.
            self._take_table(use_index=correction is None)
            if correction is not None:
                if correction[-1] >= len(self._pts):
                    raise VideoDecodeError(path, "changed while it was being read")
                last = self.duration - float(self.timestamps[-1])
                self._pts, kept = self._pts[correction], self.timestamps[correction]
                self.timestamps = kept - kept[0]
                self.duration = float(self.timestamps[-1]) + last
        except BaseException:
            self.close()
            raise

    def _take_table(self, use_index: bool) -> None:
        """Read the timestamps; count the frames if the packets have no timestamps."""
        found = self._stream.read_table(use_index)
        table, file = self._stream.table, self._stream.file
        rate = file.stream.average_rate or file.stream.guessed_rate
        fps = float(rate) if rate else FALLBACK_FPS
        if not found:
            self.by_count = True
            count = sum(1 for _ in self._stream.frames_from(0))
            if count == 0:
                raise VideoDecodeError(self.path, "no frame can be decoded")
            self._pts = np.arange(count, dtype=np.int64)
            self.timestamps = self._pts / fps
            self.duration = count / fps
            return
        made_up = file.format == "avi" and file.codec.has_b_frames
        self._order = table.display_order
        self._pts = self._shown = table.pts[self._order]
        self.by_count = bool(made_up) or bool((np.diff(self._shown) == 0).any())
        numerator, denominator = self.tick.numerator, self.tick.denominator
        # An integer product divided by an integer is rounded correctly, so frame 64 at 25 fps
        # starts at exactly 2.56 s.
        self.timestamps = (self._pts - self._pts[0]) * numerator / denominator
        last = table.last_duration * numerator / denominator
        if last <= 0:  # it is not stated, so use the median distance between frames
            last = float(np.median(np.diff(self.timestamps))) if len(self._pts) > 1 else 1 / fps
        self.duration = float(self.timestamps[-1]) + last

    @property
    def file(self) -> AvFile:
        """Return the open file, with FFmpeg's stream and decoder."""
        return self._stream.file

    @property
    def tick(self) -> Fraction:
        """Return the seconds of one unit of the container's timestamps."""
        return Fraction(self.file.stream.time_base or Fraction(1, 1000))

    @property
    def key_distance(self) -> float:
        """Return the mean distance of key frames, in frames."""
        return len(self._pts) / max(1, int(self._stream.table.is_key.sum()))

    @property
    def decoded_bytes(self) -> int:
        """Return the size in bytes of the packets that the last pass has decoded."""
        return self._stream.decoded_bytes

    @property
    def stated_duration(self) -> float | None:
        # If the clock restarts, FFmpeg's duration is wrong, because it uses only the first and the
        # last timestamp.
        return None if self.restarts else self._stream.file.stated_duration

    @property
    def restarts(self) -> int:
        restarts = self._stream.table.restarts
        return 0 if restarts is None else len(restarts)

    @property
    def random_access_at_keys(self) -> bool:
        """Return whether all frames after every key frame are exact if decoding starts there."""
        # Frames are not exact in three cases: decoding cannot restart at some key frames (intra
        # refresh), frames decoded after a key frame are displayed before it, or the second key
        # frame of h264 is not an IDR picture (open GOP).
        if self.by_count or self._pts[0] < 0 or self.has_false_keys:
            return False
        table = self._stream.table
        keys = np.flatnonzero(table.is_key)
        earliest = np.minimum.accumulate(table.pts[::-1])[::-1]  # from each packet to the end
        if len(keys) == 0 or keys[0] != 0 or (earliest[keys] < table.pts[keys]).any():
            return False
        if len(keys) == 1 or self._stream.file.codec.name != "h264":
            return True
        second = memoryview(self._stream.packet(int(keys[1])))
        return any(unit[0] & 31 == 5 for unit in nal_units(second, self._stream.extradata, 4))

    @property
    def has_false_keys(self) -> bool:
        """Return whether packets are flagged as key frames at which decoding cannot start."""
        try:
            self._stream.drop_false_keys()
        except WrongIndexError:
            return True  # assume so, because the index is wrong
        return self._stream.table.false_keys

    @property
    def extradata(self) -> bytes:
        """Return the codec's header as stored in the container; empty if there is none."""
        return self._stream.extradata

    def read(self, indices: np.ndarray) -> np.ndarray:
        return self.decode(indices).stacked(self.path, self.limits)

    def decode(self, indices: np.ndarray) -> AvFrames:
        indices = self._check_indices(indices)
        if self._closed:
            raise ValueError(f"the reader of {self.path} is closed")
        try:
            frames = None if self.by_count else self._find_by_pts(indices)
            if frames is None:
                if not self.by_count:  # the timestamps are wrong, so count the frames
                    self._stream.reopen(quick=False)  # the decoder may keep state from its start
                    found = [frame.pts for frame in self._stream.frames_from(0)]
                    if len(found) < len(self._pts):
                        raise self._frame_count_error(found)
                    self.by_count = True
                frames = self._find_by_count(indices)
        except (av.FFmpegError, OSError) as error:
            raise VideoDecodeError(self.path, f"cannot be decoded: {error}", False) from error
        before = self.damaged
        decoded = self._lazy_frames(frames)
        check_damage(self.path, self.damaged - before, len(frames))
        return decoded

    def stream(
        self, indices: np.ndarray, patience: float | None = None
    ) -> Iterator[tuple[np.ndarray, DecodedFrames]]:
        found = self.frames(indices, patience)
        before, count = self.damaged, 0
        while part := list(islice(found, STREAMED_FRAMES)):
            numbers, count = np.array([number for number, _ in part]), count + len(part)
            yield numbers, self._lazy_frames([frame for _, frame in part])
        check_damage(self.path, self.damaged - before, count)

    def _lazy_frames(self, frames: list[av.VideoFrame]) -> AvFrames:
        self.damaged += sum(frame.is_corrupt for frame in frames)
        found = AvFrames(frames, self._size, self.num_threads)
        self._size = found.size
        return found

    def frames(
        self, indices: np.ndarray, patience: float | None = None
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """Decode any number of frames in one ordered pass, without converting them to RGB.

        The arguments, and the frames that are left out, are the same as for :meth:`stream`.

        Yields:
            Number of a frame, and the decoded frame.

        Raises:
            VideoDecodeError: If a frame is too large, or the file can no longer be read.
        """
        try:
            yield from self._in_order(self._check_indices(indices), patience)
        except (av.FFmpegError, OSError) as error:
            raise VideoDecodeError(self.path, f"cannot be decoded: {error}", False) from error

    def _in_order(
        self, indices: np.ndarray, patience: float | None
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yield the number and the decoded frame of each index that exists."""
        left = indices
        if not self.by_count:
            stamps = self._pts[indices]
            number_of = dict(zip(stamps.tolist(), indices.tolist(), strict=True))
            packets = self._order[np.searchsorted(self._shown, stamps)]
            first, last = self._stretches(stamps[:1])[0][0], int(packets.max())
            frames = self._stream.frames_from(first, last, number_of)
            previous = None
            try:
                for frame in self._patiently(frames, patience):
                    if frame.pts is None or (previous is not None and frame.pts <= previous):
                        raise WrongIndexError
                    previous = frame.pts
                    if previous in number_of:
                        number = number_of[previous]
                        left = indices[np.searchsorted(indices, number, side="right") :]
                        yield number, frame
                return
            except (WrongIndexError, NoRestartPointError):
                # The packets do not match the table, so read a new table and count the frames.
                self._stream.reopen(quick=False)
                self._take_table(use_index=False)
        wanted = set(left.tolist())
        for number, frame in enumerate(self._patiently(self._stream.frames_from(0), patience)):
            if number in wanted:
                yield number, frame
            if number == indices[-1]:
                return

    def _patiently(
        self, frames: Iterator[av.VideoFrame], patience: float | None
    ) -> Iterator[av.VideoFrame]:
        """Yield frames of an allowed size. The time limit starts again for each frame."""
        while True:
            self._stream.deadline = None if patience is None else time.monotonic() + patience
            frame = next(frames, None)
            if frame is None:
                return
            self.limits.check_frame(self.path, frame.height, frame.width)
            yield frame

    def _find_by_pts(self, indices: np.ndarray) -> list[av.VideoFrame] | None:
        """Return frames found by timestamp; None if one of them is not found."""
        try:
            try:
                return self._frames_of(self._pts[indices])
            except NoRestartPointError:  # find out which packets really are restart points
                self._stream.drop_false_keys()
                return self._frames_of(self._pts[indices])
        except WrongIndexError:
            self._stream.reopen(quick=False)
            self._take_table(use_index=False)
            if indices[-1] >= len(self._pts):
                raise VideoDecodeError(self.path, "its index does not match its packets") from None
            return None if self.by_count else self._frames_of(self._pts[indices])

    def _frames_of(self, wanted: np.ndarray) -> list[av.VideoFrame] | None:
        """Return frames with these ascending timestamps; None if one of them is not found."""
        found: dict[int, av.VideoFrame | None] = dict.fromkeys(wanted.tolist())
        held = HeldFrames(self.path, self.limits)
        for start, stop in self._stretches(wanted):
            previous = None
            for frame in self._stream.frames_from(start, stop, found):
                if frame.pts is None or (previous is not None and frame.pts <= previous):
                    return None
                previous = frame.pts
                if previous in found and found[previous] is None:
                    found[previous] = held.checked(frame)
        frames = [frame for frame in found.values() if frame is not None]
        return frames if len(frames) == len(found) else None

    def _stretches(self, wanted: np.ndarray) -> list[tuple[int, int]]:
        """Return the first and last packet of each stretch that is decoded without seeking.

        ::

            packets   K . . . . K . . . . K . . . .
            wanted          x x               x x      two stretches: 0 to 4, 10 to 12

        A new stretch begins if there is a key frame after the last packet that is needed so far.
        """
        packets = self._order[np.searchsorted(self._shown, wanted)]
        keys = np.flatnonzero(self._stream.table.is_key)
        shown = self._stream.table.pts[keys]
        by_time = np.argsort(shown, kind="stable")
        latest = np.maximum.accumulate(keys[by_time])  # last packet displayed so far
        found = np.searchsorted(shown[by_time], wanted, side="right") - 1
        starts = np.where(found < 0, 0, latest[found]) if len(keys) else np.zeros_like(packets)
        stretches: list[tuple[int, int]] = []
        for start, packet in zip(starts.tolist(), packets.tolist(), strict=True):
            if not stretches or start > stretches[-1][1]:
                stretches.append((start, packet))
            else:
                stretches[-1] = (stretches[-1][0], max(packet, stretches[-1][1]))
        return stretches

    def _find_by_count(self, indices: np.ndarray) -> list[av.VideoFrame]:
        """Return frames found by counting from the start; FrameCountError if some are missing."""
        wanted = set(indices.tolist())
        frames: list[av.VideoFrame] = []
        found: list[int | None] = []
        held = HeldFrames(self.path, self.limits)
        for frame in self._stream.frames_from(0):
            if len(found) in wanted:
                frames.append(held.checked(frame))
                if len(frames) == len(wanted):
                    return frames
            found.append(frame.pts)
        raise self._frame_count_error(found)

    def _frame_count_error(self, found: list[int | None]) -> Exception:
        if not found:
            return VideoDecodeError(self.path, "no frame can be decoded")
        if self.by_count or None in found:
            keep = np.arange(len(self._pts)) < len(found)
        else:
            keep = np.isin(self._pts, np.asarray(found, dtype=np.int64))
        if not keep.any() or keep.all():
            return VideoDecodeError(self.path, "its timestamps do not match its frames")
        seconds, rows = self.timestamps[keep], np.flatnonzero(keep)
        return FrameCountError(self.path, len(keep), seconds - seconds[0], rows)

    def close(self) -> None:
        self._closed = True
        self._stream.close()
