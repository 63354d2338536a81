"""The stores of a job whose items several drivers share, in one folder.

Every shard has its own store, so no file has two writers. A driver copies what it needs of stores
of earlier runs (unsharded ones, other lists, another number of shards) into its own, and the
results of all are read from a joint store in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sce_video.jobs.record import Record
from sce_video.jobs.store import BusyStoreError, RecordStore
from sce_video.utils.shard import Shard

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
