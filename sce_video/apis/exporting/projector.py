"""A folder for TensorBoard's projector: ``tensorboard --logdir FOLDER`` shows it.

``tensors.tsv`` has the features, ``metadata.tsv`` path and label, ``sprite.jpg`` the thumbnails
side by side, ``projector_config.pbtxt`` names the three. torch's ``add_embedding`` is not used: it
holds all thumbnails as floats at once and does not escape tabs in names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sce_video.apis.exporting.bundle import Bundle, new_folder, write_lines
from sce_video.apis.exporting.thumbnails import decode, encode, fitted
from sce_video.utils.printable import printable_utf8

#: Largest side of the sprite image that browsers draw (TensorBoard's documentation).
SPRITE_SIDE = 8192
#: Smaller thumbnails show nothing.
_LEAST_SIDE = 16
#: Points that the projector loads (its LIMIT_NUM_POINTS).
MAX_POINTS = 100_000
CONFIG = "projector_config.pbtxt"


def write_projector(path: Path, bundle: Bundle) -> None:
    """Write the folder.

    Raises:
        WriteError: it cannot be written.
    """
    with new_folder(path) as folder:
        write_lines(folder / "tensors.tsv", _tensor_lines(bundle.videos.features))
        write_lines(folder / "metadata.tsv", _metadata_lines(bundle))
        side = _sprite(folder, bundle) if bundle.thumbnail_side else 0
        write_lines(folder / CONFIG, [config_text(bundle, side)])
    if len(bundle.videos) > MAX_POINTS:
        bundle.notes.append(
            f"the projector loads the first {MAX_POINTS:,} of the {len(bundle.videos):,} videos"
        )


def tile_side(count: int, wanted: int) -> int:
    """Pixels of a square thumbnail of which ``count`` fit into a sprite image; 0 if too small."""
    side = min(wanted, SPRITE_SIDE // math.ceil(math.sqrt(count)))
    return side if side >= _LEAST_SIDE else 0


def config_text(bundle: Bundle, side: int) -> str:
    """The projector's configuration, with thumbnails of ``side`` pixels (0: none)."""
    from google.protobuf import text_format
    from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

    config = ProjectorConfig()
    embedding = config.embeddings.add()
    embedding.tensor_name = "videos"
    embedding.tensor_shape.extend(bundle.videos.features.shape)
    embedding.tensor_path = "tensors.tsv"
    embedding.metadata_path = "metadata.tsv"
    if side:
        embedding.sprite.image_path = "sprite.jpg"
        embedding.sprite.single_image_dim.extend([side, side])
    return text_format.MessageToString(config).rstrip("\n")


def _tensor_lines(features: np.ndarray) -> Iterator[str]:
    for row in features:
        yield "\t".join([f"{value:.7g}" for value in row.tolist()])


def _metadata_lines(bundle: Bundle) -> Iterator[str]:
    """A header and a line for each video; tabs and line breaks in names are escaped."""
    yield "path\tlabel"
    for path, label in zip(bundle.videos.paths, bundle.videos.labels, strict=True):
        yield f"{printable_utf8(path)}\t{printable_utf8(label or 'no label')}"


def _sprite(folder: Path, bundle: Bundle) -> int:
    """Write the sprite image, row by row from the upper left; returns the side of a thumbnail."""
    count = len(bundle.videos)
    side = tile_side(count, bundle.thumbnail_side)
    if not side:
        bundle.notes.append(f"{count:,} videos are too many for thumbnails in one image")
        return 0
    columns = math.ceil(math.sqrt(count))
    sprite = np.zeros((columns * side, columns * side, 3), dtype=np.uint8)
    for i, jpeg in enumerate(bundle.thumbnails()):
        if jpeg is not None:
            frame = fitted(decode(jpeg), side)
            top = i // columns * side + (side - frame.shape[0]) // 2
            left = i % columns * side + (side - frame.shape[1]) // 2
            sprite[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
    (folder / "sprite.jpg").write_bytes(encode(sprite))
    return side
