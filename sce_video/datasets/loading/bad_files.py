"""The report of files that cannot be decoded, kept by rank 0."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from sce_video.datasets.errors import TooManyBadFilesError
from sce_video.utils.atomic_file import write_text


class BadFileReport:
    """Counts bad files, writes them to a report, and raises when there are too many.

    The report has one JSON object per line, ``{"path": ..., "count": ..., "error": ...}``, sorted
    by path: how often reading the file failed, and its first error. It is an atomic file. An
    existing report is continued.

    Args:
        path: The report file; None counts without a report (all ranks but 0).
        num_files: Number of files in the data set.
        max_bad_share: Largest allowed share of bad files, from 0 to 1.

    Raises:
        ValueError: A share outside [0, 1], or an existing report that cannot be read.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        num_files: int,
        max_bad_share: float = 0.05,
    ) -> None:
        if not 0 <= max_bad_share <= 1:
            raise ValueError(f"max_bad_share must lie in [0, 1], got {max_bad_share}")
        if num_files < 1:
            raise ValueError(f"num_files must be at least 1, got {num_files}")
        self.path = None if path is None else os.fspath(path)
        self.num_files = num_files
        self.max_bad_share = max_bad_share
        self.counts: dict[str, int] = {}
        self.errors: dict[str, str] = {}
        if self.path is not None and os.path.exists(self.path):
            self._load()

    def __len__(self) -> int:
        """Number of distinct bad files."""
        return len(self.counts)

    def add(self, failures: Iterable[tuple[str, str]]) -> None:
        """Count (path, error) pairs and update the report.

        Raises:
            TooManyBadFilesError: More than ``max_bad_share`` of the files are bad; lists them.
            WriteError: The report cannot be written; the failures are counted.
        """
        failures = list(failures)
        if not failures:
            return
        for path, error in failures:
            self.counts[path] = self.counts.get(path, 0) + 1
            self.errors.setdefault(path, error)
        self._write()
        self.check()

    def check(self) -> None:
        """Raise :class:`TooManyBadFilesError` if the limit is exceeded."""
        if len(self) > self.max_bad_share * self.num_files:
            listed = "\n".join(f"  {path}: {self.errors[path]}" for path in sorted(self.counts))
            raise TooManyBadFilesError(
                f"{len(self)} of {self.num_files} files cannot be decoded, more than the "
                f"allowed share of {self.max_bad_share:g} (max_bad_share); report: {self.path}\n"
                f"{listed}"
            )

    def _write(self) -> None:
        if self.path is None:
            return
        entries = (
            {"path": path, "count": self.counts[path], "error": self.errors[path]}
            for path in sorted(self.counts)
        )
        write_text(self.path, "".join(json.dumps(entry) + "\n" for entry in entries))

    def _load(self) -> None:
        assert self.path is not None
        with open(self.path, encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                try:
                    entry = json.loads(line)
                    self.counts[entry["path"]] = int(entry["count"])
                    self.errors[entry["path"]] = entry["error"]
                except (
                    ValueError,
                    LookupError,
                    TypeError,
                    ArithmeticError,
                    RecursionError,
                ) as error:
                    raise ValueError(
                        f"{self.path}, line {number} is no entry of a bad-file report: "
                        "move the file away or choose another path"
                    ) from error
