"""AVA v2.2: make lists of key frames from the official files, person detections and videos."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import av

from sce_video.data_tools.prepare.ava_files import (
    AVA,
    Annotations,
    Detections,
    Key,
    merge_actions,
    read_action_list,
    read_annotations,
    read_excluded,
)
from sce_video.data_tools.prepare.lists import (
    Row,
    check_files,
    failure_notes,
    failure_report,
    show_counts,
    write_outputs,
)
from sce_video.data_tools.prepare.official import relative_to_root
from sce_video.datasets.ava import Action, format_actions
from sce_video.datasets.readers.av_file import (
    best_video_stream,
    decoder_options,
    open_container,
    stated_seconds,
)
from sce_video.datasets.readers.base import DecodeLimits, VideoDecodeError
from sce_video.datasets.video_list import VIDEO_EXTENSIONS
from sce_video.options.data_commands import PrepareOptions

BEGIN = 900  # second of the film at which the 15-minute cuts and the frames begin
#: Number of frames per second that the official scripts extract from the cuts.
FRAME_RATE = 30
#: Longer videos are full films, because a cut lasts 901 s and a film more than half an hour.
LONGEST_CUT = 1000.0

# These numbers are from Gu et al. 2018 and the dataset's page.
#: Number of videos in each split.
PUBLISHED_VIDEOS = {"train": 235, "val": 64}
#: Number of actions in the official list.
PUBLISHED_ACTIONS = 80
#: Number of actions that are scored.
PUBLISHED_SCORED = 60

_FRAME = re.compile(r"(\d+)\.(?:jpe?g|png)$", re.IGNORECASE)
_DETECTIONS = (
    "ava_{}_predicted_boxes.csv",
    "person_box_67091280_iou90/ava_detection_{}_boxes_and_labels_include_negative_v2.2.csv",
    "person_box_67091280_iou90/ava_detection_{}_boxes_and_labels.csv",
    "ava_dense_proposals_{}.FAIR.recall_93.9.pkl",
)


@dataclass
class Images:
    """Images on disk.

    Attributes:
        folder: Folder of videos or of frame folders.
        as_frames: Whether it contains frame folders.
        missing: Reason why there is no file, by video.
        unreadable: Reason why the file cannot be read, by video.
        seconds: Seconds of the film that are on disk, ``(first, last + 1)``, for each opened video.
        gaps: Seconds without a frame in this range, by video.
        films: Videos that are full films.
    """

    folder: Path
    as_frames: bool = False
    missing: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, tuple[float, float]] = field(default_factory=dict)
    gaps: dict[str, set[int]] = field(default_factory=dict)
    films: list[str] = field(default_factory=list)

    def has(self, key: Key) -> bool:
        """Return whether the key frame is on disk; True for videos that were not opened."""
        video, second = key
        first, end = self.seconds.get(video, (0.0, math.inf))
        return first <= second < end and second not in self.gaps.get(video, ())


def find_images(options: PrepareOptions, videos: list[str]) -> Images:
    """Find out which of the videos, and which of their seconds, are on disk.

    Raises:
        FileNotFoundError: If no folder of videos or frames exists.
        ValueError: If the folder is a file, contains a video twice, or contains both full films and
            15-minute cuts.
    """
    root = Path(options.root)
    folder = AVA.folder(root, options.frames or options.videos)
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file, but must be the folder of videos or frames")
    of_frames = options.videos is None and folder in (root / "frames", root / "rawframes")
    images = Images(folder, options.frames is not None or of_frames)
    paths = _paths_by_video(images)
    what = "no such folder of frames" if images.as_frames else "no such video"
    images.missing = {video: what for video in videos if video not in paths}
    found = {video: paths[video] for video in videos if video in paths}
    if options.no_check:
        return images
    if images.as_frames:
        _check_frames(images, found)
        return images
    names = [path.name for path in found.values()]
    probed = check_files(folder, names, probe_video, "ava", options)
    for video, length in zip(found, probed.values(), strict=True):
        if isinstance(length, str):
            images.unreadable[video] = length
            continue
        length = math.inf if length is None else length
        begin = 0 if length > LONGEST_CUT else BEGIN  # a full film begins at second 0
        images.seconds[video] = (begin, begin + length)
    images.films = [video for video, (begin, _) in images.seconds.items() if begin == 0]
    if images.films and len(images.films) < len(images.seconds):
        cut = next(video for video in images.seconds if video not in images.films)
        raise ValueError(
            f"{folder} contains both full films ({paths[images.films[0]].name}) and 15-minute cuts "
            f"({paths[cut].name}). Cut all of them (ffmpeg -ss 900 -t 901) or none"
        )
    return images


def _paths_by_video(images: Images) -> dict[str, Path]:
    """Return the frame folders or videos that lie directly in the folder, by name."""
    inside = sorted(images.folder.iterdir())
    if images.as_frames:
        return {path.name: path for path in inside if path.is_dir()}
    files: dict[str, Path] = {}
    for path in inside:
        if path.suffix.lower() in VIDEO_EXTENSIONS and not path.name.startswith("."):
            if path.stem in files:
                raise ValueError(
                    f"{files[path.stem]} and {path.name} are the same video. Keep one of them"
                )
            files[path.stem] = path
    return files


def _check_frames(images: Images, folders: dict[str, Path]) -> None:
    """Find the seconds that have a frame. ``NAME_000001.jpg`` is displayed at second 900."""
    for video, folder in folders.items():
        numbers = {int(m[1]) for name in os.listdir(folder) if (m := _FRAME.search(name))}
        if not numbers:
            images.missing[video] = "the folder contains no numbered jpg or png files"
            continue
        first = 0 if 0 in numbers else 1  # ffmpeg counts frames from 1, but some tools from 0
        count = (max(numbers) - first) // FRAME_RATE + 1
        images.seconds[video] = (BEGIN, BEGIN + count)
        gaps = (BEGIN + i for i in range(count) if first + i * FRAME_RATE not in numbers)
        images.gaps[video] = set(gaps)


def probe_video(path: str) -> float | str | None:
    """Return the duration that the header states, or the reason why no frame can be decoded.

    The duration of the packets would be more reliable, but it takes reading a whole Matroska file.
    """
    bound = decoder_options(DecodeLimits())
    try:
        with open_container(path, decoder_options=bound) as container:
            stream = best_video_stream(path, container)
            stream.codec_context.options = bound
            next(container.decode(stream))
            return stated_seconds(container, stream)
    except (VideoDecodeError, av.FFmpegError, OSError, IndexError) as error:
        return f"cannot be opened or decoded: {getattr(error, 'reason', error)}"
    except StopIteration:
        return "has no frame that can be decoded"


@dataclass
class _Split:
    """A list under construction."""

    name: str
    annotations: Annotations
    excluded: set[Key]
    lines: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def prepare_ava(options: PrepareOptions) -> bool:
    """Read all files, compare them with the disk, print the counts and write the lists.

    ``ava_train.jsonl`` and ``ava_val.jsonl`` contain a JSON object per key frame, sorted by video
    and second: ``video``, ``timestamp``, ``boxes`` [[x1, y1, x2, y2], ...] relative to width and
    height, ``labels`` [[action id, ...], ...] and ``persons`` [id, ...] of the boxes (-1 if the
    official file names no person), and ``detections`` [[x1, y1, x2, y2, score], ...] by descending
    score. The other files are ``ava_actions.json``, ``missing_ava.txt`` and ``unreadable_ava.txt``.

    Returns:
        True if all counts agree with the published counts.

    Raises:
        FileNotFoundError: If an official file or the folder of images is missing.
        ValueError: If a file is invalid, or if existing lists differ.
    """
    actions, splits = _read_official(options)
    videos = {video for split in splits for video in split.annotations.videos()}
    detections = _read_detections(options, splits, videos)
    images = find_images(options, sorted(videos))
    numbers = len(actions), sum(action.scored for action in actions)
    published = {"actions": PUBLISHED_ACTIONS, "scored actions": PUBLISHED_SCORED}
    rows = [
        Row(title, count, published=wanted, agrees=count == wanted)
        for count, (title, wanted) in zip(numbers, published.items(), strict=True)
    ]
    for split in splits:
        _fill(split, detections, images, options)
        listed, title = split.annotations.videos(), f"ava_{split.name}"
        missing = sum(video in images.missing for video in listed)
        bad = sum(video in images.unreadable for video in listed)
        wanted = PUBLISHED_VIDEOS[split.name]
        agrees = len(listed) == wanted and missing == 0 and bad == 0
        counts = len(listed), len(listed) - missing, missing
        unreadable = "not checked" if options.no_check else bad
        rows.append(Row(f"{title}, videos", *counts, unreadable, wanted, agrees))
        for name in ("key frames", "boxes", "labels", "detections"):
            total, found = split.counts[name], split.counts[f"{name} found"]
            rows.append(Row(f"{title}, {name}", total, found, total - found))
    show_counts(rows, [*_notes(splits, detections, images, options)])
    contents: dict[str, str | None] = {}
    for split in splits:
        if not split.lines:
            raise ValueError(
                f"no key frame of {split.annotations.path} has images in {images.folder}. Nothing "
                "was written"
            )
        contents[f"ava_{split.name}.jsonl"] = "".join(split.lines)
    contents["ava_actions.json"] = format_actions(actions)
    contents["missing_ava.txt"] = failure_report(images.missing)
    contents["unreadable_ava.txt"] = failure_report(images.unreadable)
    write_outputs(contents, options)
    return all(row.agrees is not False for row in rows)


def _read_official(options: PrepareOptions) -> tuple[list[Action], list[_Split]]:
    def find(name: str) -> Path:
        return AVA.find(Path(options.root), options.annotations, name, name)

    scored = read_action_list(find("ava_action_list_v2.2_for_activitynet_2019.pbtxt"))
    every = None
    with contextlib.suppress(FileNotFoundError):  # optional
        every = read_action_list(find("ava_action_list_v2.2.pbtxt"))
    actions = merge_actions(scored, every)
    names = {action.id: action.name for action in actions}
    splits = [
        _Split(
            name,
            read_annotations(find(f"ava_{name}_v2.2.csv"), names),
            read_excluded(find(f"ava_{name}_excluded_timestamps_v2.2.csv")),
        )
        for name in PUBLISHED_VIDEOS
    ]
    train, val = (split.annotations for split in splits)
    first = val.videos()
    common = sorted(set(train.videos()) & set(first))
    if common:
        raise ValueError(
            f"{first[common[0]]}: video {common[0]!r} is also in {train.path.name}, as are "
            f"{len(common) - 1} others. Use the official files unchanged"
        )
    return actions, splits


def _read_detections(options: PrepareOptions, splits: list[_Split], videos: set[str]) -> Detections:
    """Read the detections of all files. The split of a detection follows from its video."""
    detections = Detections()
    files = [Path(file) for file in options.detections]
    if not files and not options.no_detections:
        how = "(--detections FILE ..., or --no-detections)"
        files = [
            AVA.find(
                Path(options.root),
                options.annotations,
                f"file of person detections of {split.name} {how}",
                *(name.format(split.name) for name in _DETECTIONS),
            )
            for split in splits
        ]
    for path in files:
        detections.add_file(path, videos, options.min_score)
    return detections


def _fill(split: _Split, detections: Detections, images: Images, options: PrepareOptions) -> None:
    """Make and count the lines of a split; ValueError for a key frame that is not in its video."""
    counts, frames = split.counts, split.annotations.frames
    frameless = []
    keys = set(frames)
    if options.unannotated and split.name == "val":
        videos = split.annotations.videos()
        keys.update(key for key in detections.boxes if key[0] in videos)
    for key in sorted(keys):
        boxes = frames[key].boxes if key in frames else {}
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
            if key[0] in images.missing or key[0] in images.unreadable:
                continue
            if not images.has(key):
                frameless.append(key)
                continue
        counts.update({f"{name} found": number for name, number in sizes.items()})
        best_first = sorted(found.items(), key=lambda item: (-item[1], item[0]))
        entry = {
            "video": key[0],
            "timestamp": key[1],
            "boxes": [list(corners) for corners, _ in boxes],
            "labels": list(boxes.values()),
            "persons": [person for _, person in boxes],
            "detections": [[*corners, score] for corners, score in best_first],
        }
        split.lines.append(json.dumps(entry) + "\n")
    counts["frameless"] = len(frameless)
    if frameless and not options.skip_frameless:
        raise ValueError(_describe_frameless(split, frameless, images))


def _describe_frameless(split: _Split, keys: list[Key], images: Images) -> str:
    frames = split.annotations.frames
    wanted = set(keys)
    listed = [key for key in frames if key in wanted]  # in the file's order
    video, second = (listed or keys)[0]
    first, end = images.seconds[video]
    where = frames[listed[0]].where if listed else str(split.annotations.path)
    found = f"the file contains seconds {first:g} to {end:g} of the film"
    if images.as_frames:
        found = f"frame {(second - BEGIN) * FRAME_RATE + 1} does not exist"
    return (
        f"{where}: second {second} of video {video!r} has no frames in "
        f"{images.folder}: {found}. This concerns {len(keys):,} key frames of "
        f"{len({k[0] for k in keys}):,} videos. Cuts must begin at second {BEGIN} (ffmpeg -ss 900 "
        f"-t 901), and {FRAME_RATE} frames must be extracted per second. --skip-frameless leaves "
        "these key frames out"
    )


def _notes(
    splits: list[_Split], detections: Detections, images: Images, options: PrepareOptions
) -> Iterator[str]:
    """Yield the notes that are printed below the table."""
    for split in splits:
        if split.counts["excluded"]:
            yield f"note: {split.counts['excluded']:,} key frames of {split.name} are excluded"
        for remark, count in sorted(split.annotations.remarks.items()):
            yield f"note: {split.annotations.path.name}: {count:,} {remark}"
        if split.counts["frameless"]:
            count = split.counts["frameless"]
            yield f"note: {count:,} key frames of {split.name} have no image and are left out"
    if options.no_detections:
        yield "note: no person detections, which testing needs"
    else:
        yield from _detection_notes(splits, detections, options)
    if images.films:
        yield (
            f"note: the videos in {images.folder} are full films, not 15-minute cuts. Set "
            "begins_at=0 in the config"
        )
    folder = relative_to_root(images.folder, Path(options.root))
    for what, reasons in (("missing", images.missing), ("unreadable", images.unreadable)):
        report = f"{what} (in {folder}; {what}_ava.txt)"
        yield from failure_notes(report, "videos", dict(sorted(reasons.items())), options)


def _detection_notes(
    splits: list[_Split], detections: Detections, options: PrepareOptions
) -> Iterator[str]:
    for path, count in detections.files.items():
        yield f"note: {count:,} rows of person detections in {path}"
    for remark, count in sorted(detections.remarks.items()):
        yield f"note: detections: {count:,} {remark}"
    if detections.low:
        yield f"note: {detections.low:,} detections have a score below {options.min_score:g}"
    known = {key for split in splits for key in (*split.annotations.frames, *split.excluded)}
    unlisted = sum(key not in known for key in detections.boxes)
    treatment = ", and are left out as in the official evaluation (see --unannotated)"
    if options.unannotated:
        fate = "where each detection counts as a false positive"
        treatment = f". The list of val contains such seconds, {fate} (--unannotated)"
    if unlisted:
        yield f"note: {unlisted:,} seconds have detections but no ground truth{treatment}"
    for split in splits:
        if split.counts["detections"] == 0:
            yield f"note: no key frame of {split.name} has a detection: is a file missing?"
