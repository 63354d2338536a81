"""Export of labelled or predicted segments of videos to FiftyOne and ActivityNet's JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sce_video.datasets.clip_sampling import frames_between
from sce_video.datasets.readers import VideoReader
from sce_video.datasets.readers.base import VideoDecodeError
from sce_video.datasets.segments import Segment, check_segment_files, numbered_segments
from sce_video.datasets.sources import open_video
from sce_video.interop.export.exported_videos import FiftyOneSample, write_fiftyone_folder
from sce_video.utils.files import write_text


def fiftyone_support(reader: VideoReader, start: float, end: float) -> list[int]:
    """Return the first and last frame of ``[start, end)`` seconds, numbered from 1."""
    first, stop = frames_between(reader.timestamps, start, min(end, reader.duration))
    return [first + 1, stop]


def write_fiftyone_segments(
    out: Path, files: Mapping[str, Sequence[Segment]], scored: bool
) -> None:
    """Write a dataset of videos with the field ``segments``, FiftyOne's TemporalDetections.

    Args:
        out: Folder to write.
        files: Segments by the path of each file.
        scored: Whether they are predictions, which have a confidence.
    """

    def detection(reader: VideoReader, segment: Segment) -> dict[str, object]:
        return {
            "_cls": "TemporalDetection",
            "tags": [],
            "label": segment.label,
            "support": fiftyone_support(reader, segment.start, segment.end),
            **({"confidence": segment.score} if scored else {}),
        }

    def samples() -> Iterator[FiftyOneSample]:
        for file, segments in files.items():
            with open_video(file) as reader:
                found = [detection(reader, segment) for segment in segments]
            detections = {"_cls": "TemporalDetections", "detections": found}
            yield os.path.abspath(file), {"segments": detections}

    write_fiftyone_folder(out, "video", samples())


def write_activitynet(out: Path, files: Mapping[str, Sequence[Segment]], scored: bool) -> None:
    """Write ActivityNet's JSON, a ``database`` of labelled segments or ``results`` of predictions.

    The id of a video is the name of its file without the extension, as in ActivityNet. If two files
    have the same name, all ids are paths without the extension.
    """
    ids = {file: Path(file).stem for file in files}
    if len(set(ids.values())) < len(ids):
        ids = {file: os.path.splitext(file)[0] for file in files}
    found: dict[str, object] = {}
    for file, segments in files.items():
        own = [
            {"segment": [s.start, s.end], "label": s.label} | ({"score": s.score} if scored else {})
            for s in segments
        ]
        if scored:
            found[ids[file]] = own
            continue
        with open_video(file) as reader:
            about = {"duration": round(reader.duration, 3), "subset": "training"}
        found[ids[file]] = {**about, "annotations": own}
    content: dict[str, object]
    if scored:
        content = {"version": "VERSION 1.3", "results": found, "external_data": {}}
    else:
        labels = sorted({s.label for own in files.values() for s in own})
        root = {"nodeId": 0, "nodeName": "Root", "parentId": None, "parentName": None}
        nodes = [
            {"nodeId": i, "nodeName": name, "parentId": 0, "parentName": "Root"}
            for i, name in enumerate(labels, 1)
        ]
        content = {"version": "VERSION 1.3", "database": found, "taxonomy": [root, *nodes]}
    write_text(out, json.dumps(content, indent=1) + "\n")


#: Writers by format name.
_WRITERS: dict[str, Callable[[Path, Mapping[str, Sequence[Segment]], bool], None]] = {
    "fiftyone": write_fiftyone_segments,
    "activitynet": write_activitynet,
}


@dataclass(frozen=True)
class ExportedSegments:
    """Result of exporting segments.

    Attributes:
        segments: Number of segments.
        videos: Number of videos.
    """

    segments: int
    videos: int


def export_segments(
    source: str, to: str, out: str | os.PathLike[str], data_root: str | None = None
) -> ExportedSegments:
    """Write a CSV file of segments in another format.

    Args:
        source: File with the columns ``path,start,end,label``, and ``score`` for predictions.
        to: Format, "fiftyone" or "activitynet".
        out: Folder (FiftyOne) or file to write.
        data_root: Folder that the paths are relative to. None uses the folder of ``source``.

    Raises:
        ValueError: If a segment is outside its video, or a video cannot be decoded. The message
            names the file and the line.
        WriteError: If ``out`` cannot be written.
    """
    root = os.path.dirname(source) if data_root is None else data_root
    found = list(numbered_segments(source))
    if not found:
        raise ValueError(f"{source} contains a header but no segments")
    files: dict[str, list[Segment]] = {}
    rows = []
    for line, segment in found:
        file = os.path.join(root, segment.path)
        files.setdefault(file, []).append(segment)
        rows.append((f"{source}, line {line}", file, segment.end))
    check_segment_files(rows)
    scored = all(segment.score is not None for _, segment in found)
    try:
        _WRITERS[to](Path(out), files, scored)
    except VideoDecodeError as error:
        raise ValueError(str(error)) from error
    return ExportedSegments(len(found), len(files))
