"""Resumable batch jobs over very many items, on this machine or a Ray cluster.

A :class:`BatchJob` is a function of one item, a :class:`RecordStore` contains the results, and
:func:`run_job` processes the items that are due. See docs/jobs.md.
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
