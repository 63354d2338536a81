"""Features of the single clips of videos, with the time and the memory that they cost."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sce_video.inference.embed_job import EmbedJob, failure_of, job_workers, record_features
from sce_video.inference.model import VideoModel
from sce_video.inference.multi_view import BatchRows, mean_representation
from sce_video.inference.network_input import ViewOptions
from sce_video.jobs import Facts, Item, iterate_job


@dataclass(frozen=True, eq=False)
class NetworkPerClip(VideoModel):
    """A network whose row for a video consists of the features of its clips, one after another.

    Attributes:
        num_clips: Number of clips per video, K; 1 for segment sampling, where the whole video is a
            clip.
    """

    num_clips: int

    @property
    def row_size(self) -> int:
        """Size of a row: K x D."""
        return self.num_clips * self.feature_size

    def rows(self, batch: dict[str, Any], max_views: int) -> BatchRows:
        """Return the rows (n, K x D) of the videos of a batch."""
        with torch.inference_mode():
            found = mean_representation(max_views, clips=True)(self.encoder, batch)
        return BatchRows(found.values.reshape(len(batch["videos"]), -1), found.num_views)


def clip_network(model: VideoModel, num_clips: int) -> NetworkPerClip:
    """Return a network that computes the features of up to ``num_clips`` clips of each video."""
    clips = 1 if model.settings.clip_duration is None else num_clips
    return NetworkPerClip(**vars(model), num_clips=clips)


@dataclass(frozen=True, eq=False)
class EmbeddedClips:
    """The clips of one video.

    Attributes:
        path: Path of the video.
        values: (K, D) float32; None if the video cannot be embedded.
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

    def read(self, item: Item) -> dict[str, Any]:
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
    """Yield the clips of every file in order. A crash of one file affects no other file.

    Args:
        network: The network.
        paths: Paths of the videos.
        workers: Number of processes, 1 or more, each with a copy of the network.

    Raises:
        RunError: If the network fails, or gives a value that is not finite.
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
    """Return the largest memory of this process, or that it had on its GPU, in bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Unlike ru_maxrss, it does not include the memory of the parent process.
    status = Path("/proc/self/status")
    if sys.platform != "linux" or not status.is_file():
        return None
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return 1024 * int(lines["VmHWM"].split()[0]) if "VmHWM" in lines else None
