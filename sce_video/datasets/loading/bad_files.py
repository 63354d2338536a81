"""The report of files that cannot be decoded, and the limit of their number."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from sce_video.datasets.readers.base import TooManyBadFilesError
from sce_video.utils.files import regular_file, write_text


class BadFileReport:
    """Counter of bad files, which writes them to a report and raises if there are too many.

    The report at ``path`` (None for none) is an atomic file with one JSON object per line, sorted
    by path: ``{"path": ..., "count": ..., "error": ...}``. It contains how often reading the file
    failed, and its first error. An existing report is continued. ValueError is raised if it cannot
    be read. At most ``max_bad_share`` of the dataset's ``num_files`` may be bad.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, *, num_files: int, max_bad_share: float = 0.05
    ) -> None:
        if not 0 <= max_bad_share <= 1:
            raise ValueError(f"max_bad_share must lie in [0, 1], got {max_bad_share}")
        if num_files < 1:
            raise ValueError(f"num_files must be at least 1, got {num_files}")
        self.path = None if path is None else os.fspath(path)
        self.num_files, self.max_bad_share = num_files, max_bad_share
        self.counts: dict[str, int] = {}
        self.errors: dict[str, str] = {}
        if self.path is None or not os.path.exists(self.path):
            return
        damaged = (ValueError, LookupError, TypeError, ArithmeticError, RecursionError)
        with open(self.path, encoding="utf-8", errors="replace", opener=regular_file) as file:
            for number, line in enumerate(file, 1):
                try:
                    entry = json.loads(line)
                    self.counts[entry["path"]] = int(entry["count"])
                    self.errors[entry["path"]] = entry["error"]
                except damaged as error:
                    raise ValueError(
                        f"{self.path}, line {number} is not an entry of a bad-file report. Move "
                        "the file away or choose another path"
                    ) from error

    def __len__(self) -> int:
        """Return the number of distinct bad files."""
        return len(self.counts)

    def add(self, failures: Iterable[tuple[str, str]]) -> None:
        """Count (path, error) pairs and update the report.

        Raises:
            TooManyBadFilesError: If more than ``max_bad_share`` of the files are bad. The message
                lists them.
            WriteError: If the report cannot be written. The failures are still counted.
        """
        failures = list(failures)
        for path, error in failures:
            self.counts[path] = self.counts.get(path, 0) + 1
            self.errors.setdefault(path, error)
        if failures and self.path is not None:
            paths = sorted(self.counts)
            rows = [{"path": p, "count": self.counts[p], "error": self.errors[p]} for p in paths]
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        self.check()

    def check(self) -> None:
        """Raise :class:`TooManyBadFilesError` if the limit is exceeded."""
        if len(self) > self.max_bad_share * self.num_files:
            listed = "\n".join(f"  {path}: {self.errors[path]}" for path in sorted(self.counts))
            raise TooManyBadFilesError(
                f"{len(self)} of {self.num_files} files cannot be decoded, more than the allowed "
                f"share of {self.max_bad_share:g} (max_bad_share): take them out of the data, or "
                f"raise it in the config and --resume; report: {self.path}\n{listed}"
            )
