"""Opening a folder of frames in the place of a file."""

from __future__ import annotations

from typing import Any

from sce_video.datasets.readers.frame_folder import FrameFolderReader
from sce_video.registry import TRANSFORMS


@TRANSFORMS.register_module()
class OpenFrameFolder:
    """Open the folder of frames at ``path``; in the place of ``OpenVideo``.

    Args:
        fps: DecodedFrames a second: 30 for AVA's frames.
        first: Number of the picture at 0 s.
    """

    backend = "pictures"

    def __init__(self, fps: float = 30.0, first: int = 1) -> None:
        if fps <= 0:
            raise ValueError(f"fps must be positive, got {fps}")
        self.fps = fps
        self.first = first

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``path`` (and ``deadline``), write ``reader``."""
        results["reader"] = FrameFolderReader(
            results["path"], fps=self.fps, first=self.first, deadline=results.get("deadline")
        )
        return results
