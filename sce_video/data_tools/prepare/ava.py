"""AVA v2.2: lists of key frames from the official files, person detections and videos."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TextIO

import av

from sce_video.data_tools.prepare.ava_files import (
    LAYOUT,
    Annotations,
    Corners,
    Detections,
    Key,
    merge_actions,
    read_action_list,
    read_annotations,
    read_excluded,
)
from sce_video.data_tools.prepare.lists import (
    CheckJob,
    PrepareOptions,
    Row,
    check_files,
    failure_report,
    format_counts,
    write_outputs,
)
from sce_video.data_tools.prepare.official import first_existing, relative_to_root
from sce_video.datasets.ava import Action, format_actions
from sce_video.datasets.readers.av_file import decoder_options, open_container
from sce_video.datasets.readers.errors import VideoDecodeError
from sce_video.datasets.readers.limits import DecodeLimits
from sce_video.datasets.video_list import VIDEO_EXTENSIONS
from sce_video.jobs import Workers
from sce_video.utils.printable import printable_lines

BEGIN = 900  # second of the film at which the 15-minute cuts and the frames begin
FRAME_RATE = 30
# A cut lasts 901 s; the films last more than half an hour.
LONGEST_CUT = 1000.0

_FRAME = re.compile(r"(\d+)\.(?:jpe?g|png)$", re.IGNORECASE)


@dataclass(frozen=True)
class AvaOptions(PrepareOptions):
    """Options of a preparation of AVA.

    Attributes:
        annotations: Folder of the official files; ``root/annotations`` or ``root`` unless given.
        detections: Files of person detections; those of :data:`LAYOUT` unless given.
        without_detections: Use no detections.
        min_score: Detections with a lower score are left out.
        videos: Folder of the videos, ``root/videos`` or ``root/videos_15min`` unless given.
        frames: Folder of the frame folders, used instead of videos.
        skip_frameless: Leave out key frames outside of their video, instead of an error.
        unannotated: Also list key frames of val with detections but without ground truth.
    """

    annotations: Path | None = None
    detections: tuple[Path, ...] = ()
    without_detections: bool = False
    min_score: float = 0.9
    videos: Path | None = None
    frames: Path | None = None
    skip_frameless: bool = False
    unannotated: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.min_score <= 1:
            raise ValueError(f"min_score must be from 0 to 1, got {self.min_score}")
        if self.videos is not None and self.frames is not None:
            raise ValueError("give a folder of videos or a folder of frames, not both")
        if self.detections and self.without_detections:
            raise ValueError("give files of detections, or without_detections, not both")


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
    if as_frames:
        paths = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir()}
    else:
        paths = _video_files(folder)
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


def _check_frames(images: Images, folders: Mapping[str, Path], check: bool) -> None:
    """Find the seconds that have a frame: ``NAME_000001.jpg`` is second 900, 30 per second."""
    for video, folder in folders.items() if check else ():
        numbers = {int(m[1]) for name in os.listdir(folder) if (m := _FRAME.search(name))}
        if not numbers:
            images.missing[video] = "the folder holds no numbered jpg or png files"
            continue
        first = 0 if 0 in numbers else 1  # ffmpeg counts frames from 1, some tools from 0
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
        film = seconds > LONGEST_CUT  # its seconds count from 0, those of a cut from 900
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
        with open_container(path, decoder_options=bound) as container:
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


# Gu et al. 2018 and the data set's page.
PUBLISHED_VIDEOS = {"train": 235, "val": 64}
PUBLISHED_ACTIONS, PUBLISHED_SCORED = 80, 60

_DETECTIONS = (
    "ava_{split}_predicted_boxes.csv",
    "person_box_67091280_iou90/ava_detection_{split}_boxes_and_labels_include_negative_v2.2.csv",
    "person_box_67091280_iou90/ava_detection_{split}_boxes_and_labels.csv",
    "ava_dense_proposals_{split}.FAIR.recall_93.9.pkl",
)
_SHOWN = 5


@dataclass
class _Split:
    """A list under construction."""

    name: str
    annotations: Annotations
    excluded: set[Key]
    lines: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def prepare_ava(options: AvaOptions, stream: TextIO | None = None) -> bool:
    """Read all files, compare with the disk, print the counts, write the lists.

    Writes ``ava_train.jsonl`` and ``ava_val.jsonl``, one JSON object per key frame, sorted by
    video and second: ``video``, ``timestamp``, ``boxes`` [[x1, y1, x2, y2], ...] relative to width
    and height, ``labels`` [[action id, ...], ...] and ``persons`` [id, ...] of the boxes (-1 if the
    official file names no person), ``detections`` [[x1, y1, x2, y2, score], ...] by descending
    score; and ``ava_actions.json``. Missing videos are listed in ``missing_ava.txt``, unreadable
    ones in ``unreadable_ava.txt``.

    Args:
        options: PrepareOptions.
        stream: Stream for the counts, stdout by default.

    Returns:
        Whether all counts agree with the published ones.

    Raises:
        FileNotFoundError: An official file or the folder of images is missing.
        ValueError: Bad input, with file and line; existing lists that differ.
    """
    stream = stream if stream is not None else sys.stdout
    actions, splits = _read_official(options)
    detections = _read_detections(options, splits)
    videos = {video for split in splits for video in split.annotations.videos()}
    images = find_images(options, sorted(videos))
    for split in splits:
        _fill(split, detections, images, options)
    rows = [*_action_rows(actions), *(row for s in splits for row in _rows(s, images, options))]
    notes = [*_notes(splits, detections, images, options)]
    print(printable_lines("\n".join([format_counts(rows), *notes]), stream), file=stream)
    contents: dict[str, str | None] = {}
    for split in splits:
        if not split.lines:
            raise ValueError(
                f"no key frame of {split.annotations.path} has images in {images.folder}; "
                "nothing was written"
            )
        contents[f"ava_{split.name}.jsonl"] = "".join(split.lines)
    contents["ava_actions.json"] = format_actions(actions)
    contents["missing_ava.txt"] = failure_report(images.missing)
    contents["unreadable_ava.txt"] = failure_report(images.unreadable)
    folder = options.out or options.root
    for name, done in write_outputs(folder, contents, force=options.force).items():
        print(printable_lines(f"{folder / name}: {done}", stream), file=stream)
    return all(row.agrees is not False for row in rows)


# -- official files ---------------------------------------------------------------------------


def _folders(options: AvaOptions) -> list[Path]:
    if options.annotations is not None:
        return [options.annotations]
    return [options.root / "annotations", options.root]


def _find(options: AvaOptions, name: str) -> Path:
    candidates = [folder / name for folder in _folders(options)]
    return first_existing(candidates, options.root, LAYOUT, name)


def _read_official(options: AvaOptions) -> tuple[list[Action], list[_Split]]:
    scored = read_action_list(_find(options, "ava_action_list_v2.2_for_activitynet_2019.pbtxt"))
    paths = [folder / "ava_action_list_v2.2.pbtxt" for folder in _folders(options)]
    full = next((path for path in paths if path.exists()), None)
    actions = merge_actions(scored, read_action_list(full) if full is not None else None)
    names = {action.id: action.name for action in actions}
    splits = [
        _Split(
            name,
            read_annotations(_find(options, f"ava_{name}_v2.2.csv"), names),
            read_excluded(_find(options, f"ava_{name}_excluded_timestamps_v2.2.csv")),
        )
        for name in PUBLISHED_VIDEOS
    ]
    train, val = (split.annotations for split in splits)
    val_videos = val.videos()
    common = sorted(set(train.videos()) & set(val_videos))
    if common:
        raise ValueError(
            f"{val.path}, line {val_videos[common[0]]}: video {common[0]!r} is in {train.path.name}"
            f" too, and {len(common) - 1} more: use the official files unchanged"
        )
    return actions, splits


def _read_detections(options: AvaOptions, splits: list[_Split]) -> Detections:
    """Detections of all files; the video tells the split of a detection."""
    detections = Detections()
    if options.without_detections:
        return detections
    files = options.detections or tuple(
        first_existing(
            [
                folder / name.format(split=s.name)
                for folder in _folders(options)
                for name in _DETECTIONS
            ],
            options.root,
            LAYOUT,
            f"file of person detections of {s.name} (--detections FILE ..., or --no-detections)",
        )
        for s in splits
    )
    videos = {video: None for split in splits for video in split.annotations.videos()}
    for path in files:
        detections.add_file(path, videos, options.min_score)
    return detections


# -- lists ------------------------------------------------------------------------------------


def _fill(split: _Split, detections: Detections, images: Images, options: AvaOptions) -> None:
    """Make the lines of a split and count them.

    Raises:
        ValueError: A key frame has no image, though its video exists.
    """
    counts, frames = split.counts, split.annotations.frames
    frameless = []
    keys = set(frames)
    if options.unannotated and split.name == "val":
        videos = split.annotations.videos()
        keys.update(key for key in detections.boxes if key[0] in videos)
    for key in sorted(keys):
        frame = frames.get(key)
        boxes = frame.boxes if frame is not None else {}
        found = detections.boxes.get(key, {})
        if key in split.excluded:
            counts["excluded"] += 1
            continue
        sizes = {
            "key frames": 1,
            "boxes": len(boxes),
            "labels": sum(map(len, boxes.values())),
            "detections": len(found),
        }
        counts.update(sizes)
        if not options.keep_missing:
            if images.has_none(key[0]):
                continue
            if not images.has(key):
                frameless.append(key)
                continue
        counts.update({f"{name} found": number for name, number in sizes.items()})
        split.lines.append(_line(key, boxes, found))
    counts["frameless"] = len(frameless)
    if frameless and not options.skip_frameless:
        raise ValueError(_frameless(split, frameless, images))


def _line(
    key: Key,
    boxes: Mapping[tuple[Corners, int], list[int]],
    found: Mapping[Corners, float],
) -> str:
    best_first = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    entry = {
        "video": key[0],
        "timestamp": key[1],
        "boxes": [list(corners) for corners, _ in boxes],
        "labels": list(boxes.values()),
        "persons": [person for _, person in boxes],
        "detections": [[*corners, score] for corners, score in best_first],
    }
    return json.dumps(entry) + "\n"


def _frameless(split: _Split, keys: list[Key], images: Images) -> str:
    """Message about key frames outside of their video."""
    frames = split.annotations.frames
    video, second = min(keys, key=lambda key: frames[key].line if key in frames else 10**9)
    first, end = images.seconds[video]
    line = f", line {frames[video, second].line}" if (video, second) in frames else ""
    number = (second - BEGIN) * FRAME_RATE + 1
    found = (
        f"frame {number} does not exist"
        if images.as_frames
        else f"the file holds seconds {first:g} to {end:g} of the film"
    )
    return (
        f"{split.annotations.path}{line}: second {second} of video {video!r} has no frames in "
        f"{images.folder}: {found}. This concerns {len(keys):,} key frames of "
        f"{len({k[0] for k in keys}):,} videos. Cuts must begin at second {BEGIN} (ffmpeg -ss 900 "
        f"-t 901), frames be extracted at {FRAME_RATE} per second; --skip-frameless leaves these "
        "key frames out"
    )


# -- what the user sees -----------------------------------------------------------------------


def _action_rows(actions: list[Action]) -> list[Row]:
    scored = sum(action.scored for action in actions)
    return [
        Row(title, f"{count:,}", published=f"{published:,}", agrees=count == published)
        for title, count, published in (
            ("actions", len(actions), PUBLISHED_ACTIONS),
            ("scored actions", scored, PUBLISHED_SCORED),
        )
    ]


def _rows(split: _Split, images: Images, options: AvaOptions) -> list[Row]:
    videos = split.annotations.videos()
    missing = sum(video in images.missing for video in videos)
    bad = sum(video in images.unreadable for video in videos)
    published = PUBLISHED_VIDEOS[split.name]
    title = f"ava_{split.name}"
    rows = [
        Row(
            f"{title}, videos",
            listed=f"{len(videos):,}",
            found=f"{len(videos) - missing:,}",
            missing=f"{missing:,}",
            unreadable=f"{bad:,}" if options.check else "not checked",
            published=f"{published:,}",
            agrees=len(videos) == published and missing == 0 and bad == 0,
        )
    ]
    for name in ("key frames", "boxes", "labels", "detections"):
        listed, found = split.counts[name], split.counts[f"{name} found"]
        rows.append(
            Row(f"{title}, {name}", f"{listed:,}", f"{found:,}", missing=f"{listed - found:,}")
        )
    return rows


def _notes(
    splits: list[_Split], detections: Detections, images: Images, options: AvaOptions
) -> Iterator[str]:
    """Notes that are printed below the table."""
    for split in splits:
        if split.counts["excluded"]:
            yield f"note: {split.counts['excluded']:,} key frames of {split.name} are excluded"
        for remark, count in sorted(split.annotations.remarks.items()):
            yield f"note: {split.annotations.path.name}: {count:,} {remark}"
        if split.counts["frameless"]:
            count = split.counts["frameless"]
            yield f"note: {count:,} key frames of {split.name} have no image: left out"
    yield from _detection_notes(splits, detections, options)
    if images.films:
        yield (
            f"note: the videos in {images.folder} are full films, not 15-minute cuts: set "
            "begins_at=0 in the config"
        )
    treatment = (
        "kept in the lists (--keep-missing)" if options.keep_missing else "left out of the lists"
    )
    folder = relative_to_root(images.folder, options.root)
    for what, reasons in (("missing", images.missing), ("unreadable", images.unreadable)):
        if reasons:
            yield f"{what} (in {folder}; {what}_ava.txt): {len(reasons):,} videos, {treatment}"
            for video in islice(sorted(reasons), _SHOWN):
                yield f"  {video}: {reasons[video]}"
            if len(reasons) > _SHOWN:
                yield f"  and {len(reasons) - _SHOWN:,} more"


def _detection_notes(
    splits: list[_Split], detections: Detections, options: AvaOptions
) -> Iterator[str]:
    if options.without_detections:
        yield "note: no person detections, which testing needs"
        return
    for path, count in detections.files.items():
        yield f"note: {count:,} rows of person detections in {path}"
    for remark, count in sorted(detections.remarks.items()):
        yield f"note: detections: {count:,} {remark}"
    if detections.low:
        yield f"note: {detections.low:,} detections have a score below {options.min_score:g}"
    known = {key for split in splits for key in (*split.annotations.frames, *split.excluded)}
    unlisted = sum(key not in known for key in detections.boxes)
    if unlisted:
        yield (
            f"note: {unlisted:,} seconds have detections but no ground truth"
            + (
                ": those of val are in its list, where each detection is a false positive "
                "(--unannotated)"
                if options.unannotated
                else ", and are left out as in the official evaluation (see --unannotated)"
            )
        )
    for split in splits:
        if split.counts["detections"] == 0:
            yield f"note: no key frame of {split.name} has a detection: is a file missing?"
