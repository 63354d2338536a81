"""Repacking as a batch job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from sce_video.data_tools.repack.plan import Item as PlannedFile
from sce_video.data_tools.repack.settings import Settings
from sce_video.data_tools.repack.work import COMMENT, Job, repack_file
from sce_video.datasets.decode_limits import MAX_PIXELS
from sce_video.datasets.errors import VideoDecodeError
from sce_video.datasets.readers.containers import open_video
from sce_video.jobs import BatchJob, Item, ItemError, Record, State, StorageError, file_state


class RepackJob(BatchJob):
    """Re-encodes one file.

    A record also holds the ``root`` of its source, by which files of the same path are told apart.

    Args:
        root: Folder that the keys of the items are relative to.
        folder: Folder of the outputs.
        settings: Settings of the outputs.
        min_psnr: dB that an output must have.
        threads: Threads of the encoder.
        max_pixels: Height x width of the largest frames that are read.
        work: Does it; for tests.
    """

    name = "repack"

    def __init__(
        self,
        root: str | Path,
        folder: str | Path,
        settings: Settings,
        *,
        min_psnr: float = 30.0,
        threads: int = 1,
        max_pixels: int = MAX_PIXELS,
        work: Callable[[Job], dict[str, Any]] = repack_file,
    ) -> None:
        self.folder = os.path.abspath(folder)  # other machines have other current folders
        self.settings = settings.as_dict()
        self.root = os.path.realpath(root)
        self.cpus = threads
        self._sources = os.path.abspath(root)
        self._encoding = settings
        self._min_psnr = min_psnr
        self._max_pixels = max_pixels
        self._work = work

    def items(self, files: Iterable[PlannedFile]) -> list[Item]:
        """Items of files, with the present states of their sources."""
        state = cache(file_state)  # a video may have hundreds of segments
        return [
            Item(file.key, state(os.path.join(self._sources, file.path)), file, file.output)
            for file in files
        ]

    def process(self, item: Item) -> dict[str, Any]:
        """Facts of :func:`repack_file`."""
        facts = self._work(
            Job(
                source=self._path(item),
                temporary=item.temporary,
                settings=self._encoding,
                min_psnr=self._min_psnr,
                threads=int(self.cpus),
                max_pixels=self._max_pixels,
                span=item.argument.span,
            )
        )
        status = facts.pop("status")
        if status == "storage":
            raise StorageError(facts["reason"])
        if status == "failed":
            raise ItemError(facts["kind"], facts["reason"])
        return {**facts, "root": self.root}

    def source(self, item: Item) -> State:
        """Size and modification time of the source."""
        return file_state(self._path(item))

    def _path(self, item: Item) -> str:
        return os.path.join(self._sources, item.argument.path)

    def holds(self, item: Item, record: Record) -> bool:
        """Whether the output is good enough, and of this root if the source does not exist now."""
        facts = record.facts
        if not record.done or min(facts["psnr"], facts["psnr_luma"]) < self._min_psnr:
            return False
        return item.source is not None or facts["root"] == self.root

    def made_output(self, item: Item, record: Record | None) -> bool:
        """Whether repack made the file at an output's path, by the record or its comment."""
        if super().made_output(item, record):
            return True
        assert item.output is not None
        try:
            with open_video(os.path.join(self.folder, item.output)) as container:
                return container.metadata.get("comment", "").startswith(COMMENT)
        except VideoDecodeError:
            return False

    def has_failed(self, item: Item, record: Record | None) -> bool:
        """Whether the source in its present state has failed with these settings."""
        if record is None or record.done or record.settings != self.settings:
            return False
        return record.source == item.source
