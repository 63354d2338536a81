"""What became of every file, in JSON lines that survive a kill."""

from __future__ import annotations

import fcntl
import json
import time
from pathlib import Path
from typing import Any, TextIO

_HEAD = {"journal": "sce_video repack", "version": 1}


class Journal:
    """Entries by path; one file for each part of the work, all of them read.

    A last line that was cut off is dropped. Of several entries about a path the latest counts.

    Args:
        folder: Where the journals of all parts lie; made if needed.
        name: File name of the one to append to; None only reads.

    Raises:
        ValueError: A file is no journal, or another run writes this one.
        OSError: It cannot be written.
    """

    def __init__(self, folder: Path, name: str | None) -> None:
        self.folder = folder
        self.entries: dict[str, dict[str, Any]] = {}
        self._file: TextIO | None = None
        if name is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(folder / name, "a+", encoding="utf-8")
            try:
                self._begin()
            except BaseException:
                self._file.close()
                raise
        self.reload()

    def _begin(self) -> None:
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another run is writing {self._file.name}: wait for it, or give each run a part "
                "of the files with --shard"
            ) from None
        except OSError:
            pass  # a file system without locks
        self._file.seek(0)
        text = self._file.read()
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self._file.truncate(len(whole.encode("utf-8")))
        if not whole:
            self._write(_HEAD)

    def reload(self) -> None:
        """Read what all parts have written so far."""
        self.entries.clear()
        for path in sorted(self.folder.glob("*.jsonl")):
            with open(path, encoding="utf-8") as file:
                lines = [line for line in file if line.endswith("\n")]
            if lines and _parse(lines[0]) != _HEAD:
                raise ValueError(f"{path} is no journal of repack: move it away")
            for line in lines[1:]:
                entry = _parse(line)
                if entry is None or "path" not in entry:
                    continue
                known = self.entries.get(entry["path"])
                if known is None or known["time"] <= entry["time"]:
                    self.entries[entry["path"]] = entry

    def add(self, entry: dict[str, Any]) -> None:
        """Append an entry, which has a ``path``, and hand it to the operating system."""
        entry = {**entry, "time": time.time()}
        self.entries[entry["path"]] = entry
        self._write(entry)

    def _write(self, entry: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _parse(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
