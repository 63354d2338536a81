"""Features of the training videos of a run: for its page, and beside those of random weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sce_video.apis.embed import EmbedOptions, iterate_embeddings
from sce_video.apis.model import VideoModel, build_model, load_model, with_random_weights
from sce_video.apis.model_settings import ModelSettings
from sce_video.engine.checkpoint import file_sha256, find_checkpoints
from sce_video.evaluation.features import load_features, save_features
from sce_video.evaluation.random_weights import compare_features
from sce_video.evaluation.rows import Rows
from sce_video.registry import DATASETS
from sce_video.utils.progress import Progress
from sce_video.utils.run_files import PAGE_FEATURES

_OPTIONS = EmbedOptions(num_clips=2, num_workers=1, timeout=20.0)
#: Embedding ends after this many seconds, with the videos that are done by then.
_SECONDS = 120.0


def given_features(path: str | Path, folder: str | Path) -> tuple[Rows, list[str]]:
    """Features of a file of ``sce-video embed``, and sentences about them.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it is no feature file, or another checkpoint than one of the run has made it.
    """
    rows, provenance = load_features(path)
    made_by = (provenance.get("checkpoint") or {}).get("sha256")
    if made_by is None:
        return rows, [f"{path} does not tell which checkpoint has made its features."]
    checkpoints = find_checkpoints(folder)
    found = next((file for file in checkpoints if file_sha256(file) == made_by), None)
    if found is None:
        raise ValueError(
            f"{path} holds features of a checkpoint that is not in {folder} (sha256 "
            f"{made_by[:12]}): embed with it, sce-video embed VIDEOS --checkpoint {folder} --out "
            "FILE.npz, or leave --features out"
        )
    older = found != checkpoints[0]
    notes = [f"The features are those of {found.name}; {checkpoints[0].name} is newer."] * older
    return rows, notes


def run_features(
    folder: str | Path, dataset_config: dict[str, Any], videos: int
) -> tuple[Rows | None, list[str]]:
    """Features of up to ``videos`` training videos by the newest checkpoint, and sentences.

    They are kept in the run folder with the checkpoint's hash, and computed again for another one,
    for other data, or where some could not be read.

    Args:
        folder: The run.
        dataset_config: Its training set.
        videos: How many, at equal steps through the set.

    Returns:
        None where nothing could be embedded; the sentences say why.
    """
    checkpoints = find_checkpoints(folder)
    if not checkpoints:
        return None, [f"There is no checkpoint in {folder} yet, so no video was embedded."]
    data = [str(dataset_config.get(name)) for name in ("data_root", "ann_file")]
    key = {"sha256": file_sha256(checkpoints[0]), "videos": videos, "data": data}
    cache = Path(folder, PAGE_FEATURES)
    rows = _cached(cache, key)
    if rows is None:
        dataset = DATASETS.build({**dataset_config, "pipeline": []})
        kind = getattr(dataset, "kind", type(dataset).__name__)
        if kind != "video":
            return None, [f"Videos are embedded for the page, not a set of kind {kind}."]
        rows, note = _embed(str(checkpoints[0]), dataset, videos)
        if len(rows):
            save_features(cache, rows, {"checkpoint": key})
        return (rows if len(rows) else None), [*note, *describe_failures(rows)]
    return rows, describe_failures(rows)


@dataclass(frozen=True)
class _ClipsOfNetworks:
    """Several networks as one, for embedding: a video is decoded once for all of them.

    Its row has the feature of each clip by each network.
    """

    networks: Sequence[VideoModel]

    @property
    def settings(self) -> ModelSettings:
        return self.networks[0].settings

    @property
    def checkpoint(self) -> str:
        return self.networks[0].checkpoint

    @property
    def row_size(self) -> int:
        return sum(network.row_size for network in self.networks)

    def row(self, sample: dict[str, Any], max_views: int) -> np.ndarray:
        clips = [{**sample, "positions": clip[None]} for clip in sample["positions"]]
        rows = [network.row(clip, max_views) for network in self.networks for clip in clips]
        return np.concatenate(rows)


def compare_with_random(
    checkpoint: str | Path, dataset: Any, videos: int, start: str | Path | None = None
) -> dict[str, float]:
    """The network of a checkpoint beside random weights, on training videos.

    Two clips of each of up to ``videos`` videos, at equal steps through the set. Files that cannot
    be read are left out.

    Args:
        checkpoint: Of the run.
        dataset: Its training set.
        videos: How many.
        start: Checkpoint that the training started from.

    Returns:
        See :func:`~sce_video.evaluation.random_weights.compare_features`.

    Raises:
        ValueError: a checkpoint cannot be read, or fewer than two videos can.
    """
    trained = load_model(checkpoint)
    networks = {"trained": trained, "random": with_random_weights(trained)}
    if start is not None:
        networks["start"] = build_model(trained.settings, start, trained.device)
    chosen = np.linspace(0, len(dataset) - 1, min(videos, len(dataset))).round().astype(int)
    both, rows, kept = _ClipsOfNetworks([*networks.values()]), [], []
    for result in iterate_embeddings(both, [dataset.path(i) for i in chosen.tolist()], _OPTIONS):
        if result.feature is not None:
            rows.append(result.feature)
            kept.append(int(chosen[result.index]))
    if len(rows) < 2:
        raise ValueError(f"{len(rows)} of {len(chosen)} videos could be read")
    matrix = torch.from_numpy(np.stack(rows))
    matrix = matrix.reshape(len(rows), len(networks), -1, trained.row_size)
    features = {name: matrix[:, number] for number, name in enumerate(networks)}
    return compare_features(features, torch.from_numpy(dataset.labels[kept]))


def describe_failures(rows: Rows) -> list[str]:
    """A sentence that names videos which could not be read; none if all could."""
    if not rows.failures:
        return []
    path, reason = rows.failures[0]
    total = len(rows) + len(rows.failures)
    first = f"{path}: {reason}" if reason else path
    advice = "" if len(rows) else "; bring the videos back, or give --features FILE.npz"
    return [
        f"{len(rows.failures)} of {total} videos could not be read; the first: {first}{advice}."
    ]


def _cached(path: Path, key: dict[str, Any]) -> Rows | None:
    try:
        rows, provenance = load_features(path)
    except (OSError, ValueError):  # none, or damaged: computed again
        return None
    # Files that could not be read may be back.
    return rows if provenance.get("checkpoint") == key and not rows.failures else None


def _embed(checkpoint: str, dataset: Any, videos: int) -> tuple[Rows, list[str]]:
    count = min(videos, len(dataset))
    chosen = np.linspace(0, len(dataset) - 1, count).round().astype(int)
    # In mixed order, so that those done after the time limit are of all folders.
    order = np.random.default_rng(0).permutation(chosen).tolist()
    paths = [dataset.path(index) for index in order]
    end, values, kept, failures = time.monotonic() + _SECONDS, [], [], []
    progress = Progress(count, "embedding for the page:", unit="videos", quiet=True)
    for result in iterate_embeddings(load_model(checkpoint), paths, _OPTIONS):
        if result.feature is None:
            failures.append((paths[result.index], result.reason))
        else:
            values.append(result.feature)
            kept.append(result.index)
        progress.advance(result.feature is None)
        if time.monotonic() > end:
            break
    progress.finish()
    done, notes = len(values) + len(failures), []
    if done < count:
        notes = [f"{done} of {count} videos were embedded within {_SECONDS:.0f} s."]
    pairs = sorted(zip((order[i] for i in kept), values, strict=True), key=lambda pair: pair[0])
    return _rows(dataset, [i for i, _ in pairs], [v for _, v in pairs], failures), notes


def _rows(
    dataset: Any,
    indices: Sequence[int],
    values: Sequence[np.ndarray],
    failures: list[tuple[str, str]],
) -> Rows:
    matrix = np.stack(values) if values else np.empty((0, 1), dtype=np.float32)
    return Rows(
        values=torch.from_numpy(matrix),
        labels=torch.tensor([int(dataset.labels[i]) for i in indices], dtype=torch.int64),
        indices=torch.tensor(indices, dtype=torch.int64),
        paths=[str(dataset.path(i)) for i in indices],
        failures=failures,
        num_views=_OPTIONS.num_clips,
    )


def class_names(rows: Rows) -> list[str]:
    """Names of the labels 0, 1, ... of videos that lie in a folder of each class; else empty."""
    folders: dict[int, set[str]] = {}
    for label, path in zip(rows.labels.tolist(), rows.paths, strict=True):
        folders.setdefault(label, set()).add(Path(path).parent.name)
    if not folders or min(folders) < 0 or any(len(names) > 1 for names in folders.values()):
        return []
    return [min(folders.get(label, {""})) for label in range(max(folders) + 1)]


def with_existing_paths(rows: Rows, root: str) -> Rows:
    """The rows with paths below ``root`` where a path is relative and exists there only."""
    below = [Path(root, path) for path in rows.paths]
    paths = [
        str(inside) if not Path(path).exists() and inside.exists() else path
        for path, inside in zip(rows.paths, below, strict=True)
    ]
    return replace(rows, paths=paths)
