"""AVA: key frames of long videos with person boxes and their actions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.datasets.ava_actions import NUM_ACTIONS
from sce_video.datasets.video_dataset import Transform, VideoDataset
from sce_video.datasets.video_list import VIDEO_EXTENSIONS, VideoList
from sce_video.registry import DATASETS


@dataclass(frozen=True)
class KeyFrame:
    """What is known of one key frame.

    Attributes:
        video: Id of the video.
        timestamp: Second of the film.
        boxes: (n, 4) float32, ground truth, x1 y1 x2 y2 from 0 to 1.
        actions: n lists of action ids, 1 to 80.
        detections: (m, 5) float32, x1 y1 x2 y2 and score.
    """

    video: str
    timestamp: int
    boxes: np.ndarray
    actions: list[list[int]]
    detections: np.ndarray


def read_key_frames(ann_file: str) -> Iterator[KeyFrame]:
    """The key frames of a list that ``tools/data/ava.py`` wrote.

    Raises:
        ValueError: no such file, or a line that is no key frame; the message names file and line.
    """
    if not os.path.isfile(ann_file):
        raise ValueError(f"there is no list of key frames at {ann_file!r}: run tools/data/ava.py")
    with open(ann_file, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _parse(line, f"{ann_file}, line {number}")


def _parse(line: str, place: str) -> KeyFrame:
    try:
        entry = json.loads(line)
        frame = KeyFrame(
            video=str(entry["video"]),
            timestamp=int(entry["timestamp"]),
            boxes=np.array(entry["boxes"], dtype=np.float32).reshape(-1, 4),
            actions=[[int(action) for action in actions] for actions in entry["labels"]],
            detections=np.array(entry.get("detections", []), dtype=np.float32).reshape(-1, 5),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{place} is not a key frame: {type(error).__name__} {error}") from error
    if len(frame.actions) != len(frame.boxes):
        raise ValueError(
            f"{place}: {len(frame.boxes)} boxes and {len(frame.actions)} lists of labels"
        )
    for box in [*frame.boxes, *frame.detections[:, :4]]:
        if not (0 <= box[0] < box[2] <= 1 and 0 <= box[1] < box[3] <= 1):
            raise ValueError(f"{place}: box {box.tolist()} is not x1 < x2, y1 < y2 within 0 to 1")
    wrong = [a for actions in frame.actions for a in actions if not 1 <= a <= NUM_ACTIONS]
    if wrong:
        raise ValueError(f"{place}: action {wrong[0]} is not one of 1 to {NUM_ACTIONS}")
    return frame


@DATASETS.register_module()
class AVADataset(VideoDataset):
    """A clip around each key frame, with the boxes that are looked at.

    Testing looks at the person detections of at least ``min_score``. Training looks at the ground
    truth and at those detections that lie on a person (IoU of at least ``match_iou`` with a box
    of the ground truth, whose actions they get); the others are left out. (SlowFast, AVA with
    ``iou90`` boxes.)

    Args:
        data_root: Folder of ``videos/`` or ``frames/``.
        ann_file: List that ``tools/data/ava.py`` wrote; as given, or below ``data_root``.
        pipeline: Transforms; they get ``timestamp``, ``boxes`` (n, 4) float32 from 0 to 1,
            ``actions`` (n, 80) float32 and ``size`` beside what a :class:`VideoDataset` gives.
        folder: Of the videos (a file per id) or of the frames (a folder per id).
        training: Which boxes are looked at.
        min_score: Of a person detection.
        match_iou: See above.
        on_error: As of :class:`VideoDataset`.
        timeout: As of :class:`VideoDataset`.

    Raises:
        ValueError: no list, a faulty line, not one video of it below the folder.
    """

    def __init__(
        self,
        data_root: str,
        ann_file: str,
        pipeline: Sequence[Transform | dict[str, Any]] = (),
        folder: str = "videos",
        training: bool = False,
        min_score: float = 0.9,
        match_iou: float = 0.9,
        on_error: str = "replace",
        timeout: float | None = 60.0,
    ) -> None:
        self.folder = folder
        self.training = training
        self.min_score = min_score
        self.match_iou = match_iou
        super().__init__(data_root, ann_file, pipeline, on_error, timeout)

    def _list_videos(self, extensions: Sequence[str] = VIDEO_EXTENSIONS) -> VideoList:
        """Flat arrays of all key frames: loader workers share their pages."""
        frames = list(read_key_frames(str(self.ann_file)))
        if not frames:
            raise ValueError(f"the list {self.ann_file!r} holds no key frame")
        there = _find_videos(Path(self.data_root) / self.folder)
        if not any(frame.video in there for frame in frames):
            raise ValueError(
                f"none of the videos of {self.ann_file!r} is in {self.data_root}/{self.folder}, "
                f"for example {frames[0].video!r}"
            )
        self.timestamps = np.array([frame.timestamp for frame in frames], dtype=np.int64)
        self._ids = VideoList.from_paths([frame.video for frame in frames], [0] * len(frames))
        looked_at = [self._choose_boxes(frame) for frame in frames]
        self._ends = np.cumsum([len(boxes) for boxes, _ in looked_at], dtype=np.int64)
        self._boxes = np.concatenate([boxes for boxes, _ in looked_at])
        self._actions = np.packbits(np.concatenate([actions for _, actions in looked_at]), axis=1)
        paths = [os.path.join(self.folder, there.get(frame.video, frame.video)) for frame in frames]
        return VideoList.from_paths(paths, [-1] * len(frames))

    def _choose_boxes(self, frame: KeyFrame) -> tuple[np.ndarray, np.ndarray]:
        """Boxes (n, 4) and their actions (n, 80) of 0 and 1."""
        truth = np.zeros((len(frame.boxes), NUM_ACTIONS), dtype=np.uint8)
        for row, actions in zip(truth, frame.actions, strict=True):
            row[np.array(actions, dtype=int) - 1] = 1
        found = frame.detections[frame.detections[:, 4] >= self.min_score, :4]
        if not self.training:
            return found, np.zeros((len(found), NUM_ACTIONS), dtype=np.uint8)
        if len(found) == 0 or len(truth) == 0:
            return frame.boxes, truth
        overlap = box_iou(found, frame.boxes)
        lies_on = overlap.max(axis=1) >= self.match_iou
        matched = truth[overlap.argmax(axis=1)[lies_on]]
        return np.concatenate([frame.boxes, found[lies_on]]), np.concatenate([truth, matched])

    def key(self, index: int) -> tuple[str, int]:
        """Video id and second of a key frame."""
        return self._ids.path(index), int(self.timestamps[index])

    def boxes(self, index: int) -> np.ndarray:
        """(n, 4) float32 from 0 to 1: the boxes that are looked at."""
        begin = int(self._ends[index - 1]) if index > 0 else 0
        return self._boxes[begin : int(self._ends[index])]

    def actions(self, index: int) -> np.ndarray:
        """(n, 80) float32 of 0 and 1, of those boxes; all 0 where the test does not know them."""
        begin = int(self._ends[index - 1]) if index > 0 else 0
        rows = np.unpackbits(self._actions[begin : int(self._ends[index])], axis=1)
        return rows[:, :NUM_ACTIONS].astype(np.float32)

    def row_columns(self, indices: list[int]) -> dict[str, list[Any]]:
        """What evaluation needs to know of key frames: ``key`` and ``boxes`` (n, 4) of each."""
        return {
            "key": [self.key(i) for i in indices],
            "boxes": [self.boxes(i) for i in indices],
        }

    def _start(self, index: int, seed: int) -> dict[str, Any]:
        return {
            **super()._start(index, seed),
            "timestamp": int(self.timestamps[index]),
            "boxes": self.boxes(index).copy(),
            "actions": self.actions(index),
        }


def _find_videos(folder: Path) -> dict[str, str]:
    """File or folder name by video id."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r} of videos or frames")
    found = {}
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() or entry.suffix.lower() in VIDEO_EXTENSIONS:
            found[entry.name if entry.is_dir() else entry.stem] = entry.name
    return found


def box_iou(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Intersection over union of every pair: (n, 4) and (m, 4) to (n, m)."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:4], second[None, :, 2:4])
    inter = np.prod(np.clip(high - low, 0, None), axis=2)
    areas = [np.prod(boxes[:, 2:4] - boxes[:, :2], axis=1) for boxes in (first, second)]
    union = areas[0][:, None] + areas[1][None] - inter
    return inter / np.maximum(union, 1e-12)
