"""The windows of several videos: files and arrays."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sce_video.apis.arrays import ArrayReader, Video, as_list, checked_frames, is_path
from sce_video.apis.embed_options import EmbedOptions, VideoNetwork
from sce_video.apis.window_features import (
    WindowFeatures,
    embed_windows,
    window_spans_of,
    windows_of_reader,
)
from sce_video.datasets import video_exists
from sce_video.datasets.windows import Windows


def windows_of_videos(
    network: VideoNetwork,
    videos: Video | Sequence[Video],
    windows: Windows,
    options: EmbedOptions,
    fps: float | None = None,
) -> list[WindowFeatures]:
    """The windows of every video; arguments and errors as of :func:`~sce_video.apis.embed`."""
    items = as_list(videos)
    arrays = {i: checked_frames(item, i) for i, item in enumerate(items) if not is_path(item)}
    if arrays and not (fps is not None and 0 < fps < float("inf")):
        raise ValueError(f"windows of arrays need their positive frames per second, got fps={fps}")
    if arrays and windows.shots:
        raise ValueError("shots are found in files: give windows of arrays without shots")
    for i, item in enumerate(items):
        if is_path(item) and not video_exists(item):
            raise FileNotFoundError(f"no video at {os.fspath(item)} (position {i})")
    found = []
    for i, item in enumerate(items):
        if i in arrays:
            reader = ArrayReader(arrays[i], fps or 1.0)
            spans = window_spans_of(reader, windows)
            found.append(windows_of_reader(network, reader, spans, options))
        else:
            found.append(embed_windows(network, item, windows, options))
    return found
