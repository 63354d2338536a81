"""A dataset for videos in a table, from which only the bytes of requested frames are read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Unpack

import numpy as np

from sce_video.datasets.clip_sampling import frames_of_clips
from sce_video.datasets.loading.time_limit import LimitExceededError
from sce_video.datasets.pipeline import (
    PackedSample,
    PipelineResults,
    Steps,
    run_pipeline,
)
from sce_video.datasets.readers.base import (
    ReaderOptions,
    SegmentReader,
    VideoDecodeError,
    VideoReader,
)
from sce_video.datasets.tables.row_columns import list_rows
from sce_video.datasets.tables.table import is_remote
from sce_video.datasets.tables.table_rows import Rows, TableRows
from sce_video.datasets.video_dataset import SampleRequest, VideoDataset
from sce_video.datasets.video_list import VideoList, read_annotation_list, split_segment
from sce_video.registry import DATASETS
from sce_video.utils.stored_arguments import Word, Words


@DATASETS.register_module()
class LanceVideoDataset(VideoDataset):
    """Videos in a Lance table that ``sce-video import`` has made.

    Seeds, order, bad files, time limit and pipeline work as in :class:`VideoDataset`, and samples
    are bit-identical to those of the imported files. The frame indexes and packets for all samples
    of a batch are requested before the first sample is made. From object storage, the next two
    batches are read while a batch is decoded, if the sampler announces them. The checksum of each
    packet is verified, and a row with damaged packets is a bad file. If the table can no longer be
    reached, the training run ends (:class:`~sce_video.datasets.tables.table.TableError`).

    Args:
        data_root: Path of the table, or its URI such as ``s3://bucket/videos.lance``.
        ann_file: Path or URL of an annotation list, with paths as they were imported, or segments
            such as ``a.mp4@12.5-17``. The list determines order and labels. None uses all rows
            sorted by path, with the labels of the table.
        pipeline, on_error, timeout, class_file, subset: Arguments of :class:`VideoDataset`.
        storage_options: Options of the object store, which override the environment.
        block_size: Number of bytes between two ranges below which they are read by one request.
            None means 1024, or 65536 in an object store.

    Raises:
        TableError: If the table cannot be read.
        ValueError: If there is no video, the table lacks a listed video, or an option is invalid.
    """

    def __init__(
        self,
        data_root: str,
        ann_file: str | None = None,
        pipeline: Steps = (),
        on_error: Word = "replace",
        timeout: float | None = 60.0,
        class_file: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        block_size: int | None = None,
        subset: Words | None = None,
    ) -> None:
        if block_size is not None and not 512 <= block_size <= 2**26:
            raise ValueError(f"block_size must be 512 to {2**26} bytes, got {block_size}")
        self._block_size = block_size
        self._storage_options = dict(storage_options or {})
        self._ahead: Rows = {}
        self._later: list[tuple[Sequence[SampleRequest], Future[Rows]]] = []
        self._later_pid = 0
        super().__init__(
            *(data_root, ann_file, pipeline, on_error, timeout),
            class_file=class_file,
            subset=subset,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_later": []}

    def list_videos(self) -> VideoList:
        listed = None
        if self.ann_file is not None:
            listed = read_annotation_list(self.ann_file, self.kind, self.class_file)
        elif self.class_file is not None:
            raise ValueError(
                f"class_file={self.class_file!r} has no effect without an ann_file, whose labels "
                "it names. Remove it"
            )
        table, options = self.data_root, self._storage_options
        found = list_rows(table, options, listed)
        self._rows = found.rows
        self._source = TableRows(table, found.version, options, self._block_size)
        return found.videos

    def select(self, indices: np.ndarray) -> None:
        super().select(indices)
        self._rows = self._rows[indices]

    def describe(self, index: int) -> str:
        """Return the row, table and path of a video for messages."""
        return f"{self._source.describe(int(self._rows[index]))}: {self.videos.path(index)!r}"

    @property
    def reads_ahead(self) -> bool:
        """Return whether the sampler should announce the next batch, because reading is slow."""
        return is_remote(self.data_root)

    def __getitems__(self, requests: Sequence[int | SampleRequest]) -> list[PackedSample]:
        """Return the samples of a batch; see :class:`VideoDataset`."""
        self._ahead = self._read_ahead([SampleRequest.of(request) for request in requests])
        try:
            return super().__getitems__(requests)
        finally:
            self._ahead = {}

    def inputs(self, index: int, seed: int) -> PipelineResults:
        return {**super().inputs(index, seed), "open": partial(self._open, index, self._ahead)}

    def _open(
        self, index: int, ahead: Rows, path: str, **options: Unpack[ReaderOptions]
    ) -> VideoReader:
        """Return the reader of a video. ``OpenVideo`` calls this method with a reader's options."""
        row, segment = int(self._rows[index]), split_segment(path)
        reader = self._source.open(row, path, ahead.get(row), options)
        return reader if segment is None else SegmentReader(path, reader, *segment[1:])

    def _run_pipeline(self, index: int, seed: int, given: PipelineResults) -> PackedSample:
        row = int(self._rows[index])
        drawn = self._ahead[row].drawn.pop((index, seed), None) if row in self._ahead else None
        if drawn is None:
            return super()._run_pipeline(index, seed, given)
        drawn["reader"].deadline = given["deadline"]
        assert self._sampling is not None
        return run_pipeline(self.pipeline[self._sampling + 1 :], {**drawn, **given})

    def _read_ahead(self, requests: Sequence[SampleRequest]) -> Rows:
        """Read the data for a batch by row. Missing data are read when a sample is made."""
        found: Rows = {}

        def work() -> None:
            with suppress(VideoDecodeError):  # raised again when the sample is made
                found.update(self._rows_of(requests))

        if self.timeout is None:
            work()
            return found
        self._prepare_process()
        try:
            self._caller.call(work, self.timeout)
        except LimitExceededError:
            return {}  # each sample will read its own data, with its own time limit
        return found

    def _rows_of(self, requests: Sequence[SampleRequest]) -> Rows:
        """Return the data of a batch, although some packets may still be on their way.

        Reading a batch takes three rounds of requests: for frame indexes, positions of rows, and
        packets. From object storage, a later batch is read while this batch is decoded.
        """
        if self._later_pid != os.getpid():  # reading threads do not survive a fork
            self._later = []
        asked = [batch for batch, _ in self._later]
        if requests in asked:
            found = self._later[asked.index(requests)][1].result()
            del self._later[: asked.index(requests) + 1]
        else:  # the first batches of an epoch were not announced
            found = self._start_reading(requests)
            del self._later[:-1]
        later = [getattr(request, "following", None) for request in requests]
        following = [request for request in later if request is not None]
        if following and self._source.reads_beside:
            self._later.append((following, self._source.submit(self._start_reading, following)))
            self._later_pid = os.getpid()
        return found

    def _start_reading(self, requests: Sequence[SampleRequest]) -> Rows:
        """Read the frame indexes of a batch's rows, and start reading the packets of its clips."""
        # This may run in another thread than the one that makes samples. The drawn clips are
        # therefore stored here, and _run_pipeline continues from them.
        found = self._source.read_indexes([int(self._rows[r.index]) for r in requests])
        needed: dict[int, np.ndarray] = {}
        for request in requests:
            row = int(self._rows[request.index])
            index = found[row].index
            if self._sampling is None or index is None:
                continue
            opener = partial(self._open, request.index, found)
            inputs: PipelineResults = {
                **super().inputs(*request),
                "path": self.path(request.index),
                "open": opener,
            }
            try:
                drawn = run_pipeline(self.pipeline[: self._sampling + 1], inputs)
            except VideoDecodeError:
                continue  # raised again when the sample is made
            if "clips" not in drawn:
                continue
            found[row].drawn[request.index, request.seed] = drawn
            frames = frames_of_clips(drawn["clips"]) + getattr(drawn["reader"], "first", 0)
            packets = index.packets_for(frames)
            needed[row] = np.union1d(needed[row], packets) if row in needed else packets
        self._source.start_reading(needed, found)
        return found
