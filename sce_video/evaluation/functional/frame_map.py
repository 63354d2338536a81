"""Frame mAP of AVA: mean average precision of actions in key frames at IoU 0.5.

The rules follow the official evaluation (activitynet/ActivityNet, Evaluation/
get_ava_performance.py with Evaluation/ava/{object_detection_evaluation,per_image_evaluation,
metrics}.py). For each action:

- In a key frame a detection is assigned to the ground-truth box **of that action** with the highest
  IoU. It is a true positive if that IoU is at least 0.5 and no detection of a higher score is
  assigned to the same box; otherwise it is a false positive, even if it also overlaps another,
  unmatched box by 0.5 or more.
- The detections of all key frames, sorted by descending score, give a precision-recall curve. The
  average precision is the area under the precision made monotone from the right.
- An action without ground truth has no average precision (NaN) and is left out of the mean.
- Detections without width or height, or at key frames that the ground truth does not list, are
  ignored. In a key frame that is listed without boxes, each detection is a false positive.

Public programs differ. SlowFast counts detections at key frames that the ground truth does not list
as false positives. mmaction2 excludes actions without any detection from the mean, and key frames
without a scored action. The programs order equal scores by an unstable sort. Here, key frames are
sorted, and the later one of two equal scores ranks first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sce_video.datasets.ava import Action
from sce_video.evaluation.functional.statistics import percentile_ends, times_drawn
from sce_video.utils.files import atomic_file

Key = tuple[str, int]  # video id and key frame time in seconds
Detections = Mapping[Key, tuple[np.ndarray, np.ndarray]]  # boxes (n, 4) and scores (n, 80)
GroundTruth = Mapping[Key, tuple[np.ndarray, Sequence[Sequence[int]]]]  # boxes and their action ids

#: Number of bootstrap resamples. Other metrics use more, but here each resample accumulates all
#: detections of 60 actions, which takes half a minute on one core for 100,000 detections.
RESAMPLES = 500
_BLOCK = 4_000_000  # maximum number of values in memory at a time
#: Minimum overlap between a detection and a true box, as in the official evaluation.
_IOU = 0.5


def _checked_boxes(boxes: np.ndarray, what: str, key: Key) -> np.ndarray:
    """Convert boxes to (n, 4) float64, or raise ValueError that names the key frame."""
    boxes = np.asarray(boxes, dtype=np.float64)
    if boxes.size == 0:
        return np.zeros((0, 4))
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{_frame(key)}: {what} boxes must be (n, 4), got {boxes.shape}")
    if not np.isfinite(boxes).all():
        raise ValueError(f"{_frame(key)}: a coordinate of the {what} boxes is not finite")
    return boxes


def _frame(key: Key) -> str:
    return f"video {key[0]}, second {key[1]}"


def _checked_detections(
    detections: Detections, key: Key, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Convert a key frame's boxes (n, 4) and scores (n, at least width); check their shapes."""
    boxes = _checked_boxes(detections[key][0], "detected", key)
    scores = np.asarray(detections[key][1])
    if scores.size == 0 and len(boxes) == 0:
        return boxes, np.zeros((0, width))
    if scores.ndim != 2 or scores.shape[0] != len(boxes) or scores.shape[1] < width:
        raise ValueError(
            f"{_frame(key)}: scores must be ({len(boxes)}, {width} or more), a row per box and a "
            f"column per action, got {scores.shape}"
        )
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise ValueError(f"{_frame(key)}: a score is NaN or +inf")
    return boxes, scores


def write_result_csv(path: str | Path, detections: Detections, actions: Sequence[Action]) -> int:
    """Write results in the official format: ``video,timestamp,x1,y1,x2,y2,action,score``.

    Lines are sorted by video and second, and contain only scored actions. The numbers have enough
    digits to restore float32 exactly. The file is written atomically. Return the number of lines.
    """
    ids, lines = sorted(action.id for action in actions if action.scored), 0
    with atomic_file(path) as unfinished:
        with open(unfinished, "w", encoding="utf-8", newline="") as file:
            for key in sorted(detections):
                for box, own in zip(*_checked_detections(detections, key, max(ids)), strict=True):
                    corners = ",".join(f"{value:.9g}" for value in box)
                    for action in (i for i in ids if own[i - 1] > -math.inf):
                        score = own[action - 1]
                        file.write(f"{key[0]},{key[1]:04d},{corners},{action},{score:.9g}\n")
                        lines += 1
    return lines


