"""The videos in a folder or an annotation list, for ``verify``, ``repack`` and ``import``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from sce_video.datasets.named_files import check_exists, check_videos
from sce_video.datasets.sources import list_root, scan_folder
from sce_video.datasets.video_list import VideoList, read_annotation_list
from sce_video.utils.files import regular_file, text_encoding


@dataclass(frozen=True)
class ListedVideos:
    """Videos in a folder or an annotation list.

    Attributes:
        videos: Paths and labels, N entries.
        root: Folder that the paths are relative to.
        lines: (N,) line number of each entry, counted from 1; None for a folder.
    """

    videos: VideoList
    root: str
    lines: list[int] | None = None


def listed_videos(
    source: str, data_root: str | None, extensions: Sequence[str] | None = None
) -> ListedVideos:
    """List the videos of a folder or an annotation list, and print which files are left out.

    Args:
        source: Folder or list.
        data_root: Folder that the paths of a list are relative to. None uses the folder of the list
            or the current folder, whichever contains one of the first files.
        extensions: Extensions of the files in a folder. None means all video extensions.

    Raises:
        FileNotFoundError: If the list or ``data_root`` does not exist.
        ValueError: If there are no videos, none of the first files of a list exists, or a folder
            has a ``data_root``.
    """
    if os.path.isdir(source):
        if data_root is not None:
            raise ValueError(
                f"{source} is a folder, but --data-root belongs to an annotation list. Remove "
                "--data-root"
            )
        check_videos(source, extensions)
        return ListedVideos(scan_folder(source, extensions), source)
    check_exists(source, "list or folder")
    check_exists(data_root, "folder")
    videos = read_annotation_list(source)
    root = list_root(source, data_root, videos)
    encoding = text_encoding(source)
    with open(source, encoding=encoding, errors="surrogateescape", opener=regular_file) as file:
        lines = [number for number, line in enumerate(file, 1) if line.strip()]
    return ListedVideos(videos, root, lines)
