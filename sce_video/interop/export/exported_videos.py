"""Functions that several exports share: new folders, maps, thumbnails, neighbours, FiftyOne."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from sce_video.datasets.readers.base import DecodeLimits, VideoDecodeError
from sce_video.datasets.readers.images import read_image
from sce_video.datasets.video_list import IMAGE_EXTENSIONS
from sce_video.evaluation.functional.neighbours import nearest_neighbours
from sce_video.inference.features import Features
from sce_video.jobs.process_pool import call, process_items
from sce_video.pages.feature_map import MAX_NEIGHBOUR_MAP, projections
from sce_video.pages.gallery import encode_jpeg, read_frames
from sce_video.utils.files import WriteError, remove_unfinished, unfinished_path, write_error

#: JPEG quality of a thumbnail.
_QUALITY = 80
#: Time limit per file in seconds. Reading the frames of a file has a shorter limit.
_SECONDS = 60.0


def thumbnails(
    files: Sequence[str], side: int, workers: int
) -> Iterator[tuple[int, bytes | None, str]]:
    """Yield each file's index, the JPEG of its middle frame, and its problem, in order.

    The longest side of the JPEG image is ``side`` pixels. If the file cannot be read, the JPEG is
    None. Otherwise, the problem is "". With 0 workers, files are read in this process.
    """
    items = ((index, (file, side)) for index, file in enumerate(files))
    outcomes = ((index, call(video_thumbnail, given)) for index, given in items)
    if workers > 0:
        outcomes = process_items(
            video_thumbnail, items, workers=workers, timeout=_SECONDS, preload=(__name__,)
        )
    done: dict[int, tuple[bytes | None, str]] = {}
    following = 0
    for index, outcome in outcomes:
        reason = outcome.detail.removeprefix("VideoDecodeError: ")
        done[index] = outcome.value, reason.removeprefix(f"{files[index]}: ")
        while following in done:
            yield following, *done.pop(following)
            following += 1


def video_thumbnail(file_and_side: tuple[str, int]) -> bytes:
    """Return the middle frame of a video or of an image as a JPEG file.

    Raises:
        VideoDecodeError: If the file is missing or cannot be decoded.
    """
    file, side = file_and_side
    if not os.path.exists(file):
        raise VideoDecodeError(file, "the file is missing")
    if Path(file).suffix.lower() in IMAGE_EXTENSIONS:
        frame = read_image(file, DecodeLimits())
    else:
        frame = read_frames(file, 1)[0][0]
    return encode_jpeg(fitted(frame, side), _QUALITY)


def fitted(frame: np.ndarray, side: int) -> np.ndarray:
    """Shrink a frame (H, W, 3) until its longest side has at most ``side`` pixels."""
    import cv2

    scale = min(1.0, side / max(frame.shape[:2]))
    height, width = (max(1, round(scale * size)) for size in frame.shape[:2])
    return cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)


def decode_jpeg(jpeg: bytes) -> np.ndarray:
    """Decode a JPEG file to a frame (H, W, 3) uint8 RGB."""
    import cv2

    frame = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR)
    return cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)


@dataclass(eq=False)
class Bundle:
    """Videos to export, with their places on a map, neighbours and thumbnail settings.

    Attributes:
        videos: Features of N videos.
        map_name: Name of the map: "PCA", "UMAP" or "t-SNE".
        points: Coordinates (N, 2) float32 in the map.
        neighbour_rows: Rows (N, k) int64 of the nearest other videos.
        distances: Distances (N, k) float32 of these videos, 1 - cosine.
        thumbnail_side: Longest side of a thumbnail in pixels; 0 for no thumbnails.
        workers: Number of processes that read thumbnails.
        with_embedding: Whether to write the features, if the format makes them optional.
        on_video: Function that is called after every video, with whether reading it has failed.
        failures: Pairs (path, reason) for videos without a thumbnail, filled while they are read.
        notes: Notes for the user, filled by the writers.
    """

    videos: Features
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
        """Yield the JPEG file of every video, in order; None if it has no thumbnail."""
        if not self.thumbnail_side:
            yield from [None] * len(self.videos.files)
            return
        for i, jpeg, reason in thumbnails(self.videos.files, self.thumbnail_side, self.workers):
            if jpeg is None:
                self.failures.append((self.videos.paths[i], reason))
            self.on_video(jpeg is None)
            yield jpeg


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an unfinished folder, which is renamed to ``path`` if the block succeeds.

    Otherwise, it is removed. An unfinished folder of a killed process is removed first.

    Raises:
        WriteError: If the block or renaming the folder raises OSError.
    """
    temporary = unfinished_path(path)
    remove_unfinished(path.parent, path.name)
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
    """Write a text file in a :func:`new_folder` line by line, as UTF-8."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            file.write(line + "\n")


#: File that FiftyOne reads as the frame labels of all videos in a folder. It contains no labels.
_FRAMES = "frames/none.json"

#: Path of a file, and its fields in a FiftyOne sample as JSON values.
FiftyOneSample = tuple[str, Mapping[str, object]]


def write_fiftyone_folder(
    path: Path,
    media_type: str,
    samples: Iterable[FiftyOneSample],
    info: Mapping[str, object] = {},
) -> None:
    """Write a FiftyOne dataset folder (``FiftyOneDataset``) without the package FiftyOne.

    Args:
        path: Folder to write, whose name becomes the name of the dataset.
        media_type: ``video`` or ``image``, the same for all samples.
        samples: Samples, which are written one by one.
        info: Facts about the dataset, as JSON values.

    Raises:
        WriteError: If the folder cannot be written.
    """
    with new_folder(path) as folder:
        metadata = {"name": path.name, "media_type": media_type, "info": info}
        write_lines(folder / "metadata.json", [json.dumps(metadata, indent=2)])
        if media_type == "video":
            write_lines(folder / _FRAMES, [json.dumps({"frames": {}})])
        write_lines(folder / "samples.json", _sample_lines(samples, media_type))


def _sample_lines(samples: Iterable[FiftyOneSample], media_type: str) -> Iterator[str]:
    """Yield the lines of a JSON object with the list ``samples``."""
    yield '{"samples": ['
    comma = ""
    for file, fields in samples:
        sample = {
            "filepath": file,
            "tags": [],
            "metadata": None,
            "_media_type": media_type,
            **fields,
            **({"frames": _FRAMES} if media_type == "video" else {}),
        }
        yield comma + json.dumps(sample)
        comma = ","
    yield "]}"


PCA = "PCA"
#: Number of rows per block.
_ROWS = 8192


def plane(features: np.ndarray) -> tuple[str, np.ndarray]:
    """Compute a map of features, and return its name and the coordinates (N, 2) float32.

    UMAP or t-SNE is used if it is installed and there are few videos (see
    :func:`~sce_video.pages.feature_map.projections`). Otherwise, the principal plane is computed in
    blocks, so that memory does not grow with N.
    """
    if len(features) == 1:
        return PCA, np.zeros((1, 2), dtype=np.float32)
    if len(features) > MAX_NEIGHBOUR_MAP:
        return PCA, principal_plane_in_blocks(features)
    found = projections(torch.from_numpy(np.array(features)))
    name = next((name for name in found if name != PCA), PCA)
    return name, found[name]


def principal_plane_in_blocks(features: np.ndarray) -> np.ndarray:
    """Project l2-normalised features (N, D) to their first two components, (N, 2) float32.

    The result equals :func:`~sce_video.pages.feature_map.principal_plane` for N >= 2. It is
    computed from the covariance, so only :data:`_ROWS` rows are in float64 at a time.
    """

    def blocks() -> Iterator[np.ndarray]:
        for start in range(0, len(features), _ROWS):
            block = np.asarray(features[start : start + _ROWS], dtype=np.float64)
            yield block / np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-12)

    size = features.shape[1]
    total, products = np.zeros(size), np.zeros((size, size))
    for block in blocks():
        total += block.sum(axis=0)
        products += block.T @ block
    mean = total / len(features)
    _, directions = np.linalg.eigh(products / len(features) - np.outer(mean, mean))
    axes = directions[:, ::-1][:, :2]
    axes = np.pad(axes, ((0, 0), (0, 2 - axes.shape[1])))
    # The direction of an axis is arbitrary, so make the largest entry positive.
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=0)[None], axis=0)
    axes = axes * np.where(largest < 0, -1.0, 1.0)
    return np.concatenate([((block - mean) @ axes).astype(np.float32) for block in blocks()])


def neighbours(features: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Find up to k nearest neighbours of every video, given features (N, D).

    Returns:
        Rows (N, k') int64 and ascending distances (N, k') float32, 1 - cosine.
    """
    k = min(k, len(features) - 1)
    if k < 1:
        return np.zeros((len(features), 0), np.int64), np.zeros((len(features), 0), np.float32)
    matrix, own = torch.from_numpy(features), torch.arange(len(features))
    similar, rows = nearest_neighbours(matrix, matrix, k, groups=(own, own))
    return rows.numpy(), (1 - similar.clamp(-1, 1)).numpy()
