"""State of the search page, and the computation of its responses.

A :class:`SearchState` contains the index, its columns, labels and segments, and the processes that
decode and embed videos. Most of its public methods answer a request of
:mod:`sce_video.find.search_api`.
"""

from __future__ import annotations

import os
import secrets
import shlex
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from sce_video.datasets.clip_sampling import check_span
from sce_video.datasets.readers.av_file import holds_video
from sce_video.datasets.segments import TOLERANCE, Segment, stated_duration
from sce_video.datasets.sources import Query, is_elsewhere
from sce_video.datasets.video_list import VIDEO_EXTENSIONS
from sce_video.find import search_api as api
from sce_video.find import search_media as media
from sce_video.find.columns import VideoColumns, columns_of_index
from sce_video.find.examples import (
    Example,
    Examples,
    examples_of_label,
    join_examples,
    own_moment,
    rows_of_query,
)
from sce_video.find.index_network import IndexNetwork
from sce_video.find.label_list import LabelList, SegmentList
from sce_video.find.query import Match, Weights, query_index
from sce_video.find.refined_moments import refine_moments
from sce_video.find.search_media import CallError, MediaWorkers, RecentItems
from sce_video.find.store import VideoIndex
from sce_video.inference.encoders.text import has_text
from sce_video.inference.features import Features
from sce_video.utils.command import printable_utf8
from sce_video.utils.errors import UserError
from sce_video.utils.storage import absolute

#: Largest number of points on the map. A larger index is sampled at equal steps.
MAP_POINTS = 20_000
#: Time limit in seconds for creating a picture. The readers have lower limits of their own.
_PICTURE_SECONDS = 45.0
#: Time limit in seconds for embedding a file or cutting a clip.
_EMBED_SECONDS = 240.0
#: Largest total size in bytes of the pictures and clips that are kept.
_KEPT_BYTES = 256 * 2**20
#: Number of uploaded files that are kept for further searches.
_KEPT_UPLOADS = 32
#: Number of moments and texts whose features are kept for further searches.
_KEPT_FEATURES = 256


class NoRowError(UserError, RuntimeError):
    """Error for a row number or a path that is not in the index."""


class GoneError(UserError, RuntimeError):
    """Error for a video of the index that no longer exists."""


@dataclass(frozen=True, eq=False)
class KeptUpload:
    """Uploaded file.

    Attributes:
        feature: (D,) feature.
        content: Small clip as mp4, or the image as JPEG.
        kind: "video" or "image".
    """

    feature: np.ndarray
    content: bytes
    kind: str


