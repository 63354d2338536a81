"""Readers that use other libraries, and PyAV for files that these libraries read wrongly."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Unpack

import numpy as np

from sce_video.datasets.readers.av_file import file_url
from sce_video.datasets.readers.av_reader import AvReader
from sce_video.datasets.readers.base import (
    DecodedFrames,
    FrameCountError,
    ReaderOptions,
    VideoDecodeError,
    VideoReader,
    check_deadline,
)
from sce_video.registry import READERS

#: FFmpeg's names for containers from which the libraries returned the same frames as PyAV in tests.
_CONTAINERS = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
#: Values of profile_idc for 8-bit H.264: baseline, main, extended and high.
_H264_8_BIT = (66, 77, 88, 100)


class FallbackReader(VideoReader):
    """A reader that takes timestamps from PyAV and frames from another library.

    The timestamps of other libraries contain errors. Files that a library cannot open, or is known
    to read wrongly, are read only with PyAV. Backends therefore differ only in speed.
    """

    #: Codecs that the library reads correctly from mp4, mov, Matroska and WebM files.
    codecs: frozenset[str] = frozenset()
    #: Exceptions that the library raises if frames are missing.
    errors: tuple[type[Exception], ...] = (RuntimeError, IndexError)
    _video: Any = None

    def __init__(self, path: str, **options: Unpack[ReaderOptions]) -> None:
        super().__init__(path, **options)
        fallback = AvReader(path, **options)
        codec = fallback.file.codec
        self._pixels = (codec.width or 0) * (codec.height or 0)
        self.timestamps, self.duration = fallback.timestamps, fallback.duration
        self._fallback: AvReader | None = fallback  # None if the library reads the frames
        # A correction means that frames are missing, and refers to the frames that PyAV found.
        trusted = self.correction is None and self.can_read(fallback)
        try:
            if trusted and self._open(path, self.num_threads) == len(fallback.timestamps):
                fallback.close()
                self._fallback = None
        except self.errors:
            pass  # PyAV has already opened the file, so it reads the frames
        except BaseException:
            fallback.close()
            raise

    @classmethod
    def can_read(cls, av_reader: AvReader) -> bool:
        """Return whether the library is known to return PyAV's frames for this file."""
        container, codec = av_reader.file.format, av_reader.file.codec.name
        if container not in _CONTAINERS or codec not in cls.codecs or av_reader.by_count:
            return False
        if av_reader.restarts or av_reader.has_false_keys:  # the libraries start decoding at them
            return False
        try:
            if av_reader.decode(np.zeros(1, dtype=np.int64)).orientation >= 4:
                return False  # the libraries rotate frames, but do not mirror them
        except (VideoDecodeError, FrameCountError):
            return False  # PyAV will report the damage
        extradata = av_reader.extradata
        if codec not in ("h264", "hevc"):
            return True
        if len(extradata) < 2 or extradata[0] != 1:
            return False
        # Accept only 8-bit video, because the libraries round 10-bit values differently.
        return extradata[1] in _H264_8_BIT if codec == "h264" else extradata[1] & 31 == 1

    @property
    def restarts(self) -> int:
        return 0 if self._fallback is None else self._fallback.restarts

    @abstractmethod
    def _open(self, path: str, num_threads: int) -> int:
        """Open the file with the library as ``_video``, and return the stated number of frames."""

    @abstractmethod
    def _read(self, indices: list[int]) -> np.ndarray:
        """Return frames by number, (n, H, W, 3) uint8."""

    def read(self, indices: np.ndarray) -> np.ndarray:
        if self._fallback is None:
            indices = self._check_indices(indices)
            check_deadline(self.path, self.deadline)
            self.limits.check_held(self.path, len(indices), len(indices) * self._pixels * 3)
            try:
                frames = self._read(indices.tolist())
            except self.errors:  # PyAV will raise FrameCountError if frames are missing
                self._video = None
                self._fallback = AvReader(self.path, deadline=self.deadline, limits=self.limits)
                if len(self._fallback.timestamps) != len(self.timestamps):
                    raise VideoDecodeError(self.path, "changed while it was being read") from None
        if self._fallback is not None:
            frames = self._fallback.read(indices)
        self._size = (int(frames.shape[1]), int(frames.shape[2]))
        return frames

    def decode(self, indices: np.ndarray) -> DecodedFrames:
        return super().decode(indices) if self._fallback is None else self._fallback.decode(indices)

    def close(self) -> None:
        self._video = None
        if self._fallback is not None:
            self._fallback.close()


