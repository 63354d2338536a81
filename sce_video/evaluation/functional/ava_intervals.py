"""Percentile bootstrap of the frame mAP of AVA over videos.

Detections are matched to ground-truth boxes within a key frame, so the hits do not depend on which
videos are drawn: a draw only changes how many times each detection and each box count.
"""

from __future__ import annotations

import numpy as np

from sce_video.evaluation.functional.intervals import CONFIDENCE

#: Fewer than for other metrics, as each draw adds up all detections of 60 actions: half a minute on
#: one core for 100,000 detections.
RESAMPLES = 500
_BLOCK = 4_000_000  # numbers at a time


class MeanPrecisionBootstrap:
    """Resampled mean average precision, fed with one action after the other.

    Args:
        videos: (M,) index of the video of each detection.
        count: Number of videos V, at least two.
        resamples: Number of draws of V videos with replacement.
        seed: Of the draws; the global random state is neither used nor changed.
    """

    def __init__(
        self, videos: np.ndarray, count: int, resamples: int = RESAMPLES, seed: int = 0
    ) -> None:
        if count < 2 or resamples < 1:
            raise ValueError(
                f"an interval needs two videos and one draw, got {count} and {resamples}"
            )
        drawn = np.random.default_rng(seed).integers(count, size=(resamples, count))
        drawn += count * np.arange(resamples)[:, None]
        times = np.bincount(drawn.reshape(-1), minlength=resamples * count)
        self.times = times.reshape(resamples, count).astype(np.int32)
        self.videos = videos
        self.total, self.actions = np.zeros(resamples), np.zeros(resamples)

    def add(self, scores: np.ndarray, hits: np.ndarray, true_videos: np.ndarray) -> None:
        """Add the average precisions of an action, of the draws that hold ground truth of it.

        Args:
            scores: (M,); of equal scores the later ranks first.
            hits: (M,) bool, true positives.
            true_videos: (G,) index of the video of each ground-truth box of the action.
        """
        boxes = self.times @ np.bincount(true_videos, minlength=self.times.shape[1])
        order = np.argsort(scores, kind="stable")[::-1]
        found = np.flatnonzero(hits[order])
        videos = self.videos[order[: found[-1] + 1 if len(found) else 0]]  # up to the last hit
        block = max(1, _BLOCK // max(1, len(videos)))
        for start in range(0, len(self.times), block):
            part = slice(start, start + block)
            seen = boxes[part] > 0
            areas = _areas(self.times[part], videos, found)
            self.total[part] += np.where(seen, areas / np.maximum(boxes[part], 1), 0.0)
            self.actions[part] += seen

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """Ends of the interval of the mean; None if no draw holds ground truth."""
        drawn = self.actions > 0
        if not drawn.any():
            return None
        tail = (1 - confidence) / 2
        means = self.total[drawn] / self.actions[drawn]
        low, high = np.quantile(means, [tail, 1 - tail])
        return float(low), float(high)


def _areas(times: np.ndarray, videos: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Sum of the monotone precisions of all hits, (draws,).

    A hit of a video that was drawn k times is k hits in a row. The precision after the last of them
    is the highest of the k, so all have the same monotone precision.

    Args:
        times: (draws, V) how often each video was drawn.
        videos: (m,) videos of the detections, in the order of their ranks.
        found: Ranks of the hits.
    """
    ranked = np.cumsum(times[:, videos], axis=1, dtype=np.int32)[:, found]
    weights = times[:, videos[found]]
    precision = np.cumsum(weights, axis=1) / np.maximum(ranked, 1)
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    return (weights * best).sum(axis=1)
