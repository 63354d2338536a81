"""Features of the individual clips of videos, and their cost in time and memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sce_video.inference.embed_job import EmbedJob, failure_of, job_workers, record_features
from sce_video.inference.model import VideoModel
from sce_video.inference.multi_view import Batch, BatchRows, mean_representation, rows_of_views
from sce_video.inference.network_input import ViewOptions
from sce_video.jobs import Facts, Item, iterate_job
from sce_video.models.backbones.frame_pools import (
    ENERGY_CELLS,
    StoredClips,
    frame_features,
    stored_clips,
)


@dataclass(frozen=True, eq=False)
class NetworkPerClip(VideoModel):
    """A network whose row for a video consists of the features of its clips, one after another.

    Attributes:
        num_clips: Number of clips per video, K; 1 for segment sampling, where the whole video is a
            clip.
        positions: Number of temporal positions in a clip, T, each with its own features; 0 for one
            feature per clip.
        all_pools: Whether the features of a clip suffice to compute its representations in all
            pools (:class:`~sce_video.models.backbones.frame_pools.StoredClips`).
    """

    num_clips: int
    positions: int = 0
    all_pools: bool = False

    @property
    def row_size(self) -> int:
        """Size of a row: K D, or K T D by position, or K (T D + 343 + T - 1) for all pools."""
        clip = max(1, self.positions) * self.feature_size
        return self.num_clips * (clip + (ENERGY_CELLS**3 + self.positions - 1) * self.all_pools)

    def rows(self, batch: Batch, max_views: int) -> BatchRows:
        """Compute the rows (n, row_size) of the videos in a batch."""
        with torch.inference_mode():
            if self.positions:
                views = rows_of_views(self.encoder, batch, self._row_of_view, max_views)
                values = torch.stack(views).cpu()
            else:
                values = mean_representation(max_views, clips=True)(self.encoder, batch).values
        return BatchRows(values.reshape(-1, self.row_size), self.num_clips)

    def stored_clips(self, rows: Tensor) -> StoredClips:
        """Return the clips (n, K) of rows (n, row_size), or (n, K, row_size / K), for all pools."""
        clips = rows.reshape(len(rows), self.num_clips, -1)
        return StoredClips.from_rows(clips, self.positions)

    def _row_of_view(self, view: Tensor) -> Tensor:
        if self.all_pools:
            return stored_clips(self.encoder.backbone, view).rows()
        return frame_features(self.encoder.backbone, view).flatten(1)


def clip_network(
    model: VideoModel, num_clips: int, by_position: bool = False, all_pools: bool = False
) -> NetworkPerClip:
    """Return a network that computes the features of up to ``num_clips`` clips of each video.

    Args:
        model: The network.
        num_clips: Number of clips.
        by_position: Whether each temporal position has its own features, before frames are pooled.
        all_pools: Whether the features of an image network suffice for all pools.

    Raises:
        ValueError: If the network's features have no temporal positions.
    """
    clips = 1 if model.settings.clip_duration is None else num_clips
    if not (by_position or all_pools):
        return NetworkPerClip(**vars(model), num_clips=clips)
    side = model.settings.crop_size
    view = torch.zeros(1, 3, model.settings.num_frames, side, side, device=model.device)
    with torch.inference_mode():
        positions, channels = frame_features(model.encoder.backbone, view).shape[1:]
    own = replace(model, feature_size=channels)
    return NetworkPerClip(**vars(own), num_clips=clips, positions=positions, all_pools=all_pools)


@dataclass(frozen=True, eq=False)
class EmbeddedClips:
    """The clips of one video.

    Attributes:
        path: Path of the video.
        values: (K, D) float32, or (K, T D) by position; None if the video cannot be embedded.
        failure: Why it cannot be embedded; empty if it can.
        seconds: Seconds that decoding and the network have taken.
        work: Seconds of processor time, without waiting for other programs; equal to ``seconds``
            with a GPU.
        duration: Length of the video, seconds.
        memory: Peak memory of this process so far in bytes, or of the GPU if there is one; None if
            the system does not report it.
    """

    path: str
    values: np.ndarray | None
    failure: str = ""
    seconds: float = 0.0
    work: float = 0.0
    duration: float = 0.0
    memory: int | None = None


class TimedEmbedJob(EmbedJob):
    """Job that embeds whole videos, and adds the fields of :class:`EmbeddedClips` as facts."""

    _duration = 0.0

    def read(self, item: Item) -> Batch:
        """Read the batch of an item, and record the length of its video."""
        batch = super().read(item)
        self._duration = batch["duration"]
        return batch

    def process(self, item: Item) -> Facts:
        """Return the row of a video with its costs."""
        begin, busy = time.monotonic(), time.process_time()
        found = super().process(item)
        seconds, device = time.monotonic() - begin, self.network.device
        costs = {
            "seconds": seconds,
            "work": time.process_time() - busy if device.type == "cpu" else seconds,
            "duration": self._duration,
            "memory": _peak_memory(device),
        }
        return replace(found, values={**found.values, **costs})


def embed_clips(
    network: NetworkPerClip, paths: Sequence[str], workers: int
) -> Generator[EmbeddedClips, None, None]:
    """Yield the clips of every file in order. A file that crashes a process affects no other file.

    Args:
        network: The network.
        paths: Paths of the videos.
        workers: Number of processes, 1 or more, each with a copy of the network.

    Raises:
        RunError: If the network fails, or returns a value that is not finite.
    """
    options = ViewOptions(num_clips=network.num_clips)
    items = (Item(f"{number:012}", {}, path) for number, path in enumerate(paths))
    processes = job_workers(workers, options.timeout).at_most(max(1, len(paths)))
    with closing(iterate_job(TimedEmbedJob(network, options), items, processes)) as records:
        for item, record in records:
            path = item.argument
            if not record.done:
                yield EmbeddedClips(path, None, failure_of(record))
                continue
            facts = record.facts
            yield EmbeddedClips(
                path=path,
                values=record_features(record, path).values.reshape(network.num_clips, -1),
                seconds=facts["seconds"],
                work=facts["work"],
                duration=facts["duration"],
                memory=facts["memory"],
            )


def _peak_memory(device: torch.device) -> int | None:
    """Return the peak memory of this process in bytes, on its GPU if it uses one."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Unlike ru_maxrss, VmHWM does not include the parent process's memory.
    status = Path("/proc/self/status")
    if sys.platform != "linux" or not status.is_file():
        return None
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return 1024 * int(lines["VmHWM"].split()[0]) if "VmHWM" in lines else None
