"""The batch job from videos to features, for all kinds of videos and machines.

An item is a video, or a batch of samples of a dataset. The index keeps its records, ``embed``
writes them to a file, and :func:`iterate_features` yields them as they are computed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import cv2
import numpy as np
import torch

from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.loading.batches import collate_views
from sce_video.datasets.pipeline import PackedSample, PipelineResults
from sce_video.datasets.readers.base import VideoDecodeError, VideoReader
from sce_video.datasets.sources import is_elsewhere
from sce_video.datasets.tables.table import TableError
from sce_video.datasets.transforms import OpenVideo
from sce_video.datasets.video_dataset import VideoDataset
from sce_video.datasets.video_list import VideoList, video_of
from sce_video.inference.features import Features
from sce_video.inference.multi_view import Batch, BatchRows, rows_of_batch
from sce_video.inference.network_input import (
    Transform,
    VideoNetwork,
    ViewOptions,
    embed_batch,
    view_steps,
)
from sce_video.inference.windows import embed_windows
from sce_video.jobs import (
    BatchJob,
    Facts,
    Item,
    ItemError,
    Record,
    RunError,
    State,
    Workers,
    file_state,
    iterate_job,
)
from sce_video.utils.errors import UserError

T = TypeVar("T")
#: Time limit in seconds for the forward passes of an item. Decoding the item has its own limit.
_FORWARD_SECONDS = 600.0
_NO_LIMIT = 1e6  # in seconds; short enough for the timers of all systems


class EmbedJob(BatchJob):
    """Job that computes the row of a video, or of each of its windows.

    Each process gets a copy of the network. It computes with one thread on a CPU, so a row does not
    depend on the number of processes.

    Args:
        network: The network.
        options: Views.
        windows: How each video is divided; None for a row of the whole video.
        settings: Everything except the videos that determines the rows, for records that are kept.
        retry_failed: Whether videos that failed are due again, even if unchanged.
        ray: Address of a Ray cluster that the job runs on; None for this machine.
        processes_per_gpu: Processes that share a GPU of the cluster.
    """

    name = "embed"
    unit = "videos"

    def __init__(
        self,
        network: VideoNetwork,
        options: ViewOptions,
        windows: Windows | None = None,
        *,
        settings: Mapping[str, object] | None = None,
        retry_failed: bool = False,
        ray: str | None = None,
        processes_per_gpu: int = 4,
    ) -> None:
        if processes_per_gpu < 1:
            raise ValueError(f"processes_per_gpu must be at least 1, got {processes_per_gpu}")
        self.network, self.windows, self.retry_failed = network, windows, retry_failed
        self.settings = json.loads(json.dumps(settings or {}))
        self.gpus = 1 / processes_per_gpu if ray and network.device.type == "cuda" else 0
        #: Device of the worker processes. ``cuda`` without a number spreads them over all GPUs.
        self.device = network.device.type if ray else str(network.device)
        self._options, self._sent = options, False

    def __getstate__(self) -> dict[str, object]:
        network = self.network.to(torch.device("cpu"))
        return {**vars(self), "network": network, "_sent": True}

    def setup(self) -> None:
        """Move the network to the device of this process, unless this process sent it."""
        if not self._sent:
            return
        # Use one thread, because the sum over a whole tensor depends on the number of threads, but
        # rows must not.
        torch.set_num_threads(1)
        cv2.setNumThreads(0)
        self.network = self.network.to(process_device(self.device))

    @cached_property
    def _files(self) -> VideoFiles:
        return VideoFiles(self.network, self._options)

    def read(self, item: Item) -> Batch:
        """Read the batch of an item: its samples, and the files that cannot be decoded.

        ``duration`` is the length of the video in seconds, 0 if it cannot be decoded.
        """
        sample = self._files.read(item.argument)
        facts = {"damaged": sample.get("damaged", 0), "duration": sample.get("duration", 0.0)}
        batch: Any = {**collate_views([sample]), **facts}
        return batch

    def process(self, item: Item) -> Facts:
        """Return the rows as data. Rows of windows follow their spans."""
        if self.windows is not None:
            return self._process_windows(item, self.windows)
        batch, name = self.read(item), self.describe(item)

        def rows(network: VideoNetwork, batch: Batch) -> BatchRows:
            return embed_batch(network, batch, self._options.max_views, name)

        part = self._run_network(lambda: rows_of_batch(self.network, batch, rows), item)
        if not part.indices:
            raise ItemError("bad", "; ".join(why for _, why in part.failures))
        damaged = batch.get("damaged", 0)
        facts = {
            "indices": part.indices,
            "labels": part.labels,
            "failures": part.failures,
            "views": part.num_views,
            "reason": f"{damaged} of the frames used are damaged" if damaged else "",
        }
        return Facts(facts, part.values[0].numpy().tobytes())

    def _process_windows(self, item: Item, windows: Windows) -> Facts:
        """Return the spans and the rows of the windows of a video."""
        path, options = item.argument, self._options
        found = self._run_network(lambda: embed_windows(self.network, path, windows, options), item)
        assert found.spans is not None
        views = options.num_clips * options.num_crops
        facts = {"windows": len(found), "reason": found.reason, "views": views}
        return Facts(facts, found.spans.tobytes() + found.values.tobytes())

    def _run_network(self, function: Callable[[], T], item: Item) -> T:
        """Call a function that runs the network. Unexpected errors concern all items."""
        # Decoding and forward passes alternate, so the type of an error shows which of them failed.
        try:
            with torch.no_grad():
                return function()
        except (VideoDecodeError, TableError) as error:
            raise ItemError("bad", getattr(error, "reason", str(error))) from error
        except torch.OutOfMemoryError as error:
            text = str(error).partition("\n")[0]
            reason = f"the GPU's memory is full ({text}). Use fewer --workers"
            raise RunError(reason) from error
        except MemoryError as error:
            raise ItemError("bad", f"{type(error).__name__}: {error}") from error
        except Exception as error:
            text = str(error).partition("\n")[0]
            name = "" if isinstance(error, ValueError) else self.describe(item)
            raise RunError(f"the network fails for {name}: {text}" if name else text) from error

    def features(self, item: Item, record: Record) -> Features:
        """Return the rows of an item, with its key as their path."""
        return record_features(record, item.key)

    def samples(self, item: Item) -> list[Item]:
        """Return the samples of an item as separate items; none if there is only one."""
        return []

    def describe(self, item: Item) -> str:
        """Name the files of an item, for messages."""
        return str(item.argument)

    def source(self, item: Item) -> State:
        """Return size and modification time; rows of a table do not change during a run."""
        path = item.argument
        unwatched = not item.source or is_elsewhere(path)
        return item.source if unwatched else file_state(video_of(path))

    def holds(self, item: Item, record: Record) -> bool:
        """Return whether an item is finished, because it has rows or must not be tried again."""
        return record.done or not self.retry_failed


def process_device(name: str) -> torch.device:
    """Return the device of this process; ``cuda`` without a number is spread over all GPUs."""
    if name != "cuda":
        return torch.device(name)
    # In the first child process, _identity is (1,).
    number = getattr(multiprocessing.current_process(), "_identity", ()) or (0,)
    return torch.device("cuda", number[-1] % max(1, torch.cuda.device_count()))


def job_workers(count: int | None, decoding: float | None, ray: str | None = None) -> Workers:
    """Return where a job runs, with a time limit for items.

    Args:
        count: Number of processes. 0 works in this process or, with ``ray``, on the whole cluster.
        decoding: Seconds that decoding an item may take; None for no limit.
        ray: Address of a Ray cluster.
    """
    seconds = _NO_LIMIT if decoding is None else decoding + _FORWARD_SECONDS
    return Workers(None if ray is not None and not count else count, seconds, ray)


def failure_of(record: Record) -> str:
    """Return why a file has no row, for the lists of unreadable files."""
    if record.kind == "crash":
        return f"crashed the process that was reading it ({record.reason})"
    return record.reason


def record_features(record: Record, path: str) -> Features:
    """Return the rows in a record, or the reason for a video that failed."""
    facts = record.facts
    if not record.done or record.data is None:
        nothing = np.empty((0, 0), np.float32)
        return Features(nothing, [], failures=[(path, failure_of(record))])
    count, spans = facts.get("windows"), None
    if count is not None:
        spans = np.frombuffer(record.data, dtype=np.float64, count=2 * count).reshape(count, 2)
    rows = len(facts["indices"]) if count is None else count
    begin = 0 if spans is None else spans.nbytes
    values = np.frombuffer(record.data, dtype=np.float32, offset=begin)
    return Features(
        values=values.reshape(rows, -1),
        paths=[path] * rows,
        spans=spans,
        incomplete=[(path, facts["reason"])] if facts["reason"] else [],
        provenance={"num_views": facts["views"]},
    )


def iterate_features(
    network: VideoNetwork,
    paths: Sequence[str],
    options: ViewOptions,
    windows: Windows | None = None,
) -> Generator[Features, None, None]:
    """Yield the features of every file in order, or the reason why it cannot be decoded.

    A file may crash the process that decodes it. Without workers, it ends this process.

    Raises:
        RunError: If the network fails, or returns a value that is not finite.
    """
    job = EmbedJob(network, options, windows)
    # Reading a long video takes long, so with windows, the reader limits the time for each frame.
    workers = job_workers(options.num_workers, None if windows else options.timeout)
    items = (Item(f"{number:012}", {}, path) for number, path in enumerate(paths))
    for item, record in iterate_job(job, items, workers.at_most(max(1, len(paths)))):
        yield record_features(record, item.argument)


class VideoFiles(VideoDataset):
    """Dataset of packed views, which reports a video as unreadable whatever error it causes."""

    def __init__(self, network: VideoNetwork, options: ViewOptions) -> None:
        steps = view_steps(network.settings, options.num_clips, options.num_crops)
        pipeline: list[Transform] = [OpenVideo(), *steps]
        super().__init__(pipeline=pipeline, on_error="skip", timeout=options.timeout)

    def read(self, path: str | os.PathLike[str]) -> PackedSample:
        """Return the sample of a file, which becomes the only one of the dataset."""
        # Replace the list instead of extending it. Otherwise, it would collect millions of paths
        # while a large index is built.
        self.videos = VideoList.from_paths([os.fspath(path)], [-1])
        self._known_bad.clear()
        return self[0]

    def list_videos(self, *_: Any) -> VideoList:
        return VideoList.from_paths([], [])

    def _run_pipeline(self, index: int, seed: int, given: PipelineResults) -> PackedSample:
        opened: list[VideoReader] = []
        try:
            sample = super()._run_pipeline(index, seed, {**given, "opened": opened})
            reader = opened[-1]
            return {**sample, "damaged": reader.damaged, "duration": reader.duration}
        except UserError:  # a bad file, or a table that cannot be read
            raise
        except Exception as error:  # e.g. a frame too large for memory, or an error in a library
            raise VideoDecodeError(given["path"], f"{type(error).__name__}: {error}") from error
