"""Features of a data set: extracted with a frozen network, gathered over processes, saved."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from mmengine.dist import all_gather, all_gather_object, get_world_size
from mmengine.model import is_model_wrapper
from torch import Tensor, nn
from torch.utils.data import DataLoader

_LOG_SECONDS = 30.0


@dataclass(frozen=True)
class FeatureSet:
    """Features of the videos of a data set, one row each, in the data set's order.

    Attributes:
        features: (N, C) float32, on the CPU.
        labels: (N,) int64; -1 is none.
        indices: (N,) int64, positions in the data set, ascending and unique.
        paths: N paths.
        failures: Files that could not be decoded, with the error.
        num_views: Views (clips x crops) whose representations were averaged.
    """

    features: Tensor
    labels: Tensor
    indices: Tensor
    paths: list[str]
    failures: list[tuple[str, str]] = field(default_factory=list)
    num_views: int = 1

    def __post_init__(self) -> None:
        count = len(self.features)
        sizes = {
            "labels": len(self.labels),
            "indices": len(self.indices),
            "paths": len(self.paths),
        }
        wrong = [f"{size} {name}" for name, size in sizes.items() if size != count]
        if wrong:
            raise ValueError(f"{count} features do not go with {', '.join(wrong)}")

    def __len__(self) -> int:
        return len(self.features)

    def subset(self, keep: Tensor) -> FeatureSet:
        """The rows chosen by ``keep``: a bool mask (N,) or indices."""
        rows = torch.arange(len(self))[keep]
        return FeatureSet(
            self.features[rows],
            self.labels[rows],
            self.indices[rows],
            [self.paths[i] for i in rows.tolist()],
            self.failures,
            self.num_views,
        )


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside a DistributedDataParallel or similar wrapper, else the model itself."""
    return cast(nn.Module, model.module) if is_model_wrapper(model) else model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Eval mode without gradients; afterwards every module has the mode it had.

    Module by module, since a frozen layer may stand in eval mode within a network in training.
    Yields the module inside a DistributedDataParallel wrapper: an eval forward needs no other
    process, and each may have another number of batches.
    """
    modes = [(module, module.training) for module in model.modules()]
    inner = unwrapped(model)
    model.eval()
    try:
        with torch.no_grad():
            yield inner
    finally:
        for module, training in modes:
            module.training = training


def extract_features(
    model: nn.Module,
    dataloader: DataLoader,
    device: torch.device | str | None = None,
    log: Callable[[str], None] | None = None,
) -> FeatureSet:
    """Mean representation over the views of every video of a data set.

    A batch goes through ``model.data_preprocessor(batch, False)`` and
    ``model(**data, mode="tensor")``, which gives (n, C) for every view. With several processes
    each embeds the share that its sampler gives it, and all get the whole set. Every video is
    counted once: what a padding sampler repeats is dropped.

    Args:
        model: A model of this package, bare or wrapped; its mode is restored.
        dataloader: Batches as :func:`sce_video.collate_views` makes them.
        device: Move the model there first; None leaves it where it is.
        log: Called with a line of progress every half minute.

    Raises:
        RuntimeError: a process failed (its error is named on all), or videos are missing although
            no failure was reported, as with a sampler or loader that drops the last ones.
        ValueError: the data set is empty.
    """
    if device is not None:
        model.to(device)
    total = len(dataloader.dataset)  # type: ignore[arg-type]
    if total == 0:
        raise ValueError("the data set to embed is empty")
    share, error = None, None
    try:
        with evaluating(model) as inner:
            share = _embed_share(inner, dataloader, log)
    except Exception as caught:  # the other processes wait: tell them, then raise
        error = caught
    messages = all_gather_object(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    failed = [f"process {rank}: {text}" for rank, text in enumerate(messages) if text]
    if failed:
        raise RuntimeError(f"feature extraction failed on {'; '.join(failed)}")
    assert share is not None
    return _assemble(_gather(share), dataloader, total)


@dataclass
class _Share:
    """What one process embedded, in its sampler's order."""

    features: Tensor
    labels: list[int]
    indices: list[int]
    failures: list[tuple[str, str]]
    num_views: int


