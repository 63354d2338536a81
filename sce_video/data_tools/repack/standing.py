"""What the journal, the sources and the outputs together say of a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sce_video.data_tools.repack.journal import Journal
from sce_video.data_tools.repack.plan import Item, Plan
from sce_video.data_tools.repack.settings import Settings


def source_state(path: str) -> dict[str, Any] | None:
    """Size and time of change of a file, None if it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}


class Standing:
    """Tells what is done and what has failed, with given settings.

    Args:
        plan: The data set.
        folder: Of the outputs.
        journal: Its entries count as they are when asked.
        settings: What the outputs are to be like.
        min_psnr: dB that a finished output must have.

    Attributes:
        root: Real path of the plan's root.
        away: Paths of files found done though their source is not there now.
    """

    def __init__(
        self, plan: Plan, folder: Path, journal: Journal, settings: Settings, min_psnr: float
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.journal = journal
        self.settings = settings
        self.min_psnr = min_psnr
        self.root = os.path.realpath(plan.root)
        self.away: set[str] = set()

    def source(self, item: Item) -> dict[str, Any] | None:
        """Present state of a file's source."""
        return source_state(os.path.join(self.plan.root, item.path))

    def is_done(self, item: Item) -> bool:
        """Whether the output is there and good, and its source has not changed.

        A source that is not there has not changed: a disk may be away for a while.
        """
        if not self._is_intact(item):
            return False
        entry = self.journal.entries[item.path]
        state = self.source(item)
        if state is None:
            if entry.get("root", self.root) != self.root:
                return False  # perhaps of another data set
            self.away.add(item.path)
            return True
        return all(entry.get(name) == value for name, value in state.items())

    def is_away(self, item: Item) -> bool:
        """Whether the file is done and its source is not there."""
        return self.is_done(item) and item.path in self.away

    def has_failed(self, item: Item) -> bool:
        """Whether the source as it is now has failed."""
        entry = self.journal.entries.get(item.path)
        if entry is None or entry["status"] != "failed" or not self._same_settings(entry):
            return False
        known = {name: entry[name] for name in ("size", "mtime_ns") if name in entry}
        return known == (self.source(item) or {})

    def _is_intact(self, item: Item) -> bool:
        entry = self.journal.entries.get(item.path)
        if entry is None or entry["status"] != "done" or not self._same_settings(entry):
            return False
        if entry["output"] != item.output or min(entry["psnr"], entry["psnr_luma"]) < self.min_psnr:
            return False
        output = source_state(str(self.folder / item.output))
        return output is not None and output["size"] == entry["bytes"]

    def _same_settings(self, entry: dict[str, Any]) -> bool:
        return bool(entry["settings"] == self.settings.as_dict())