@READERS.register_module("decord")
class DecordReader(FallbackReader):
    """Reader that uses decord 0.6.0 for files that it reads correctly, and PyAV for others.

    Its frames of 8-bit h264, MPEG-4, VP8 and VP9 in mp4, mov, Matroska and WebM files are
    bit-identical to the frames of other backends. ``av`` was faster on every file that was
    measured.
    """

    # PyAV reads all other files, because decord 0.6.0 has these bugs. It cannot open AV1 or GIF
    # files, and crashes on some truncated AVI files. Its random access returns wrong frames for
    # files with open GOPs (MPEG-4 with B frames as encoded by FFmpeg), with intra refresh, with
    # very short distances between key frames (wmv2, some HEVC), and with negative timestamps
    # (Matroska). Its colours for interlaced and 10-bit video differ from FFmpeg's. Its timestamps
    # for AVI files with B frames (UCF101 as published) and MPEG program streams are unusable. If a
    # file lists more frames than exist, decord may repeat frames or hang until the dataset's time
    # limit.
    library = "decord"
    codecs = frozenset({"h264", "mpeg4", "vp8", "vp9"})

    @classmethod
    def can_read(cls, av_reader: AvReader) -> bool:
        if not super().can_read(av_reader):
            return False
        try:
            frames = av_reader.decode(np.zeros(1, dtype=np.int64))
            return av_reader.random_access_at_keys and not frames.first.interlaced_frame
        except (VideoDecodeError, FrameCountError, StopIteration):
            return False  # PyAV will report the damage

    def _open(self, path: str, num_threads: int) -> int:
        import decord

        decord.logging.set_level(decord.logging.QUIET)  # errors are raised as exceptions anyway
        self.errors = (decord.DECORDError, RuntimeError, IndexError)
        self._video = decord.VideoReader(file_url(path), ctx=decord.cpu(0), num_threads=num_threads)
        return len(self._video)

    def _read(self, indices: list[int]) -> np.ndarray:
        return self._video.get_batch(indices).asnumpy()


@READERS.register_module("torchcodec")
class TorchcodecReader(FallbackReader):
    """Reader that uses torchcodec for files that it reads correctly, and PyAV for others.

    Its frames of 8-bit h264, HEVC, VP8, VP9 and AV1 in mp4, mov, Matroska and WebM files are
    bit-identical to the frames of other backends. Torchcodec swaps neighbouring frames of AVI files
    with B frames (UCF101 as published), loses frames of MPEG program streams, and changes the
    colours of 10-bit video by 3 levels on average, so PyAV reads these files.
    """

    library = "torchcodec.decoders"
    import_hint = "torchcodec needs FFmpeg's shared libraries and a build for the installed torch"
    codecs = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "libdav1d"})
    errors = (RuntimeError, IndexError, ValueError)

    def _open(self, path: str, num_threads: int) -> int:
        from torchcodec.decoders import VideoDecoder

        options: Any = {"dimension_order": "NHWC", "seek_mode": "exact"}
        self._video = VideoDecoder(file_url(path), num_ffmpeg_threads=num_threads, **options)
        return len(self._video)

    def _read(self, indices: list[int]) -> np.ndarray:
        return self._video.get_frames_at(indices).data.numpy()
