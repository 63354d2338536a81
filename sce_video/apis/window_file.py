"""Features of windows in one .npz file, written while videos are embedded."""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sce_video.apis.embed_options import EmbedOptions
from sce_video.apis.model import VideoModel
from sce_video.apis.window_features import WindowFeature, embed_windows, gather_windows
from sce_video.datasets import VideoDecodeError
from sce_video.datasets.source_names import is_table
from sce_video.datasets.sources import list_videos, video_exists
from sce_video.datasets.windows import Windows
from sce_video.evaluation.npz_files import write_npz

_SAVE_SECONDS = 60.0


def embed_to_file(
    model: VideoModel,
    videos: str,
    out: str | os.PathLike,
    windows: Windows,
    options: EmbedOptions,
) -> tuple[int, list[str]]:
    """Embed the windows of a folder or a video into a file; returns their number, and
    what could not be embedded.

    The file is written every minute, and at the end however it comes: what was embedded before
    Ctrl-C is kept. It holds ``features`` (N, D), ``paths``, ``starts`` and ``ends``
    (N,), ``labels`` (all -1).

    Args:
        model: From :func:`~sce_video.apis.load_model`.
        videos: A folder, a table, a file, a URL.
        out: The ``.npz`` file.
        windows: Length and stride.
        options: Views of a window.

    Raises:
        ValueError, FileNotFoundError: There is no such video, or no frame of it was embedded.
    """
    paths: list[str] = []
    rows: list[WindowFeature] = []
    problems: list[str] = []

    def save() -> None:
        if rows:
            _write(Path(out), model, windows, options, paths, rows, problems)

    saved = time.monotonic()
    try:
        for path, row in _windows(model, videos, windows, options, problems):
            paths.append(path)
            rows.append(row)
            if time.monotonic() - saved > _SAVE_SECONDS:
                save()
                saved = time.monotonic()
    except KeyboardInterrupt:
        problems.append("interrupted: the windows until then are in the file")
    finally:
        save()
    if not rows:
        raise ValueError(f"no window was embedded: {'; '.join(problems[:3]) or videos}")
    return len(rows), problems


def _windows(
    model: VideoModel,
    videos: str,
    windows: Windows,
    options: EmbedOptions,
    problems: list[str],
) -> Iterator[tuple[str, WindowFeature]]:
    """Path and window of everything that can be embedded; ``problems`` collects the rest."""
    for path in _list(videos):
        file = path if path == videos else os.path.join(videos, path)
        try:
            found = embed_windows(model, file, windows, options)
        except VideoDecodeError as error:
            problems.append(f"{path}: {error.reason}")
            continue
        if found.reason:
            problems.append(f"{path}: {found.reason}")
        for feature, start, end in zip(found.features, found.starts, found.ends, strict=True):
            yield path, WindowFeature(feature, float(start), float(end))


def _list(videos: str) -> list[str]:
    if os.path.isdir(videos) or is_table(videos):
        found = list_videos(videos)
        return [found.path(i) for i in range(len(found))]
    if not video_exists(videos):
        raise FileNotFoundError(f"no video or folder at {videos}")
    return [videos]


def _write(
    out: Path,
    model: VideoModel,
    windows: Windows,
    options: EmbedOptions,
    paths: list[str],
    rows: list[WindowFeature],
    problems: list[str],
) -> None:
    found = gather_windows(rows, model.row_size)
    provenance = {
        "checkpoint": {"path": model.checkpoint, "sha256": model.checkpoint_sha256},
        "clips": options.num_clips,
        "crops": options.num_crops,
        "num_views": options.num_clips * options.num_crops,
        "windows": windows.to_dict(),
        "decoder": "av",
        "decoder_version": importlib.metadata.version("av"),
        "failures": [],
        "problems": list(problems),
    }
    arrays = {
        "features": found.features,
        "paths": np.array(paths, dtype=np.str_),
        "labels": np.full(len(rows), -1, dtype=np.int64),
        "starts": found.starts,
        "ends": found.ends,
    }
    write_npz(out, arrays, provenance)
