"""A FiftyOne dataset folder (``FiftyOneDataset``), which is written without FiftyOne."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sce_video.interop.export.exported_videos import new_folder, write_lines

#: File with the frame labels of all videos. It is empty.
_FRAMES = "frames/none.json"

#: Path of a file, and the fields of its sample, as JSON values.
FiftyOneSample = tuple[str, Mapping[str, object]]


def write_fiftyone_folder(
    path: Path,
    media_type: str,
    samples: Iterable[FiftyOneSample],
    info: Mapping[str, object] = {},
) -> None:
    """Write a dataset of videos or of images.

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
