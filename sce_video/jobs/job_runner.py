"""Runner of a job, which chooses the items that are due, runs them and records the outcomes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sce_video.jobs.job import BatchJob, Facts, Item, Record, RecordStore, RunError, StorageError
from sce_video.jobs.process_pool import Done, Outcome, WorkersEndedError, run_here, run_local
from sce_video.utils.cores import usable_cores

#: Name of an unfinished output: a digest of the final name (which may be too long to add a prefix),
#: and the ids of the store, the run and the attempt.
_NAME = re.compile(
    r"\.[0-9a-f]{16}\.(?P<store>[0-9a-f]{8})-(?P<run>[0-9a-f]{8})\.[0-9a-f]{8}\.part"
)


@dataclass(frozen=True)
class Workers:
    """Processes that run a job.

    Attributes:
        count: Number of processes. None uses all cores of this machine or the whole cluster. With
            0, items are processed in this process, without a time limit, and a crash ends the run.
        timeout: Time limit of an item in seconds.
        ray: Address of a Ray cluster, or ``auto`` for this machine's cluster. None runs processes
            on this machine.
    """

    count: int | None = None
    timeout: float = 600.0
    ray: str | None = None

    def __post_init__(self) -> None:
        least = 0 if self.ray is None else 1
        if self.count is not None and self.count < least:
            raise ValueError(f"count must be at least {least}, got {self.count}")
        if not self.timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds, got {self.timeout}")

    def at_most(self, items: int) -> Workers:
        """Limit the number of local processes to the number of items, but keep at least one."""
        if self.ray is not None or self.count == 0:
            return self
        return replace(self, count=max(1, min(self.count or usable_cores(), items)))

    def run(self, job: BatchJob, items: Iterable[Item]) -> Done:
        """Yield (item, outcome) in order of completion, a bounded number of items in progress."""
        if self.count == 0:
            return run_here(job, items)
        if self.ray is None:
            return run_local(job, items, self.count or usable_cores(), self.timeout)
        from sce_video.jobs.ray_cluster import run_on_ray  # Ray is an optional dependency

        return run_on_ray(job, items, self.ray, self.count, self.timeout)


@contextmanager
def resumable() -> Iterator[None]:
    """Add to the message of a StorageError that the same command resumes the run."""
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{error}. The same command resumes from here") from error


@dataclass
class Counts:
    """Numbers of items in a run.

    Attributes:
        done: Items that succeeded.
        failed: Items that failed, including items without a source.
        kept: Items whose earlier result was kept, because they were not due, or because their
            source does not exist now.
    """

    done: int = 0
    failed: int = 0
    kept: int = 0


def run_job(
    job: BatchJob,
    items: Iterable[Item],
    store: RecordStore,
    workers: Workers | None = None,
    on_record: Callable[[Item, Record | None], None] | None = None,
    *,
    force: bool = False,
) -> Counts:
    """Process the items that are due, and record the results.

    An item is not due if the store contains a record with the same settings and source, the job's
    ``holds`` accepts the record, and the output has the recorded size. By default, failures are due
    again. An item whose source does not exist now fails, unless it was finished before. A disk that
    is not mounted therefore loses no results.

    Args:
        job: Job to run.
        items: Items to process. They may be a generator over millions, because they are read only
            as they are needed.
        store: Store of this job. Nothing else is kept about a finished item.
        workers: Processes or cluster to use. None uses all cores of this machine.
        on_record: Function that is called with every item that was due, and its record. The record
            is None if the earlier record was kept because the source does not exist now.
        force: Whether all items are due.

    Raises:
        StorageError: If outputs or records cannot be written. Earlier records stay.
        UserError: If the processes cannot start, or the cluster is lost.
    """
    workers = workers or Workers()
    driver = _Driver(job, store, workers.timeout, on_record or (lambda item, record: None))
    try:
        with closing(workers.run(job, driver.begin(items, force))) as outcomes:
            for item, outcome in outcomes:
                driver.finish(item, outcome)
    finally:  # by now, all processes have ended
        for folder in driver.folders:
            with suppress(OSError):  # the next run will try to clean it again
                driver.clean(folder)
    return driver.counts


def iterate_job(
    job: BatchJob, items: Iterable[Item], workers: Workers
) -> Generator[tuple[Item, Record], None, None]:
    """Process all items and yield their records in the order of the items, without storing them.

    Args:
        job: Job whose items have no outputs and whose sources are not watched.
        items: Items with different keys, which are read as they are needed.
        workers: Processes or cluster to use.

    Raises:
        UserError: If the processes cannot start, or the cluster is lost.
    """
    begun: deque[Item] = deque()
    records: dict[str, Record] = {}

    def noted_items() -> Iterator[Item]:
        for item in items:
            begun.append(item)
            yield item

    with closing(workers.run(job, noted_items())) as outcomes:
        for done, outcome in outcomes:
            _check_run(job, outcome)
            records[done.key] = _record_of(job, done, outcome, workers.timeout)
            while begun and begun[0].key in records:
                item = begun.popleft()
                yield item, records.pop(item.key)


def _check_run(job: BatchJob, outcome: Outcome) -> None:
    """Raise an error if the outcome ends the run. The item has then not failed."""
    if outcome.fault in ("storage", "run"):
        raise (StorageError if outcome.fault == "storage" else RunError)(outcome.detail)
    if outcome.fault == "setup":
        raise WorkersEndedError(f"{job.name} cannot start: {outcome.detail}")


def _record_of(
    job: BatchJob, item: Item, outcome: Outcome, timeout: float, size: int | None = None
) -> Record:
    """Return the record of an outcome, without its time."""
    found = outcome.value if isinstance(outcome.value, Facts) else Facts(outcome.value or {})
    return Record(
        key=item.key,
        done=outcome.fault is None,
        source=item.source,
        settings=dict(job.settings),
        facts=found.values,
        kind=outcome.fault or "",
        reason=outcome.detail,
        output=item.output,
        output_bytes=size,
        time_limit=timeout,
        data=found.data,
    )


def is_current(job: BatchJob, item: Item, store: RecordStore) -> bool:
    """Return whether the record of an item is still valid, so that the item is not due.

    It is valid if the settings are the same, the job's ``holds`` accepts the record, and the source
    and the size of the output are unchanged. The source of a finished item may also be gone.
    """
    record = store.get(item.key)
    # Compare settings in the form that the store returns, because JSON has no tuples.
    if record is None or record.settings != json.loads(json.dumps(job.settings)):
        return False
    # A finished item stays finished if its source no longer exists.
    unchanged = record.done if item.source is None else record.source == item.source
    if not unchanged or not job.holds(item, record):
        return False
    if item.output is None or not record.done:
        return True
    try:
        size = os.path.getsize(os.path.join(job.folder, item.output))
    except OSError:
        return False
    return (record.output, record.output_bytes) == (item.output, size)


class _Driver:
    """Driver of a run, which prepares items and records their outcomes.

    Outputs are written to hidden files next to their final paths. The names of these files contain
    the ids of the store and of this run. The process that has locked a store may therefore remove
    all files of earlier runs, and a worker of an earlier run that is still writing uses different
    names.
    """

    def __init__(
        self,
        job: BatchJob,
        store: RecordStore,
        timeout: float,
        on_record: Callable[[Item, Record | None], None],
    ) -> None:
        self.job, self.store, self.counts = job, store, Counts()
        self.folders: set[Path] = set()  # folders that contain outputs
        self._run = secrets.token_hex(4)
        self._timeout, self._on_record = timeout, on_record

    def begin(self, items: Iterable[Item], force: bool) -> Iterator[Item]:
        """Yield the items to process, with temporary paths, and record all other items."""
        for item in items:
            current = is_current(self.job, item, self.store)
            # Keep records for files on an unmounted disk, even if all items are forced.
            if current and (not force or item.source is None):
                self.counts.kept += 1
                if force:
                    self._on_record(item, None)
            elif item.source is None:
                self._record(item, Outcome(None, "missing", "there is no such file"))
            elif item.output is None:
                yield item
            else:
                path = Path(self.job.folder, item.output)
                try:
                    path.lstat()
                except OSError as error:
                    if error.errno == errno.ENAMETOOLONG:
                        text = "the name of its output is too long for the file system"
                        self._record(item, Outcome(None, "name", text))
                        continue
                yield replace(item, temporary=self._temporary(path))

    def _temporary(self, output: Path) -> str:
        """Return a prefix for hidden files next to an output.

        The folder is created if needed, and cleaned when it is used for the first time.
        """
        folder = output.parent
        if folder not in self.folders:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self.clean(folder)
            except OSError as error:
                raise StorageError(f"cannot create a folder: {error}") from error
            self.folders.add(folder)
        digest = hashlib.blake2b(os.fsencode(output.name), digest_size=8).hexdigest()
        return str(folder / f".{digest}.{self.store.id}-{self._run}")

    def clean(self, folder: Path) -> None:
        """Remove the unfinished outputs of all runs of this store."""
        with os.scandir(folder) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is not None and match["store"] == self.store.id:
                    Path(entry.path).unlink(missing_ok=True)

    def finish(self, item: Item, outcome: Outcome) -> None:
        """Rename the output of a finished item, and record the outcome."""
        _check_run(self.job, outcome)
        # Check the source again, because the item may have read a mix of its old and new content.
        state = self.job.source(item)
        if outcome.fault is None and state != item.source:
            outcome = Outcome(None, "changed", "changed while it was being read")
        size = None
        if item.output is not None:
            final = Path(self.job.folder, item.output)
            try:
                if outcome.fault is None:
                    size = os.path.getsize(item.temporary)
                    # Rename before recording. If this process is killed in between, the item is
                    # processed again instead of being lost.
                    os.replace(item.temporary, final)
                else:
                    Path(item.temporary).unlink(missing_ok=True)
                    gone = replace(item, source=None)
                    if state is None and is_current(self.job, gone, self.store):
                        self.counts.kept += 1  # it was forced, but its source has vanished
                        self._on_record(item, None)
                        return
                    if self.job.made_output(item, self.store.get(item.key)):
                        final.unlink(missing_ok=True)
            except OSError as error:
                raise StorageError(f"cannot write {final}: {error.strerror}") from error
        self._record(item, outcome, size)

    def _record(self, item: Item, outcome: Outcome, size: int | None = None) -> None:
        record = _record_of(self.job, item, outcome, self._timeout, size)
        self.counts.done += record.done
        self.counts.failed += not record.done
        self._on_record(item, self.store.put(record))
