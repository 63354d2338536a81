"""Convert a file of another code base: read as data, write ours."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sce_video.engine.checkpoint import load_checkpoint_file, save_checkpoint_file
from sce_video.models.checkpoint_conversion import Conversion
from sce_video.version import __version__


def convert_file(
    read: Callable[[dict[str, Any], str | None], Conversion],
    src: Path,
    dst: Path,
    prefix: str | None = None,
    add_prefix: str = "",
) -> Conversion:
    """Read ``src`` and write ``dst``; nothing is written after an error.

    Args:
        read: Content of the file and the prefix to the conversion, e.g. ``from_torchvision``.
        src: Checkpoint of the other code base. No code from it is executed.
        dst: File to write.
        prefix: Prefix of the network's names in ``src``; None: it is detected.
        add_prefix: Prefix of the names in ``dst``.

    Raises:
        FileNotFoundError: no file ``src``.
        ValueError: ``src`` is unsafe, damaged or another network, or is ``dst`` itself.
    """
    if dst.exists() and src.exists() and dst.samefile(src):
        raise ValueError(f"{dst} is the source itself: give another file to write")
    checkpoint = load_checkpoint_file(src)
    try:
        conversion = read(checkpoint, prefix)
    except ValueError as error:
        raise ValueError(f"{src}: {error}") from error
    settings = {key: value for key, value in conversion.backbone.items() if key != "type"}
    meta = {
        "backbone": conversion.backbone["type"],
        **settings,
        "source": src.name,
        "source_sha256": hashlib.sha256(src.read_bytes()).hexdigest(),
        "source_prefix": conversion.prefix,
        "dropped": conversion.dropped,
        "sce_video_version": __version__,
    }
    state_dict = {add_prefix + name: value for name, value in conversion.state_dict.items()}
    save_checkpoint_file({"state_dict": state_dict, "meta": meta}, dst)
    return conversion


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
