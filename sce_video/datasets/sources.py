"""Access to videos in files, object stores and tables, with the same functions.

A *video* is the path of a file, a URL such as ``s3://bucket/a.mp4``, which is downloaded once, or
the path of a table row such as ``videos.lance/a.mp4``. ``@12.5-17`` after any of them denotes a
segment. A *set of videos* is a folder, or a table, whose name ends with ``.lance``. Readers and
tables, which import PyAV and torch, are imported only when they are used, because a wrong command
line must not wait for them.
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
from sce_video.utils.files import file_identity, local_copy
from sce_video.utils.seconds import parse_seconds
from sce_video.utils.storage import ObjectStoreError, exists, is_url, walk_files

if TYPE_CHECKING:
    from sce_video.datasets.readers import VideoReader
    from sce_video.datasets.readers.base import ReaderOptions

_ROW = re.compile(r"(.*?\.lance)/+(.+)", re.S)
_MOST_KINDS = 6  # maximum number of extensions in a message


def is_table_folder(folder: str | Path) -> bool:
    """Return whether a path is a table itself, and not the folder of an index."""
    return "://" in str(folder) or (Path(folder) / "_versions").is_dir()


def split_row_path(path: str) -> tuple[str, str] | None:
    """Split ``TABLE.lance/PATH`` into the table and the path in it; None for anything else."""
    found = _ROW.fullmatch(path)
    return None if found is None else (found[1], found[2])


def open_video(
    path: str | os.PathLike[str], backend: str = "av", **options: Unpack[ReaderOptions]
) -> VideoReader:
    """Open a video for reading, wherever it is.

    The reader is a context manager, which closes the file::

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
    """Return whether the path of a video is not a file but a URL or a row."""
    return is_url(path) or split_row_path(path) is not None


def video_state(path: str) -> list[int] | None:
    """Return size, modification time and inode of a video's file, or None without a file.

    Missing files, URLs and rows have no state. Results that are computed from a video are kept for
    this state. Reading all videos to compare their content would take as long as computing the
    results again.
    """
    return None if is_elsewhere(path) else file_identity(video_of(path))


def is_image(path: str) -> bool:
    """Return whether a path names an image, judged by the end of its name."""
    return path.lower().endswith(IMAGE_EXTENSIONS) and not is_elsewhere(path)


def video_exists(path: str | os.PathLike[str]) -> bool:
    """Return whether a file, object or row, or the one that a segment belongs to, exists.

    ObjectStoreError or TableError is raised if this cannot be found out.
    """
    name = os.fspath(path)
    return _is_there(name) or (video_of(name) != name and _is_there(video_of(name)))


def _is_there(name: str) -> bool:
    """Return whether exactly this file, object or row exists, without looking at segments."""
    row = split_row_path(name)
    if row is not None:
        from sce_video.datasets.tables.table_rows import named_rows

        return named_rows(row[0]).number(row[1]) is not None
    return exists(name) if is_url(name) else os.path.exists(name)


def check_folder(root: str, kind: str = "video") -> None:
    """Raise ValueError, with advice, for anything but a folder of files."""
    if is_url(root):
        raise ValueError(
            f"{kind}s must be in a local folder or a table, got {root!r}. Import them into a "
            "table with sce-video import FOLDER s3://bucket/videos.lance"
        )
    refuse_table(root)
    if os.path.isfile(root):
        raise ValueError(
            f"data_root is a folder of {kind}s, got the file {root!r}: give its folder, or a list "
            "of 'path label' as ann_file"
        )
    if not os.path.isdir(root):
        raise ValueError(f"there is no folder {root!r}")


def listed_extensions(all_files: bool) -> tuple[str, ...]:
    """Return the extensions by which folders of videos are listed.

    Args:
        all_files: Whether files of unknown extensions are read, too, if they hold a video.
    """
    return (*VIDEO_EXTENSIONS, BY_CONTENT) if all_files else VIDEO_EXTENSIONS


