"""Check that files can be read, as a batch job: open each and decode its first frame."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.datasets.decode_limits import MAX_IMAGE_PIXELS, DecodeLimits
from sce_video.datasets.errors import FrameCountError, VideoDecodeError
from sce_video.datasets.readers import open_reader
from sce_video.datasets.readers.images import read_image
from sce_video.jobs import (
    BatchJob,
    Item,
    Record,
    RecordStore,
    Workers,
    file_state,
    is_current,
    run_job,
)
from sce_video.utils.progress import Progress

Check = Callable[[str], Any]


def first_frame_error(path: str) -> str | None:
    """Why the first frame of a file cannot be decoded; None if it can."""
    try:
        with open_reader(path) as reader:
            reader.read(np.zeros(1, dtype=np.int64))
    except VideoDecodeError as error:
        return error.reason
    except FrameCountError:
        return "its first frame cannot be decoded"
    return None


def image_error(path: str) -> str | None:
    """Why an image cannot be decoded completely; None if it can."""
    try:
        read_image(path, DecodeLimits(MAX_IMAGE_PIXELS))
    except VideoDecodeError as error:
        return error.reason
    return None


#: The check of a file by the kind of the lists.
CHECKS: dict[str, Check] = {"video": first_frame_error, "image": image_error}


class CheckJob(BatchJob):
    """Calls a function with the path of every file; what it returns stands until the file changes.

    Args:
        root: Folder that the keys of the items are relative to.
        check: Returns what was found, as a JSON value; defined at the top level of a module.
    """

    name = "check"

    def __init__(self, root: str | Path, check: Check) -> None:
        self.root = os.path.abspath(root)  # other machines have other current folders
        self.check = check
        self.settings = {"check": check.__name__}

    def process(self, item: Item) -> dict[str, Any]:
        """What was found."""
        return {"found": self.check(os.path.join(self.root, item.key))}


def check_files(
    paths: Sequence[str], job: CheckJob, records: Path | None, workers: Workers
) -> dict[str, Any]:
    """What was found for each file; a file that hangs or crashes its process affects no other file.

    Args:
        paths: The files, relative to ``job.root``.
        job: What is done with each.
        records: File of the records, so that an interrupted check resumes and unchanged files are
            not opened again; None keeps them in memory.
        workers: Processes of this machine or of a Ray cluster.

    Returns:
        By path, in the order of ``paths``: what the check returned, or a reason.

    Raises:
        BusyStoreError, StoreError, StorageError: The records cannot be used or written.
        UserError: The processes cannot start, or the cluster is lost.
    """
    if not paths:
        return {}
    items = [Item(path, file_state(os.path.join(job.root, path))) for path in paths]
    with RecordStore(records, job.name) as store:
        due = [item for item in items if not is_current(job, item, store)]
        progress = Progress(len(items), "checking", begin=len(items) - len(due))
        run_job(job, due, store, workers.at_most(len(due)), lambda item, record: progress.advance())
        progress.finish()
        return {path: _found(store.get(path)) for path in paths}


def _found(record: Record | None) -> Any:
    assert record is not None
    if record.done:
        return record.facts["found"]
    return f"the decoder crashed: {record.reason}" if record.kind == "crash" else record.reason
