"""Transforms that sample clips of an open video, with functions of ``clip_sampling``."""

from __future__ import annotations

import numpy as np

from sce_video.datasets.clip_sampling import (
    ClipIndices,
    make_clip,
    segment_positions,
    shared_segment_positions,
    shown_at,
    spaced_starts,
)
from sce_video.datasets.pipeline import PipelineResults
from sce_video.datasets.readers.base import VideoDecodeError, VideoReader
from sce_video.registry import TRANSFORMS
from sce_video.utils.stored_arguments import Frames, Seconds


def _check_clip(clip_duration: float, num_frames: int, of: str = "") -> None:
    if clip_duration <= 0:
        raise ValueError(
            f"{of}clip_duration must be a positive number of seconds, got {clip_duration}"
        )
    if num_frames < 1:
        raise ValueError(f"{of}num_frames must be at least 1, got {num_frames}")


def check_view_counts(num_views: int, num_local_views: int) -> None:
    """Raise ValueError unless there is a global view among V views, of which some are local."""
    if num_views < 1:
        raise ValueError(f"num_views must be at least 1, got {num_views}")
    if not 0 <= num_local_views < num_views:
        raise ValueError(
            f"num_local_views must be from 0 to {num_views - 1}, because num_views={num_views} "
            f"includes local views, got {num_local_views}"
        )


