"""Check that files can be read: open each and decode its first frame, in several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from sce_video.data_tools.process_pool import Outcome, process_items
from sce_video.datasets.errors import FrameCountError, VideoDecodeError
from sce_video.datasets.readers import open_reader
from sce_video.datasets.readers.images import read_image
from sce_video.datasets.readers.limits import MAX_IMAGE_PIXELS, DecodeLimits


def first_frame_error(path: str) -> str | None:
    """Why the first frame of a file cannot be decoded; None if it can."""
    try:
        with open_reader(path) as reader:
            reader.read(np.zeros(1, dtype=np.int64))
    except VideoDecodeError as error:
        return error.reason
    except FrameCountError:
        return "its first frame cannot be decoded"
    return None


def image_error(path: str) -> str | None:
    """Why an image cannot be decoded completely; None if it can."""
    try:
        read_image(path, DecodeLimits(MAX_IMAGE_PIXELS))
    except VideoDecodeError as error:
        return error.reason
    return None


#: The check of a file by the kind of the lists.
CHECKS: dict[str, Callable[[str], str | None]] = {"video": first_frame_error, "image": image_error}


def check_files(
    paths: Sequence[str],
    *,
    workers: int,
    time_limit: float,
    check: Callable[[str], str | None] = first_frame_error,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Check files in parallel; a file that hangs or crashes its process affects no other file.

    Args:
        paths: The files.
        workers: Number of processes.
        time_limit: Seconds a file may take.
        check: Returns the problem of a file or None; defined at the top level of a module.
        advance: Called after each file.

    Returns:
        Problems by path, in the order of ``paths``; good files are left out.

    Raises:
        ValueError: ``workers`` is below 1 or ``time_limit`` not above 0.
    """
    found: dict[str, str] = {}
    outcomes = process_items(
        check,
        ((path, path) for path in paths),
        workers=workers,
        timeout=time_limit,
        preload=("sce_video.datasets.readers",),
    )
    with closing(outcomes):
        for path, outcome in outcomes:
            reason = _reason(outcome)
            if reason is not None:
                found[path] = reason
            advance()
    return {path: found[path] for path in paths if path in found}


def _reason(outcome: Outcome) -> str | None:
    if outcome.fault is None:
        return outcome.value
    return f"the decoder crashed: {outcome.detail}" if outcome.fault == "crash" else outcome.detail
