"""Embedding of a sample of videos with each candidate of ``sce-video choose``, within a budget."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from sce_video.inference.clip_features import EmbeddedClips, embed_clips
from sce_video.runs.candidates import Candidate, NetworkPass
from sce_video.utils.command import Progress

#: Number of videos that are timed to choose the sample size, after a first untimed video
_TIMED = 5
#: Share of the remaining time that features and scores may use. The rest is left for the page.
_SHARE = 0.8
#: Number of seconds by which a network may exceed its estimated time. Videos that it has not
#: embedded by then are left out for all networks.
_GRACE = 20.0
#: Size of a feature value in bytes
_FLOAT = 4


@dataclass(frozen=True)
class Cost:
    """Computing time, memory and storage that a candidate needs.

    Attributes:
        seconds: Seconds per hour of video on one core or a GPU; None if the videos have no length.
        memory: Peak memory of a process, or on its GPU, in bytes; None if unknown.
        dimensions: Size of a feature.
        bytes_per_hour: Bytes of features per hour of video, for videos of this average length.
    """

    seconds: float | None
    memory: int | None
    dimensions: int
    bytes_per_hour: float | None

    @property
    def order(self) -> tuple[float, int]:
        """Sort key that compares times first and feature sizes second."""
        return (float("inf") if self.seconds is None else self.seconds, self.dimensions)


@dataclass(frozen=True, eq=False)
class CandidateFeatures:
    """Features of the same videos from all candidates.

    Attributes:
        clips: Features (n, K, D) of the K clips of n videos, by candidate.
        costs: Cost of each candidate.
        rows: (n,) positions of the videos in the order of the sample.
        tried: Number of videos that were read, from the beginning of this order.
        failures: Path and reason for each video that some candidate could not embed.
    """

    clips: dict[Candidate, np.ndarray]
    costs: dict[Candidate, Cost]
    rows: np.ndarray
    tried: int
    failures: list[tuple[str, str]]


def embed_within(
    passes: Sequence[NetworkPass],
    paths: Sequence[str],
    begun: float,
    budget: float,
    workers: int,
    score_seconds: Callable[[int], float],
    least: int,
) -> CandidateFeatures:
    """Embed as many videos as the time allows, the same videos with all networks.

    Args:
        passes: Networks that embed the videos.
        paths: Paths of the videos, ordered so that every prefix is a fair sample.
        begun: ``time.monotonic()`` at the start of the command.
        budget: Time budget of the whole command in seconds.
        workers: Number of processes.
        score_seconds: Function that maps a number of videos to the estimated seconds for scoring
            all candidates. It must not decrease.
        least: Smallest number of videos in a comparison.

    Raises:
        ValueError: If the time does not suffice for ``least`` videos, or fewer than two videos can
            be decoded.
    """
    parts, starts = _timed_videos(passes, paths[: 1 + _TIMED], begun, budget)
    # The first video in a process takes longer, because memory is allocated.
    each = [fmean(video.seconds for video in part[1:] or part) / workers for part in parts]
    now = time.monotonic()
    left = _SHARE * (begun + budget - now)

    def seconds(count: int) -> float:
        """Return the seconds for features and scores after the timed videos."""
        more = max(0, count - 1 - _TIMED)
        return (sum(starts) if more else 0.0) + sum(each) * more + score_seconds(count)

    count = bisect_right(range(1, len(paths) + 1), left, key=seconds)
    if count < least:
        needed = math.ceil(now - begun + 1 + seconds(least) / _SHARE)
        raise ValueError(
            f"a budget of {budget:g} s suffices for {count} of {len(paths)} videos, "
            f"and a comparison needs {least}. Give --budget {needed}s or more, or fewer networks "
            "with --among"
        )
    end = now + left - score_seconds(count)
    for number, one in enumerate(passes):
        now, done = time.monotonic(), len(parts[number])
        # An estimate from a few videos may be wrong. Reserve time for the later networks, but let a
        # slow network exceed its own estimate a little, because the sample contains only videos
        # that it has embedded.
        own, *others = (s + e * (count - done) for s, e in zip(starts, each, strict=True))
        title = f"embedding {number + 1} of {len(passes)}:"
        stop = max(end - sum(others), now + own + _GRACE)
        parts[number] += _embed(one, paths[done:count], workers, title, stop)
        count = len(parts[number])
        starts, each = starts[1:], each[1:]
    return _joined(passes, [part[:count] for part in parts])


def _timed_videos(
    passes: Sequence[NetworkPass], paths: Sequence[str], begun: float, budget: float
) -> tuple[list[list[EmbeddedClips]], list[float]]:
    """Embed a few videos with each network, and return the seconds that each needs to start.

    Raises:
        ValueError: If the budget is used up before all networks are timed.
    """
    parts, starts = [], []
    for number, one in enumerate(passes, 1):
        start = time.monotonic()
        parts.append(_embed(one, paths, 1, f"timing {number} of {len(passes)}:"))
        now = time.monotonic()
        starts.append(now - start - sum(video.seconds for video in parts[-1][1:]))
        if now > begun + budget:
            raise ValueError(
                f"a budget of {budget:g} s does not suffice to time {len(passes)} networks "
                f"on {len(paths)} videos. Give a larger --budget, or fewer networks with --among"
            )
    return parts, starts


def _embed(
    one: NetworkPass, paths: Sequence[str], workers: int, title: str, stop: float = math.inf
) -> list[EmbeddedClips]:
    """Embed videos in order until ``time.monotonic()`` exceeds ``stop``."""
    found: list[EmbeddedClips] = []
    if not paths:
        return found
    progress = Progress(len(paths), title, unit="videos", quiet=True)
    with closing(embed_clips(one.network, paths, workers)) as embedded:
        for video in embedded:
            found.append(video)
            progress.advance(video.values is None)
            if time.monotonic() > stop:
                break
    progress.finish()
    return found


def _joined(
    passes: Sequence[NetworkPass], parts: Sequence[Sequence[EmbeddedClips]]
) -> CandidateFeatures:
    """Join the features of the videos that every network could embed.

    Raises:
        ValueError: If there are fewer than two such videos.
    """
    tried = min(map(len, parts))
    failed: dict[int, tuple[str, str]] = {}
    for part in parts:
        for row, video in enumerate(part[:tried]):
            if video.values is None:
                failed.setdefault(row, (video.path, video.failure))
    rows = np.array([row for row in range(tried) if row not in failed], dtype=np.int64)
    failures = [failed[row] for row in sorted(failed)]
    if len(rows) < 2:
        path, why = failures[0]
        raise ValueError(
            f"{len(rows)} of {tried} videos can be decoded, for example {path}: {why}. Check them: "
            "sce-video verify VIDEOS"
        )
    clips, costs = {}, {}
    for one, part in zip(passes, parts, strict=True):
        values = np.stack([part[row].values for row in rows.tolist()])
        for candidate in one.candidates:
            clips[candidate] = one.features(candidate, values)
            costs[candidate] = _cost([part[row] for row in rows.tolist()], one.size(candidate))
    return CandidateFeatures(clips, costs, rows, tried, failures)


def _cost(videos: Sequence[EmbeddedClips], dimensions: int) -> Cost:
    """Compute a candidate's cost from the videos that its network has embedded."""
    hours = sum(video.duration for video in videos) / 3600
    memory = [video.memory for video in videos if video.memory is not None]
    return Cost(
        seconds=sum(video.work for video in videos) / hours if hours else None,
        memory=max(memory) if memory else None,
        dimensions=dimensions,
        bytes_per_hour=_FLOAT * dimensions * len(videos) / hours if hours else None,
    )
