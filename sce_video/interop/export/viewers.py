"""Export of the videos in an index or a feature file to common viewers."""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.datasets.video_list import IMAGE_EXTENSIONS
from sce_video.find.reading import read_videos
from sce_video.interop.export.exported_videos import (
    Bundle,
    FiftyOneSample,
    decode_jpeg,
    fitted,
    neighbours,
    new_folder,
    plane,
    write_fiftyone_folder,
    write_lines,
)
from sce_video.options.connect import ExportOptions
from sce_video.pages.gallery import encode_jpeg
from sce_video.utils.command import printable_utf8
from sce_video.utils.cores import usable_cores
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.files import atomic_file


def write_fiftyone(path: Path, bundle: Bundle) -> None:
    """Write a FiftyOne dataset folder.

    Raises:
        WriteError: If the folder cannot be written.
        ValueError: If images and videos are mixed.
    """
    videos = bundle.videos
    images = sum(Path(file).suffix.lower() in IMAGE_EXTENSIONS for file in videos.files)
    if images not in (0, len(videos)):
        raise ValueError(
            f"{images} of the {len(videos)} files are images, but a FiftyOne dataset contains "
            "either images or videos"
        )
    info = {
        "source": videos.source,
        "checkpoint": videos.checkpoint,
        "map": bundle.map_name,
        "classes": {"label": videos.classes},
    }
    media_type = "image" if images else "video"
    write_fiftyone_folder(path, media_type, _fiftyone_samples(bundle), info)


def _fiftyone_samples(bundle: Bundle) -> Iterator[FiftyOneSample]:
    videos, unnamable = bundle.videos, 0
    for i, file in enumerate(videos.files):
        try:
            file.encode("utf-8")
        except UnicodeEncodeError:  # FiftyOne's database stores only UTF-8
            unnamable += 1
            continue
        fields: dict[str, object] = {
            "name": videos.paths[i],
            "x": float(bundle.points[i, 0]),
            "y": float(bundle.points[i, 1]),
        }
        if videos.label_names[i] is not None:
            fields["label"] = {"_cls": "Classification", "tags": [], "label": videos.label_names[i]}
        if bundle.with_embedding:
            fields["embedding"] = serialized(videos.values[i])
        yield file, fields
    if unnamable:
        bundle.notes.append(f"left out: {unnamable} files whose names are not UTF-8")


def serialized(vector: np.ndarray) -> dict[str, object]:
    """Return a vector in FiftyOne's extended JSON."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(vector), allow_pickle=False)
    content = base64.b64encode(zlib.compress(buffer.getvalue())).decode("ascii")
    return {"$binary": {"base64": content, "subType": "00"}}


#: Number of rows in a row group. One row group at a time is kept in memory.
ROW_GROUP = 1000


def import_pyarrow() -> tuple[Any, Any]:
    """Import pyarrow and its parquet module.

    Raises:
        MissingPackageError: If pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackageError(
            f"parquet files need pyarrow ({error}). Run pip install sce-video[export]"
        ) from error
    return pyarrow, pyarrow.parquet


def write_parquet(path: Path, bundle: Bundle) -> None:
    """Write a Parquet file, one row group at a time.

    Raises:
        MissingPackageError: If pyarrow is not installed.
        WriteError: If the file cannot be written.
    """
    pa, parquet = import_pyarrow()
    videos, text = bundle.videos, pa.string()
    kinds = {"path": text, "file": text, "label": text, "x": pa.float32(), "y": pa.float32()}
    if bundle.thumbnail_side:
        kinds["thumbnail"] = pa.struct({"bytes": pa.binary(), "path": text})
    if bundle.neighbour_rows.shape[1]:
        lists = {"ids": pa.list_(pa.int64()), "distances": pa.list_(pa.float32())}
        kinds["neighbors"] = pa.struct(lists)
    if bundle.with_embedding:
        kinds["embedding"] = pa.list_(pa.float32())
    fields = [
        pa.field(n, k, nullable=n not in ("path", "file", "x", "y")) for n, k in kinds.items()
    ]
    about = json.dumps({"checkpoint": videos.checkpoint, "map": bundle.map_name})
    schema = pa.schema(fields, metadata={"sce_video": about})
    jpegs = bundle.thumbnails()
    how = {"compression": "zstd", "use_dictionary": ["label"]}
    with atomic_file(path) as temporary, parquet.ParquetWriter(temporary, schema, **how) as writer:
        for start in range(0, len(videos), ROW_GROUP):
            rows = slice(start, start + ROW_GROUP)
            paths = list(map(printable_utf8, videos.paths[rows]))
            near = zip(bundle.neighbour_rows[rows], bundle.distances[rows], strict=True)
            columns = {
                "path": paths,
                "file": list(map(printable_utf8, videos.files[rows])),
                "label": [n if n is None else printable_utf8(n) for n in videos.label_names[rows]],
                "x": bundle.points[rows, 0],
                "y": bundle.points[rows, 1],
                "thumbnail": [
                    None if jpeg is None else {"bytes": jpeg, "path": f"{path}.jpg"}
                    for jpeg, path in zip(islice(jpegs, ROW_GROUP), paths, strict=True)
                ],
                "neighbors": [{"ids": ids, "distances": far} for ids, far in near],
                "embedding": list(videos.values[rows]) if bundle.with_embedding else [],
            }
            chosen = {name: columns[name] for name in schema.names}
            writer.write_table(pa.table(chosen, schema=schema))


