"""Progress of a command over the files of a data set."""

from __future__ import annotations

import sys

from sce_video.utils.progress import Progress


class FileProgress:
    """Prints the number of files to do, then the progress, to stderr.

    Args:
        name: Of the command.
        title: What it does.
    """

    def __init__(self, name: str, title: str) -> None:
        self._name, self._title = name, title
        self._progress: Progress | None = None

    def __call__(self, done: int, total: int, failed: bool) -> None:
        """Show that ``done`` of ``total`` files are done, of which the last one may have failed."""
        if self._progress is None:
            print(f"{self._name}: {total - done} of {total} files to do", file=sys.stderr)
            self._progress = Progress(total, self._title, begin=done)
            if done == total:
                return
        else:
            self._progress.advance(failed)
        if done == total:
            self._progress.finish()
