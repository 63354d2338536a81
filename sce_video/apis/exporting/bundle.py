"""What every writer gets, and the folder that it writes."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sce_video.apis.exporting.source import ExportedVideos
from sce_video.apis.exporting.thumbnails import thumbnails
from sce_video.utils.atomic_file import WriteError, write_error


@dataclass(eq=False)
class Bundle:
    """Videos, where they lie, and how their thumbnails are read.

    Attributes:
        videos: N videos.
        map_name: "PCA", "UMAP" or "t-SNE".
        points: (N, 2) float32, coordinates in the map.
        neighbour_rows: (N, k) int64, the nearest other videos.
        distances: (N, k) float32, 1 - cosine.
        thumbnail_side: Longest side, pixels; 0 for none.
        workers: Processes that read thumbnails.
        with_embedding: Whether the features are written where that is a choice.
        on_video: Called after every video that has been read, with whether that failed.
        failures: (path, reason) of the videos without a thumbnail, filled while they are read.
        notes: Remarks for the user, filled by the writers.
    """

    videos: ExportedVideos
    map_name: str
    points: np.ndarray
    neighbour_rows: np.ndarray
    distances: np.ndarray
    thumbnail_side: int
    workers: int
    with_embedding: bool
    on_video: Callable[[bool], None]
    failures: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def thumbnails(self) -> Iterator[bytes | None]:
        """Yield the JPEG file of every video, in order; None without one."""
        if not self.thumbnail_side:
            for _ in self.videos.files:
                yield None
            return
        for i, jpeg, reason in thumbnails(self.videos.files, self.thumbnail_side, self.workers):
            if jpeg is None:
                self.failures.append((self.videos.paths[i], reason))
            self.on_video(jpeg is None)
            yield jpeg


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an unfinished folder, renamed to ``path`` if the block succeeds, else removed.

    Raises:
        WriteError: from an OSError in the block or of the rename.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        os.rename(temporary, path)
    except WriteError:
        raise
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text file of a :func:`new_folder` line by line, as UTF-8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(line + "\n")
