"""Where videos are: files, objects of a store, rows of a table, behind the same functions.

A *video* is given by the path of a file, a URL as ``s3://bucket/a.mp4``, which is downloaded once,
or the path of a row as ``videos.lance/a.mp4``, a segment of any of them by ``@12.5-17`` behind it;
a *set of videos* by a folder, or a table, whose name ends with ``.lance``. Readers and tables,
which import PyAV and torch, are imported where they are used: a wrong command line must not wait
for them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from sce_video.datasets.clip_sampling import parse_seconds
from sce_video.datasets.video_list import (
    IMAGE_EXTENSIONS,
    MOMENT,
    VideoList,
    scan_folder,
    split_segment,
    video_of,
)
from sce_video.utils.files import file_identity, local_copy
from sce_video.utils.storage import ObjectStoreError, exists, is_url

if TYPE_CHECKING:
    from sce_video.datasets.readers import VideoReader
    from sce_video.datasets.readers.base import ReaderOptions

_ROW = re.compile(r"(.*?\.lance)/+(.+)", re.S)
_TABLE = re.compile(r".*\.lance/*", re.S)


def is_table(path: Any) -> bool:
    """Whether a path or URL names a table where a folder may be given: it ends with ``.lance``."""
    return isinstance(path, str | os.PathLike) and _TABLE.fullmatch(os.fspath(path)) is not None


def is_table_folder(folder: str | Path) -> bool:
    """Whether a path is that of a table itself, and no folder of an index."""
    return "://" in str(folder) or (Path(folder) / "_versions").is_dir()


def split_row_path(path: str) -> tuple[str, str] | None:
    """Table and path in it of ``TABLE.lance/PATH``; None for anything else."""
    found = _ROW.fullmatch(path)
    return None if found is None else (found[1], found[2])


def open_video(path: str, backend: str = "av", **options: Unpack[ReaderOptions]) -> VideoReader:
    """Open a video, wherever it is: as :func:`~sce_video.datasets.readers.open_reader`.

    ``path`` may be a row, a URL, or a segment of one; ``backend`` is that of files.
    VideoDecodeError if it cannot be opened or downloaded, TableError if the table cannot be read.
    """
    from sce_video.datasets.readers import open_reader
    from sce_video.datasets.readers.base import SegmentReader, VideoDecodeError
    from sce_video.datasets.tables.table_rows import named_rows

    row, segment = split_row_path(path), split_segment(path)
    try:
        if segment is not None and is_elsewhere(path) and not _is_there(path):
            video, start, end = segment
            return SegmentReader(path, open_video(video, backend, **options), start, end)
        if row is not None:
            return named_rows(row[0]).open(row[1], path, options)
        file = str(local_copy(path)) if is_url(path) else path
    except (FileNotFoundError, ObjectStoreError) as error:
        raise VideoDecodeError(path, str(error), False) from error
    return open_reader(file, backend, **options)


def is_elsewhere(path: str) -> bool:
    """Whether the path of a video is that of no file, but a URL or a row."""
    return is_url(path) or split_row_path(path) is not None


def video_state(path: str) -> list[int] | None:
    """Size, modification time and inode of a video's file; None for a missing one, a URL or a row.

    What is computed from a video is kept for this state. Reading all videos to compare their
    content would take as long as computing it again.
    """
    return None if is_elsewhere(path) else file_identity(video_of(path))


def is_image(path: str) -> bool:
    """Whether a path is that of an image, by the end of its name."""
    return path.lower().endswith(IMAGE_EXTENSIONS) and not is_elsewhere(path)


def video_exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is such a file, object or row, or the one of which it is a segment.

    ObjectStoreError, TableError if unknown.
    """
    name = os.fspath(path)
    return _is_there(name) or (video_of(name) != name and _is_there(video_of(name)))


def _is_there(name: str) -> bool:
    """As :func:`video_exists`, of this very name."""
    row = split_row_path(name)
    if row is not None:
        from sce_video.datasets.tables.table_rows import named_rows

        return named_rows(row[0]).number(row[1]) is not None
    return exists(name) if is_url(name) else os.path.exists(name)


def list_videos(root: str) -> VideoList:
    """The videos of a folder (:func:`scan_folder`) or of a table; paths relative to it.

    ValueError if there are none; TableError, MissingPackageError if the table cannot be read.
    """
    if is_table(root):
        from sce_video.datasets.tables.table_rows import named_rows

        return named_rows(root).videos
    return scan_folder(root)


_PROBED = 20  # entries of a list, to find the folder that its paths are relative to


def list_root(source: str, data_root: str | None, videos: VideoList) -> str:
    """The folder that the paths of the list ``source`` are relative to.

    ``data_root``, which may be a table, or for None the folder of the list or the current one,
    whichever holds one of the first videos; ValueError if none does.
    """
    first = [videos.path(i) for i in range(min(len(videos), _PROBED))]
    roots = [os.path.dirname(source) or ".", "."] if data_root is None else [data_root]
    for root in roots:
        if any(video_exists(os.path.join(root, path)) for path in first):
            return root
    raise ValueError(
        f"none of the first {len(first)} videos of {source!r} exist, for example "
        f"{os.path.join(roots[0], first[0])!r}: give their folder with --data-root"
    )


def dataset_settings(root: str | Path) -> dict[str, str]:
    """Settings of a data set's config that make it one of a folder or a table."""
    if is_table(root):
        from sce_video.datasets.tables.table import is_remote

        table = str(root) if is_remote(str(root)) else os.path.abspath(root)
        return {"type": "LanceVideoDataset", "data_root": table}
    return {"data_root": str(root)}


@dataclass(frozen=True)
class Query:
    """A video (a file, a URL or a row of a table), or a moment of it, in seconds."""

    video: str
    start: float | None = None  # None for the whole video
    end: float | None = None


def parse_query(text: str) -> Query:
    """The query of ``a.mp4``, ``a.mp4@12.5-17`` or ``a.mp4@1:02:03-1:02:08``.

    A file whose name is the whole text is that file. ValueError for a moment that does not end
    after its start, or whose times cannot be read.
    """
    found = MOMENT.fullmatch(text)
    if found is None or _is_there(text):
        return Query(text)
    start, end = parse_seconds(found[2]), parse_seconds(found[3])
    if end <= start:
        raise ValueError(f"the moment {found[2]}-{found[3]} of {found[1]} ends before it begins")
    return Query(found[1], start, end)
