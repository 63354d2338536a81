"""Unfinished outputs: their names, and the removal of those that a killed run left."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from pathlib import Path

from sce_video.jobs.job import StorageError

# Digest of the output's name, which may have full length; id of the store; run; attempt.
_NAME = re.compile(
    r"\.[0-9a-f]{16}\.(?P<store>[0-9a-f]{8})-(?P<run>[0-9a-f]{8})\.[0-9a-f]{8}\.part"
)


class UnfinishedOutputs:
    """Names hidden files beside the outputs of one run.

    The names contain the id of the run's store. Who holds the lock of a store may remove all files
    of its earlier runs; and a worker that an earlier run left, still writing, has other names.

    Args:
        ids: Ids of the store and of those it absorbed, none of which another run uses.
        store: Id of the store.
    """

    def __init__(self, ids: set[str], store: str) -> None:
        self._ids = ids
        self._store = store
        self._run = secrets.token_hex(4)
        self._seen: set[Path] = set()

    def prepare(self, output: Path) -> str:
        """Make the output's folder, clean it when it is met first, and return a prefix of names.

        Raises:
            StorageError: There can be no such folder.
        """
        folder = output.parent
        if folder not in self._seen:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                self._clean(folder)
            except OSError as error:
                raise StorageError(f"cannot make a folder: {error}") from error
            self._seen.add(folder)
        digest = hashlib.blake2b(os.fsencode(output.name), digest_size=8).hexdigest()
        return str(folder / f".{digest}.{self._store}-{self._run}")

    def remove(self) -> None:
        """Remove what items in progress have left; all processes have ended."""
        for folder in self._seen:
            with contextlib.suppress(OSError):  # the next run tries again
                self._clean(folder)

    def _clean(self, folder: Path) -> None:
        with os.scandir(folder) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is not None and match["store"] in self._ids:
                    Path(entry.path).unlink(missing_ok=True)


def attempt_path(prefix: str) -> str:
    """A new path for one attempt to write an output; empty for an empty prefix."""
    return f"{prefix}.{secrets.token_hex(4)}.part" if prefix else ""
