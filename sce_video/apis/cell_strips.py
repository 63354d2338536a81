"""Cell maps of videos as strips of frames to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sce_video.apis.cell_maps import (
    ClassActivation,
    Similarity,
    time_steps,
    without_image_time,
)
from sce_video.apis.clip_views import SeenClip
from sce_video.apis.video_classifier import VideoClassifier
from sce_video.visualization.cell_maps import MapStrip, chosen_frames


def activation_strips(
    classifier: VideoClassifier, activation: ClassActivation, most: int
) -> list[MapStrip]:
    """A strip for each clip of a video; frames of a network of images are one strip.

    Args:
        classifier: Names the classes.
        activation: Of the video.
        most: Frames of a strip.
    """
    name, probability = (
        classifier.classes[activation.label],
        activation.probabilities[activation.label],
    )
    best = int(activation.probabilities.argmax())
    rest = ""
    if best != activation.label:
        other = activation.probabilities[best]
        rest = f"; most probable: {classifier.classes[best]}, {other:.3f}"
    strips = []
    for clip, values, score in zip(
        activation.clips, activation.maps, activation.scores, strict=True
    ):
        note = (
            f"class {name}, probability {probability:.3f}{rest}; score {score:z.2f} = mean of the "
            f"cells {values.mean():z.2f} + bias {activation.bias:z.2f}"
        )
        strips.append(_strip(clip, values, note, most))
    return _joined(strips, most)


def similarity_strips(similarity: Similarity, most: int) -> list[MapStrip]:
    """The strip of the query, with its frame and cell marked, then one for each clip of the key."""
    query, grid = similarity.query, similarity.query_grid
    chosen = chosen_frames(len(query.frames), most, similarity.frame)
    marked = int(np.flatnonzero(chosen == similarity.frame)[0])
    frames, times = query.frames[chosen], None if query.times is None else query.times[chosen]
    if query.is_image:
        frames, marked = query.frames[:1], 0
    strips = [
        MapStrip(
            name=f"query: {query.path}",
            note=_query_note(similarity),
            frames=frames,
            times=times,
            marked=marked,
            cell=similarity.cell,
            grid=(grid[1], grid[2]),
        )
    ]
    keys = []
    for clip, values in zip(similarity.keys, similarity.maps, strict=True):
        step, y, x = np.unravel_index(values.argmax(), values.shape)
        frame = int(np.flatnonzero(time_steps(len(clip.frames), len(values)) == step)[0])
        when = "" if clip.times is None else f" at {clip.times[frame]:.2f} s,"
        note = (
            f"most similar:{when} cell {y},{x}, cosine {values.max():.3f}; "
            f"mean of all cells {values.mean():.3f}"
        )
        keys.append(replace(_strip(clip, values, note, most), name=f"key: {clip.path}"))
    return strips + _joined(keys, most)


def describe_grid(clip: SeenClip, shape: Sequence[int]) -> str:
    """What a cell of features (t, h, w) stands for, in frames and pixels."""
    (frames, height, width), (t, h, w) = clip.frames.shape[:3], shape
    step = f"{_count(frames / t, 'frame')} and {height / h:g} x {width / w:g} pixels"
    return (
        f"clips of {_count(frames, 'frame')} of {height}x{width} pixels; {t} x {h} x {w} cells "
        f"(time, rows, columns), one every {step}"
    )


def _count(number: float, name: str) -> str:
    return f"{number:g} {name}{'s' * (number != 1)}"


def _query_note(similarity: Similarity) -> str:
    clip, frame = similarity.query, similarity.frame
    when = "" if clip.times is None else f" at {clip.times[frame]:.2f} s"
    if similarity.cell is not None:
        y, x = similarity.cell
        return f"cell {y},{x} of frame {frame}{when}"
    what = "the best of all cells" if similarity.best else "the mean of all cells"
    return f"{what} of frame {frame}{when}"


def _strip(clip: SeenClip, values: np.ndarray, note: str, most: int) -> MapStrip:
    clip, values = without_image_time(clip, values)
    chosen = chosen_frames(len(clip.frames), most)
    steps = time_steps(len(clip.frames), len(values))
    return MapStrip(
        name=clip.path,
        note=note,
        frames=clip.frames[chosen],
        times=None if clip.times is None else clip.times[chosen],
        maps=values[steps[chosen]],
    )


def _joined(strips: list[MapStrip], most: int) -> list[MapStrip]:
    """Clips of one frame each as one strip over time; others as they are, numbered."""
    if len(strips) == 1:
        return strips
    if any(len(strip.frames) > 1 or strip.times is None for strip in strips):
        return [
            replace(strip, name=f"{strip.name}, clip {i} of {len(strips)}")
            for i, strip in enumerate(strips, 1)
        ]
    chosen = chosen_frames(len(strips), most)
    maps = [strip.maps for strip in strips if strip.maps is not None]
    times = [strip.times for strip in strips if strip.times is not None]
    return [
        replace(
            strips[0],
            note=f"{len(strips)} clips of one frame; the first: {strips[0].note}",
            frames=np.concatenate([strip.frames for strip in strips])[chosen],
            times=np.concatenate(times)[chosen],
            maps=np.concatenate(maps)[chosen],
        )
    ]
