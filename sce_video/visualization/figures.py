"""Writing figures, images and videos as atomic files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from sce_video.utils.atomic_file import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(figure: Figure, path: str | Path, dpi: float | None = None) -> None:
    """Write a figure in the format of the file's extension (without one: PNG).

    Args:
        figure: Of matplotlib.
        path: The file; its folder is created if needed.
        dpi: Pixels per inch; None for the figure's own.

    Raises:
        ValueError: matplotlib does not know the format.
        WriteError: the file cannot be written; an old one is unchanged.
    """
    drawn = io.BytesIO()
    figure.savefig(drawn, format=Path(path).suffix[1:] or "png", dpi=dpi or "figure")
    write_bytes(path, drawn.getvalue())
