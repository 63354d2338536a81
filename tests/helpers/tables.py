"""Small repacked videos and tables of them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np

from sce_video.data_tools.repack.encode import encode, encoder_options
from sce_video.data_tools.repack.plan import Settings
from sce_video.data_tools.table_fill import import_videos
from sce_video.data_tools.table_writer import ImportResult, TableWriter, write_rows
from sce_video.data_tools.video_row import RowSource, video_row
from sce_video.datasets import scan_folder
from sce_video.options.prepare import ImportOptions

PIPELINE = [
    {"type": "OpenVideo"},
    {"type": "RandomClips", "clip_duration": 0.6, "num_frames": 8, "reverse_prob": 0.3},
    {"type": "DecodeClips"},
    {"type": "RandomResizedCropClips", "size": 32},
    {"type": "PackClips"},
]


def write_repacked(
    path: Path,
    frames: int = 40,
    *,
    keyint: int = 1,
    size: tuple[int, int] = (64, 80),
    seed: int = 0,
) -> Path:
    """A file as repack writes it, of smoothed noise that differs from frame to frame."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    height, width = size
    noise = rng.integers(0, 256, (frames, height * 3 // 2, width), dtype=np.uint8)
    planes = [cv2.GaussianBlur(frame, (5, 5), 0) for frame in noise]
    options = encoder_options(Settings(keyint=keyint), 24)
    encode(planes, str(path), size=size, rate=Fraction(25), options=options, tags={})
    return path


def write_folder(root: Path, keyint: int = 1) -> Path:
    """Two classes of three videos each, of different lengths and sizes."""
    for number in range(3):
        write_repacked(root / "a" / f"{number}.mp4", 40 + number, keyint=keyint, seed=number)
        write_repacked(
            root / "b" / f"{number}.mp4", 30 + number, keyint=keyint, size=(48, 64), seed=9 + number
        )
    return root


def run(folder: Path, table: str | Path, **options: object) -> ImportResult:
    """Import a folder, or a list with the ``data_root`` of its paths."""
    given = {"source": folder, "table": table, "workers": 1, **options}
    return import_videos(ImportOptions(**given))


def sources(root: Path, names: Sequence[str] | None = None) -> list[RowSource]:
    """What import makes of a folder."""
    videos = scan_folder(str(root))
    found = [
        RowSource(
            str(root / videos.path(i)),
            videos.path(i),
            class_name=videos.classes[videos.labels[i]] if videos.labels[i] >= 0 else None,
        )
        for i in range(len(videos))
    ]
    return [source for source in found if names is None or source.path in names]


def write_table(root: Path, table: str | Path) -> str:
    """A table of a folder, written by this process, in two commits."""
    table = str(table)
    writer, rows = TableWriter(table), [video_row(source) for source in sources(root)]
    half = len(rows) // 2
    writer.commit(write_rows(table, rows[half:]))
    writer.commit(write_rows(table, rows[:half]))
    return table


def contents(table: str | Path) -> dict[str, dict]:
    """All columns of all rows by path, with the streams; each path has one row."""
    import lance

    opened = lance.dataset(str(table))
    columns = [name for name in opened.schema.names if name != "stream"]
    rows = opened.to_table(columns=columns).to_pylist()
    if rows:
        blobs = opened.take_blobs("stream", indices=list(range(len(rows))))
        for row, blob in zip(rows, blobs, strict=True):
            row["stream"] = None if blob is None else blob.readall()
    found = {row["path"]: row for row in rows}
    assert len(found) == len(rows)
    return found
