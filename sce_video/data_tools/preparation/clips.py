"""Clips that official files give as times in long videos: a table from which repack cuts them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sce_video.data_tools.preparation.files import list_videos, relative_to_root
from sce_video.utils.atomic_file import write_text


@dataclass(frozen=True)
class Clip:
    """A part of a video.

    Attributes:
        video: File name of the video, without extension.
        start: Seconds from the first frame.
        end: Seconds from the first frame.
        name: File name of the clip, without extension.
    """

    video: str
    start: float
    end: float
    name: str


def write_segments(path: Path, root: Path, folder: Path, clips: Iterable[Clip]) -> str:
    """Write a table of segments for ``repack``, and say what to do with it.

    Args:
        path: Of the table; a segment of a video that is not on disk is left out, and counted.
        root: Folder of the data set; paths in the table are relative to it.
        folder: Folder of the videos.
        clips: What to cut.

    Raises:
        FileNotFoundError: The folder does not exist.
        ValueError: Two videos have one name, or none of the videos is there.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder of videos {folder}: name it with --videos")
    paths: dict[str, str] = {}
    for name in list_videos(folder):
        video = relative_to_root(folder / name, root)
        other = paths.setdefault(Path(name).stem, video)
        if other != video:
            raise ValueError(f"{other} and {video} have one name: move one of them away")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("path", "start", "end", "output"))
    written, missing, videos = 0, 0, set()
    for clip in clips:
        if clip.video not in paths:
            missing += 1
            videos.add(clip.video)
            continue
        row = (paths[clip.video], f"{clip.start:.3f}", f"{clip.end:.3f}", f"{clip.name}.mp4")
        writer.writerow(row)
        written += 1
    if not written:
        raise ValueError(
            f"{folder} has none of the {len(videos)} videos, for example {min(videos)}"
        )
    write_text(path, text.getvalue())
    lost = f"; {missing:,} clips of {len(videos):,} videos that are not there" if missing else ""
    return f"{path}: {written:,} clips of {len(paths):,} videos{lost}"