def _embed_share(model: Any, dataloader: DataLoader, log: Callable[[str], None] | None) -> _Share:
    share = _Share(torch.empty(0, 0), [], [], [], 0)
    rows = []
    started = last = time.monotonic()
    for done, batch in enumerate(dataloader, start=1):
        share.failures += [(str(path), str(why)) for path, why in batch.get("failures", [])]
        if len(batch["index"]) > 0:  # else all videos of the batch were skipped
            data = model.data_preprocessor(batch, False)
            views = model(**data, mode="tensor")
            rows.append(torch.stack([h.float() for h in views]).mean(dim=0).cpu())
            share.labels += [int(label) for label in batch["label"]]
            share.indices += [int(index) for index in batch["index"]]
            share.num_views = max(share.num_views, len(views))
        if log is not None and time.monotonic() - last > _LOG_SECONDS:
            last = time.monotonic()
            rate = len(share.indices) * get_world_size() / (last - started)
            log(f"embedded {done}/{len(dataloader)} batches, {rate:.1f} videos/s")
    if rows:
        share.features = torch.cat(rows)
    return share


def _gather(share: _Share) -> _Share:
    """The shares of all processes, one after the other, on all processes."""
    if get_world_size() == 1:
        return share
    meta = all_gather_object(
        (tuple(share.features.shape), share.labels, share.indices, share.failures, share.num_views)
    )
    # As one tensor of equal size per process: pickled features would need several times the memory.
    most, width = (max(shape[i] for shape, *_ in meta) for i in (0, 1))
    padded = torch.zeros(most, width)
    padded[: len(share.features), : share.features.shape[1]] = share.features
    gathered = all_gather(padded)
    merged = _Share(torch.empty(0, 0), [], [], [], 0)
    parts = []
    for (shape, labels, indices, failures, num_views), part in zip(meta, gathered, strict=True):
        parts.append(part[: shape[0]])
        merged.labels += labels
        merged.indices += indices
        merged.failures += failures
        merged.num_views = max(merged.num_views, num_views)
    merged.features = torch.cat(parts)
    return merged


def _assemble(share: _Share, dataloader: DataLoader, total: int) -> FeatureSet:
    """Order by index, each video once; check that all are there."""
    first: dict[int, int] = {}
    for row, index in enumerate(share.indices):
        first.setdefault(index, row)
    indices = sorted(first)
    rows = torch.tensor([first[i] for i in indices], dtype=torch.long)
    failures = list(dict.fromkeys(share.failures))
    lost = total - len(indices) - len({path for path, _ in failures})
    if lost > 0 or not indices:
        raise RuntimeError(
            f"{len(indices)} of {total} videos were embedded and {len(failures)} reported as "
            "unreadable: the rest is missing. Is drop_last set, or does the sampler leave some out?"
        )
    return FeatureSet(
        features=share.features[rows],
        labels=torch.tensor(share.labels, dtype=torch.long)[rows],
        indices=torch.tensor(indices, dtype=torch.long),
        paths=_paths(dataloader.dataset, indices),
        failures=failures,
        num_views=share.num_views,
    )


def _paths(dataset: Any, indices: list[int]) -> list[str]:
    """``dataset.path(i)`` of the videos; of a data set without such a method, their numbers."""
    if hasattr(dataset, "path"):
        return [str(dataset.path(i)) for i in indices]
    return [f"#{i}" for i in indices]


def save_features(path: str | Path, features: FeatureSet, protocol: dict | None = None) -> None:
    """Write ``features, labels, indices, paths`` and, as JSON text, ``protocol`` to a .npz file.

    ``protocol`` also keeps the number of views and the failures. Written beside its place and
    moved there, so a broken run leaves no half file; loads without pickle.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"features are saved as .npz, got {path}")
    described = {
        **(protocol or {}),
        "num_views": features.num_views,
        "failures": features.failures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            np.savez(
                file,
                features=features.features.numpy().astype(np.float32),
                labels=features.labels.numpy(),
                indices=features.indices.numpy(),
                paths=np.array(features.paths, dtype=np.str_),
                protocol=np.array(json.dumps(described)),
            )
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_features(path: str | Path) -> tuple[FeatureSet, dict]:
    """Read what :func:`save_features` wrote: the features and the protocol.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is not such a file.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        protocol = json.loads(str(arrays["protocol"]))
        features = FeatureSet(
            features=torch.from_numpy(arrays["features"]),
            labels=torch.from_numpy(arrays["labels"]),
            indices=torch.from_numpy(arrays["indices"]),
            paths=[str(p) for p in arrays["paths"]],
            failures=[(p, why) for p, why in protocol.get("failures", [])],
            num_views=int(protocol.get("num_views", 1)),
        )
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is not a feature file of this package: {error}") from error
    return features, protocol
