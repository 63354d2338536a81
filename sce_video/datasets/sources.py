"""Access to videos in files, object stores and tables, with the same functions.

A *video* is the path of a file, a URL such as ``s3://bucket/a.mp4``, which is downloaded once, or
the path of a table row such as ``videos.lance/a.mp4``. A path that ends with ``@12.5-17`` denotes a
segment. A *set of videos* is a folder, or a table whose name ends with ``.lance``. Readers and
tables, which need PyAV and torch, are imported only when they are used, so that errors in a command
line are reported immediately.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from sce_video.datasets.clip_sampling import check_span
from sce_video.datasets.video_list import (
    BY_CONTENT,
    IMAGE_EXTENSIONS,
    MOMENT,
    VIDEO_EXTENSIONS,
    VideoList,
    refuse_table,
    split_segment,
    video_of,
)
from sce_video.options.shared import is_table
from sce_video.utils.files import content_sha256, file_identity, local_copy
from sce_video.utils.seconds import parse_seconds
from sce_video.utils.storage import ObjectStoreError, exists, is_url, walk_files

if TYPE_CHECKING:
    from sce_video.datasets.readers import VideoReader
    from sce_video.datasets.readers.base import ReaderOptions

_ROW = re.compile(r"(.*?\.lance)/+(.+)", re.S)
_MOST_KINDS = 6  # maximum number of extensions listed in a message


def is_table_folder(folder: str | Path) -> bool:
    """Return whether a path is a table, and not the folder of an index."""
    return "://" in str(folder) or (Path(folder) / "_versions").is_dir()


def split_row_path(path: str) -> tuple[str, str] | None:
    """Split ``TABLE.lance/PATH`` into the table and the path in it; None for any other path."""
    found = _ROW.fullmatch(path)
    return None if found is None else (found[1], found[2])


def open_video(
    path: str | os.PathLike[str], backend: str = "av", **options: Unpack[ReaderOptions]
) -> VideoReader:
    """Open a video for reading, wherever it is.

    The reader is a context manager that closes the file::

        with open_video("a.mp4") as reader:
            batch = reader.frames_played_at([0.5, 1.0])

    Args:
        path: Path of a video file, URL (``s3://bucket/a.mp4``), table row (``videos.lance/a.mp4``),
            or a segment of any of them (``a.mp4@12.5-17``).
        backend: Decoder of files, see :func:`~sce_video.datasets.readers.open_reader`.
        options: Options of a reader, see :class:`~sce_video.datasets.readers.base.ReaderOptions`.

    Returns:
        The reader, with timestamps of all frames, and frames by number (``frames_at``) or by time
        (``frames_played_at``).

    Raises:
        VideoDecodeError: If the video cannot be opened or downloaded.
        TableError: If the table cannot be read.
        ValueError: If the backend is unknown.
        ImportError: If the backend is not installed.
    """
    from sce_video.datasets.readers import open_reader
    from sce_video.datasets.readers.base import SegmentReader, VideoDecodeError
    from sce_video.datasets.tables.table_rows import named_rows

    path = os.fspath(path)
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
    """Return whether the path of a video is a URL or a table row, and not a file."""
    return is_url(path) or split_row_path(path) is not None


def video_state(path: str) -> list[int] | None:
    """Return size, modification time and inode of a video's file; None if there is no file.

    Results that were computed from a video stay valid while this state is the same. If it differs,
    :func:`video_sha256` tells whether the file was only copied or touched.
    """
    return None if is_elsewhere(path) else file_identity(video_of(path))


def video_sha256(path: str) -> str | None:
    """Return the SHA-256 of a video's file in hexadecimal digits; None without a readable file."""
    if is_elsewhere(path):
        return None
    try:
        return content_sha256(video_of(path))
    except OSError:
        return None


def is_image(path: str) -> bool:
    """Return whether a path names an image file, judging by its extension."""
    return path.lower().endswith(IMAGE_EXTENSIONS) and not is_elsewhere(path)


def video_exists(path: str | os.PathLike[str]) -> bool:
    """Return whether a file, object or row exists, or the video of a segment.

    Raises:
        ObjectStoreError, TableError: If the store or the table cannot be read.
    """
    name = os.fspath(path)
    return _is_there(name) or (video_of(name) != name and _is_there(video_of(name)))


def _is_there(name: str) -> bool:
    """Return whether a file, object or row of exactly this name exists."""
    row = split_row_path(name)
    if row is not None:
        from sce_video.datasets.tables.table_rows import named_rows

        return named_rows(row[0]).number(row[1]) is not None
    return exists(name) if is_url(name) else os.path.exists(name)


def check_folder(root: str, kind: str = "video") -> None:
    """Raise ValueError, with advice, unless ``root`` is a folder of files."""
    if is_url(root):
        raise ValueError(
            f"{kind}s must be in a local folder or a table, got {root!r}. Import them into a "
            "table with sce-video import FOLDER s3://bucket/videos.lance"
        )
    refuse_table(root)
    if os.path.isfile(root):
        raise ValueError(
            f"data_root must be a folder of {kind}s, got the file {root!r}. Set it to the file's "
            "folder, or set ann_file to a list with lines 'path label'"
        )
    if not os.path.isdir(root):
        raise ValueError(f"there is no folder {root!r}")


def listed_extensions(all_files: bool) -> tuple[str, ...]:
    """Return the extensions by which folders of videos are listed.

    Args:
        all_files: Whether to also list files with other extensions if they contain a video.
    """
    return (*VIDEO_EXTENSIONS, BY_CONTENT) if all_files else VIDEO_EXTENSIONS


def find_files(root: str, extensions: Sequence[str]) -> tuple[list[str], Counter[str]]:
    """Find the files below a folder that have one of the extensions, and count all other files.

    Hidden files and links are explained at :func:`~sce_video.utils.storage.walk_files`.

    Returns:
        Sorted paths relative to ``root``, and the number of all other files by extension.
    """
    by_content: Callable[[str], bool] | None = None
    if BY_CONTENT in extensions:
        from sce_video.datasets.readers.av_file import holds_video as by_content
    endings = tuple(end for end in extensions if end != BY_CONTENT)
    found: list[str] = []
    others: Counter[str] = Counter()
    for path in walk_files(root, ("",)):
        named = path.lower().endswith(endings)
        if named or (by_content is not None and by_content(os.path.join(root, path))):
            found.append(path)
        else:
            others[os.path.splitext(path)[1].lower()] += 1
    return sorted(found), others


def describe_others(others: Counter[str], extensions: Sequence[str], kind: str = "video") -> str:
    """Return ``5 other files, which are left out (3 .txt, 2 without extension)``, with advice."""
    ordered = sorted(others.items(), key=lambda item: (-item[1], item[0]))
    kinds = [f"{n} {end or 'without extension'}" for end, n in ordered[:_MOST_KINDS]]
    kinds += ["..."] * (len(others) > _MOST_KINDS)
    files = f"{others.total()} other file{'s' * (others.total() != 1)}"
    by_name = kind == "video" and BY_CONTENT not in extensions
    advice = ". --all-files reads files that contain a video" * by_name
    return f"{files}, which are left out ({', '.join(kinds)}){advice}"


def no_file(root: str, extensions: Sequence[str], others: Counter[str], kind: str = "video") -> str:
    """Return the message for a folder that contains no file with one of the extensions."""
    if not others:
        return f"no {kind} in {root!r}: there is no file in it"
    return f"no {kind} in {root!r}, but {describe_others(others, extensions, kind)}"


def scan_folder(
    root: str, extensions: Sequence[str] | None = None, kind: str = "video"
) -> VideoList:
    """Find all videos or images below a folder, sorted by path.

    The first-level sub-folders that contain files are the classes, numbered in sorted order. A file
    directly in ``root`` has no label (-1).

    Args:
        root: Path of the folder, to which the paths of the files are relative.
        extensions: Extensions of the files in lower case, with the dot. None means all known video
            extensions.
        kind: Kind of the files, for messages.

    Raises:
        ValueError: If the folder does not exist or contains no file.
    """
    check_folder(root, kind)
    extensions = VIDEO_EXTENSIONS if extensions is None else extensions
    paths, others = find_files(root, extensions)
    if not paths:
        raise ValueError(no_file(root, extensions, others, kind))
    tops = [path.partition(os.sep)[0] if os.sep in path else None for path in paths]
    classes = sorted({top for top in tops if top is not None})
    number: dict[str | None, int] = {None: -1, **{name: i for i, name in enumerate(classes)}}
    return VideoList.from_paths(paths, [number[top] for top in tops], classes)


def list_videos(
    root: str, extensions: Sequence[str] | None = None, dataset: str | None = None
) -> VideoList:
    """List the videos of a folder or table, with paths relative to it.

    Args:
        root: Path of the folder or table.
        extensions: Extensions of the files in a folder. None means all known video extensions.
        dataset: Registered class that lists the videos of the folder; None lists all of them.

    Raises:
        ValueError: If there are no videos.
        TableError, MissingPackageError: If the table cannot be read.
    """
    if dataset is not None:
        return _list_by_dataset(root, dataset)
    if is_table(root):
        from sce_video.datasets.tables.table_rows import named_rows

        return named_rows(root).videos
    return scan_folder(root, extensions)


def _list_by_dataset(root: str, dataset: str) -> VideoList:
    """List the paths and labels of a registered dataset that is built for a folder.

    Raises:
        ValueError: If the dataset cannot be built for the folder, or lists no video.
    """
    from sce_video.registry import DATASETS

    try:
        made = DATASETS.build({"type": dataset, "data_root": root})
    except TypeError as error:
        raise ValueError(
            f"the dataset {dataset} cannot be built from data_root={root!r} alone: {error}. Give "
            "its other arguments default values"
        ) from error
    # The dataset's paths include data_root, which the caller will prepend again.
    below = os.path.join(root, "")
    paths = [str(made.path(index)).removeprefix(below) for index in range(len(made))]
    if not paths:
        raise ValueError(f"the dataset {dataset} found no videos in {root}")
    labels = getattr(made, "labels", [-1] * len(paths))
    return VideoList.from_paths(paths, labels, getattr(made, "metainfo", {}).get("classes", ()))


_PROBED = 20  # number of listed files to look for, of which at least one must exist


def list_root(source: str, data_root: str | None, videos: VideoList) -> str:
    """Return the folder that the paths of the list ``source`` are relative to.

    The result is ``data_root``, which may be a table. If it is None, the result is the folder of
    the list or the current folder, whichever contains one of the first videos.

    Raises:
        ValueError: If no folder contains one of the first videos.
    """
    if data_root is not None:
        advice = f"its paths must be relative to {data_root!r}, or absolute"
        return root_of_files(source, [data_root], videos, advice)
    roots = [os.path.dirname(source) or ".", "."]
    return root_of_files(source, roots, videos, "set --data-root to their folder")


def root_of_files(
    source: str, roots: Sequence[str], videos: VideoList, advice: str, kind: str = "video"
) -> str:
    """Return the first folder that contains one of the first files of a list.

    Args:
        source: Path of the list.
        roots: Folders to try.
        videos: Content of the list.
        advice: End of the message if none of the files exists.
        kind: Kind of the listed files, for the message.

    Raises:
        ValueError: If none of the folders contains one of the first files.
    """
    first = [videos.path(i) for i in range(min(len(videos), _PROBED))]
    for root in roots:
        if any(video_exists(os.path.join(root, path)) for path in first):
            return root
    raise ValueError(
        f"none of the first {len(first)} {kind}s of {source!r} exist, for example "
        f"{os.path.join(roots[0], first[0])!r}: {_advice_on_path(first[0], advice)}"
    )


def _advice_on_path(path: str, otherwise: str) -> str:
    """Return what to change in a list whose ``path`` does not exist, judging by the path."""
    before, _, last = path.rpartition(" ")
    if before.lower().endswith(VIDEO_EXTENSIONS + IMAGE_EXTENSIONS):
        return (
            f"{last!r:.100} is not a label, because a list contains only whole numbers as labels. "
            "For class names, use a CSV file with the columns path and label"
        )
    if "\\" in path:
        return "its paths contain backslashes, as on Windows. Replace them with slashes"
    return otherwise


def dataset_settings(root: str | Path, extensions: Sequence[str] | None = None) -> dict[str, Any]:
    """Return settings for the config of a dataset that reads a folder or a table.

    Args:
        root: Path of the folder or table.
        extensions: Extensions of the files in a folder. None means all known video extensions.
    """
    if is_table(root):
        from sce_video.datasets.tables.table import is_remote

        table = str(root) if is_remote(str(root)) else os.path.abspath(root)
        return {"type": "LanceVideoDataset", "data_root": table}
    extensions = VIDEO_EXTENSIONS if extensions is None else extensions
    # Store the extensions, so that a resumed run lists the same files again.
    named = {} if tuple(extensions) == VIDEO_EXTENSIONS else {"extensions": list(extensions)}
    return {"data_root": str(root), **named}


@dataclass(frozen=True)
class Query:
    """A video (a file, a URL or a table row), or a moment of it in seconds."""

    video: str
    start: float | None = None  # None means the whole video
    end: float | None = None

    def __str__(self) -> str:
        moment = "" if self.start is None else f"@{self.start:g}-{self.end:g}"
        return f"{self.video}{moment}"


def parse_query(text: str) -> Query:
    """Parse a query such as ``a.mp4``, ``a.mp4@12.5-17`` or ``a.mp4@1:02:03-1:02:08``.

    If a file of this name exists, the query is this file.

    Raises:
        ValueError: If a moment does not end after its start, or a time is invalid.
    """
    found = MOMENT.fullmatch(text)
    if found is None or _is_there(text):
        return Query(text)
    start, end = parse_seconds(found[2]), parse_seconds(found[3])
    check_span(f"the moment {found[2]}-{found[3]} of {found[1]}", start, end)
    return Query(found[1], start, end)
