"""A small picture of every video, read by processes of which one may hang or crash."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sce_video.datasets import IMAGE_EXTENSIONS, VideoDecodeError
from sce_video.datasets.decode_limits import DecodeLimits
from sce_video.datasets.readers.images import read_image
from sce_video.jobs.process_pool import process_items
from sce_video.visualization.gallery import read_frames

_QUALITY = 80
_SECONDS = 60.0  # for a file; reading its frames has a shorter limit of its own


def thumbnails(
    files: Sequence[str], side: int, workers: int
) -> Iterator[tuple[int, bytes | None, str]]:
    """Yield index, JPEG and problem of every file, in order.

    Args:
        files: Videos or images.
        side: Longest side of a thumbnail, pixels.
        workers: Processes; 0 reads in this one.

    Yields:
        The index, the JPEG file of the middle frame or None, and why there is none or "".
    """
    if workers == 0:
        for index, file in enumerate(files):
            try:
                yield index, thumbnail((file, side)), ""
            except VideoDecodeError as error:
                yield index, None, error.reason
        return
    items = ((index, (file, side)) for index, file in enumerate(files))
    done: dict[int, tuple[bytes | None, str]] = {}
    following = 0
    for index, outcome in process_items(
        thumbnail, items, workers=workers, timeout=_SECONDS, preload=(__name__,)
    ):
        done[index] = outcome.value, _reason(outcome.detail, files[index])
        while following in done:
            yield following, *done.pop(following)
            following += 1


def thumbnail(file_and_side: tuple[str, int]) -> bytes:
    """The JPEG file of the middle frame of a video or of an image.

    Raises:
        VideoDecodeError: the file is missing or cannot be decoded.
    """
    file, side = file_and_side
    if not os.path.exists(file):
        raise VideoDecodeError(file, "the file is missing")
    if Path(file).suffix.lower() in IMAGE_EXTENSIONS:
        frame = read_image(file, DecodeLimits())
    else:
        frame = read_frames(file, 1)[0][0]
    return encode(fitted(frame, side))


def fitted(frame: np.ndarray, side: int) -> np.ndarray:
    """The frame (H, W, 3) with its longest side of ``side`` pixels or less."""
    import cv2

    scale = min(1.0, side / max(frame.shape[:2]))
    height, width = (max(1, round(scale * size)) for size in frame.shape[:2])
    return cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)


def encode(frame: np.ndarray) -> bytes:
    """JPEG of a frame (H, W, 3) uint8 RGB."""
    import cv2

    bgr = cv2.cvtColor(frame, cv2.COLOR_RGB2BGR)
    good, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    assert good
    return data.tobytes()


def decode(jpeg: bytes) -> np.ndarray:
    """A frame (H, W, 3) uint8 RGB of :func:`encode`."""
    import cv2

    frame = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)


def _reason(detail: str, file: str) -> str:
    return detail.removeprefix("VideoDecodeError: ").removeprefix(f"{file}: ")