@TRANSFORMS.register_module()
class RandomClips:
    """V clips at independent, uniformly random positions in the video, for training.

    The last L views may be local views, which have fewer frames or, with
    :class:`RandomResizedCropClips`, smaller crops. This extends the multi-crop of SwAV (arXiv
    2006.09882) to time. Methods compare local views with global views, and encode them only with
    the online branch. All views are decoded in one pass.

    Args:
        clip_duration: Length of a clip in seconds.
        num_frames: Number of frames T that are kept of each clip.
        num_views: Number of views V, including the local views.
        duration_jitter: Range j in [0, 1). ``clip_duration`` is multiplied by U(1 - j, 1 + j).
        reverse_prob: Probability that a clip plays backwards.
        diff_prob: Probability that a clip shows RGB differences instead of colours.
        num_local_views: Number of local views L.
        local_clip_duration: Length of a local clip in seconds. None means ``clip_duration``.
        local_num_frames: Number of frames of a local clip. None means ``num_frames``.
        ordered: Whether to sort views by their starts, for methods that pair consecutive views.
    """

    def __init__(
        self,
        clip_duration: Seconds,
        num_frames: Frames,
        num_views: int = 2,
        duration_jitter: float = 0.0,
        reverse_prob: float = 0.0,
        diff_prob: float = 0.0,
        num_local_views: int = 0,
        local_clip_duration: float | None = None,
        local_num_frames: int | None = None,
        ordered: bool = False,
    ) -> None:
        _check_clip(clip_duration, num_frames)
        check_view_counts(num_views, num_local_views)
        local = {"local_clip_duration": local_clip_duration, "local_num_frames": local_num_frames}
        given = [f"{name}={value}" for name, value in local.items() if value is not None]
        if given and not num_local_views:
            raise ValueError(
                f"cannot use {' and '.join(given)} without local views. Set num_local_views"
            )
        if not 0 <= duration_jitter < 1:
            raise ValueError(f"duration_jitter must lie in [0, 1), got {duration_jitter}")
        for name, value in (("reverse_prob", reverse_prob), ("diff_prob", diff_prob)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {value}")
        self.clip_duration, self.num_frames = clip_duration, num_frames
        self.num_views, self.num_local_views = num_views, num_local_views
        self.duration_jitter = duration_jitter
        self.reverse_prob, self.diff_prob = reverse_prob, diff_prob
        if local_clip_duration is None:
            local_clip_duration = clip_duration
        self.local_clip_duration = local_clip_duration
        self.local_num_frames = num_frames if local_num_frames is None else local_num_frames
        _check_clip(self.local_clip_duration, self.local_num_frames, "local_")
        self.ordered = ordered

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Read ``reader`` and ``rng``; write ``clips`` (V of them) and ``num_local_views``."""
        reader = results["reader"]
        clips = []
        first_local = self.num_views - self.num_local_views
        # Always draw four numbers per view, so that changing an option does not change the other
        # random decisions.
        draws = results["rng"].random((self.num_views, 4))
        for view, (jitter, start, reverse, difference) in enumerate(draws):
            clip_duration, num_frames = self.clip_duration, self.num_frames
            if view >= first_local:
                clip_duration, num_frames = self.local_clip_duration, self.local_num_frames
            clip_duration *= 1.0 + self.duration_jitter * (2.0 * jitter - 1.0)
            clips.append(
                make_clip(
                    reader.timestamps,
                    start=start * max(0.0, reader.duration - clip_duration),
                    clip_duration=clip_duration,
                    num_frames=num_frames,
                    reverse=bool(reverse < self.reverse_prob),
                    difference=bool(difference < self.diff_prob),
                )
            )
        if self.ordered:  # keep local views after global views
            parts = clips[:first_local], clips[first_local:]
            clips = [clip for part in parts for clip in sorted(part, key=lambda clip: clip.start)]
        return {**results, "clips": clips, "num_local_views": self.num_local_views}


@TRANSFORMS.register_module()
class RandomFrame:
    """One uniformly random frame of the video for all V views, to train image networks on videos.

    :class:`RandomClips` with ``num_frames=1`` chooses a different frame for every view.
    ``num_views`` includes the last ``num_local_views`` views.
    """

    def __init__(self, num_views: int = 2, num_local_views: int = 0) -> None:
        check_view_counts(num_views, num_local_views)
        self.num_views, self.num_local_views = num_views, num_local_views

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Read ``reader`` and ``rng``; write ``clips`` (V of them) and ``num_local_views``."""
        reader = results["reader"]
        frame = segment_positions(len(reader.timestamps), 1, results["rng"].random())
        clips = [ClipIndices(frame, None, 0.0, reader.duration)] * self.num_views
        return {**results, "clips": clips, "num_local_views": self.num_local_views}


@TRANSFORMS.register_module()
class UniformClips:
    """K clips of T frames whose starts are spaced equally, for testing.

    Starts are explained at :func:`~sce_video.datasets.clip_sampling.spaced_starts`.
    """

    def __init__(self, clip_duration: Seconds, num_frames: Frames, num_clips: int = 10) -> None:
        _check_clip(clip_duration, num_frames)
        if num_clips < 1:
            raise ValueError(f"num_clips must be at least 1, got {num_clips}")
        self.clip_duration, self.num_frames, self.num_clips = clip_duration, num_frames, num_clips

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Read ``reader``, and write ``clips``, K ``ClipIndices``."""
        reader = results["reader"]
        starts = spaced_starts(reader.duration, self.clip_duration, self.num_clips)
        return {**results, "clips": [self._clip(reader, float(start)) for start in starts]}

    def _clip(self, reader: VideoReader, start: float) -> ClipIndices:
        return make_clip(
            reader.timestamps,
            start=start,
            clip_duration=self.clip_duration,
            num_frames=self.num_frames,
        )


@TRANSFORMS.register_module()
class OneOfClips(UniformClips):
    """Random choice of one of the K clips of :class:`UniformClips`, for training with features.

    The stored features of a clip are found by the sample's ``index`` and ``clip``. With
    ``num_clips=0``, the clip has a random position, for which no features can be stored.
    """

    num_views = 1

    def __init__(self, clip_duration: Seconds, num_frames: Frames, num_clips: int = 4) -> None:
        super().__init__(clip_duration, num_frames, max(1, num_clips))
        self.num_clips = num_clips

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Read ``reader`` and ``rng``; write ``clips`` (one) and, unless K = 0, ``clip``."""
        reader, drawn = results["reader"], float(results["rng"].random())
        if not self.num_clips:
            start = drawn * max(0.0, reader.duration - self.clip_duration)
            return {**results, "clips": [self._clip(reader, start)]}
        number = int(drawn * self.num_clips)
        starts = spaced_starts(reader.duration, self.clip_duration, self.num_clips)
        clips = [self._clip(reader, float(starts[number]))]
        return {**results, "clips": clips, "clip": number}


@TRANSFORMS.register_module()
class CenterSegmentClip:
    """One clip of T frames from the centres of T equal segments of the video, for testing.

    Args:
        num_frames: Number of frames T.
        shared_ends: Whether segments share their ends, as in SlowFast's Something-Something
            (:func:`~sce_video.datasets.clip_sampling.shared_segment_positions`). Otherwise, they
            are defined by :func:`~sce_video.datasets.clip_sampling.segment_positions`.
    """

    num_clips = 1

    def __init__(self, num_frames: Frames, shared_ends: bool = False) -> None:
        _check_clip(1.0, num_frames)
        self.num_frames, self.shared_ends = num_frames, shared_ends

    def _offsets(self, results: PipelineResults) -> np.ndarray | None:
        return None

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Read ``reader`` (and ``rng``), and write ``clips``, one ``ClipIndices``."""
        reader, offsets = results["reader"], self._offsets(results)
        count = len(reader.timestamps)
        if self.shared_ends:
            frames = shared_segment_positions(count, self.num_frames, offsets)
        else:
            frames = segment_positions(count, self.num_frames, 0.5 if offsets is None else offsets)
        clip = ClipIndices(frames, None, start=0.0, clip_duration=reader.duration)
        return {**results, "clips": [clip]}


@TRANSFORMS.register_module()
class RandomSegmentClip(CenterSegmentClip):
    """One clip of T frames, a uniformly random one from each of T equal segments of the video.

    With ``shared_ends``, it is the training clip of Something-Something (SlowFast,
    ``datasets/ssv2.py``).
    """

    def _offsets(self, results: PipelineResults) -> np.ndarray | None:
        return results["rng"].random(self.num_frames)


@TRANSFORMS.register_module()
class KeyFrameClip:
    """One clip of T frames around the key frame of an AVA sample.

    The key frame is the first frame after the middle (SlowFast's ``get_sequence``). Outside the
    video, the first or last frame is repeated::

        T = 4, interval 2:    o . o . o . o .
                                      key         -4, -2, 0, +2 frames

    Args:
        num_frames: Number of frames T.
        frame_interval: Distance of two frames, counted at ``fps``. For example, 8 x 8 means T = 8
            and interval 8.
        fps: Frame rate of ``frame_interval``, which may differ from the frame rate of the video.
        begins_at: Second of the film at which the file begins: 900 for 15-minute cuts and frame
            folders, 0 for whole films.
    """

    num_clips = 1

    def __init__(
        self,
        num_frames: Frames,
        frame_interval: Frames,
        fps: float = 30.0,
        begins_at: float = 900.0,
    ) -> None:
        _check_clip(1.0, num_frames)
        if frame_interval < 1 or fps <= 0:
            raise ValueError(
                f"frame_interval must be at least 1 and fps positive, got {frame_interval}, {fps}"
            )
        self.num_frames, self.frame_interval = num_frames, frame_interval
        self.fps, self.begins_at = fps, begins_at

    def __call__(self, results: PipelineResults) -> PipelineResults:
        """Read ``reader`` and ``timestamp``, and write ``clips``, one ``ClipIndices``.

        Raises:
            VideoDecodeError: If the key frame is not in the video.
        """
        reader = results["reader"]
        second = results["timestamp"] - self.begins_at
        if not 0 <= second < reader.duration:
            raise VideoDecodeError(
                results["path"],
                f"has no frame at second {results['timestamp']}, because it begins at "
                f"{self.begins_at:g} and lasts {reader.duration:.1f} s. Check begins_at of "
                "KeyFrameClip",
            )
        count = self.num_frames * self.frame_interval
        steps = np.arange(0, count, self.frame_interval) - count // 2
        times = second + steps / self.fps
        frames, length = shown_at(reader.timestamps, times), count / self.fps
        return {**results, "clips": [ClipIndices(frames, None, float(times[0]), length)]}
