"""Where the views of a sample come from: stretches of the time line, shares of the frames."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sce_video.datasets.clip_sampling import ClipIndices
from sce_video.datasets.transforms.lazy_view import LazyView


@dataclass(frozen=True)
class SampleOrigin:
    """What was drawn for the V views of a sample before its pixels were changed.

    Attributes:
        clips: V clips; empty for images.
        timestamps: (F,) seconds, of the frames that the clips index; empty for images.
        duration: Seconds of the video; 0 for images.
        crops: Share of the frame's area that each view shows, 0 to 1; empty where it is not known.
    """

    clips: list[ClipIndices] = field(default_factory=list)
    timestamps: np.ndarray = field(default_factory=lambda: np.zeros(0))
    duration: float = 0.0
    crops: list[float] = field(default_factory=list)


class OriginNotes:
    """Steps that change nothing, and note what a pipeline draws for a sample."""

    def __init__(self) -> None:
        self._origin = SampleOrigin()

    def clips(self, results: dict[str, Any]) -> dict[str, Any]:
        """The step behind the one that samples clips."""
        if results.get("clips"):
            reader = results["reader"]
            clips = list(results["clips"])
            self._origin = SampleOrigin(clips, reader.timestamps, reader.duration)
        return results

    def crops(self, results: dict[str, Any]) -> dict[str, Any]:
        """The step before the last one, which computes the views."""
        views = results.get("views", [])
        if results.get("clips"):  # where frames repeat, decoding changes them
            self._origin = replace(self._origin, clips=list(results["clips"]))
        if all(isinstance(view, LazyView) for view in views):
            self._origin = replace(self._origin, crops=[_shown_area(view) for view in views])
        return results

    def origin(self) -> SampleOrigin:
        """What the last pipeline with these steps has drawn."""
        return self._origin


def _shown_area(view: LazyView) -> float:
    """Share of the frame that is left after all crops."""
    size, share = view.frames.size, 1.0
    for (_, _, height, width), resized in view.steps:
        share *= height * width / (size[0] * size[1])
        size = resized
    return min(share, 1.0)
