"""Conversion of files between other code bases and this package, without executing their code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from sce_video.engine.checkpoint import file_sha256, load_checkpoint_file, save_checkpoint_file
from sce_video.inference.model import checkpoint_of
from sce_video.interop.weights.image_networks import EZTORCH_PARTS, to_layout
from sce_video.interop.weights.image_networks import LAYOUTS as IMAGE_LAYOUTS
from sce_video.interop.weights.video_networks import (
    VIDEO_LAYOUTS,
    Conversion,
    stored_weights,
    to_video_layout,
)
from sce_video.version import __version__

#: Code bases for which weights can be exported.
LAYOUTS = (*IMAGE_LAYOUTS, *VIDEO_LAYOUTS)


def convert_file(
    read: Callable[[Mapping[str, Any], str | None], Conversion],
    src: Path,
    dst: Path,
    prefix: str | None = None,
    add_prefix: str = "",
    load: Callable[[Path], dict[str, Any]] = load_checkpoint_file,
) -> Conversion:
    """Convert ``src`` to ``dst``. After an error, nothing is written.

    Args:
        read: Function of the file's content and the prefix that returns a conversion, for example
            ``from_torchvision``.
        src: Checkpoint of the other code base. No code from it is executed.
        dst: File to write.
        prefix: Prefix of the network's names in ``src``; None detects it.
        add_prefix: Prefix to add to the names in ``dst``.
        load: Function that reads ``src`` as data.

    Raises:
        FileNotFoundError: If ``src`` does not exist.
        ValueError: If ``src`` is unsafe, damaged, contains another network, or is ``dst`` itself.
    """
    checkpoint = _loaded(src, dst, load)
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


def export_file(src: Path, dst: Path, layout: str) -> Conversion:
    """Write a checkpoint's weights for another code base, and return what was written.

    The file is a state dict for torchvision and timm, ``{"state_dict": ...}`` for eztorch, mmdet
    and mmaction2, ``{"model_state": ...}`` for SlowFast and pytorchvideo, and ``{"model": ...}``
    with name matching for detectron2.

    Args:
        src: Run or checkpoint, as in :func:`~sce_video.inference.model.load_model`.
        dst: File to write.
        layout: One of :data:`LAYOUTS`.

    Raises:
        FileNotFoundError: If ``src`` does not exist.
        ValueError: If ``src`` is damaged, contains no such network, or is ``dst`` itself.
    """
    src = Path(checkpoint_of(src))
    state = stored_weights(_loaded(src, dst, load_checkpoint_file))
    try:
        written = _in_layout(state, layout)
    except ValueError as error:
        raise ValueError(f"{src}: {error}") from error
    weights = written.state_dict
    content: dict[str, Any] = dict(weights)
    if layout == "detectron2":
        # matching_heuristics makes detectron2's loader match names by their endings.
        content = {"model": weights, "__author__": "sce_video", "matching_heuristics": True}
    elif layout in ("eztorch", "mmdet", "mmaction2"):
        content = {"state_dict": weights}
    elif layout in VIDEO_LAYOUTS:
        content = {"model_state": weights}
    save_checkpoint_file(content, dst)
    return written


def _loaded(src: Path, dst: Path, load: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    if dst.exists() and src.exists() and dst.samefile(src):
        raise ValueError(f"{dst} is the source itself. Give another file to write")
    return load(src)


def _in_layout(state: dict[str, Tensor], layout: str) -> Conversion:
    """Rename the weights for a code base, and list those that have no name there."""
    if layout in VIDEO_LAYOUTS:
        return to_video_layout(state, layout)
    stem = state.get("backbone.conv1.weight", state.get("conv1.weight"))
    if layout == "eztorch" and stem is not None and stem.ndim == 5:
        encoder = to_video_layout(state, "pytorchvideo")
        trunk = {f"trunk.model.{name}": value for name, value in encoder.state_dict.items()}
        return encoder._replace(state_dict=trunk)
    kept = tuple(EZTORCH_PARTS) if layout == "eztorch" else ("backbone.",)
    # A file that contains only a backbone has no prefixes, so nothing is left out.
    bare = not any(name.startswith("backbone.") for name in state)
    left_out = [name for name in state if not (bare or name.startswith(kept))]
    return Conversion(to_layout(state, layout), {"type": "ResNet2d"}, "", left_out)


def summary(conversion: Conversion, dst: Path) -> str:
    """Format lines for the user on the converted weights and those that were dropped."""
    settings = [f"{key}={value}" for key, value in conversion.backbone.items() if key != "type"]
    lines = [
        f"{conversion.backbone['type']}({', '.join(settings)}): {len(conversion.state_dict)} "
        f"tensors from prefix {conversion.prefix!r} to {dst}",
        f"dropped, not part of the backbone: {len(conversion.dropped)}",
        *(f"  {name}" for name in conversion.dropped),
    ]
    return "\n".join(lines)
