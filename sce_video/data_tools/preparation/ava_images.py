"""Which seconds of AVA's films are on disk, as videos or as folders of frames."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import av

from sce_video.data_tools.preparation.ava_files import LAYOUT, AvaOptions, Key
from sce_video.data_tools.preparation.official import first_existing
from sce_video.data_tools.preparation.prepare import CheckJob, check_files
from sce_video.datasets.decode_limits import DecodeLimits
from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.av_file import decoder_options
from sce_video.datasets.readers.containers import open_video
from sce_video.datasets.video_list import VIDEO_EXTENSIONS
from sce_video.jobs import Workers

BEGIN = 900  # second of the film at which the 15-minute cuts and the frames begin
FRAME_RATE = 30
# A cut lasts 901 s; the films last more than half an hour.
LONGEST_CUT = 1000.0

_FRAME = re.compile(r"(\d+)\.(?:jpe?g|png)$", re.IGNORECASE)


@dataclass
class Images:
    """Images on disk, by video.

    Attributes:
        folder: Folder of videos or of frame folders.
        as_frames: Whether it holds folders of frames.
        missing: Why there is no file.
        unreadable: Why the file cannot be read.
        seconds: Seconds of the film that are on disk, ``(first, last + 1)``; no entry for videos
            that were not opened.
        gaps: Seconds within that range without a frame.
        films: Videos that are full films.
    """

    folder: Path
    as_frames: bool = False
    missing: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, tuple[float, float]] = field(default_factory=dict)
    gaps: dict[str, set[int]] = field(default_factory=dict)
    films: list[str] = field(default_factory=list)

    def has_none(self, video: str) -> bool:
        """Whether there is no image of the video at all."""
        return video in self.missing or video in self.unreadable

    def has(self, key: Key) -> bool:
        """Whether the key frame is on disk; True for videos that were not opened."""
        video, second = key
        first, end = self.seconds.get(video, (0.0, float("inf")))
        return first <= second < end and second not in self.gaps.get(video, ())


def find_images(options: AvaOptions, videos: list[str]) -> Images:
    root = options.root
    folders = [root / "videos", root / "videos_15min", root / "frames", root / "rawframes"]
    if options.frames is not None:
        folders = [options.frames]
    elif options.videos is not None:
        folders = [options.videos]
    folder = first_existing(folders, root, LAYOUT, "folder of videos or frames")
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file, but must be the folder of videos or frames")
    as_frames = options.frames is not None or folder in folders[2:]
    images = Images(folder, as_frames)
    paths = _frame_folders(folder) if as_frames else _video_files(folder)
    what = "no such folder of frames" if as_frames else "no such video"
    images.missing = {video: what for video in videos if video not in paths}
    found = {video: paths[video] for video in videos if video in paths}
    if as_frames:
        _check_frames(images, found, options.check)
    elif options.check:
        _check_videos(images, found, options)
    if images.films and len(images.films) < len(images.seconds):
        cut = next(video for video in images.seconds if video not in images.films)
        raise ValueError(
            f"{folder} holds both full films ({paths[images.films[0]].name}) and 15-minute cuts "
            f"({paths[cut].name}): cut all of them (ffmpeg -ss 900 -t 901) or none"
        )
    return images


def _video_files(folder: Path) -> dict[str, Path]:
    """Video files directly in a folder, by name without extension.

    Raises:
        ValueError: Two files have the same name without extension.
    """
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in VIDEO_EXTENSIONS and not path.name.startswith("."):
            if path.stem in files:
                raise ValueError(f"{files[path.stem]} and {path.name} are the same video: keep one")
            files[path.stem] = path
    return files


def _frame_folders(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_dir()}


def _check_frames(images: Images, folders: Mapping[str, Path], check: bool) -> None:
    """Find the seconds that have a frame: ``NAME_000001.jpg`` is second 900, 30 per second."""
    for video, folder in folders.items() if check else ():
        numbers = {int(m[1]) for name in os.listdir(folder) if (m := _FRAME.search(name))}
        if not numbers:
            images.missing[video] = "the folder holds no numbered jpg or png files"
            continue
        first = 0 if 0 in numbers else 1
        last = (max(numbers) - first) // FRAME_RATE
        wanted = {BEGIN + i: first + i * FRAME_RATE for i in range(last + 1)}
        images.seconds[video] = (BEGIN, BEGIN + last + 1)
        images.gaps[video] = {second for second, n in wanted.items() if n not in numbers}


def _check_videos(images: Images, files: Mapping[str, Path], options: AvaOptions) -> None:
    records = (options.out or options.root) / "checked_ava.sqlite"
    workers = Workers(options.workers, options.time_limit, options.ray)
    names = {path.name: video for video, path in files.items()}
    job = CheckJob(images.folder, probe_video)
    for name, found in check_files(list(names), job, records, workers).items():
        video = names[name]
        if isinstance(found, str):
            images.unreadable[video] = found
            continue
        seconds = float("inf") if found is None else found
        film = seconds > LONGEST_CUT
        begin = 0 if film else BEGIN
        images.seconds[video] = (begin, begin + seconds)
        if film:
            images.films.append(video)


def probe_video(path: str) -> float | str | None:
    """Duration in seconds by the header, None without one; or why no frame can be decoded.

    The packets would be more reliable, but finding them reads a whole Matroska file.
    """
    bound = decoder_options(DecodeLimits())
    try:
        with open_video(path, decoder_options=bound) as container:
            stream = container.streams.video[0]
            stream.codec_context.options = bound
            next(container.decode(stream))
            if stream.duration is not None and stream.time_base is not None:
                return float(stream.duration * stream.time_base)
            if container.duration is not None:
                return container.duration / 1_000_000
            return None
    except VideoDecodeError as error:
        return f"cannot be opened or decoded: {error.reason}"
    except (av.FFmpegError, OSError, IndexError) as error:
        return f"cannot be opened or decoded: {error}"
    except StopIteration:
        return "has no frame that can be decoded"
