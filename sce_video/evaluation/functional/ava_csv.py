"""The official form of AVA's results, a CSV file."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from sce_video.datasets.ava_actions import NUM_ACTIONS, Action
from sce_video.evaluation.functional.ava_detections import (
    Detections,
    Key,
    check_boxes,
    check_scores,
)
from sce_video.utils.atomic_file import atomic_file

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
    return {key: _tables(own) for key, own in rows.items()}


def _tables(
    own: Sequence[tuple[tuple[float, ...], dict[int, float]]],
) -> tuple[np.ndarray, np.ndarray]:
    scores = np.full((len(own), NUM_ACTIONS), -np.inf)
    for row, (_, table) in zip(scores, own, strict=True):
        for action, score in table.items():
            row[action - 1] = score
    return np.array([box for box, _ in own]), scores
