"""AVA v2.2: from the official files, person detections and videos to lists of key frames."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TextIO

import av

from sce_video.data_tools.preparation.ava_files import (
    Annotations,
    Corners,
    Detections,
    Key,
    merge_actions,
    read_action_list,
    read_annotations,
    read_excluded,
)
from sce_video.data_tools.preparation.counts import Row, format_table
from sce_video.data_tools.preparation.files import relative_to_root
from sce_video.data_tools.preparation.official import first_existing
from sce_video.data_tools.preparation.outputs import write_outputs
from sce_video.data_tools.process_pool import GuardedPool
from sce_video.datasets.ava_actions import Action, format_actions
from sce_video.datasets.video_list import VIDEO_EXTENSIONS
from sce_video.utils.progress import Progress

LAYOUT = """\
  annotations/ava_{train,val}_v2.2.csv                (or directly in the folder)
  annotations/ava_action_list_v2.2_for_activitynet_2019.pbtxt
  annotations/ava_action_list_v2.2.pbtxt              (all 80 actions; optional)
  annotations/ava_{train,val}_excluded_timestamps_v2.2.csv
  annotations/ava_{train,val}_predicted_boxes.csv     (person detections of SlowFast), or
  annotations/ava_dense_proposals_{train,val}.FAIR.recall_93.9.pkl             (of mmaction2)
  videos/1j20qq1JyX4.mkv        (or videos_15min/: cut by ffmpeg -ss 900 -t 901; or whole films)
  frames/1j20qq1JyX4/1j20qq1JyX4_000001.jpg           (or rawframes/: 30 a second of the cuts)"""

# Gu et al. 2018 and the data set's page.
PUBLISHED_VIDEOS = {"train": 235, "val": 64}
PUBLISHED_ACTIONS, PUBLISHED_SCORED = 80, 60

BEGIN = 900  # second of the film at which the 15-minute cuts and the frames begin
FRAME_RATE = 30
# A cut lasts 901 s; the films last more than half an hour.
LONGEST_CUT = 1000.0

_DETECTIONS = (
    "ava_{split}_predicted_boxes.csv",
    "person_box_67091280_iou90/ava_detection_{split}_boxes_and_labels_include_negative_v2.2.csv",
    "person_box_67091280_iou90/ava_detection_{split}_boxes_and_labels.csv",
    "ava_dense_proposals_{split}.FAIR.recall_93.9.pkl",
)
_FRAME = re.compile(r"(\d+)\.(?:jpe?g|png)$", re.IGNORECASE)
_SHOWN = 5


@dataclass(frozen=True)
class AvaOptions:
    """How to prepare.

    Attributes:
        root: Folder of the data set.
        annotations: Folder of the official files; ``root/annotations`` or ``root`` unless given.
        detections: Files of person detections; those of :data:`LAYOUT` unless given.
        without_detections: Take none.
        min_score: Detections with a lower score are left out.
        videos: Folder of the videos, ``root/videos`` or ``root/videos_15min`` unless given.
        frames: Folder of the frame folders, taken in place of videos.
        out: Folder of the lists, ``root`` when None.
        workers: Processes that look whether videos can be read.
        time_limit: Seconds a video may take.
        check: Look into the videos and frame folders; else only whether they exist.
        keep_missing: Keep key frames without pictures in the lists.
        skip_frameless: Leave out key frames that their video does not reach, instead of an error.
        unannotated: List key frames of val that have detections and no ground truth, too.
        force: Replace lists that differ.
    """

    root: Path
    annotations: Path | None = None
    detections: tuple[Path, ...] = ()
    without_detections: bool = False
    min_score: float = 0.9
    videos: Path | None = None
    frames: Path | None = None
    out: Path | None = None
    workers: int = 1
    time_limit: float = 60.0
    check: bool = True
    keep_missing: bool = False
    skip_frameless: bool = False
    unannotated: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.min_score <= 1:
            raise ValueError(f"min_score must be from 0 to 1, got {self.min_score}")
        if self.videos is not None and self.frames is not None:
            raise ValueError("give a folder of videos or a folder of frames, not both")
        if self.detections and self.without_detections:
            raise ValueError("give files of detections, or say that there are none, not both")


@dataclass
class _Pictures:
    """What is on disk, by video.

    Attributes:
        folder: Where it was looked for.
        as_frames: Whether it holds folders of frames.
        missing: Why there is nothing.
        unreadable: What is wrong.
        seconds: The seconds of the film that are there, ``(first, one after the last)``; not in it
            where that was not looked at.
        gaps: Seconds between those that have no frame.
        films: Videos that are whole films.
    """

    folder: Path
    as_frames: bool = False
    missing: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, tuple[float, float]] = field(default_factory=dict)
    gaps: dict[str, set[int]] = field(default_factory=dict)
    films: list[str] = field(default_factory=list)

    def lost(self, video: str) -> bool:
        """Whether there is no picture of the video at all."""
        return video in self.missing or video in self.unreadable

    def shows(self, key: Key) -> bool:
        """Whether the key frame is there, as far as was looked."""
        video, second = key
        first, end = self.seconds.get(video, (0.0, float("inf")))
        return first <= second < end and second not in self.gaps.get(video, ())


@dataclass
class _Split:
    """A list in the making."""

    name: str
    annotations: Annotations
    excluded: set[Key]
    lines: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


def prepare_ava(options: AvaOptions, stream: TextIO | None = None) -> bool:
    """Read all, compare with the disk, show the counts, write the lists.

    Writes ``ava_train.jsonl`` and ``ava_val.jsonl``, one JSON object a key frame, sorted by video
    and second: ``video``, ``timestamp``, ``boxes`` [[x1, y1, x2, y2], ...] as shares of the frame,
    ``labels`` [[action id, ...], ...] and ``persons`` [id, ...] of the boxes (-1 where the official
    file names no person), ``detections`` [[x1, y1, x2, y2, score], ...], best first; and
    ``ava_actions.json``. What is missing is listed in ``missing_ava.txt``, what cannot be read in
    ``unreadable_ava.txt``.

    Args:
        options: How.
        stream: Where the counts go, stdout unless given.

    Returns:
        Whether all counts agree with the published ones.

    Raises:
        FileNotFoundError: An official file or the folder of pictures is missing.
        ValueError: Bad input; names file and line. Existing lists that differ.
    """
    stream = stream if stream is not None else sys.stdout
    actions, splits = _read_official(options)
    detections = _read_detections(options, splits)
    videos = {video for split in splits for video in split.annotations.videos()}
    pictures = _look_at(options, sorted(videos))
    for split in splits:
        _fill(split, detections, pictures, options)
    rows = [*_action_rows(actions), *(row for s in splits for row in _rows(s, pictures, options))]
    notes = [*_notes(splits, detections, pictures, options)]
    print(_printable("\n".join([format_table(rows), *notes]), stream), file=stream)
    contents: dict[str, str | None] = {}
    for split in splits:
        if not split.lines:
            raise ValueError(
                f"no key frame of {split.annotations.path} has pictures in {pictures.folder}; "
                "nothing was written"
            )
        contents[f"ava_{split.name}.jsonl"] = "".join(split.lines)
    contents["ava_actions.json"] = format_actions(actions)
    contents["missing_ava.txt"] = _report(pictures.missing)
    contents["unreadable_ava.txt"] = _report(pictures.unreadable)
    folder = options.out or options.root
    for name, done in write_outputs(folder, contents, force=options.force).items():
        print(_printable(f"{folder / name}: {done}", stream), file=stream)
    return all(row.agrees is not False for row in rows)


def _printable(text: str, stream: TextIO) -> str:
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _report(reasons: Mapping[str, str]) -> str | None:
    """``video<TAB>reason`` a line, sorted; None when there is nothing to report."""
    lines = [f"{video}\t{' '.join(reasons[video].split())}\n" for video in sorted(reasons)]
    return "".join(lines) or None


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
            f" too, and {len(common) - 1} more: take the official files as they are"
        )
    return actions, splits


def _read_detections(options: AvaOptions, splits: list[_Split]) -> Detections:
    """Of all files: which split a detection is of, its video says."""
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


# -- videos and frames ------------------------------------------------------------------------


def _look_at(options: AvaOptions, videos: list[str]) -> _Pictures:
    root = options.root
    folders = [root / "videos", root / "videos_15min", root / "frames", root / "rawframes"]
    if options.frames is not None:
        folders = [options.frames]
    elif options.videos is not None:
        folders = [options.videos]
    folder = first_existing(folders, root, LAYOUT, "folder of videos or frames")
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file, but should be the folder of videos or frames")
    as_frames = options.frames is not None or folder in folders[2:]
    pictures = _Pictures(folder, as_frames)
    paths = _frame_folders(folder) if as_frames else _video_files(folder)
    what = "no such folder of frames" if as_frames else "no such video"
    pictures.missing = {video: what for video in videos if video not in paths}
    there = {video: paths[video] for video in videos if video in paths}
    if as_frames:
        _look_at_frames(pictures, there, options.check)
    elif options.check:
        _look_at_videos(pictures, there, options)
    if pictures.films and len(pictures.films) < len(pictures.seconds):
        cut = next(video for video in pictures.seconds if video not in pictures.films)
        raise ValueError(
            f"{folder} holds both whole films ({paths[pictures.films[0]].name}) and 15-minute cuts "
            f"({paths[cut].name}): cut all of them (ffmpeg -ss 900 -t 901) or none"
        )
    return pictures


def _video_files(folder: Path) -> dict[str, Path]:
    """Video files directly in a folder, by their names without the extension.

    Raises:
        ValueError: Two files of one name.
    """
    files: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in VIDEO_EXTENSIONS and not path.name.startswith("."):
            if path.stem in files:
                raise ValueError(f"{files[path.stem]} and {path.name} are of one video: keep one")
            files[path.stem] = path
    return files


def _frame_folders(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_dir()}


def _look_at_frames(pictures: _Pictures, folders: Mapping[str, Path], check: bool) -> None:
    """Which seconds have a frame: ``NAME_000001.jpg`` is of second 900, 30 follow each second."""
    for video, folder in folders.items() if check else ():
        numbers = {int(m[1]) for name in os.listdir(folder) if (m := _FRAME.search(name))}
        if not numbers:
            pictures.missing[video] = "the folder holds no numbered jpg or png files"
            continue
        first = 0 if 0 in numbers else 1
        last = (max(numbers) - first) // FRAME_RATE
        wanted = {BEGIN + i: first + i * FRAME_RATE for i in range(last + 1)}
        pictures.seconds[video] = (BEGIN, BEGIN + last + 1)
        pictures.gaps[video] = {second for second, n in wanted.items() if n not in numbers}


def _look_at_videos(pictures: _Pictures, files: Mapping[str, Path], options: AvaOptions) -> None:
    pool = GuardedPool(
        look_at_video, workers=options.workers, timeout=options.time_limit, preload=(__name__,)
    )
    progress = Progress(len(files), "checking")
    with closing(pool.run((video, str(path)) for video, path in files.items())) as outcomes:  # type: ignore[type-var]
        for video, outcome in outcomes:
            found = outcome.value if outcome.fault is None else outcome.detail
            if isinstance(found, float):
                film = found > LONGEST_CUT
                begin = 0 if film else BEGIN
                pictures.seconds[video] = (begin, begin + found)
                if film:
                    pictures.films.append(video)
            else:
                pictures.unreadable[video] = str(found)
            progress.advance()
    progress.finish()


def look_at_video(path: str) -> float | str:
    """Seconds a video lasts, or why its first frame cannot be decoded.

    The header is asked: going through the packets would read the whole of a Matroska file.
    """
    try:
        with av.open(path) as container:
            stream = container.streams.video[0]
            next(container.decode(stream))
            if stream.duration is not None and stream.time_base is not None:
                return float(stream.duration * stream.time_base)
            if container.duration is not None:
                return container.duration / 1_000_000
            return float("inf")
    except (av.FFmpegError, OSError, IndexError) as error:
        return f"cannot be opened or decoded: {error}"
    except StopIteration:
        return "has no frame that can be decoded"


# -- lists ------------------------------------------------------------------------------------


def _fill(split: _Split, detections: Detections, pictures: _Pictures, options: AvaOptions) -> None:
    """Make the lines of a split, and count.

    Raises:
        ValueError: A key frame has no frame, though its video is there.
    """
    counts, frames = split.counts, split.annotations.frames
    frameless = []
    for key in sorted({*frames, *_unannotated(split, detections, options)}):
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
            if pictures.lost(key[0]):
                continue
            if not pictures.shows(key):
                frameless.append(key)
                continue
        counts.update({f"{name} found": number for name, number in sizes.items()})
        split.lines.append(_line(key, boxes, found))
    counts["frameless"] = len(frameless)
    if frameless and not options.skip_frameless:
        raise ValueError(_frameless(split, frameless, pictures))


def _unannotated(split: _Split, detections: Detections, options: AvaOptions) -> Iterator[Key]:
    if options.unannotated and split.name == "val":
        videos = split.annotations.videos()
        yield from (key for key in detections.boxes if key[0] in videos)


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


def _frameless(split: _Split, keys: list[Key], pictures: _Pictures) -> str:
    """What to say of key frames that their video does not reach."""
    frames = split.annotations.frames
    video, second = min(keys, key=lambda key: frames[key].line if key in frames else 10**9)
    first, end = pictures.seconds[video]
    line = f", line {frames[video, second].line}" if (video, second) in frames else ""
    number = (second - BEGIN) * FRAME_RATE + 1
    there = (
        f"frame {number} is not there"
        if pictures.as_frames
        else f"the file shows seconds {first:g} to {end:g} of the film"
    )
    return (
        f"{split.annotations.path}{line}: second {second} of video {video!r} has no frames in "
        f"{pictures.folder}: {there}. {len(keys):,} key frames of {len({k[0] for k in keys}):,} "
        f"videos are like that. Cuts must begin at second {BEGIN} (ffmpeg -ss 900 -t 901), frames "
        f"be taken {FRAME_RATE} a second; --skip-frameless leaves these key frames out"
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


def _rows(split: _Split, pictures: _Pictures, options: AvaOptions) -> list[Row]:
    videos = split.annotations.videos()
    missing = sum(video in pictures.missing for video in videos)
    bad = sum(video in pictures.unreadable for video in videos)
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
    splits: list[_Split], detections: Detections, pictures: _Pictures, options: AvaOptions
) -> Iterator[str]:
    """Sentences for the user, below the table."""
    for split in splits:
        if split.counts["excluded"]:
            yield f"note: {split.counts['excluded']:,} key frames of {split.name} are excluded ones"
        for remark, count in sorted(split.annotations.remarks.items()):
            yield f"note: {split.annotations.path.name}: {count:,} {remark}"
        if split.counts["frameless"]:
            count = split.counts["frameless"]
            yield f"note: {count:,} key frames of {split.name} have no frames: left out"
    yield from _detection_notes(splits, detections, options)
    if pictures.films:
        yield (
            f"note: the videos in {pictures.folder} are whole films, not 15-minute cuts: set "
            "begins_at=0 where clips are taken"
        )
    fate = "kept in the lists (--keep-missing)" if options.keep_missing else "left out of the lists"
    place = relative_to_root(pictures.folder, options.root)
    for what, reasons in (("missing", pictures.missing), ("unreadable", pictures.unreadable)):
        if reasons:
            yield f"{what} (in {place}; {what}_ava.txt): {len(reasons):,} videos, {fate}"
            for video in islice(sorted(reasons), _SHOWN):
                yield f"  {video}: {reasons[video]}"
            if len(reasons) > _SHOWN:
                yield f"  and {len(reasons) - _SHOWN:,} more"


def _detection_notes(
    splits: list[_Split], detections: Detections, options: AvaOptions
) -> Iterator[str]:
    if options.without_detections:
        yield "note: no person detections: testing needs them"
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
                ": those of val are in its list, each detection a false alarm (--unannotated)"
                if options.unannotated
                else ", and are left out, as the official evaluation does (see --unannotated)"
            )
        )
    for split in splits:
        if split.counts["detections"] == 0:
            yield f"note: no key frame of {split.name} has a detection: is a file missing?"
