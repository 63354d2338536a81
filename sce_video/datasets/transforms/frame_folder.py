"""The transform that opens a folder of frames instead of a video file."""

from __future__ import annotations

from typing import Any

from sce_video.datasets.decode_limits import MAX_HELD_BYTES, MAX_PIXELS, DecodeLimits
from sce_video.datasets.pipeline import keep_open
from sce_video.datasets.readers.frame_folder import FrameFolderReader
from sce_video.registry import TRANSFORMS


@TRANSFORMS.register_module()
class OpenFrameFolder:
    """Open the folder of frames at ``path``; replaces ``OpenVideo``.

    Args:
        fps: Frames per second: 30 for the frames of AVA.
        first: Number of the image at 0 s.
        max_pixels: Height x width of the largest images that are decoded.
        max_held_bytes: Memory that the decoded images of a sample may take.
    """

    backend = "frames"

    def __init__(
        self,
        fps: float = 30.0,
        first: int = 1,
        max_pixels: int = MAX_PIXELS,
        max_held_bytes: int = MAX_HELD_BYTES,
    ) -> None:
        if fps <= 0:
            raise ValueError(f"fps must be positive, got {fps}")
        self.fps = fps
        self.first = first
        self.limits = DecodeLimits(max_pixels, max_held_bytes)

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Read ``path`` (and ``deadline`` if present), write ``reader, limits``."""
        results["reader"] = FrameFolderReader(
            results["path"],
            fps=self.fps,
            first=self.first,
            deadline=results.get("deadline"),
            limits=self.limits,
        )
        results["limits"] = self.limits
        keep_open(results, results["reader"])
        return results