@dataclass(frozen=True)
class AvaResult:
    """Average precisions, 0 to 1, of the scored actions by id, and their mean.

    Actions without ground truth have NaN. ``mAP`` is the mean of the others, which have
    ``num_boxes`` boxes. ``key_frames`` counts the key frames of the ground truth, and
    ``detections`` counts the evaluated boxes.
    """

    mAP: float  # noqa: N815 - the name in the literature
    per_class: dict[int, float]
    num_boxes: dict[int, int]
    key_frames: int
    detections: int
    names: dict[int, str]
    interval: tuple[float, float] | None = None

    def table(self) -> str:
        """Format a line per action, best first and without ground truth last, then the mean."""
        known = self.per_class
        counted = sum(not math.isnan(value) for value in known.values())
        lines = [
            (str(i), self.names[i], known[i], self.num_boxes[i])
            for i in sorted(known, key=lambda i: (math.isnan(known[i]), -known[i], i))
        ]
        mean = f"mean of {counted} of {len(lines)} actions"
        lines.append(("", mean, self.mAP, sum(self.num_boxes.values())))
        rows = [("id", "action", "AP", "boxes")]
        for first, name, value, boxes in lines:
            percent = "-" if math.isnan(value) else f"{100 * value:.2f}"
            rows.append((first, name, percent, f"{boxes:,}"))
        i, j, k, n = (max(map(len, column)) for column in zip(*rows, strict=True))
        return "\n".join(f"{a:>{i}}  {b:<{j}}  {c:>{k}}  {d:>{n}}" for a, b, c, d in rows)


def evaluate_ava(
    ground_truth: GroundTruth, detections: Detections, actions: Sequence[Action], resamples: int = 0
) -> AvaResult:
    """Compute the average precision of every scored action, and their mean.

    Args:
        ground_truth: Boxes (n, 4) as (x1, y1, x2, y2) in any unit, and n lists of action ids, by
            (video, second).
        detections: Boxes (m, 4) in the same unit and scores (m, 80), by (video, second). Column
            ``id - 1`` contains an action's scores, with -inf if a box does not detect the action.
        actions: All actions. Only actions with ``scored`` are evaluated.
        resamples: Number of bootstrap resamples for the interval of the mean over two or more
            videos; 0 for no interval.

    Raises:
        ValueError: If no action is scored, shapes do not match, a ground-truth box has inverted
            corners, or a number is not finite. The message names the key frame.
    """
    scored = [action for action in actions if action.scored]
    if not scored:
        raise ValueError("none of the actions is scored, so there is nothing to evaluate")
    width, keys = max(action.id for action in scored), sorted(ground_truth)
    names, of_key = np.unique(np.array([video for video, _ in keys]), return_inverse=True)
    # Over all key frames, collect the scores of M detections, the action lists of G ground-truth
    # boxes, the video of each detection and box, and the overlapping pairs.
    tables, pairs = [np.zeros((0, width))], [np.zeros((0, 3))]
    labels: list[Sequence[int]] = []
    of_found: list[int] = []
    of_true: list[int] = []
    for key, video in zip(keys, of_key.tolist(), strict=True):
        true, own = _checked_boxes(ground_truth[key][0], "ground-truth", key), ground_truth[key][1]
        if len(own) != len(true):
            raise ValueError(f"{_frame(key)}: {len(true)} boxes but {len(own)} lists of actions")
        if (true[:, :2] > true[:, 2:]).any():
            raise ValueError(f"{_frame(key)}: a ground-truth box has inverted corners")
        if key in detections:
            found, table = _checked_detections(detections, key, width)
            # The official code drops detections with zero area, but keeps ground-truth boxes with
            # zero area.
            solid = (found[:, :2] < found[:, 2:]).all(axis=1)
            pairs.append(_overlapping(found[solid], true))
            pairs[-1][:, :2] += len(of_found), len(of_true)
            tables.append(table[solid, :width])
            of_found += [video] * int(solid.sum())
        labels += own
        of_true += [video] * len(own)
    table, videos = np.concatenate(tables), np.array(of_true, dtype=np.int64)
    overlaps = np.concatenate(pairs)
    # Sort by detection, by descending overlap and by box. The last key of lexsort comes first.
    overlaps = overlaps[np.lexsort((overlaps[:, 1], -overlaps[:, 2], overlaps[:, 0]))]
    found_pairs, true_pairs = overlaps[:, :2].astype(np.int64).T
    action_of = np.array([a for own in labels for a in own], dtype=np.int64)
    box_of = np.repeat(np.arange(len(labels)), [len(own) for own in labels])
    per_class, num_boxes, of_actions = {}, {}, []
    for action in scored:
        labelled = box_of[action_of == action.id]
        of_action = np.isin(np.arange(len(labels)), labelled)
        scores = table[:, action.id - 1]
        hits = _hits(found_pairs, true_pairs, of_action, scores)
        # As in the official code, a box that lists an action twice counts twice.
        count = len(labelled)
        per_class[action.id] = average_precision(scores, hits, count)
        num_boxes[action.id] = count
        of_actions.append((scores, hits, videos[labelled]))
    values = [value for value in per_class.values() if not math.isnan(value)]
    interval = None
    if resamples > 0 and len(names) > 1:
        found_videos = np.array(of_found, dtype=np.int64)
        interval = _interval(of_actions, found_videos, len(names), resamples)
    return AvaResult(
        mAP=sum(values) / len(values) if values else math.nan,
        per_class=per_class,
        num_boxes=num_boxes,
        key_frames=len(keys),
        detections=len(table),
        names={action.id: action.name for action in scored},
        interval=interval,
    )


