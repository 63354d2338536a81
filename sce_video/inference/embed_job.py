"""Embedding the videos of a folder or a table as a batch job."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from sce_video.datasets import VideoDecodeError
from sce_video.datasets.sources import is_table
from sce_video.datasets.tables.table import TableError
from sce_video.datasets.windows import Windows
from sce_video.evaluation.extraction import (
    device_of_process,
    explain_network_error,
    modules_of,
    prepare_process,
)
from sce_video.inference.embed import EmbedOptions, count_clips, embed_sample, file_reader
from sce_video.inference.model import VideoModel, build_model
from sce_video.inference.windows import embed_windows
from sce_video.jobs import BatchJob, Facts, Item, ItemError, Record, RunError, State, file_state


class EmbedJob(BatchJob):
    """Gives the feature of one video.

    The processes build the network from its settings and its checkpoint. They compute with one
    thread each on a CPU, so a feature does not depend on their number.

    Args:
        model: The network; it is not sent to the processes.
        root: Folder or table that the keys of the items are relative to.
        options: Views of a video.
        retry_failed: Files that could not be decoded are due again.
        ray: Whether the processes are those of a Ray cluster, which gives them their GPUs.
        processes_per_gpu: Processes that share a GPU of the cluster.
        windows: Give the features of the windows of each video; None for one of all of it.
    """

    name = "embed"

    def __init__(
        self,
        model: VideoModel,
        root: str,
        options: EmbedOptions,
        *,
        retry_failed: bool = False,
        ray: bool = False,
        processes_per_gpu: int = 4,
        windows: Windows | None = None,
    ) -> None:
        if processes_per_gpu < 1:
            raise ValueError(f"processes_per_gpu must be at least 1, got {processes_per_gpu}")
        self.settings = {
            "root": root,
            "checkpoint": model.checkpoint_sha256,
            "settings": {
                "model": model.settings.to_dict(),
                "num_clips": count_clips(model, options),
                "num_crops": options.num_crops,
                **({} if windows is None else {"windows": windows.to_dict()}),
            },
        }
        self.windows = windows
        self.gpus = 1 / processes_per_gpu if ray and model.device.type == "cuda" else 0
        self.root = root
        self._options = options
        self._retry_failed = retry_failed
        self._device = model.device.type if ray else str(model.device)
        self._model: VideoModel | None = model
        self._checkpoint, self._network = model.checkpoint, model.settings
        self._modules = modules_of(model.encoder.modules())

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_model": None}

    def item(self, path: str, state: tuple[int, int]) -> Item:
        """The item of a file with size and modification time, negative if there is no file."""
        size, mtime = state
        return Item(path, {"size": size, "mtime_ns": mtime} if size >= 0 else None)

    def setup(self) -> None:
        """Build the network, unless this is the process that has it."""
        if self._model is None:
            prepare_process(self._modules)
            device = device_of_process(self._device)
            self._model = build_model(self._network, self._checkpoint, device)
            if self._model.checkpoint_sha256 != self.settings["checkpoint"]:
                raise RunError(f"{self._checkpoint} has changed since the run began")
        self._files = file_reader(self._model, self._options)

    def process(self, item: Item) -> Facts:
        """The feature as data."""
        assert self._model is not None
        path = os.path.join(self.root, item.key)
        if self.windows is not None:
            return self._process_windows(path)
        sample = self._files.read(path)
        if sample.get("frames") is None:
            raise ItemError("bad", "; ".join(reason for _, reason in sample["failures"]))
        try:
            return Facts({}, embed_sample(self._model, sample, self._options, path).tobytes())
        except Exception as error:  # of the network, which would fail for all files
            raise RunError(explain_network_error(error, path)) from error

    def _process_windows(self, path: str) -> Facts:
        """Features of all windows, behind their spans."""
        assert self._model is not None and self.windows is not None
        try:
            found = embed_windows(self._model, path, self.windows, self._options)
        except (VideoDecodeError, TableError) as error:
            raise ItemError("bad", getattr(error, "reason", str(error))) from error
        except MemoryError as error:
            raise ItemError("bad", f"{type(error).__name__}: {error}") from error
        except Exception as error:  # of the network, which would fail for all files
            raise RunError(explain_network_error(error, path)) from error
        facts = {"windows": len(found), "reason": found.reason}
        return Facts(facts, found.spans.tobytes() + found.features.tobytes())

    def source(self, item: Item) -> State:
        """Size and modification time; rows of a table do not change during a run."""
        if is_table(self.root):
            return item.source
        return file_state(os.path.join(self.root, item.key))

    def holds(self, item: Item, record: Record) -> bool:
        """Whether the file has a feature, or could not be decoded and is not to be tried again."""
        return self.stands(record.done)

    def stands(self, done: bool) -> bool:
        """Whether a result stands as long as its file does not change."""
        return done or not self._retry_failed


def feature_of(record: Record) -> np.ndarray:
    """(D,) float32 of a finished record."""
    assert record.data is not None
    return np.frombuffer(record.data, dtype=np.float32)


def windows_of(record: Record) -> tuple[np.ndarray, np.ndarray, str]:
    """Features (W, D), spans (W, 2), and why windows are missing, of a finished record."""
    assert record.data is not None
    count = int(record.facts["windows"])
    spans = np.frombuffer(record.data, dtype=np.float64, count=2 * count).reshape(count, 2)
    features = np.frombuffer(record.data, dtype=np.float32, offset=spans.nbytes)
    return features.reshape(count, -1), spans, str(record.facts["reason"])
