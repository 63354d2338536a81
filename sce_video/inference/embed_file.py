"""Embeds videos into one file, with a record of each until then, so that any run can be resumed."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    """Embeds the items of a job into a file, on one rank or several, and can be resumed.

    Every result is saved immediately to records in ``<path>.parts/``, which the ranks share. Each
    rank embeds some of the items. The first one writes the file and removes the records.

    Args:
        path: The ``.npz`` file.
        job: The job; its settings are compared with those of earlier records.
        items: Gives the items in the order of the file; called on the first rank.
        workers: Where each rank works.
    """

    def __init__(
        self, path: str | Path, job: EmbedJob, items: Callable[[], list[Item]], workers: Workers
    ) -> None:
        self.path, self.job, self.items, self.workers = Path(path), job, items, workers
        self.parts = self.path.with_name(self.path.name + ".parts")

    def run(self, finish: Callable[[Features], Features]) -> Features:
        """Embed what is due, and write the file.

        Args:
            finish: Gets the features of all items, whose values are not in memory, and returns
                them with the provenance to write.

        Returns:
            The written features, without their values.

        Raises:
            ValueError: If the file exists, nothing could be embedded, or the records are of another
                checkpoint, data set or pipeline.
        """
        due, known = run_on_main_rank(self._due)
        # Every n-th item: neighbours in a list are often alike in length.
        own = due[get_rank() :: get_world_size()]
        # SQLite allows one writer to a file, so each rank has its own.
        name = f"rank-{get_rank()}.sqlite" if get_rank() else "records.sqlite"
        with all_or_none("extracting features"):
            with RecordStore(self.parts / name, self.job.name) as store:
                self._embed(store, own, known)
        return run_on_main_rank(lambda: self._write(finish))

    @contextmanager
    def _joined(self) -> Iterator[RecordStore]:
        """The records of all ranks of this run and of earlier ones, which had others."""
        with RecordStore(self.parts / "records.sqlite", self.job.name) as store:
            # Of several records of an item the latest counts.
            for path in sorted(self.parts.glob("rank-*.sqlite")):
                store.absorb(path)
            if any(settings != self.job.settings for settings in store.settings()):
                raise ValueError(
                    f"{self.parts} is of another checkpoint, data set or pipeline: give another "
                    f"--out, or remove {self.parts}"
                )
            yield store

    def _divided(self, store: RecordStore, items: Sequence[Item]) -> Iterator[Item]:
        """The items; the samples of a batch that failed one by one, since one may be the reason."""
        for item in items:
            record = store.get(item.key)
            failed = record is not None and not record.done
            yield from (self.job.samples(item) if failed else ()) or (item,)

    def _due(self) -> tuple[list[Item], int]:
        """The items to embed and the number of others; the file and the records are checked."""
        if self.path.exists():
            raise ValueError(f"{self.path} exists: remove it, or give another --out")
        with self._joined() as store:
            items = [*self._divided(store, self.items())]
            due = [item for item in items if not is_current(self.job, item, store)]
        if len(due) < len(items):
            done = f"{len(items) - len(due)} {self.job.unit} were embedded before"
            print_log(f"resuming: {done}, {len(due)} are left", logger="current")
        return due, len(items) - len(due)

    def _embed(self, store: RecordStore, due: list[Item], known: int) -> None:
        """Embed items; then the samples of batches that failed, one by one."""
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
        """Write the file, with the features of one block in memory at a time."""
        with self._joined() as store:
            items = self.items()

            def recorded() -> Iterator[Features]:
                for item in self._divided(store, items):
                    record = store.get(item.key)
                    assert record is not None
                    yield self.job.features(item, record)

            size = next((part.values.shape[1] for part in recorded() if len(part)), 0)
            # Two passes: first all but the values, which do not fit into memory.
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
        # Only after the file is complete under its name.
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
    ray: str | None = None,
    processes_per_gpu: int = 4,
) -> Features:
    """Embed a folder, a table, a file or a URL into a file; the same call resumes it.

    Args:
        model: From :func:`~sce_video.inference.model.load_model`.
        videos: Folder, table, file or URL.
        out: The ``.npz`` file.
        windows: How each video is divided; None for one row of each.
        options: Views and processes.
        extensions: Extensions of the videos in a folder; None for those of all known videos.
        ray: Address of a Ray cluster to work on; None for this machine.
        processes_per_gpu: Processes that share a GPU of the cluster.

    Returns:
        Paths, time spans, failures and provenance of the rows; the values are in the file.

    Raises:
        FileNotFoundError: If there are no such videos.
        ValueError: See :meth:`FeatureFileRun.run`.
    """
    if os.path.isdir(videos) or is_table(videos):
        found = list_videos(videos, extensions)
        files = {name: os.path.join(videos, name) for name in map(found.path, range(len(found)))}
    elif video_exists(videos):
        files = {videos: videos}
    else:
        raise FileNotFoundError(f"no video or folder at {videos}")
    made: dict[str, Any] = {
        "checkpoint": {"path": model.checkpoint, "sha256": model.checkpoint_sha256},
        "clips": options.num_clips,
        "crops": options.num_crops,
        **({} if windows is None else {"windows": windows.to_dict()}),
        "decoder": "av",
        "decoder_version": importlib.metadata.version("av"),
    }

    job = EmbedJob(
        *(model, options, windows),
        settings={"made": made, "videos": str(videos)},
        ray=ray,
        processes_per_gpu=processes_per_gpu,
    )

    def items() -> list[Item]:
        # A pipe or a stream has no state that stays the same while it is read.
        states = {name: file_state(file) for name, file in files.items() if os.path.isfile(file)}
        return [Item(name, states.get(name) or {}, file) for name, file in files.items()]

    workers = job_workers(options.num_workers, None if windows else options.timeout, ray)
    return FeatureFileRun(out, job, items, workers).run(
        lambda found: replace(found, provenance={**found.provenance, **made})
    )
