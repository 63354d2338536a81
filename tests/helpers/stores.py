"""Looking at a record store while its driver runs."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from sce_video.jobs import RecordStore, StoreError


def count_records(path: Path, job: str) -> int:
    """Records that would be left if the driver were killed now."""
    with tempfile.TemporaryDirectory() as folder:
        for suffix in ("", "-wal"):
            if Path(f"{path}{suffix}").exists():
                shutil.copy(f"{path}{suffix}", f"{folder}/copy{suffix}")
        try:
            with RecordStore(Path(folder, "copy"), job) as store:
                return len(store)
        except StoreError:  # copied in the middle of its creation
            return 0
