"""Detection of the edited one of two copies: cropped, inset, mirrored, framed or overlaid.

A curation keeps the original, even if the edited video has a higher bitrate.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sce_video.curation.comparison import StoredThumbnails
from sce_video.curation.edited_copies import rectangles, without_borders
from sce_video.curation.matching import SIDE, Part, Thumbnails, cut_part
from sce_video.curation.near_duplicates import Removed
from sce_video.datasets.clip_sampling import shown_at

#: A video was cropped if the side of its part, relative to the frame, is below this value. The
#: value is a little below 1, because alignments are not exact.
_WHOLE_SIDE = 0.96
#: Maximum distance between the edges of a rectangle in a video and the edges of an aligned part, as
#: a fraction of the frame. It corresponds to two to three pixels of a thumbnail.
_NEAR = 0.08


@dataclass(frozen=True)
class _OverlaySettings:
    """Settings for detecting an overlay. The values were chosen by hand."""

    #: Maximum number of frames to compare, at equal steps over the time that both videos show.
    frames: int = 32
    #: Minimum number of covered pixels out of 32 x 32.
    fewest_pixels: int = 3
    #: Minimum difference in grey levels between the covered pixels of the two videos.
    different: float = 8.0
    #: Minimum ratio of this difference to the median one, because re-encoding changes all pixels.
    times_median: float = 4.0
    #: If the ratio of changes is below this value, the video with fewer changes has the overlay.
    fewer_changes: float = 0.7
    #: If the ratio of contrasts is above this value, the video with more contrast has the overlay.
    more_contrast: float = 1.2


_OVERLAY = _OverlaySettings()


def edited_videos(
    places: Mapping[int, StoredThumbnails],
    edges: Mapping[tuple[int, int], Removed],
    files: Sequence[str],
) -> dict[tuple[int, int], int]:
    """Return the edited video of each pair of copies in which one was edited.

    The frames of a mirrored pair do not show which video is the original. It is assumed to be the
    video with more copies that are not mirrored, or otherwise the older file.

    Args:
        places: Thumbnails of all videos.
        edges: Copies by the lower and the higher number of the two videos.
        files: Paths of the videos.
    """
    found: dict[tuple[int, int], int] = {}
    upright = Counter(row for pair, edge in edges.items() if not _is_mirrored(edge) for row in pair)
    for pair, edge in edges.items():
        inner, outer = (places[row].read() for row in (edge.row, edge.match))
        side = _edited_side(outer, inner, edge)
        if side is not None:
            found[pair] = edge.row if side == "inner" else edge.match
        elif _is_mirrored(edge):
            worth = {row: (upright[row], -_modified(files[row])) for row in pair}
            if worth[pair[0]] != worth[pair[1]]:
                found[pair] = min(pair, key=worth.__getitem__)
    return found


def _is_mirrored(edge: Removed) -> bool:
    return edge.edited is not None and edge.edited.mirrored


def _modified(file: str) -> float:
    """Return the modification time of a file in seconds; 0 for objects, rows and segments."""
    return os.path.getmtime(file) if os.path.isfile(file) else 0.0


def _edited_side(outer: Thumbnails, inner: Thumbnails, edge: Removed) -> str | None:
    """Return which video was edited, ``inner`` or ``outer``; None if the frames do not show it."""
    if edge.edited is not None:  # edited copies are compared without borders
        plain = without_borders(outer), without_borders(inner)
        borders = [one is not other for one, other in zip(plain, (outer, inner), strict=True)]
        if borders[0] != borders[1]:
            return "outer" if borders[0] else "inner"
        outer, inner = plain
    at = edge.alignment if edge.edited is None else edge.edited.alignment
    assert at is not None
    if min(at.part[2:]) < _WHOLE_SIDE:
        inset = any(_distance(at.part, part) < _NEAR for part in rectangles(outer))
        return "outer" if inset else "inner"
    frames = _shared_frames(outer, inner, edge, at.part)
    return None if frames is None else _overlaid(*frames)


def _distance(one: Part, other: Part) -> float:
    """Return the largest distance between the edges of two parts."""
    (left, top, wide, high), (x, y, across, down) = one, other
    ends = left + wide - x - across, top + high - y - down
    return max(abs(gap) for gap in (left - x, top - y, *ends))


def _shared_frames(
    outer: Thumbnails, inner: Thumbnails, edge: Removed, part: Part
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the frames (T, 32, 32) of both videos at the same moments; None if there are none."""
    if edge.edited is not None:
        (begin, end), start = edge.edited.inner_stretch, edge.edited.outer_stretch[0]
        speed, flip = edge.edited.speed, -1 if edge.edited.mirrored else 1
    else:
        assert edge.alignment is not None
        begin, end = max(0.0, -edge.alignment.offset), inner.end
        start, speed, flip = begin + edge.alignment.offset, 1.0, 1
    moments = begin + (np.arange(_OVERLAY.frames) + 0.5) / _OVERLAY.frames * (end - begin)
    times = start + speed * (moments - begin)
    common = (times >= 0) & (times < outer.end) & (moments < inner.end)
    if common.sum() < 2:
        return None
    theirs = cut_part(outer.frames[shown_at(outer.times, times[common])], part, SIDE)
    ours = inner.frames[shown_at(inner.times, moments[common])].astype(np.float32)
    return theirs, ours[:, :, ::flip]


def _overlaid(outer: np.ndarray, inner: np.ndarray) -> str | None:
    """Return which of two videos with frames (T, 32, 32) has an overlay; None for neither.

    An overlay does not move, so less changes in the pixels that it covers. If nothing changes there
    in either video, the video with more contrast has the overlay.
    """
    different = np.abs(outer - inner - np.median(outer - inner)).mean(axis=0)
    where = different > max(_OVERLAY.different, _OVERLAY.times_median * float(np.median(different)))
    if where.sum() < _OVERLAY.fewest_pixels:
        return None
    changes = [float(frames.std(axis=0)[where].sum()) for frames in (outer, inner)]
    if min(changes) < _OVERLAY.fewer_changes * max(changes):
        return "outer" if changes[0] < changes[1] else "inner"
    contrast = [float(np.hypot(*np.gradient(f.mean(axis=0)))[where].sum()) for f in (outer, inner)]
    if max(contrast) < _OVERLAY.more_contrast * min(contrast):
        return None
    return "outer" if contrast[0] > contrast[1] else "inner"
