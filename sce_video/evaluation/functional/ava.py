"""Frame mAP of AVA: mean average precision of actions in key frames at IoU 0.5.

The rules are those of the official evaluation (activitynet/ActivityNet, Evaluation/
get_ava_performance.py with Evaluation/ava/{object_detection_evaluation,per_image_evaluation,
metrics}.py). For each action:

- In a key frame a detection is assigned to the ground-truth box **of that action** with the highest
  IoU. It is a true positive if that IoU is at least 0.5 and no detection of a higher score is
  assigned to the same box; otherwise it is a false positive, even if it also overlaps another,
  unmatched box by 0.5 or more.
- The detections of all key frames, sorted by descending score, give a precision-recall curve. The
  average precision is the area under the precision made monotone from the right.
- An action without ground truth has no average precision (NaN) and is left out of the mean; an
  action with ground truth and without detections has 0.
- Detections without width or height, at key frames that the ground truth does not list, or at
  excluded key frames are ignored; so is the ground truth of excluded key frames. A key frame listed
  without boxes counts: each of its detections is a false positive.

Differences of public programs: SlowFast counts detections at key frames that the ground truth does
not list as false positives (list these key frames without boxes to get its number); mmaction2
leaves actions without any detection out of the mean, and key frames without a scored action. The
programs order equal scores by an unstable sort. Here key frames are sorted, and of equal scores
the later one ranks first (as in the programs with a stable sort); of two equal detections of one
box the first is the true positive.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sce_video.datasets.ava import NUM_ACTIONS, Action
from sce_video.evaluation.functional.statistics import CONFIDENCE
from sce_video.utils.files import atomic_file

Key = tuple[str, int]
"""Video id and second of the key frame."""
Detections = Mapping[Key, tuple[np.ndarray, np.ndarray]]
"""Boxes (n, 4) and scores (n, 80) of a key frame."""


def check_boxes(boxes: np.ndarray, what: str, key: Key) -> np.ndarray:
    """Boxes (n, 4) float64; ValueError, with the key frame, if they are not finite boxes."""
    boxes = np.asarray(boxes, dtype=np.float64)
    if boxes.size == 0:
        return np.zeros((0, 4))
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise ValueError(f"{_name_of(key)}: {what} boxes must be (n, 4), got {boxes.shape}")
    if not np.isfinite(boxes).all():
        raise ValueError(f"{_name_of(key)}: a coordinate of the {what} boxes is not finite")
    return boxes


def check_scores(scores: np.ndarray, count: int, width: int, key: Key) -> np.ndarray:
    """Scores (count, at least width); ValueError if they are others, NaN or +inf."""
    scores = np.asarray(scores)
    if scores.size == 0 and count == 0:
        return np.zeros((0, width))
    if scores.ndim != 2 or scores.shape[0] != count or scores.shape[1] < width:
        raise ValueError(
            f"{_name_of(key)}: scores must be ({count}, {width} or more), a row per box and a "
            f"column per action, got {scores.shape}"
        )
    if np.isnan(scores).any() or np.isposinf(scores).any():
        raise ValueError(f"{_name_of(key)}: a score is NaN or +inf")
    return scores


def _name_of(key: Key) -> str:
    """A key frame, for messages."""
    return f"video {key[0]}, second {key[1]}"


_COLUMNS = "video,timestamp,x1,y1,x2,y2,action,score"


def write_result_csv(
    path: str | Path,
    detections: Detections,
    actions: Sequence[Action],
    min_score: float = -math.inf,
) -> int:
    """Write results in the official form, lines of ``video,timestamp,x1,y1,x2,y2,action,score``.

    Numbers are written with the digits that float32 needs to be read back exactly. The file is
    written atomically.

    Args:
        path: The file.
        detections: By key frame; sorted here by video and second.
        actions: The scored ones are written.
        min_score: Lower scores are left out; each one left out can lower the mAP a little.

    Returns:
        Number of lines.
    """
    lines = 0
    with atomic_file(path) as unfinished:
        with open(unfinished, "w", encoding="utf-8", newline="") as file:
            for line in _result_lines(detections, actions, min_score):
                file.write(line)
                lines += 1
    return lines


def _result_lines(
    detections: Detections, actions: Sequence[Action], min_score: float
) -> Iterator[str]:
    ids = sorted(action.id for action in actions if action.scored)
    for key in sorted(detections):
        boxes = check_boxes(detections[key][0], "detected", key)
        scores = check_scores(detections[key][1], len(boxes), max(ids), key)
        for box, own in zip(boxes, scores, strict=True):
            corners = ",".join(f"{value:.9g}" for value in box)
            for action in ids:
                score = own[action - 1]
                if score >= min_score and score > -math.inf:
                    yield f"{key[0]},{key[1]:04d},{corners},{action},{score:.9g}\n"


def read_result_csv(path: str | Path) -> dict[Key, tuple[np.ndarray, np.ndarray]]:
    """Read results in the official form.

    Lines of one box are joined; a second line of the same box and action makes another box.

    Returns:
        By (video, second): boxes (m, 4) and scores (m, 80), -inf where there is no line.

    Raises:
        ValueError: a line of another form, or an action outside 1 to 80; the message names file and
            line.
    """
    rows: dict[Key, list[tuple[tuple[float, ...], dict[int, float]]]] = {}
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        for cells in reader:
            if not cells:
                continue
            try:
                video, second, *numbers, action_text, score_text = cells
                box = tuple(float(text) for text in numbers)
                key, action, score = (video, int(second)), int(action_text), float(score_text)
            except ValueError:
                box, action = (), 0
            values = (*box, score) if box else (math.nan,)
            if len(box) != 4 or not 1 <= action <= NUM_ACTIONS or not np.isfinite(values).all():
                raise ValueError(f"{path}, line {reader.line_num}: {cells} is not {_COLUMNS}")
            own = rows.setdefault(key, [])
            scores = next((known for b, known in own if b == box and action not in known), None)
            if scores is None:
                scores = {}
                own.append((box, scores))
            scores[action] = score
    found = {}
    for key, own in rows.items():
        table = np.full((len(own), NUM_ACTIONS), -np.inf)
        for row, (_, known) in zip(table, own, strict=True):
            for action, score in known.items():
                row[action - 1] = score
        found[key] = np.array([box for box, _ in own]), table
    return found


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
        # Ground truth of a video that was drawn k times counts k times.
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


GroundTruth = Mapping[Key, tuple[np.ndarray, Sequence[Sequence[int]]]]


@dataclass(frozen=True)
class AvaResult:
    """Average precisions.

    Attributes:
        mAP: Mean over the scored actions that have ground truth, 0 to 1; NaN when none has.
        per_class: Average precision by action id, scored actions alone; NaN without ground truth.
        num_boxes: Ground-truth boxes by action id, scored actions alone.
        key_frames: Key frames of the ground truth that are not excluded.
        detections: Number of evaluated detection boxes.
        ignored: Number of ignored detection boxes: at excluded key frames, at key frames that the
            ground truth does not list, or without width or height.
        names: Name of the action by id.
        interval: 95 % interval of the mean, see ``resamples`` of :func:`evaluate_ava`.
    """

    mAP: float  # noqa: N815 - the name in the literature
    per_class: dict[int, float]
    num_boxes: dict[int, int]
    key_frames: int
    detections: int
    ignored: int
    names: dict[int, str] = field(default_factory=dict)
    interval: tuple[float, float] | None = None

    def table(self) -> str:
        """Text with a line per action, best first, without ground truth last; then the mean."""
        known = self.per_class
        counted = sum(not math.isnan(value) for value in known.values())
        lines = [
            (str(i), self.names.get(i, ""), known[i], self.num_boxes[i])
            for i in sorted(known, key=lambda i: (math.isnan(known[i]), -known[i], i))
        ]
        mean = f"mean of {counted} of {len(lines)} actions"
        rows = [("id", "action", "AP", "boxes")]
        for first, name, value, boxes in [
            *lines,
            ("", mean, self.mAP, sum(self.num_boxes.values())),
        ]:
            percent = "-" if math.isnan(value) else f"{100 * value:.2f}"
            rows.append((first, name, percent, f"{boxes:,}"))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        return "\n".join(
            f"{a:>{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}"
            for a, b, c, d in rows
        )


class _Flat(NamedTuple):
    """All key frames concatenated: M detections, G ground-truth boxes, F key frames."""

    found: np.ndarray  # (M, 4) float64
    scores: np.ndarray  # (M, actions); -inf: no detection of that action
    found_ends: np.ndarray  # (F,) one past the last detection of each key frame
    true: np.ndarray  # (G, 4) float64
    true_ends: np.ndarray  # (F,)
    labels: list[Sequence[int]]  # G lists of action ids


def evaluate_ava(
    ground_truth: GroundTruth,
    detections: Detections,
    actions: Sequence[Action],
    iou: float = 0.5,
    excluded: Collection[Key] = (),
    resamples: int = 0,
) -> AvaResult:
    """Average precision of every scored action, and their mean.

    Args:
        ground_truth: By (video, second): boxes (n, 4), (x1, y1, x2, y2) in any one unit, and n
            lists of action ids. Actions that are not scored are ignored.
        detections: By (video, second): boxes (m, 4) in the same unit and scores (m, 80) with
            column ``id - 1`` for an action; -inf where the box is no detection of that action.
        actions: The actions; those with ``scored`` are evaluated.
        iou: IoU from which a detection matches a box.
        excluded: Key frames to ignore.
        resamples: Draws of the videos for the bootstrap interval of the mean; 0 for no interval, as
            there is none of a single video.

    Raises:
        ValueError: no scored action, shapes that do not match, a ground-truth box with inverted
            corners, numbers that are not finite; the message names the key frame.
    """
    scored = [action for action in actions if action.scored]
    if not scored:
        raise ValueError("none of the actions is scored: there is nothing to evaluate")
    if not 0 < iou <= 1:
        raise ValueError(f"iou must be above 0 and at most 1, got {iou}")
    width = max(action.id for action in scored)
    excluded = frozenset(excluded)
    keys = sorted(key for key in ground_truth if key not in excluded)
    flat = _flatten(keys, ground_truth, detections, width)
    pairs = _overlapping(flat, iou)
    bootstrap, true_videos = _bootstrap(keys, flat, resamples)
    per_class, num_boxes = {}, {}
    action_of = np.array([a for own in flat.labels for a in own], dtype=np.int64)
    box_of = np.repeat(np.arange(len(flat.labels)), [len(own) for own in flat.labels])
    for action in scored:
        labelled = box_of[action_of == action.id]
        of_action = np.zeros(len(flat.true), dtype=bool)
        of_action[labelled] = True
        scores = flat.scores[:, action.id - 1]
        hits = _hits(pairs, of_action, scores)
        count = len(labelled)  # a box with an action twice counts twice, as in the official code
        per_class[action.id] = average_precision(scores, hits, count)
        num_boxes[action.id] = count
        if bootstrap is not None:
            bootstrap.add(scores, hits, true_videos[labelled])
    values = [value for value in per_class.values() if not math.isnan(value)]
    return AvaResult(
        mAP=sum(values) / len(values) if values else math.nan,
        per_class=per_class,
        num_boxes=num_boxes,
        key_frames=len(keys),
        detections=len(flat.found),
        ignored=sum(len(boxes) for boxes, _ in detections.values()) - len(flat.found),
        names={action.id: action.name for action in scored},
        interval=None if bootstrap is None else bootstrap.interval(),
    )


def _bootstrap(
    keys: Sequence[Key], flat: _Flat, resamples: int
) -> tuple[MeanPrecisionBootstrap | None, np.ndarray]:
    """The bootstrap over videos, None without draws or of one video; videos (G,) of the boxes."""
    names, of_key = np.unique(np.array([video for video, _ in keys]), return_inverse=True)
    of_found, of_true = (
        np.repeat(of_key, np.diff(ends, prepend=0)) for ends in (flat.found_ends, flat.true_ends)
    )
    if resamples == 0 or len(names) < 2:
        return None, of_true
    return MeanPrecisionBootstrap(of_found, len(names), resamples), of_true


def average_precision(scores: np.ndarray, hits: np.ndarray, count: int) -> float:
    """Area under the precision-recall curve with monotone precision; NaN without ground truth.

    Args:
        scores: (M,); of equal scores the later ranks first.
        hits: (M,) bool, true positives.
        count: Number of ground-truth boxes.
    """
    if count == 0:
        return math.nan
    ranked = hits[np.argsort(scores, kind="stable")[::-1]]
    precision = np.cumsum(ranked) / np.arange(1, len(ranked) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]  # highest precision at this recall or above
    return float(best[ranked].sum() / count)  # every hit raises recall by 1 / count


def _flatten(
    keys: Sequence[Key], ground_truth: GroundTruth, detections: Detections, width: int
) -> _Flat:
    found, scores, found_ends = [np.zeros((0, 4))], [np.zeros((0, NUM_ACTIONS))], []
    true, true_ends = [np.zeros((0, 4))], []
    labels: list[Sequence[int]] = []
    num_found = 0
    for key in keys:
        boxes, own = ground_truth[key]
        boxes = check_boxes(boxes, "ground-truth", key)
        if len(own) != len(boxes):
            raise ValueError(f"{_name_of(key)}: {len(boxes)} boxes but {len(own)} lists of actions")
        if (boxes[:, :2] > boxes[:, 2:]).any():
            raise ValueError(f"{_name_of(key)}: a ground-truth box has inverted corners")
        true.append(boxes)
        labels += own
        true_ends.append(len(labels))
        if key in detections:
            boxes = check_boxes(detections[key][0], "detected", key)
            table = check_scores(detections[key][1], len(boxes), width, key)
            # The official programs drop detections without area, not ground truth.
            solid = (boxes[:, :2] < boxes[:, 2:]).all(axis=1)
            found.append(boxes[solid])
            scores.append(table[solid, :width])
            num_found += int(solid.sum())
        found_ends.append(num_found)
    scores[0] = np.zeros((0, width))
    return _Flat(
        np.concatenate(found),
        np.concatenate(scores),
        np.array(found_ends, dtype=np.int64),
        np.concatenate(true),
        np.array(true_ends, dtype=np.int64),
        labels,
    )


def _overlapping(flat: _Flat, iou: float) -> tuple[np.ndarray, np.ndarray]:
    """Indices of detections and ground-truth boxes, (P,) each, that overlap by at least ``iou``.

    Pairs are within a key frame, sorted by detection, then descending IoU, then ground-truth box.
    """
    found_counts = np.diff(flat.found_ends, prepend=0)
    true_counts = np.diff(flat.true_ends, prepend=0)
    partners = np.repeat(true_counts, found_counts)  # (M,) boxes in the detection's key frame
    first = np.repeat(flat.true_ends - true_counts, found_counts)
    found = np.repeat(np.arange(len(flat.found)), partners)
    within = np.arange(len(found)) - np.repeat(np.cumsum(partners) - partners, partners)
    true = np.repeat(first, partners) + within
    a, b = flat.found[found], flat.true[true]
    sides = np.minimum(a[:, 2:], b[:, 2:]) - np.maximum(a[:, :2], b[:, :2])
    common = np.prod(np.maximum(sides, 0), axis=1)
    areas = np.prod(a[:, 2:] - a[:, :2], axis=1) + np.prod(b[:, 2:] - b[:, :2], axis=1)
    overlap = common / (areas - common)
    near = overlap >= iou
    found, true, overlap = found[near], true[near], overlap[near]
    # The last key is the first to sort by.
    order = np.lexsort((true, -overlap, found))
    return found[order], true[order]


def _hits(
    pairs: tuple[np.ndarray, np.ndarray], of_action: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    """Which detections of an action are hits, (M,) bool.

    A detection that overlaps no box of the action by enough has its best box below the threshold
    as well, so the pairs above it are all that matters; and as a detection has one box only that it
    can hit, the best detection of each box is the hit, in whatever order they are looked at.

    Args:
        pairs: Of :func:`_overlapping`.
        of_action: (G,) bool, the ground-truth boxes of the action.
        scores: (M,) of the action; -inf: no detection (behind all others it changes no precision).
    """
    hits = np.zeros(len(scores), dtype=bool)
    chosen = of_action[pairs[1]] & (scores[pairs[0]] > -np.inf)
    found, true = pairs[0][chosen], pairs[1][chosen]
    found, best = np.unique(found, return_index=True)  # the first pair is the most overlapping
    true = true[best]
    order = np.lexsort((found, -scores[found], true))
    # Sorted by box, then score: the first of each box is its hit.
    _, winners = np.unique(true[order], return_index=True)
    hits[found[order][winners]] = True
    return hits