class SearchState:
    """Index with its columns, labels and worker processes. Several threads can use it.

    Args:
        index: Index to search.
        network: Location of the network, and the device that runs it.
        labels: Labels of the videos.
        columns: Columns for conditions; None reads the columns of the index.

    Attributes:
        segments: Labelled segments, in ``labels_segments.csv`` next to the list of labels.
        names: Displayed path of the video for each row.
        folders: First-level sub-folders.
        folder_of: Index into ``folders`` for each row; -1 for a video that is in no sub-folder.
    """

    def __init__(
        self,
        index: VideoIndex,
        network: IndexNetwork,
        labels: LabelList,
        columns: VideoColumns | None = None,
    ) -> None:
        self.index = index
        self.labels = labels
        self.columns = columns_of_index(index) if columns is None else columns
        self.segments = SegmentList(labels.file.with_name(f"{labels.file.stem}_segments.csv"))
        self._network = network
        # (N, 2) start and end in seconds; None if the rows are whole videos.
        self._spans = index.spans
        self._videos = index.paths
        if index.listed_in is not None:
            places = [index.place(path) for path in index.paths]
            self._videos = [os.path.relpath(file, index.root) for file, *_ in places]
            if all(start is not None for _, start, _ in places):
                self._spans = np.array([span for _, *span in places]).reshape(-1, 2)
        self.names = [printable_utf8(path) for path in self._videos]
        folders = [path.split(os.sep)[0] if os.sep in path else "" for path in self._videos]
        self.folders = sorted({printable_utf8(name) for name in folders} - {""})
        number = {"": -1} | {name: i for i, name in enumerate(self.folders)}
        self.folder_of = [number[printable_utf8(name)] for name in folders]
        self._lowered = [name.casefold() for name in self.names]
        # First row of each video. A video has several rows if the rows are windows.
        self._row_of_name = {n: row for row, n in reversed([*enumerate(self.names)])}
        self._pictures = MediaWorkers(2, (media.__name__,))
        # Use a single process that embeds one video at a time, to hold the network only once.
        self._embedding = MediaWorkers(1, (media.__name__,))
        self._shown = RecentItems[bytes](_KEPT_BYTES, len)
        self._uploads = RecentItems[KeptUpload](_KEPT_UPLOADS)
        self._features = RecentItems[np.ndarray](_KEPT_FEATURES)
        self._lock = threading.Lock()
        self._map: api.MapAnswer | None = None
        self._map_lock = threading.Lock()

    def start(self) -> None:
        """Start the processes that decode videos, before the first picture is requested."""
        with suppress(Exception):  # The first call will report the problem.
            self._pictures.open()

    def close(self) -> None:
        """End the worker processes."""
        self._pictures.close()
        self._embedding.close()

    # -- the list --------------------------------------------------------------------------

    def describe(self) -> api.VideosAnswer:
        """Return everything that the page shows before the first search."""
        return api.VideosAnswer(
            root=printable_utf8(self.index.root),
            names=self.names,
            folders=self.folders,
            folder=self.folder_of,
            spans=None if self._spans is None else np.round(self._spans, 2).tolist(),
            refinable=self.index.windows is not None and not self.index.windows.shots,
            texts=has_text(self.index.header.model.get("backbone")),
            columns=[api.ColumnAnswer(**asdict(column)) for column in self.columns.described],
            without_columns=self.columns.without,
            failures=len(self.index.failures),
            problem=self.network_problem(),
            update=self.update_command(),
            labels=self.describe_labels(),
        )

    def network_problem(self) -> str:
        """Return why only indexed videos can be examples; empty if others can be, too."""
        path = self._network.checkpoint or self.index.header.checkpoint
        if os.path.isfile(path):
            return ""
        return (
            f"There is no checkpoint at {printable_utf8(path)}, so only videos of the index can be "
            "examples. To use other files, restart the page with --checkpoint and the path."
        )

    def update_command(self) -> str:
        """Return the command that updates the index."""
        root, listed = self.index.root, self.index.listed_in
        words = [root] if listed is None else [listed, "--data-root", root]
        words = ["sce-video", "index", *words, "--out", os.path.abspath(self.index.folder)]
        return printable_utf8(shlex.join(words))

    def _checked(self, row: int | None) -> int:
        """Return a row; raise NoRowError if the index does not contain it."""
        if row is None or not 0 <= row < len(self.index):
            raise NoRowError(f"the index has no row {row}")
        return row

    def file(self, row: int) -> str:
        """Return the path of a row's video, absolute unless the video is in a table.

        Raises:
            NoRowError: If there is no such row, or the index states a path outside its folder or of
                a file that is not a video. The index may be untrusted.
            GoneError: If the file no longer exists, or is not a regular file.
        """
        path = self._videos[self._checked(row)]
        inside = not os.path.isabs(path) and ".." not in path.split(os.sep)
        file, named = self.index.file(path), path.lower().endswith(VIDEO_EXTENSIONS)
        if not inside or not (named or holds_video(file)):
            raise NoRowError(f"row {row} of the index is not a video in the indexed folder")
        if is_elsewhere(file):  # a URL or table row
            return file
        try:
            regular = stat.S_ISREG(os.stat(file).st_mode)
        except OSError:
            regular = False
        if not regular:
            raise GoneError(
                f"{self.names[row]} no longer exists. Update the index: {self.update_command()}"
            )
        return file

    def missing(self, rows: api.CheckedRows) -> api.RowsAnswer:
        """Return the rows whose files no longer exist."""
        gone = []
        for row in rows:
            try:
                self.file(row)
            except GoneError:
                gone.append(row)
        return api.RowsAnswer(rows=gone)

    # -- pictures --------------------------------------------------------------------------

    def picture(self, row: int, make: Callable[..., bytes]) -> bytes:
        """Return the result of a ``search_media`` function for a row's video, and keep it."""
        file = self.file(row)
        key = (row, make.__name__, _modified(file))
        span = None if self._spans is None else tuple(self._spans[row].tolist())

        def read() -> bytes:
            try:
                return self._pictures.call(make, file, span, timeout=_PICTURE_SECONDS)
            except CallError as error:
                reason = printable_utf8(str(error).removeprefix(f"{file}: "))
                raise CallError(f"{self.names[row]} cannot be shown: {reason}") from None

        return self._shown.get_or_make(key, read)

    # -- search ----------------------------------------------------------------------------

    def add_upload(self, file: str) -> str:
        """Embed a file with the network of the index, and return the file's id for searches.

        Raises:
            CallError: If the file cannot be decoded, or the network cannot be loaded.
        """
        found = KeptUpload(*self._embed(media.embed_file, file))
        upload = secrets.token_hex(8)
        self._uploads.get_or_make(upload, lambda: found)
        return upload

    def _embed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of ``search_media`` in the process that has loaded the network."""
        # The process needs only the header, so send an index without the arrays.
        own = VideoIndex(str(self.index.folder), self.index.header)
        return self._embedding.call(
            function, own, self._network, *arguments, timeout=_EMBED_SECONDS
        )

    def upload(self, upload: str) -> KeptUpload:
        """Return an uploaded file; raise ValueError if it has expired."""

        def expired() -> KeptUpload:
            raise ValueError("this file has expired. Drop it on the page again")

        return self._uploads.get_or_make(upload, expired)

    def search(self, search: api.SearchRequest) -> list[Match]:
        """Find videos or moments, the most similar first, without refining moments."""
        # Filter first, so that a mistake in the condition is reported before anything is embedded.
        out = ~self.matching(search)
        given = self._examples(search)
        out[given.rows] = True
        return query_index(
            *(self.index, given.features, search.k),
            leave_out=np.flatnonzero(out),
            centred=search.centred,
            whitened=None if search.text is None else False,
        )

    def _examples(self, search: api.SearchRequest) -> Examples:
        """Return the features of a query's parts, and the rows that are parts of the query."""
        like, unlike = (
            [self._example(example) for example in examples]
            for examples in (search.like, search.unlike)
        )
        if search.more_like is not None:
            own, others = examples_of_label(self.index, self.labels, search.more_like)
            like, unlike = [*like, own], [*unlike, others]
        text = None
        if search.text is not None:
            words = search.text
            text = self._features.get_or_make(words, lambda: self._embed(media.embed_text, words))
        return join_examples(like, unlike, text, Weights(**search.weights.model_dump()))

    def _example(self, given: api.GivenExample) -> Example:
        """Return the feature of an example, and the rows that are the example."""
        if given.upload is not None:
            return Example(self.upload(given.upload).feature[None])
        row = self._row_of_name.get(given.path) if given.path is not None else given.row
        if row is None:
            raise NoRowError(f"the index has no video {given.path!r:.200}")
        path, moment = self._videos[self._checked(row)], (given.start, given.end)
        if given.start is not None:
            file = self.file(row)
            key = row, *moment, _modified(file)
            example = Query(file, *moment)
            feature = self._features.get_or_make(
                key, lambda: self._embed(media.embed_moment, example)
            )
        elif self._spans is not None and given.path is not None:
            raise ValueError("the rows of this index are windows. Give start and end, or the row")
        else:
            feature = np.array(self.index.features[row])
            if self._spans is not None:
                moment = tuple(self._spans[row].tolist())
        # Find all rows of the same file or, among windows, rows that share frames with the example.
        query = Query(self.index.file(path), *moment)
        rows = {*rows_of_query(self.index, query), *([row] if given.start is None else [])}
        return Example(feature[None], sorted(rows), own_moment(self.index, query, sorted(rows)))

    def refine(
        self, search: api.SearchRequest, found: list[Match]
    ) -> tuple[list[Match], list[tuple[str, str]]]:
        """Refine the results of :meth:`search` by :func:`.refined_moments.refine_moments`.

        Raises:
            CallError: If the network is missing.
            ValueError: If the moments of the index cannot be refined.
        """
        if problem := self.network_problem():
            raise CallError(problem)
        rows = {match.file: match.row for match in found}

        def near(file: str, start: float, end: float, step: float) -> Features:
            try:
                return self._embed(media.embed_near, self.file(rows[file]), start, end, step)
            except (CallError, GoneError, NoRowError) as error:
                raise OSError(str(error)) from None

        given = self._examples(search)
        return refine_moments(
            *(self.index, given.features, found, near),
            centred=search.centred,
            whitened=None if search.text is None else False,
            without=given.moments,
        )

    def matching(self, filters: api.FilterRequest) -> np.ndarray:
        """Return a mask (N,) of the rows that pass; raise ValueError for an invalid condition."""
        found = self.columns.matching(filters.where)
        if filters.path:
            text = filters.path.casefold()
            found &= np.array([text in name for name in self._lowered])
        if filters.folder is not None:
            known = filters.folder in self.folders
            folder = self.folders.index(filters.folder) if known else None
            found &= np.array([number == folder for number in self.folder_of])
        if filters.label is not None:
            found &= self.labels.of_paths(self.index.paths) == filters.label
        return found

    def map(self) -> api.MapAnswer:
        """Return the coordinates of up to 20,000 videos on the map. They are computed only once."""
        with self._map_lock:
            if self._map is None:
                from sce_video.pages.feature_map import projections

                count = len(self.index)
                rows = np.unique(np.linspace(0, count - 1, min(count, MAP_POINTS)).astype(np.int64))
                found = {}
                if count >= 2:
                    found = projections(torch.from_numpy(np.array(self.index.features[rows])))
                methods = [
                    api.ProjectionAnswer(name=name, x=_rounded(xy[:, 0]), y=_rounded(xy[:, 1]))
                    for name, xy in found.items()
                ]
                self._map = api.MapAnswer(rows=rows.tolist(), methods=methods)
            return self._map

    # -- labels ----------------------------------------------------------------------------

    def describe_labels(self) -> api.LabelsAnswer:
        """Return the names of the labels, the label of every row, and the state of the list."""
        labels = self.labels.of_paths(self.index.paths).tolist()
        return api.LabelsAnswer(
            classes=[printable_utf8(name) for name in self.labels.classes],
            label=labels,
            undo=self.labels.undo_depth,
            elsewhere=len(self.labels.labels) - sum(label >= 0 for label in labels),
            file=printable_utf8(os.path.abspath(self.labels.file)),
            class_file=printable_utf8(os.path.abspath(self.labels.class_file)),
            segments=len(self.segments.segments),
        )

    def set_label(
        self, rows: api.LabelledRows, label: api.OptionalLabel = None
    ) -> api.LabelledAnswer:
        """Give videos a label, or remove their label (null)."""
        # A path appears only once, even if several of its windows are given.
        paths = dict.fromkeys(self.index.path(self._checked(row)) for row in rows)
        with self._lock:
            _, refused = self.labels.apply(paths, label)
            state = self.describe_labels()
            return api.LabelledAnswer(**dict(state), refused=[printable_utf8(p) for p in refused])

    def undo_label(self) -> api.LabelsAnswer:
        """Undo the last change of the labels."""
        with self._lock:
            self.labels.undo()
            return self.describe_labels()

    # -- segments --------------------------------------------------------------------------

    def describe_segments(self, row: int) -> api.SegmentsAnswer:
        """Return the labelled segments of a video."""
        own = self.segments.of(self._videos[self._checked(row)])
        classes = dict.fromkeys([*self.labels.classes, *self.segments.classes()])
        return api.SegmentsAnswer(
            segments=[(s.start, s.end, printable_utf8(s.label)) for s in own],
            classes=[printable_utf8(name) for name in classes],
            undo=self.segments.undo_depth,
            total=len(self.segments.segments),
            file=printable_utf8(os.path.abspath(self.segments.file)),
        )

    def add_segment(
        self, row: int, start: api.Number, end: api.Number, label: api.Label
    ) -> api.SegmentsAnswer:
        """Label the segment of a video from start to end, in seconds.

        Segments of a video may overlap. The status is 422 if the segment has no length or ends
        after the video.
        """
        file = self.file(row)
        least = end - TOLERANCE
        duration = self._pictures.call(stated_duration, file, least, timeout=_PICTURE_SECONDS)
        if duration is not None and end > duration + TOLERANCE:
            raise ValueError(
                f"the segment ends at {end:.2f} s, but the video ends at {duration:.2f} s"
            )
        with self._lock:
            self.segments.add(self._videos[row], start, end, label)
            return self.describe_segments(row)

    def remove_segment(self, row: int, number: api.Index, label: api.Label) -> api.SegmentsAnswer:
        """Remove a segment by its number in the list of the video.

        The status is 422 if the segment has another label, because the list has changed meanwhile.
        """
        with self._lock:
            own: list[Segment] = self.segments.of(self._videos[self._checked(row)])
            if not 0 <= number < len(own) or printable_utf8(own[number].label) != label:
                raise ValueError("this segment no longer exists")
            self.segments.remove(own[number])
            return self.describe_segments(row)

    def undo_segment(self, row: int) -> api.SegmentsAnswer:
        """Undo the last change of segments in any video."""
        with self._lock:
            self.segments.undo()
            return self.describe_segments(row)

    def cut(self, row: int, start: float, end: float) -> bytes:
        """Return a frame-accurate clip of a video as mp4.

        Raises:
            ValueError: If the clip has no length, or is longer than ten minutes.
            CallError, GoneError, NoRowError: If the clip cannot be cut out of the file.
        """
        check_span("the clip", start, end)
        if not 0 <= start < end <= start + media.LONGEST_CLIP:
            raise ValueError(
                f"a clip may be at most {media.LONGEST_CLIP:g} s long, got {start:.2f} to "
                f"{end:.2f} s. To cut longer clips, use sce-video predict or search with --clips"
            )
        return self._pictures.call(media.cut, self.file(row), start, end, timeout=_EMBED_SECONDS)

    # -- lists to finetune with ------------------------------------------------------------

    def write_split(self) -> api.SplitAnswer:
        """Write lists for training and testing, and return commands that finetune with them.

        The status is 422 if no label has two videos and the segments do not have two labels.
        """
        with self._lock:
            segments = os.path.abspath(self.segments.file)
            segments = segments if len(self.segments.classes()) > 1 else ""
            try:
                files = [os.path.abspath(path) for path in self.labels.split()]
            except ValueError:
                if not segments:
                    raise
                files = []
        # The commands need no --classes, because finetuning finds the file next to the lists.
        checkpoint = absolute(self._network.checkpoint or self.index.header.checkpoint)
        commands = []
        for given in filter(any, (files, [segments])):
            sets = [
                *zip(("--train", "--test"), given, strict=False),
                ("--data-root", self.index.root),
            ]
            run = f"{os.path.splitext(given[0])[0].removesuffix('_train')}_finetuned"
            words = ["sce-video", "finetune", checkpoint, *chain(*sets), "--out", run]
            commands.append(printable_utf8(shlex.join(words)))
        return api.SplitAnswer(files=[printable_utf8(path) for path in files], commands=commands)


def _modified(file: str) -> int:
    """Return the modification time of a file in ns; 0 for a table, whose version is fixed."""
    return 0 if is_elsewhere(file) else os.stat(file).st_mtime_ns


def _rounded(values: np.ndarray) -> list[float]:
    """Round to five digits, which is less than a pixel and makes the response much shorter."""
    return [float(f"{value:.5g}") for value in values.tolist()]
