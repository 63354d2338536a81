"""Whether files can be read: each is opened and its first frame decoded, in several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from sce_video.data_tools.process_pool import GuardedPool, Outcome
from sce_video.datasets.errors import FrameCountError, VideoDecodeError
from sce_video.datasets.readers import open_reader


def first_frame_error(path: str) -> str | None:
    """Why the first frame of a file cannot be decoded, None when it can."""
    try:
        with open_reader(path) as reader:
            reader.read(np.zeros(1, dtype=np.int64))
    except VideoDecodeError as error:
        return error.reason
    except FrameCountError:
        return "its first frame cannot be decoded"
    return None


def check_files(
    paths: Sequence[str],
    *,
    workers: int,
    time_limit: float,
    check: Callable[[str], str | None] = first_frame_error,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Check files in parallel; one that hangs or crashes its process costs only itself.

    Args:
        paths: The files.
        workers: Processes.
        time_limit: Seconds a file may take.
        check: Says what is wrong with a file, None for nothing. Importable from its module.
        advance: Called once a file.

    Returns:
        What is wrong, by path, in the order of ``paths``; good files are not in it.

    Raises:
        ValueError: ``workers`` below 1, or a time limit that is not above 0.
    """
    pool = GuardedPool(
        check, workers=workers, timeout=time_limit, preload=("sce_video.datasets.readers",)
    )
    found: dict[str, str] = {}
    with closing(pool.run((path, path) for path in paths)) as outcomes:  # type: ignore[type-var]
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
