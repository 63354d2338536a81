"""Adapter of a network for the package mteb, whose leaderboards include video tasks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from sce_video.datasets.readers.base import VideoDecodeError
from sce_video.inference.embed import embed_videos
from sce_video.inference.model import VideoModel, check_model
from sce_video.inference.network_input import ViewOptions
from sce_video.utils.files import write_bytes
from sce_video.utils.records import at

_COLUMN = "video"


class MtebEncoder:
    """Encoder for mteb's video-only tasks (``EncoderProtocol``), with cosine similarity.

    Example: ``mteb.evaluate(MtebEncoder(load_model("RUN/epoch_100.pth")), mteb.get_tasks(...))``.
    PyAV decodes the task's encoded files, as in ``sce-video embed``. torchcodec, which mteb would
    use, is not needed.

    Args:
        model: Network from :func:`~sce_video.inference.model.load_model`.
        name: Name ``organisation/model`` under which mteb stores the results. None uses the
            checkpoint's file name. The revision is the beginning of the checkpoint's SHA-256.
        options: Views and workers; None for the defaults of :class:`ViewOptions`.

    Raises:
        TypeError: If ``model`` is of another type.
        ValueError: If ``name`` does not contain exactly one slash.
    """

    def __init__(
        self, model: VideoModel, name: str | None = None, options: ViewOptions | None = None
    ) -> None:
        check_model(model)
        self.model = model
        self.name = f"sce_video/{Path(model.checkpoint).stem}" if name is None else name
        if [bool(part) for part in self.name.split("/")] != [True, True]:
            raise ValueError(f"name must be 'organisation/model', got {self.name!r}")
        self.options = options or ViewOptions()

    @property
    def mteb_model_meta(self) -> Any:
        """Return mteb's ``ModelMeta``: name, revision, feature size, and video as the modality.

        Raises:
            ImportError: If mteb is not installed.
        """
        from mteb.models.model_meta import ModelMeta

        facts = {
            "name": self.name,
            "revision": self.model.checkpoint_sha256[:16],
            "embed_dim": self.model.feature_size,
            "n_parameters": sum(p.numel() for p in self.model.encoder.parameters()),
            "framework": ["PyTorch"],
            "similarity_fn_name": "cosine",
            "modalities": ["video"],
        }
        return ModelMeta.create_empty(overwrites=facts)

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        batch_size: int = 32,
        show_progress_bar: bool = True,
        precision: str = "float32",
    ) -> np.ndarray:
        """Compute features (N, D) float32 of the videos in one of mteb's loaders, in their order.

        Args:
            inputs: Loader whose ``dataset`` has a column ``video`` of type ``datasets.Video``.
            task_metadata: Metadata of the task, for error messages.
            hf_split: Split of the task, for error messages.
            hf_subset: Ignored.
            prompt_type: Ignored.
            batch_size: Number of files read at a time.
            show_progress_bar: Ignored.
            precision: Must be "float32".

        Raises:
            ValueError: If the precision is different, the inputs contain no videos or further
                modalities, or a video cannot be decoded. The message names the task and position.
        """
        where = f"{getattr(task_metadata, 'name', 'task')}, split {hf_split}"
        if precision != "float32":
            raise ValueError(f"precision must be float32, got {precision!r}")
        rows: list[np.ndarray] = []
        for paths in _files(inputs.dataset, max(1, batch_size), where):
            try:
                rows.append(embed_videos(self.model, paths, self.options))
            except (VideoDecodeError, FileNotFoundError) as error:
                first = sum(map(len, rows))
                raise ValueError(
                    f"{where}: one of the videos {first} to {first + len(paths) - 1} cannot be "
                    f"read: {error}"
                ) from error
        return np.concatenate(rows)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Compute cosine similarities (N, M) of (N, D) and (M, D); a vector counts as (1, D)."""
        return _unit(embeddings1) @ _unit(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Compute cosine similarities (N,) of features (N, D) and (N, D), row by row."""
        return (_unit(embeddings1) * _unit(embeddings2)).sum(dim=-1)


def _unit(features: Any) -> torch.Tensor:
    return normalize(torch.atleast_2d(torch.as_tensor(features).float()), dim=-1)


def _files(dataset: Any, count: int, where: str) -> Iterator[list[str]]:
    """Yield ``count`` paths of encoded videos at a time, and write videos in memory to files.

    Raises:
        ValueError: If there is no column of videos, there is a column of a different modality, or
            the dataset is empty.
    """
    from datasets import Video  # the package on which mteb's datasets are based

    columns = set(dataset.column_names) & {"text", "image", "audio", _COLUMN}
    if columns != {_COLUMN}:
        raise ValueError(
            f"{where}: this encoder accepts only videos, but the task contains "
            f"{sorted(columns) or 'none'}"
        )
    if len(dataset) == 0:
        raise ValueError(f"{where}: there are no videos")
    encoded = dataset.select_columns([_COLUMN]).cast_column(_COLUMN, Video(decode=False))
    for start in range(0, len(encoded), count):
        items = encoded[start : start + count][_COLUMN]
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for number, item in enumerate(items):
                if item is None:
                    raise ValueError(f"{where}: video {start + number} is missing")
                own = Path(folder, f"{number}.mp4")
                content = at(item, "bytes")
                if content is not None:
                    write_bytes(own, content)
                paths.append(item["path"] if content is None else str(own))
            yield paths
