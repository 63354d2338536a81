"""How large the frames of one file may be, each and together."""

from __future__ import annotations

from dataclasses import dataclass

from sce_video.datasets.errors import VideoDecodeError

#: Of one frame: 8K video (7680 x 4320) has 33 million.
MAX_PIXELS = 40_000_000
#: Of one image: cameras have up to 100 million.
MAX_IMAGE_PIXELS = 2**27
#: Of the decoded frames that a reader holds at a time: 170 frames of 4K video in yuv420p.
MAX_HELD_BYTES = 2 * 2**30


@dataclass(frozen=True)
class DecodeLimits:
    """Bounds of the memory that reading one file takes.

    A file of a few hundred bytes may state any frame size, and hold any number of such frames.

    Attributes:
        max_pixels: Of one frame, height x width.
        max_held_bytes: Of the decoded frames held at a time.
    """

    max_pixels: int = MAX_PIXELS
    max_held_bytes: int = MAX_HELD_BYTES

    def __post_init__(self) -> None:
        for name in ("max_pixels", "max_held_bytes"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive whole number, got {value!r}")

    def check_frame(self, path: str, height: int, width: int) -> None:
        """Raise :class:`VideoDecodeError` if a frame of this size has too many pixels."""
        if height * width > self.max_pixels:
            raise VideoDecodeError(
                path,
                f"has frames of {width} x {height} pixels, more than the {self.max_pixels} allowed "
                "(max_pixels)",
            )

    def check_held(self, path: str, frames: int, num_bytes: int) -> None:
        """Raise :class:`VideoDecodeError` if the frames held take too many bytes together."""
        if num_bytes > self.max_held_bytes:
            raise VideoDecodeError(
                path,
                f"{frames} of its frames take {num_bytes} bytes, more than the "
                f"{self.max_held_bytes} allowed (max_held_bytes)",
                permanent=False,  # other requests may need fewer frames
            )