def find_files(root: str, extensions: Sequence[str]) -> tuple[list[str], Counter[str]]:
    """Return the files below a folder with one of the extensions, and what else there is.

    For hidden files and links see :func:`~sce_video.utils.storage.walk_files`.

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
    """Describe ``5 other files, which are left out (3 .txt, 2 without extension)``, with advice."""
    ordered = sorted(others.items(), key=lambda item: (-item[1], item[0]))
    kinds = [f"{n} {end or 'without extension'}" for end, n in ordered[:_MOST_KINDS]]
    kinds += ["..."] * (len(others) > _MOST_KINDS)
    files = f"{others.total()} other file{'s' * (others.total() != 1)}"
    by_name = kind == "video" and BY_CONTENT not in extensions
    advice = ". --all-files reads files that contain a video" * by_name
    return f"{files}, which are left out ({', '.join(kinds)}){advice}"


def no_file(root: str, extensions: Sequence[str], others: Counter[str], kind: str = "video") -> str:
    """Return the message for a folder without a file of the extensions."""
    if not others:
        return f"no {kind} in {root!r}: there is no file in it"
    return f"no {kind} in {root!r}, but {describe_others(others, extensions, kind)}"


def scan_folder(
    root: str, extensions: Sequence[str] | None = None, kind: str = "video"
) -> VideoList:
    """Find all videos (or images) below a folder, sorted by path; paths are relative to ``root``.

    The first-level sub-folders that contain any are the classes, numbered in sorted order. A file
    directly in ``root`` has no label (-1). ``extensions`` have the form that :func:`find_files`
    expects: lower case, with the dot. None means all known video extensions. ValueError is raised
    if the folder or the files do not exist.
    """
    check_folder(root, kind)
    extensions = VIDEO_EXTENSIONS if extensions is None else extensions
    paths, others = find_files(root, extensions)
    if not paths:
        raise ValueError(no_file(root, extensions, others, kind))
    tops = [path.partition(os.sep)[0] if os.sep in path else None for path in paths]
    classes = sorted({top for top in tops if top is not None})
    number: dict[str | None, int] = {name: label for label, name in enumerate(classes)}
    return VideoList.from_paths(paths, [number.get(top, -1) for top in tops], classes)


def list_videos(
    root: str, extensions: Sequence[str] | None = None, dataset: str | None = None
) -> VideoList:
    """List the videos of a folder or of a table; paths are relative to it.

    Args:
        root: Path of the folder or table.
        extensions: Extensions of the files in a folder. None means all known video extensions.
        dataset: Registered class that lists the videos of the folder; None lists all of them.

    Raises:
        ValueError: If there are none.
        TableError, MissingPackageError: If the table cannot be read.
    """
    if dataset is not None:
        return _list_by_dataset(root, dataset)
    if is_table(root):
        from sce_video.datasets.tables.table_rows import named_rows

        return named_rows(root).videos
    return scan_folder(root, extensions)


def _list_by_dataset(root: str, dataset: str) -> VideoList:
    """List the videos of a folder by a registered dataset, of which paths and labels are used.

    Raises:
        ValueError: If the dataset cannot be built for the folder, or lists no video.
    """
    from sce_video.registry import DATASETS

    try:
        made = DATASETS.build({"type": dataset, "data_root": root})
    except TypeError as error:
        raise ValueError(
            f"the dataset {dataset} cannot be built from data_root={root!r} alone: {error}. Give "
            "its other arguments a default"
        ) from error
    # A dataset joins its paths to data_root, and the caller joins them to it again.
    below = os.path.join(root, "")
    paths = [str(made.path(index)).removeprefix(below) for index in range(len(made))]
    if not paths:
        raise ValueError(f"the dataset {dataset} found no videos in {root}")
    labels = getattr(made, "labels", [-1] * len(paths))
    return VideoList.from_paths(paths, labels, getattr(made, "metainfo", {}).get("classes", ()))


_PROBED = 20  # number of entries with which the folder of a list's relative paths is found


def list_root(source: str, data_root: str | None, videos: VideoList) -> str:
    """Return the folder that the paths of the list ``source`` are relative to.

    The result is ``data_root``, which may be a table. If it is None, the result is the folder of
    the list or the current one, whichever contains one of the first videos. ValueError is raised if
    neither does.
    """
    first = [videos.path(i) for i in range(min(len(videos), _PROBED))]
    roots = [os.path.dirname(source) or ".", "."] if data_root is None else [data_root]
    for root in roots:
        if any(video_exists(os.path.join(root, path)) for path in first):
            return root
    advice = "give their folder with --data-root"
    if data_root is not None:
        advice = f"its paths must be relative to {data_root!r}, or absolute"
    raise ValueError(
        f"none of the first {len(first)} videos of {source!r} exist, for example "
        f"{os.path.join(roots[0], first[0])!r}: {advice_on_path(first[0], advice)}"
    )


def advice_on_path(path: str, otherwise: str) -> str:
    """Return what to change in a list whose ``path`` does not exist, by how it looks."""
    before, _, last = path.rpartition(" ")
    if before.lower().endswith(VIDEO_EXTENSIONS + IMAGE_EXTENSIONS):
        return (
            f"{last!r:.100} is not a label. In a list, a label is a whole number. For class names, "
            "give a CSV file with the columns path and label"
        )
    if "\\" in path:
        return "its paths contain backslashes, as on Windows. Replace them with slashes"
    return otherwise


def dataset_settings(root: str | Path, extensions: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the settings that make a dataset's config read a folder or a table.

    Args:
        root: Path of the folder or table.
        extensions: Extensions of the files in a folder. None means all known video extensions.
    """
    if is_table(root):
        from sce_video.datasets.tables.table import is_remote

        table = str(root) if is_remote(str(root)) else os.path.abspath(root)
        return {"type": "LanceVideoDataset", "data_root": table}
    extensions = VIDEO_EXTENSIONS if extensions is None else extensions
    # A resumed run lists the same files, whatever options it is given.
    named = {} if tuple(extensions) == VIDEO_EXTENSIONS else {"extensions": list(extensions)}
    return {"data_root": str(root), **named}


@dataclass(frozen=True)
class Query:
    """A video (a file, a URL or a row of a table), or a moment of it, in seconds."""

    video: str
    start: float | None = None  # None for the whole video
    end: float | None = None

    def __str__(self) -> str:
        moment = "" if self.start is None else f"@{self.start:g}-{self.end:g}"
        return f"{self.video}{moment}"


def parse_query(text: str) -> Query:
    """Return the query of ``a.mp4``, ``a.mp4@12.5-17`` or ``a.mp4@1:02:03-1:02:08``.

    If a file has the whole text as its name, the query is this file. ValueError is raised for a
    moment that does not end after its start, or whose times cannot be read.
    """
    found = MOMENT.fullmatch(text)
    if found is None or _is_there(text):
        return Query(text)
    start, end = parse_seconds(found[2]), parse_seconds(found[3])
    check_span(f"the moment {found[2]}-{found[3]} of {found[1]}", start, end)
    return Query(found[1], start, end)
