"""A folder that FiftyOne imports: ``fo.Dataset.from_dir(FOLDER, fo.types.FiftyOneDataset)``.

``metadata.json`` and ``samples.json`` hold the samples as ``Sample.to_dict()`` of FiftyOne writes
them. A folder whose metadata has no ``version`` is read sample by sample
(voxel51/fiftyone, fiftyone/utils/data/importers.py, ``LegacyFiftyOneDatasetImporter``), so that the
fields follow from the samples and no state of a database has to be written. Videos stay where they
are: paths are absolute. A vector is a zlib-compressed .npy file in base64
(fiftyone/core/utils.py, ``serialize_numpy_array``).
"""

from __future__ import annotations

import base64
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.apis.exporting.bundle import Bundle, new_folder, write_lines
from sce_video.datasets import IMAGE_EXTENSIONS

_FRAMES = "frames/none.json"  # the frame labels of all videos: there are none


def write_fiftyone(path: Path, bundle: Bundle) -> None:
    """Write the folder; FiftyOne itself is not needed.

    Raises:
        WriteError: it cannot be written.
        ValueError: images and videos are mixed.
    """
    media_type = _media_type(bundle.videos.files)
    info = {
        "source": bundle.videos.source,
        "checkpoint": bundle.videos.checkpoint,
        "map": bundle.map_name,
        "classes": {"label": bundle.videos.classes},
    }
    with new_folder(path) as folder:
        metadata = {"name": path.name, "media_type": media_type, "info": info}
        write_lines(folder / "metadata.json", [json.dumps(metadata, indent=2)])
        if media_type == "video":
            write_lines(folder / _FRAMES, [json.dumps({"frames": {}})])
        write_lines(folder / "samples.json", _sample_lines(bundle, media_type))


def _media_type(files: list[str]) -> str:
    images = sum(Path(file).suffix.lower() in IMAGE_EXTENSIONS for file in files)
    if images not in (0, len(files)):
        raise ValueError(
            f"{images} of the {len(files)} files are images: FiftyOne takes a data set of images "
            "or one of videos"
        )
    return "image" if images else "video"


def _sample_lines(bundle: Bundle, media_type: str) -> Iterator[str]:
    """The lines of a JSON object with the list ``samples``."""
    yield '{"samples": ['
    previous, unnamable = "", []
    for i, file in enumerate(bundle.videos.files):
        try:
            file.encode("utf-8")
        except UnicodeEncodeError:  # its database stores UTF-8 only
            unnamable.append(file)
            continue
        if previous:
            yield previous + ","
        previous = json.dumps(_sample(bundle, i, media_type))
    if previous:
        yield previous
    yield "]}"
    if unnamable:
        bundle.notes.append(f"left out: {len(unnamable)} files whose names are not UTF-8")


def _sample(bundle: Bundle, i: int, media_type: str) -> dict[str, Any]:
    videos = bundle.videos
    sample: dict[str, Any] = {
        "filepath": videos.files[i],
        "tags": [],
        "metadata": None,
        "_media_type": media_type,
        "name": videos.paths[i],
        "x": float(bundle.points[i, 0]),
        "y": float(bundle.points[i, 1]),
    }
    if videos.labels[i] is not None:
        sample["label"] = {"_cls": "Classification", "tags": [], "label": videos.labels[i]}
    if bundle.with_embedding:
        sample["embedding"] = serialized(videos.features[i])
    if media_type == "video":
        sample["frames"] = _FRAMES
    return sample


def serialized(vector: np.ndarray) -> dict[str, Any]:
    """A vector in FiftyOne's extended JSON."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(vector), allow_pickle=False)
    content = base64.b64encode(zlib.compress(buffer.getvalue())).decode("ascii")
    return {"$binary": {"base64": content, "subType": "00"}}
