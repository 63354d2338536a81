"""Whether a file is done or has failed, by the journal, its source and its output."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sce_video.data_tools.journal import Journal, JournalFormat, file_state
from sce_video.data_tools.repack.plan import Item, Plan
from sce_video.data_tools.repack.settings import Settings

_FORMAT = JournalFormat(
    tool="repack",
    header={"journal": "sce_video repack", "version": 1},
    if_other_file="move it away",
    if_locked="wait for it, or give each run a part of the files with --shard",
)


def open_journal(folder: Path, name: str | None) -> Journal:
    """The journals of all shards in a folder; ``name`` is the one to append to, None for none.

    Raises:
        ValueError: A file is not a journal of repack, or another run writes this one.
        OSError: The journal cannot be written.
    """
    return Journal(None if name is None else folder / name, _FORMAT, folder=folder)


class FileStatus:
    """Tells which files are done and which have failed, with given settings.

    Args:
        plan: The data set.
        folder: Folder of the outputs.
        journal: Asked for its current entries at each call.
        settings: Settings of the outputs.
        min_psnr: dB that a finished output must have.

    Attributes:
        root: Real path of the plan's root.
        away: Paths of files found to be done although their source does not exist now.
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
        """Size and modification time of a file's source; None if it does not exist."""
        return file_state(os.path.join(self.plan.root, item.path))

    def is_done(self, item: Item) -> bool:
        """Whether the output exists and is good, and its source has not changed.

        A source that does not exist counts as unchanged: its disk may not be mounted now.
        """
        if not self._is_intact(item):
            return False
        entry = self.journal.entries[item.path]
        state = self.source(item)
        if state is None:
            if entry["root"] != self.root:
                return False  # perhaps the file of another data set
            self.away.add(item.path)
            return True
        return all(entry.get(name) == value for name, value in state.items())

    def is_away(self, item: Item) -> bool:
        """Whether the file is done and its source does not exist now."""
        return self.is_done(item) and item.path in self.away

    def has_failed(self, item: Item) -> bool:
        """Whether the source in its present state has failed."""
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
        output = file_state(self.folder / item.output)
        return output is not None and output["size"] == entry["bytes"]

    def _same_settings(self, entry: dict[str, Any]) -> bool:
        return bool(entry["settings"] == self.settings.as_dict())
