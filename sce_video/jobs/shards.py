"""The stores of a job whose items several drivers share, in one folder.

Every shard has its own store, so no file has two writers. A driver copies what it needs of stores
of earlier runs (unsharded ones, other lists, another number of shards) into its own, and the
results of all are read from a joint store in memory.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sce_video.jobs.job import Record
from sce_video.jobs.store import BusyStoreError, RecordStore

_SHARD = re.compile(r"(\d+)/(\d+)")
T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """One of ``count`` parts of files or steps, each of which belongs to one part.

    Attributes:
        number: From 1.
        count: Number of parts.
    """

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse ``i/n`` with 1 <= i <= n; ValueError for anything else."""
        match = _SHARD.fullmatch(text)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise ValueError(f"--shard must be i/n with i from 1 to n, such as 2/4, got {text!r}")
        return cls(int(match[1]), int(match[2]))

    def holds(self, path: str) -> bool:
        """Whether a file, by its path in the output folder, belongs to this part.

        The path alone decides, so that machines with other lists of files agree.
        """
        return zlib.crc32(os.fsencode(path)) % self.count == self.number - 1

    def part(self, items: Sequence[T]) -> Sequence[T]:
        """Every ``count``-th item of a sequence; empty if there are too few."""
        return items[self.number - 1 :: self.count]

    @property
    def suffix(self) -> str:
        """Suffix of file names; empty if there is one part only."""
        return f".shard-{self.number}-of-{self.count}" if self.count > 1 else ""


_ENDING = ".sqlite"


@dataclass(frozen=True)
class SharedFolder:
    """A folder of stores.

    Attributes:
        path: The folder.
        job: Name of the job.
        base: Prefix of the names, of the list that the items are from.
    """

    path: Path
    job: str
    base: str = ""

    def open(self, shard: Shard, wanted: Callable[[Record], bool]) -> RecordStore:
        """The store of a shard, which has copied the later ``wanted`` records of earlier runs.

        Only the other shards of the same items may run at once, as others might write the same
        outputs.

        Raises:
            StoreError: Another run is writing to the folder, or a file in it is no store.
            StorageError: The store cannot be written.
        """
        own = self.path / self._name(shard)
        try:
            store = RecordStore(own, self.job)
        except BusyStoreError as error:
            raise BusyStoreError(
                f"{error}, or give each run a part of the files with --shard"
            ) from error
        siblings = {self._name(Shard(i + 1, shard.count)) for i in range(shard.count)}
        try:
            # The own lock is held, so of two runs that begin at once one at least sees the other.
            for path in self._stores():
                if path.name not in siblings:
                    store.absorb(path, wanted)
        except BusyStoreError as error:
            store.close()
            raise BusyStoreError(
                f"another run ({path.stem}) is writing to {self.path.parent}: wait for it; only "
                "shards of one list, all with the same N in --shard I/N, may run at once"
            ) from error
        except BaseException:
            store.close()
            raise
        return store

    def joint(self, wanted: Callable[[Record], bool] = lambda record: True) -> RecordStore:
        """The latest records of all stores, in memory; without those that a run is writing."""
        store = RecordStore(None, self.job)
        self.absorb_into(store, wanted)
        return store

    def absorb_into(
        self, store: RecordStore, wanted: Callable[[Record], bool] = lambda record: True
    ) -> None:
        """Copy the latest records of all stores into one, but of those that a run is writing."""
        for path in self._stores():
            try:
                store.absorb(path, wanted)
            except BusyStoreError:
                continue

    def _name(self, shard: Shard) -> str:
        return f"{self.base}records{shard.suffix}{_ENDING}"

    def _stores(self) -> list[Path]:
        return sorted(self.path.glob(f"*records*{_ENDING}"))
