"""Resumable batch jobs: a function over very many items, on this machine or a Ray cluster.

A job is a :class:`BatchJob`, its results are the records of a :class:`RecordStore`, and
:func:`run_job` processes what is due. See docs/jobs.md.
"""

from sce_video.jobs.job import (
    BatchJob,
    BusyStoreError,
    Facts,
    Item,
    ItemError,
    Record,
    RecordStore,
    RunError,
    State,
    StorageError,
    StoreError,
    file_state,
)
from sce_video.jobs.job_runner import Counts, Workers, is_current, iterate_job, resumable, run_job
from sce_video.utils.cores import usable_cores

__all__ = [
    "BatchJob",
    "BusyStoreError",
    "Counts",
    "Facts",
    "Item",
    "ItemError",
    "Record",
    "RecordStore",
    "RunError",
    "State",
    "StorageError",
    "StoreError",
    "Workers",
    "file_state",
    "is_current",
    "iterate_job",
    "resumable",
    "run_job",
    "usable_cores",
]
