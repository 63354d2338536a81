"""Open files with FFmpeg: nothing but files, of containers that hold their own data."""

from __future__ import annotations

import os
from typing import Any

import av

from sce_video.datasets.errors import VideoDecodeError

#: FFmpeg's names of the containers that are read. Left out are playlists and descriptions that
#: refer to other files or hosts (concat, hls, dash, sdp, imf), numbered images, and text.
CONTAINERS = (
    "mov", "matroska", "avi", "asf", "flv", "live_flv", "gif", "mpeg", "mpegvideo", "mpegts", "ogg",
    "mxf", "nut", "rm", "dv", "ivf", "wtv", "dhav", "nsv", "h264", "hevc", "m4v", "h263", "obu",
    "av1", "mjpeg", "yuv4mpegpipe", "vc1", "vc1test", "apng",
)  # fmt: skip
_OPTIONS = {"format_whitelist": ",".join(CONTAINERS), "protocol_whitelist": "file"}


def file_url(path: str | os.PathLike[str]) -> str:
    """A path as FFmpeg takes it for a file: in ``cam:1/a.mp4`` it sees the protocol ``cam``."""
    return f"file:{os.fspath(path)}"


def open_video(
    path: str | os.PathLike[str],
    *,
    demuxer_options: dict[str, str] | None = None,
    decoder_options: dict[str, str] | None = None,
) -> Any:
    """Open a video file with PyAV, to read it.

    Args:
        path: The file.
        demuxer_options: Of the demuxer, beside those that keep to files.
        decoder_options: Of the decoders with which FFmpeg probes the file.

    Returns:
        ``av.container.InputContainer``.

    Raises:
        VideoDecodeError: It cannot be opened, or is no container of :data:`CONTAINERS`.
    """
    path = os.fspath(path)
    try:
        return av.open(
            file_url(path),
            options=decoder_options or {},
            container_options={**_OPTIONS, **(demuxer_options or {})},
            metadata_errors="ignore",
        )
    except av.ArgumentError as error:  # how FFmpeg refuses what is not on a whitelist
        reason = "cannot be opened: it is no container of videos that is read"
        raise VideoDecodeError(path, reason) from error
    except (av.FFmpegError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise VideoDecodeError(path, f"cannot be opened: {reason}") from error
