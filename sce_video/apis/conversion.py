"""Convert a file of another code base: read as data, write ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sce_video.engine.checkpoint import (
    file_sha256,
    load_checkpoint_file,
    save_checkpoint_file,
)
from sce_video.models.checkpoint_conversion import Conversion, stored_weights
from sce_video.models.image_conversion import detector_file, to_layout
from sce_video.version import __version__


def convert_file(
    read: Callable[[dict[str, Any], str | None], Conversion],
    src: Path,
    dst: Path,
    prefix: str | None = None,
    add_prefix: str = "",
    load: Callable[[Path], dict[str, Any]] = load_checkpoint_file,
) -> Conversion:
    """Read ``src`` and write ``dst``; nothing is written after an error.

    Args:
        read: Content of the file and the prefix to the conversion, e.g. ``from_torchvision``.
        src: Checkpoint of the other code base. No code from it is executed.
        dst: File to write.
        prefix: Prefix of the network's names in ``src``; None: it is detected.
        add_prefix: Prefix of the names in ``dst``.
        load: Reads ``src`` as data.

    Raises:
        FileNotFoundError: no file ``src``.
        ValueError: ``src`` is unsafe, damaged or another network, or is ``dst`` itself.
    """
    _check_other_file(src, dst)
    checkpoint = load(src)
    try:
        conversion = read(checkpoint, prefix)
    except ValueError as error:
        raise ValueError(f"{src}: {error}") from error
    settings = {key: value for key, value in conversion.backbone.items() if key != "type"}
    meta = {
        "backbone": conversion.backbone["type"],
        **settings,
        "source": src.name,
        "source_sha256": file_sha256(src),
        "source_prefix": conversion.prefix,
        "dropped": conversion.dropped,
        "sce_video_version": __version__,
    }
    state_dict = {add_prefix + name: value for name, value in conversion.state_dict.items()}
    save_checkpoint_file({"state_dict": state_dict, "meta": meta}, dst)
    return conversion


def export_file(src: Path, dst: Path, layout: str) -> int:
    """Write the weights of one of our checkpoints for another code base; returns their number.

    The file is a state dict for torchvision and timm, ``{"state_dict": ...}`` for eztorch and
    mmdet, ``{"model": ...}`` with name matching for detectron2.

    Args:
        src: A checkpoint of this package with a ``ResNet2d``.
        dst: File to write.
        layout: One of :data:`~sce_video.models.image_conversion.LAYOUTS`.

    Raises:
        FileNotFoundError: no file ``src``.
        ValueError: ``src`` is damaged or has no such network, or is ``dst`` itself.
    """
    _check_other_file(src, dst)
    checkpoint = load_checkpoint_file(src)
    try:
        weights = to_layout(stored_weights(checkpoint), layout)
    except ValueError as error:
        raise ValueError(f"{src}: {error}") from error
    content: dict[str, Any] = dict(weights)
    if layout == "detectron2":
        content = detector_file(weights.items())
    elif layout in ("eztorch", "mmdet"):
        content = {"state_dict": weights}
    save_checkpoint_file(content, dst)
    return len(weights)


def _check_other_file(src: Path, dst: Path) -> None:
    if dst.exists() and src.exists() and dst.samefile(src):
        raise ValueError(f"{dst} is the source itself: give another file to write")


def summary(conversion: Conversion, dst: Path) -> str:
    """What was converted and what was dropped, in lines to print."""
    settings = [f"{key}={value}" for key, value in conversion.backbone.items() if key != "type"]
    lines = [
        f"{conversion.backbone['type']}({', '.join(settings)}): {len(conversion.state_dict)} "
        f"tensors from prefix {conversion.prefix!r} to {dst}",
        f"dropped, not part of the backbone: {len(conversion.dropped)}",
        *(f"  {name}" for name in conversion.dropped),
    ]
    return "\n".join(lines)