def average_precision(scores: np.ndarray, hits: np.ndarray, count: int) -> float:
    """Compute the area under the precision-recall curve with monotone precision.

    ``scores`` (M,) are ordered, with the later of two equal scores first, and ``hits`` (M,) bool
    are true positives among ``count`` boxes. Return NaN without ground truth.
    """
    if count == 0:
        return math.nan
    ranked = hits[np.argsort(scores, kind="stable")[::-1]]
    precision = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]  # highest precision at this recall or above
    return float(best[ranked].sum() / count)  # each hit raises recall by 1 / count


def _overlapping(found: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return the overlapping pairs of a key frame as (P, 3): detection, true box, IoU."""
    a, b = found[:, None], true[None]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    common = np.prod(np.maximum(sides, 0), axis=-1)
    areas = np.prod(a[..., 2:] - a[..., :2], axis=-1) + np.prod(b[..., 2:] - b[..., :2], axis=-1)
    overlap = common / (areas - common)
    rows, columns = np.nonzero(overlap >= _IOU)
    return np.stack([rows, columns, overlap[rows, columns]], axis=1)


def _hits(
    found: np.ndarray, true: np.ndarray, of_action: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    """Return which detections of an action are true positives, (M,) bool.

    Only pairs above the threshold matter, because if a detection does not overlap any box of the
    action enough, its best box is below the threshold as well. A detection can match only one box.
    The best detection of each box is therefore its match, regardless of the order of detections.
    ``found`` and ``true`` (P,) are pairs of detections and ground-truth boxes, sorted by detection
    and then by descending overlap. ``of_action`` (G,) bool marks the action's boxes. A score (M,)
    of -inf is not a detection.
    """
    hits = np.zeros(len(scores), dtype=bool)
    chosen = of_action[true] & (scores[found] > -np.inf)
    found, true = found[chosen], true[chosen]
    # A detection can match only the box in its first pair, so detections need no particular order.
    found, best = np.unique(found, return_index=True)
    true = true[best]
    order = np.lexsort((found, -scores[found], true))
    # The order is by box, then by score, so the first detection of each box is its match.
    _, winners = np.unique(true[order], return_index=True)
    hits[found[order][winners]] = True
    return hits


def _interval(
    of_actions: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    videos: np.ndarray,
    count: int,
    resamples: int,
) -> tuple[float, float] | None:
    """Compute the mean's bootstrap interval over ``count`` videos; None if no draw has boxes.

    ``of_actions`` contains scores (M,), hits (M,) bool and the videos (G,) of the ground truth for
    each action. ``videos`` (M,) are the videos of the detections.
    """
    times = times_drawn(np.random.default_rng(0), resamples, count).astype(np.int32)
    total, actions = np.zeros(resamples), np.zeros(resamples)
    for scores, hits, true_videos in of_actions:
        # If a video is drawn k times, its ground truth counts k times.
        boxes = times @ np.bincount(true_videos, minlength=count)
        order = np.argsort(scores, kind="stable")[::-1]
        found = np.flatnonzero(hits[order])
        ranked = videos[order[: found[-1] + 1 if len(found) else 0]]  # up to the last hit
        block = max(1, _BLOCK // max(1, len(ranked)))
        for start in range(0, resamples, block):
            part = slice(start, start + block)
            ranks = np.cumsum(times[part, ranked], axis=1, dtype=np.int32)[:, found]
            # A hit in a video that was drawn k times counts as k consecutive hits. The last one has
            # the highest precision, so all k have the same interpolated precision.
            weights = times[part, ranked[found]]
            precision = np.cumsum(weights, axis=1) / np.maximum(ranks, 1)
            best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
            seen = boxes[part] > 0
            areas = (weights * best).sum(axis=1)
            total[part] += np.where(seen, areas / np.maximum(boxes[part], 1), 0.0)
            actions[part] += seen
    kept = actions > 0
    if not kept.any():
        return None
    low, high = percentile_ends(total[kept] / actions[kept])
    return float(low), float(high)
