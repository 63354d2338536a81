"""``sce-video predict``: classify videos, or find segments of classes in long videos."""

from __future__ import annotations

import csv
import itertools
import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.named_files import (
    check_exists,
    check_run,
    check_videos,
    class_names_of,
)
from sce_video.datasets.segments import Segment, check_segment_files, numbered_segments
from sce_video.datasets.sources import is_table, listed_extensions
from sce_video.options.find import PredictOptions
from sce_video.utils.command import printable, progress_bar
from sce_video.utils.cores import usable_cores
from sce_video.utils.files import atomic_file
from sce_video.utils.seconds import parse_seconds

if TYPE_CHECKING:
    from sce_video.inference.classifier import VideoClassifier
    from sce_video.inference.network_input import ViewOptions

#: Largest default number of decoding processes.
_MOST_WORKERS = 8
#: Largest default number of clips per window.
_MOST_CLIPS = 10


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of a video.

    Attributes:
        path: Path of the video.
        classes: Name and probability of each class, the most probable first; empty for a failure.
        reason: Why the video cannot be decoded; empty if it was decoded.
    """

    path: str
    classes: tuple[tuple[str, float], ...]
    reason: str = ""


@dataclass
class PredictResult:
    """Result of a prediction.

    Attributes:
        files: Number of videos.
        done: Number of videos that could be decoded.
        predictions: Classes of every video; empty if segments were searched.
        segments: Segments of all videos; empty if whole videos were classified.
        failures: Path and reason of each video that could not be decoded.
        clips: Number of segments that were written as video files; None if none were requested.
        not_cut: Path and reason of each segment that could not be written.
    """

    files: int
    done: int = 0
    predictions: list[Prediction] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    clips: int | None = None
    not_cut: list[tuple[str, str]] = field(default_factory=list)


OnFound = Callable[[Prediction | Segment], None]


def predict(options: PredictOptions, on_found: OnFound | None = None) -> PredictResult:
    """Classify videos, or find the segments of classes in long videos.

    Args:
        options: Options of the command.
        on_found: Called with each prediction or segment as soon as it is known.

    Raises:
        FileNotFoundError: If a given file is missing.
        ValueError: If the checkpoint contains no classifier, or an option does not match it.
        KeyboardInterrupt: After Ctrl-C. The files contain the results up to then.
    """
    check_run(options.checkpoint)
    names = class_names_of(options.classes)
    extensions = listed_extensions(options.all_files)
    for path in options.videos:
        if os.path.isdir(path):
            check_videos(path, extensions)
        else:
            check_exists(path, "video or folder")
    windows, labelled = _windows(options), _labelled(options)
    # List the videos before the network is loaded, so that a missing file is reported immediately.
    paths = _listed(options.videos, extensions)
    classifier, views = _loaded(options, names)
    call = on_found or (lambda found: None)
    if windows is None:
        return _classify(classifier, views, paths, options, call)
    return _segment(classifier, views, paths, windows, labelled, options, call)


def _listed(given: Sequence[str], extensions: Sequence[str]) -> list[str]:
    """Return the paths of videos, with folders and tables replaced by the videos in them.

    Args:
        given: Files, folders, tables, rows of tables or URLs.
        extensions: Extensions of the videos in folders.

    Raises:
        FileNotFoundError: If a file, folder, table row or object is missing.
        ValueError: If a folder contains no video.
        ObjectStoreError, TableError: If an object store or a table cannot be read.
    """
    from sce_video.datasets.sources import list_videos, video_exists

    paths = []
    for path in given:
        if is_table(path) or os.path.isdir(path):
            found = list_videos(path, extensions)
            paths += sorted(os.path.join(path, found.path(i)) for i in range(len(found)))
        elif video_exists(path):
            paths.append(path)
        else:
            raise FileNotFoundError(f"no video or folder at {path}")
    return paths


def _loaded(
    options: PredictOptions, names: Sequence[str] | None
) -> tuple[VideoClassifier, ViewOptions]:
    """Return the classifier, and the requested views or those with which it was tested."""
    from sce_video.inference.classifier import load_classifier

    classifier = load_classifier(options.checkpoint, options.config, options.device, names)
    workers = min(_MOST_WORKERS, usable_cores()) if options.workers is None else options.workers
    views = replace(
        classifier.options,
        num_workers=workers,
        timeout=options.timeout,
        max_views=options.max_views,
    )
    if options.views is not None:
        clips, crops = map(int, options.views.split("x"))
        if classifier.settings.clip_duration is None and clips != 1:
            raise ValueError(
                f"this network receives a whole video as one clip. Give --views 1x{crops} instead "
                f"of {clips}x{crops}"
            )
        views = replace(views, num_clips=clips, num_crops=crops)
    if not classifier.named:
        print(
            f"sce-video predict: {classifier.checkpoint} contains no class names, so classes are "
            "printed as numbers. To print names, give a file of names with --classes",
            file=sys.stderr,
        )
    return classifier, views


def _classify(
    classifier: VideoClassifier,
    views: ViewOptions,
    paths: list[str],
    options: PredictOptions,
    on_found: OnFound,
) -> PredictResult:
    """Classify whole videos."""
    from sce_video.inference.classifier import top_classes
    from sce_video.inference.embed_job import iterate_features

    result, interrupted = PredictResult(len(paths)), False
    top = min(options.top, len(classifier.classes))
    with ExitStack() as stack:
        write = None
        if options.csv is not None:
            unfinished = stack.enter_context(atomic_file(options.csv))
            file = stack.enter_context(
                open(unfinished, "w", encoding="utf-8", errors="surrogateescape", newline="")
            )
            write = csv.writer(file).writerow
            names = ((f"class_{n + 1}", f"probability_{n + 1}") for n in range(top))
            write(["path", *itertools.chain(*names), "failure"])
        count = stack.enter_context(progress_bar("predicting"))
        try:
            rows = iterate_features(classifier, paths, views)
            for path, row in zip(paths, rows, strict=True):
                found: list[tuple[str, float]] = []
                if row.failures:
                    result.failures += row.failures
                else:
                    found = top_classes(row.values[0], classifier.classes, top)
                    result.done += 1
                reason = "" if found else row.reason
                result.predictions.append(Prediction(path, tuple(found), reason))
                if write is not None:
                    cells = [cell for name, p in found for cell in (name, f"{p:.6f}")]
                    write([path, *cells, *[""] * (2 * (top - len(found))), reason])
                    count(len(paths), not found)
                on_found(result.predictions[-1])
        except KeyboardInterrupt:  # Catch it inside the block, so that the CSV file is kept.
            interrupted = True
    if interrupted:
        kept = f". {options.csv} contains the videos classified so far" if options.csv else ""
        raise KeyboardInterrupt(f"interrupted{kept}")
    return result


def _windows(options: PredictOptions) -> Windows | None:
    """Return the requested windows, by default with a quarter of a window between starts."""
    if options.windows is None:
        return None
    windows = Windows.of_texts(options.windows, options.stride)
    return windows if options.stride else replace(windows, stride=windows.seconds / 4)


def _labelled(options: PredictOptions) -> list[Segment]:
    """Return the labelled segments, with the real paths of their videos.

    Raises:
        ValueError: If a line is not valid. The message names file and line.
    """
    source = options.segments
    if source is None:
        return []
    check_exists(source, "file of segments")
    root = os.path.dirname(source) if options.data_root is None else options.data_root
    rows, found = [], []
    for line, segment in numbered_segments(source):
        file = os.path.join(root, segment.path)
        rows.append((f"{source}, line {line}", file, segment.end))
        found.append(replace(segment, path=os.path.realpath(file)))
    check_segment_files(rows)
    if not found:
        raise ValueError(f"{source} contains a header but no segments")
    return found


def _segment(
    classifier: VideoClassifier,
    views: ViewOptions,
    paths: list[str],
    windows: Windows,
    labelled: list[Segment],
    options: PredictOptions,
    on_found: OnFound,
) -> PredictResult:
    """Find the segments of every video."""
    from sce_video.find.predicted_segments import predict_segments
    from sce_video.pages.segments_page import SegmentReport

    if options.views is None:  # Overlapping windows need fewer views than a test of whole videos.
        clip = classifier.settings.clip_duration
        needed = 1 if clip is None else max(1, math.ceil(windows.seconds / clip - 1e-6))
        views = replace(views, num_clips=min(_MOST_CLIPS, needed), num_crops=1)
    least = None if options.min_length is None else parse_seconds(options.min_length)
    report = SegmentReport(options.csv, options.json, options.html, classifier.classes, windows)
    result, interrupted = PredictResult(len(paths)), False
    with report:
        try:
            found = predict_segments(
                *(classifier, paths, windows, views),
                labelled=labelled,
                threshold=options.threshold,
                least=least,
                background=options.background,
                say=lambda text: print(printable(text), file=sys.stderr, flush=True),
            )
            for path, timeline, segments, reason in found:
                result.failures += [(path, reason)] if reason else []
                if timeline is not None:
                    report.add(path, timeline, segments)
                result.segments += segments
                for segment in segments:
                    on_found(replace(segment, path=path))
        except KeyboardInterrupt:  # Catch it inside the block, so that the files are kept.
            interrupted = True
    if interrupted:
        raise KeyboardInterrupt("interrupted. The files contain the results so far")
    result.done = report.videos
    if options.clips is not None:
        from sce_video.inference.clips import write_clips

        written, result.not_cut = write_clips(options.clips, report.spans, options.fast)
        result.clips = len(written)
    return result
