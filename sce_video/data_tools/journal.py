"""Results by file in JSON lines, appended as they come, so that a killed run can be resumed."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from filelock import lock_descriptor

from sce_video.utils.atomic_file import append_all_or_nothing
from sce_video.utils.json_files import parse_json


@dataclass(frozen=True)
class JournalFormat:
    """What tells the journals of one tool from other files.

    Attributes:
        tool: Name of the tool, in messages.
        header: First line of every journal, as JSON.
        if_other_file: What the user can do where another file has the journal's name.
        if_locked: What the user can do while another run writes the journal.
    """

    tool: str
    header: dict[str, Any]
    if_other_file: str
    if_locked: str = "wait for it"


class Journal:
    """Entries by the path of the file they are about.

    A last line that was cut off by a kill is dropped, so at most one entry is lost. Of several
    entries about a path the latest counts.

    Args:
        path: The journal to append to, made if needed; None only reads.
        format: Of the journal.
        restart: Discard what the journal holds.
        folder: Folder of journals that are all read (of the shards of one run, on machines that
            each append to their own); entries then get the ``time`` they were written. None reads
            ``path`` alone.

    Raises:
        ValueError: A file is not a journal of this tool, or another run writes this one.
        OSError: The journal cannot be written.
    """

    def __init__(
        self,
        path: Path | None,
        format: JournalFormat,
        *,
        restart: bool = False,
        folder: Path | None = None,
    ) -> None:
        self.path = path
        self.format = format
        self.folder = folder
        self.entries: dict[str, dict[str, Any]] = {}
        self._file: TextIO | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "a+", encoding="utf-8", errors="surrogateescape")
        try:
            self._prepare(restart)
            self.reload()
        except BaseException:
            self.close()
            raise

    def _prepare(self, restart: bool) -> None:
        """Lock the file to append to, and end it with a complete line."""
        if self._file is None:
            return
        try:
            locked = lock_descriptor(self._file.fileno(), blocking=False)
        except OSError:
            locked = True  # a file system without locks admits every run
        if not locked:
            raise ValueError(f"another run is writing {self.path}: {self.format.if_locked}")
        self._file.seek(0)
        text = self._file.read()
        complete = text[: text.rfind("\n") + 1]
        if text:
            self._check_header(complete.partition("\n")[0], self._file.name)
        if restart or not text:
            self._file.truncate(0)
            self._write(self.format.header)
        elif complete != text:
            self._file.truncate(len(complete.encode("utf-8", "surrogateescape")))

    def _check_header(self, line: str, name: str) -> None:
        if _parse(line) != self.format.header:
            raise ValueError(
                f"{name} is not a journal of {self.format.tool}: {self.format.if_other_file}"
            )

    def reload(self) -> None:
        """Read all journals again: other machines append to theirs."""
        self.entries.clear()
        paths = [self.path] if self.folder is None else sorted(self.folder.glob("*.jsonl"))
        for path in paths:
            if path is not None:
                self._read(path)

    def _read(self, path: Path) -> None:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = [line for line in file if line.endswith("\n")]
        if lines:
            self._check_header(lines[0], str(path))
        for line in lines[1:]:
            entry = _parse(line)
            if entry is None or not isinstance(entry.get("path"), str) or not _has_time(entry):
                continue
            known = self.entries.get(entry["path"], entry)
            if known.get("time", 0) <= entry.get("time", 0):
                self.entries[entry["path"]] = entry

    def add(self, entry: dict[str, Any]) -> None:
        """Append an entry, which has a ``path``, and pass it to the operating system.

        Raises:
            WriteError: nothing was appended.
        """
        if self.folder is not None:
            entry = {**entry, "time": time.time()}
        self.entries[entry["path"]] = entry
        self._write(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        if self._file is None:
            raise RuntimeError("this journal was opened to be read")
        append_all_or_nothing(self._file.fileno(), json.dumps(entry) + "\n", self._file.name)

    def close(self) -> None:
        """Release the file and its lock."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _parse(line: str) -> dict[str, Any] | None:
    try:
        entry = parse_json(line, "the line")
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _has_time(entry: dict[str, Any]) -> bool:
    return isinstance(entry.get("time", 0), int | float)


def file_state(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Size and modification time, by which a changed file is noticed; None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
