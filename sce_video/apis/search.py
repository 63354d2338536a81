"""Search by example: the videos of an index that are most similar to a given one."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sce_video.apis.embed import embed
from sce_video.apis.index import VideoIndex, setting_differences
from sce_video.apis.model import VideoModel, build_model, load_model
from sce_video.apis.model_settings import ModelSettings
from sce_video.engine.checkpoint import file_sha256
from sce_video.evaluation.functional.neighbours import NotFiniteError, nearest_neighbours

#: Rows read from the file at a time, and compared at a time: these stay in the cache of a core.
_READ_ROWS, _CACHED_ROWS = 16384, 512


@dataclass(frozen=True)
class Match:
    """One result of a query.

    Attributes:
        rank: From 1.
        path: Relative to the indexed folder.
        similarity: Cosine, -1 to 1.
        file: Absolute path of the video.
    """

    rank: int
    path: str
    similarity: float
    file: str

    @property
    def distance(self) -> float:
        """1 - similarity, 0 to 2."""
        return 1.0 - self.similarity


def model_of_index(
    index: VideoIndex,
    checkpoint: str | os.PathLike | None = None,
    config: str | os.PathLike | None = None,
    device: str | torch.device | None = None,
) -> VideoModel:
    """The network that an index was built with.

    It is built from the settings in the index, which are validated as untrusted data.

    Args:
        index: From :func:`~sce_video.apis.index.read_index`.
        checkpoint: Current path of the checkpoint; None for the path stored in the index.
        config: Config file, for a network that is registered by its ``custom_imports``.
        device: As in :func:`~sce_video.apis.load_model`.

    Raises:
        FileNotFoundError: there is no checkpoint at that path.
        ValueError: the checkpoint or the config is not that of the index.
    """
    path = index.checkpoint["path"] if checkpoint is None else os.fspath(checkpoint)
    if not os.path.isfile(path):
        advice = ": give its current path (--checkpoint)" if checkpoint is None else ""
        raise FileNotFoundError(
            f"the checkpoint of the index {index.folder} is not at {path}{advice}"
        )
    check_checkpoint(index, path)
    if config is None:
        settings = ModelSettings.from_dict(index.settings.get("model", {}))
        return build_model(settings, path, device)
    model = load_model(path, Path(config), device)
    differences = setting_differences(index.settings["model"], model.settings.to_dict())
    if differences:
        raise ValueError(
            f"{config} does not match the index {index.folder}: {'; '.join(differences)}"
        )
    return model


def check_checkpoint(index: VideoIndex, path: str | os.PathLike) -> None:
    """Raise ValueError unless a file is the checkpoint that an index was built with."""
    digest = file_sha256(os.fspath(path))
    if digest != index.checkpoint["sha256"]:
        raise ValueError(
            f"{os.fspath(path)} (sha256 {digest[:12]}) is not the checkpoint that the index "
            f"{index.folder} was built with ({index.checkpoint['sha256'][:12]}, "
            f"{index.checkpoint['path']}): give that file (--checkpoint), "
            "or build the index from scratch"
        )


def rows_of_file(index: VideoIndex, video: str | os.PathLike) -> list[int]:
    """Rows of an index that are the given file, also if it is given by another path or a link."""
    try:
        status = os.stat(video)
    except OSError:
        return []
    names = {
        os.path.relpath(os.path.abspath(video), index.root),
        os.path.relpath(os.path.realpath(video), index.root),
    }
    rows = {row for name in names if (row := index.row(name)) is not None}
    for row in np.flatnonzero(index.stored.sizes == status.st_size).tolist():
        with contextlib.suppress(OSError):
            if os.path.samestat(status, os.stat(index.file(index.path(row)))):
                rows.add(row)
    return sorted(rows)


def query_feature(
    index: VideoIndex, video: str | os.PathLike, model: Callable[[], VideoModel]
) -> np.ndarray:
    """The feature (D,) of a video; taken from the index if the file is in it and unchanged.

    Args:
        index: From :func:`~sce_video.apis.index.read_index`.
        video: The file.
        model: Called for the network if the video has to be embedded.

    Raises:
        FileNotFoundError: no such file.
        VideoDecodeError: it cannot be decoded.
    """
    if not os.path.exists(video):
        raise FileNotFoundError(f"no video at {os.fspath(video)}")
    status = os.stat(video)
    for row in rows_of_file(index, video):
        state = index.stored.sizes[row], index.stored.mtimes[row]
        if state == (status.st_size, status.st_mtime_ns):
            return np.array(index.features[row])
    return embed(model(), video, index.options)[0]


def query_index(
    index: VideoIndex,
    feature: np.ndarray,
    k: int = 10,
    *,
    leave_out: list[int] | None = None,
    centred: bool = False,
) -> list[Match]:
    """The videos of an index that are most similar to a feature, the most similar first.

    Args:
        index: From :func:`~sce_video.apis.index.read_index`.
        feature: (D,), from the network of the index.
        k: Number of results; all videos if the index has fewer.
        leave_out: Rows excluded from the results, see :func:`rows_of_file`.
        centred: Subtract the mean feature of the index from all features first. It spreads out
            similarities that are all close to 1.

    Raises:
        ValueError: the index is empty, sizes differ, ``k`` is below 1.
    """
    if len(index) == 0:
        raise ValueError(f"the index {index.folder} contains no video that could be decoded")
    query = torch.from_numpy(np.array(feature, dtype=np.float32)).reshape(1, -1)
    own = torch.zeros(len(index), dtype=torch.long)
    own[torch.tensor(leave_out or [], dtype=torch.long)] = 1
    mean = torch.from_numpy(index.stored.mean) if centred else None
    parts = []
    for start, block in _blocks(index.stored.features):
        try:
            values, rows = nearest_neighbours(
                query,
                block,
                k,
                query_groups=torch.ones(1, dtype=torch.long),
                gallery_groups=own[start : start + len(block)],
                query_mean=mean,
                gallery_mean=mean,
                gallery_block=_CACHED_ROWS,
            )
        except NotFiniteError as error:
            path = index.path(start + error.row)
            raise ValueError(
                f"the index {index.folder} is damaged: the feature of {path} holds NaN or "
                "infinity; build it from scratch (--rebuild, rebuild=True)"
            ) from error
        parts.append((values[0], rows[0] + start))
    similarities = torch.cat([values for values, _ in parts])
    rows = torch.cat([rows for _, rows in parts])
    similarities, order = similarities.sort(descending=True, stable=True)
    found = list(zip(similarities[:k].tolist(), rows[order[:k]].tolist(), strict=True))
    return [
        Match(
            rank=rank,
            path=index.path(row),
            similarity=max(-1.0, min(1.0, similarity)),
            file=index.file(index.path(row)),
        )
        for rank, (similarity, row) in enumerate(found, start=1)
        if similarity != float("-inf")
    ]


def _blocks(features: np.ndarray) -> Iterator[tuple[int, torch.Tensor]]:
    """First row and content of consecutive blocks of a matrix.

    The pages of a memory-mapped file are dropped after each block. They would count as memory of
    the process otherwise, all of the file in the end.
    """
    mapping = features.base
    while isinstance(mapping, np.ndarray):
        mapping = mapping.base
    for start in range(0, len(features), _READ_ROWS):
        yield start, torch.from_numpy(features[start : start + _READ_ROWS])
        if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)
