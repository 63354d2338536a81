"""Embedding of videos into one file, which can be resumed from the records of each video."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from mmengine.dist import get_rank, get_world_size, is_main_process
from mmengine.logging import print_log

from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.sources import is_table, list_videos, video_exists
from sce_video.inference.embed_job import EmbedJob, job_workers
from sce_video.inference.features import Features, join_features, write_features
from sce_video.inference.model import VideoModel
from sce_video.inference.network_input import ViewOptions
from sce_video.inference.npz_files import RowStream
from sce_video.jobs import (
    Item,
    Record,
    RecordStore,
    Workers,
    file_state,
    is_current,
    run_job,
)
from sce_video.utils.command import Progress
from sce_video.utils.distributed import all_or_none, run_on_main_rank


class FeatureFileRun:
    """Resumable run that embeds the items of a job into a file, on one or several ranks.

    Every result is saved immediately to records in ``<path>.parts/``, which the ranks share. Each
    rank embeds a share of the items. Rank 0 writes the file and removes the records.

    Args:
        path: The ``.npz`` file.
        job: Job that embeds the items. Its settings are compared with earlier records.
        items: Returns the items in the order of the file. It is called on rank 0 only.
        workers: Worker processes of each rank.
    """

    def __init__(
        self, path: str | Path, job: EmbedJob, items: Callable[[], list[Item]], workers: Workers
    ) -> None:
        self.path, self.job, self.items, self.workers = Path(path), job, items, workers
        self.parts = self.path.with_name(self.path.name + ".parts")

    def run(self, finish: Callable[[Features], Features]) -> Features:
        """Embed the remaining items, and write the file.

        Args:
            finish: Maps the features of all items, whose values are not in memory, to features
                with the provenance to write.

        Returns:
            The written features, without their values.

        Raises:
            ValueError: If the file exists, nothing could be embedded, or the records come from
                another checkpoint, dataset or pipeline.
        """
        due, known = run_on_main_rank(self._due)
        # Take every n-th item to balance ranks, because neighbouring videos often have similar
        # lengths.
        own = due[get_rank() :: get_world_size()]
        # Use one file per rank, because SQLite allows only one writer per file.
        name = f"rank-{get_rank()}.sqlite" if get_rank() else "records.sqlite"
        with all_or_none("extracting features"):
            with RecordStore(self.parts / name, self.job.name) as store:
                self._embed(store, own, known)
        return run_on_main_rank(lambda: self._write(finish))

    @contextmanager
    def _joined(self) -> Iterator[RecordStore]:
        """Yield the joint records of all ranks, including the ranks of earlier runs."""
        with RecordStore(self.parts / "records.sqlite", self.job.name) as store:
            # If several ranks have recorded an item, keep the latest record.
            for path in sorted(self.parts.glob("rank-*.sqlite")):
                store.absorb(path)
            if any(settings != self.job.settings for settings in store.settings()):
                raise ValueError(
                    f"{self.parts} belongs to another checkpoint, dataset or pipeline. Give "
                    f"another --out, or remove {self.parts}"
                )
            yield store

    def _divided(self, store: RecordStore, items: Sequence[Item]) -> Iterator[Item]:
        """Yield the items, with each failed batch split into samples to find the bad one."""
        for item in items:
            record = store.get(item.key)
            failed = record is not None and not record.done
            yield from (self.job.samples(item) if failed else ()) or (item,)

    def _due(self) -> tuple[list[Item], int]:
        """Return the items to embed and the number of finished ones, after checking the file."""
        if self.path.exists():
            raise ValueError(f"{self.path} exists. Remove it, or give another --out")
        with self._joined() as store:
            items = [*self._divided(store, self.items())]
            due = [item for item in items if not is_current(self.job, item, store)]
        if len(due) < len(items):
            done = f"{len(items) - len(due)} {self.job.unit} were embedded before"
            print_log(f"resuming: {done}, {len(due)} are left", logger="current")
        return due, len(items) - len(due)

    def _embed(self, store: RecordStore, due: list[Item], known: int) -> None:
        """Embed the items, then the samples of failed batches one by one."""
        progress = Progress(known + len(due), "embedding", begin=known, unit=self.job.unit)

        def report(_item: Item, record: Record | None) -> None:
            if is_main_process():
                whole = record is not None and record.done and not record.facts.get("failures")
                progress.advance(not whole)

        workers = self.workers.at_most(len(due))
        run_job(self.job, due, store, workers, report)
        divided = ((item, one) for item in due for one in self._divided(store, [item]))
        again = [one for item, one in divided if one is not item]
        if again:
            run_job(self.job, again, store, workers)
        if is_main_process():
            progress.finish()

    def _write(self, finish: Callable[[Features], Features]) -> Features:
        """Write the file with the features of only one block in memory at a time."""
        with self._joined() as store:
            items = self.items()

            def recorded() -> Iterator[Features]:
                for item in self._divided(store, items):
                    record = store.get(item.key)
                    assert record is not None
                    yield self.job.features(item, record)

            size = next((part.values.shape[1] for part in recorded() if len(part)), 0)
            # Read the records twice, because their values do not all fit in memory. The first pass
            # skips the values.
            nothing = np.empty((0, size), np.float32)
            bare = (replace(part, values=nothing) for part in recorded())
            found = join_features(bare, size, {})
            if not len(found):
                problems = [f"{path}: {why}" for path, why in found.failures[:3]]
                raise ValueError(f"nothing was embedded: {'; '.join(problems)}")
            found = finish(found)
            rows = (row for part in recorded() for row in part.values)
            stream = RowStream((len(found), size), np.dtype(np.float32), rows)
            write_features(self.path, found, stream=stream)
        # Remove the records only now that the complete file has its final name.
        shutil.rmtree(self.parts, ignore_errors=True)
        return found


def embed_to_file(
    model: VideoModel,
    videos: str,
    out: str | Path,
    windows: Windows | None,
    options: ViewOptions,
    *,
    extensions: Sequence[str] | None = None,
    dataset: str | None = None,
    ray: str | None = None,
    processes_per_gpu: int = 4,
) -> Features:
    """Embed a folder, a table, a file or a URL into a file. Repeating the call resumes it.

    Args:
        model: Network from :func:`~sce_video.inference.model.load_model`.
        videos: Folder, table, file or URL.
        out: The ``.npz`` file to write.
        windows: Division of each video into windows; None for one row per video.
        options: Views and processes.
        extensions: Extensions of the videos in a folder; None for all known video extensions.
        dataset: Registered class that lists the videos of a folder; None lists all of them.
        ray: Address of a Ray cluster to work on; None for this machine.
        processes_per_gpu: Number of processes that share a GPU of the cluster.

    Returns:
        Paths, time spans, failures and provenance of the rows. The values are in the file.

    Raises:
        FileNotFoundError: If the videos do not exist.
        ValueError: If :meth:`FeatureFileRun.run` refuses the file or the records.
    """
    if os.path.isdir(videos) or is_table(videos):
        found = list_videos(videos, extensions, dataset)
        files = {name: os.path.join(videos, name) for name in map(found.path, range(len(found)))}
    elif video_exists(videos):
        files = {videos: videos}
    else:
        raise FileNotFoundError(f"no video or folder at {videos}")
    made: dict[str, object] = {
        "checkpoint": {"path": model.checkpoint, "sha256": model.checkpoint_sha256},
        "clips": options.num_clips,
        "crops": options.num_crops,
        "decoder": "av",
        "decoder_version": importlib.metadata.version("av"),
    }
    if windows is not None:
        made["windows"] = windows.to_dict()
    if dataset is not None:
        made["dataset"] = dataset

    job = EmbedJob(
        *(model, options, windows),
        settings={"made": made, "videos": str(videos)},
        ray=ray,
        processes_per_gpu=processes_per_gpu,
    )

    def items() -> list[Item]:
        # Only regular files have a size and a modification time that reveal later changes.
        states = {name: file_state(file) for name, file in files.items() if os.path.isfile(file)}
        return [Item(name, states.get(name) or {}, file) for name, file in files.items()]

    workers = job_workers(options.num_workers, None if windows else options.timeout, ray)
    return FeatureFileRun(out, job, items, workers).run(
        lambda found: replace(found, provenance={**found.provenance, **made})
    )