#: Maximum side of a sprite image in pixels, which is the largest that browsers can draw
#: (TensorBoard's documentation).
SPRITE_SIDE = 8192
#: Minimum side of a thumbnail in pixels. In smaller ones, nothing can be recognised.
_LEAST_SIDE = 16
#: Maximum number of points that the projector loads (its LIMIT_NUM_POINTS).
MAX_POINTS = 100_000


def write_projector(path: Path, bundle: Bundle) -> None:
    """Write a folder for TensorBoard's projector.

    Raises:
        WriteError: If the folder cannot be written.
    """
    from google.protobuf import text_format
    from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

    with new_folder(path) as folder:
        values = (row.tolist() for row in bundle.videos.values)
        lines = ("\t".join(f"{value:.7g}" for value in row) for row in values)
        write_lines(folder / "tensors.tsv", lines)
        # Escape tabs and line breaks in names, because each video must have exactly one line.
        rows = (
            f"{printable_utf8(path)}\t{printable_utf8(label or 'no label')}"
            for path, label in zip(bundle.videos.paths, bundle.videos.label_names, strict=True)
        )
        write_lines(folder / "metadata.tsv", itertools.chain(["path\tlabel"], rows))
        config = ProjectorConfig()
        embedding = config.embeddings.add()
        embedding.tensor_name = "videos"
        embedding.tensor_shape.extend(bundle.videos.values.shape)
        embedding.tensor_path, embedding.metadata_path = "tensors.tsv", "metadata.tsv"
        side = _sprite(folder, bundle) if bundle.thumbnail_side else 0
        if side:
            embedding.sprite.image_path = "sprite.jpg"
            embedding.sprite.single_image_dim.extend([side, side])
        text = text_format.MessageToString(config).rstrip("\n")
        write_lines(folder / "projector_config.pbtxt", [text])
    if len(bundle.videos) > MAX_POINTS:
        bundle.notes.append(
            f"the projector loads the first {MAX_POINTS:,} of the {len(bundle.videos):,} videos"
        )


def _sprite(folder: Path, bundle: Bundle) -> int:
    """Write the image of all thumbnails in rows from the upper left, and return a thumbnail's side.

    If there are too many videos for one image, no image is written, and the side is 0.
    """
    count = len(bundle.videos)
    columns = math.ceil(math.sqrt(count))
    side = min(bundle.thumbnail_side, SPRITE_SIDE // columns)
    if side < _LEAST_SIDE:
        bundle.notes.append(f"{count:,} videos are too many for thumbnails in one image")
        return 0
    sprite = np.zeros((columns * side, columns * side, 3), dtype=np.uint8)
    for i, jpeg in enumerate(bundle.thumbnails()):
        if jpeg is not None:
            frame = fitted(decode_jpeg(jpeg), side)
            top = i // columns * side + (side - frame.shape[0]) // 2
            left = i % columns * side + (side - frame.shape[1]) // 2
            sprite[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
    (folder / "sprite.jpg").write_bytes(encode_jpeg(sprite, 80))
    return side


FORMATS: dict[str, Callable[[Path, Bundle], None]] = {
    "parquet": write_parquet,
    "projector": write_projector,
    "fiftyone": write_fiftyone,
}
#: Maximum number of processes that read thumbnails by default.
_MOST_WORKERS = 8


@dataclass(frozen=True)
class VideosReport:
    """Result of exporting videos.

    Attributes:
        path: Path of the file or folder.
        videos: Number of videos.
        labelled: Number of videos with a label.
        map_name: Name of the map: "PCA", "UMAP" or "t-SNE".
        failures: Pairs (path, reason) for videos without a thumbnail.
        notes: Notes for the user, for example about videos that were left out.
    """

    path: Path
    videos: int
    labelled: int
    map_name: str
    failures: list[tuple[str, str]]
    notes: list[str]


def export_videos(
    options: ExportOptions, on_video: Callable[[int, bool], None] | None = None
) -> VideosReport:
    """Write videos with their paths, labels, map, thumbnails and features.

    Args:
        options: Options of the command, whose source is an index or a feature file.
        on_video: Function that is called after every thumbnail, with the number of videos and
            whether the thumbnail has failed.

    Raises:
        ValueError: If :func:`~sce_video.find.reading.read_videos` refuses the source.
        FileNotFoundError: If the source does not exist.
        MissingPackageError: If pyarrow is not installed.
        WriteError: If the output cannot be written.
    """
    if options.to == "parquet":
        import_pyarrow()  # report a missing package before starting
    videos = read_videos(options.source, options.labels, _class_file(options))
    map_name, points = plane(videos.values)
    count = options.neighbours if options.to == "parquet" else 0
    rows, distances = neighbours(videos.values, count)
    workers = min(_MOST_WORKERS, usable_cores()) if options.workers is None else options.workers
    bundle = Bundle(
        *(videos, map_name, points, rows, distances),
        thumbnail_side=options.thumbnail_side,
        workers=workers,
        with_embedding=not options.no_embedding,
        on_video=lambda failed: on_video(len(videos), failed) if on_video is not None else None,
    )
    out = Path(options.out)
    FORMATS[options.to](out, bundle)
    labelled = sum(label is not None for label in videos.label_names)
    return VideosReport(out, len(videos), labelled, map_name, bundle.failures, bundle.notes)


def _class_file(options: ExportOptions) -> str | None:
    """Return the given class-name file, or the file next to the label list."""
    if options.classes is not None or options.labels is None:
        return options.classes
    found = f"{os.path.splitext(options.labels)[0]}_classes.txt"
    return found if os.path.isfile(found) else None
