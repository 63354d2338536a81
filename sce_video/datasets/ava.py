"""AVA: key frames of long videos with person boxes and their actions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from sce_video.datasets.pipeline import PipelineResults, Steps
from sce_video.datasets.video_dataset import VideoDataset
from sce_video.datasets.video_list import VIDEO_EXTENSIONS, VideoList
from sce_video.registry import DATASETS
from sce_video.utils.files import parse_json, read_json, regular_file
from sce_video.utils.records import read_record

NUM_ACTIONS = 80  # ids are 1 to 80; column id - 1 contains the scores of an action
_MATCH_IOU = 0.9  # minimum IoU of a detection with its ground-truth box


@dataclass(frozen=True)
class Action:
    """An action class."""

    #: Official id, from 1 to 80.
    id: int
    #: Official name, for example ``bend/bow (at the waist)``.
    name: str
    #: Whether the official evaluation uses the class, as it does for 60 of the 80.
    scored: bool


def format_actions(actions: Sequence[Action]) -> str:
    """Return the text of ``ava_actions.json``."""
    return json.dumps([asdict(action) for action in actions], indent=2, ensure_ascii=False) + "\n"


def read_actions(path: str | Path) -> tuple[Action, ...]:
    """Read a file that :func:`format_actions` wrote.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If an entry is not an action, or its id is repeated or out of range.
    """
    try:
        entries = read_json(path)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"there is no list of actions at {path}. Run sce-video prepare ava"
        ) from None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f'{path} should contain [{{"id": 1, "name": ..., "scored": true}}, ...]')
    actions: dict[int, Action] = {}
    for number, entry in enumerate(entries, 1):
        where = f"{path}, entry {number}"
        action = read_record(Action, entry, where)
        if not 1 <= action.id <= NUM_ACTIONS:
            raise ValueError(f"{where}: id {action.id} is not one of 1 to {NUM_ACTIONS}")
        if actions.setdefault(action.id, action) is not action:
            raise ValueError(f"{where}: id {action.id} is listed twice")
    return tuple(actions.values())


@dataclass(frozen=True)
class KeyFrame:
    """Annotation of one key frame."""

    #: Id of the video.
    video: str
    #: Time of the key frame in the film, in seconds.
    timestamp: int
    #: Ground-truth boxes x1 y1 x2 y2 in [0, 1], (n, 4) float32.
    boxes: np.ndarray
    #: Action ids of each box, 1 to 80.
    actions: list[list[int]]
    #: Boxes and scores of a person detector, (m, 5) float32.
    detections: np.ndarray


def read_key_frames(ann_file: str) -> Iterator[KeyFrame]:
    """Read the key frames of a list written by ``sce-video prepare ava``.

    Raises:
        ValueError: If the file does not exist, or a line is not a key frame.
    """
    if not os.path.isfile(ann_file):
        raise ValueError(
            f"there is no list of key frames at {ann_file!r}. Run sce-video prepare ava"
        )
    with open(ann_file, encoding="utf-8", errors="replace", opener=regular_file) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            where = f"{ann_file}, line {number}"
            try:
                entry = parse_json(line, "it")
                boxes, found = entry["boxes"], entry.get("detections", [])
                frame = KeyFrame(
                    video=str(entry["video"]),
                    timestamp=int(entry["timestamp"]),
                    boxes=np.array(boxes, dtype=np.float32).reshape(-1, 4),
                    actions=[[int(action) for action in one] for one in entry["labels"]],
                    detections=np.array(found, dtype=np.float32).reshape(-1, 5),
                )
            except (ValueError, KeyError, TypeError, OverflowError) as error:
                problem = f"{type(error).__name__} {error}"
                raise ValueError(f"{where} is not a key frame: {problem}") from error
            if len(frame.actions) != len(frame.boxes):
                lists = f"{len(frame.actions)} lists of labels"
                raise ValueError(f"{where} has {len(frame.boxes)} boxes, but {lists}")
            for x1, y1, x2, y2 in np.concatenate([frame.boxes, frame.detections[:, :4]]).tolist():
                if not (0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1):
                    rule = "must have x1 < x2 and y1 < y2, all from 0 to 1"
                    raise ValueError(f"{where}: the box {[x1, y1, x2, y2]} {rule}")
            wrong = [a for one in frame.actions for a in one if not 1 <= a <= NUM_ACTIONS]
            if wrong:
                raise ValueError(f"{where}: action {wrong[0]} is not one of 1 to {NUM_ACTIONS}")
            yield frame


@DATASETS.register_module()
class AVADataset(VideoDataset):
    """A clip around each key frame of AVA, with its person boxes.

    For testing, the boxes are the person detections with a score of at least ``min_score``. For
    training, they are the ground-truth boxes and the detections that match one with an IoU of at
    least 0.9, whose actions they get, as in SlowFast's ``iou90`` training boxes (configs/AVA).
    Other detections are dropped or, with ``include_unmatched``, become persons without actions, as
    in SlowFast's lists ``include_negative``.

    Args:
        data_root: Folder that contains ``videos/`` or ``frames/``.
        ann_file: List written by ``sce-video prepare ava``, found as given or below ``data_root``.
        pipeline: Transforms. In addition to the inputs of :class:`VideoDataset`, they get
            ``timestamp``, ``boxes`` (n, 4) float32 in [0, 1] and ``actions`` (n, 80) float32.
        folder: Folder of the videos (a file per id) or of the frames (a folder per id).
        training: Whether to use the training boxes instead of the test boxes.
        min_score: Smallest score of a person detection.
        include_unmatched: Whether to also train on detections that match no ground-truth box.
        on_error, timeout: Handling of bad files, as described for :class:`VideoDataset`.

    Raises:
        ValueError: If the list is missing or has an invalid line, or the folder contains none of
            its videos.
    """

    def __init__(
        self,
        data_root: str,
        ann_file: str,
        pipeline: Steps = (),
        folder: str = "videos",
        training: bool = False,
        min_score: float = 0.9,
        include_unmatched: bool = False,
        on_error: str = "replace",
        timeout: float | None = 60.0,
    ) -> None:
        self.folder, self.training = folder, training
        self.min_score, self.include_unmatched = min_score, include_unmatched
        super().__init__(data_root, ann_file, pipeline, on_error, timeout)

    def list_videos(self) -> VideoList:
        """Store all key frames in flat arrays, whose memory is shared with loader workers."""
        frames = list(read_key_frames(str(self.ann_file)))
        if not frames:
            raise ValueError(f"the list {self.ann_file!r} contains no key frames")
        folder = Path(self.data_root) / self.folder
        if not folder.is_dir():
            raise ValueError(f"there is no folder {str(folder)!r} of videos or frames")
        found: dict[str, str] = {}  # file or folder name of each video id
        for entry in sorted(folder.iterdir()):
            if entry.is_dir():
                found[entry.name] = entry.name
            elif entry.suffix.lower() in VIDEO_EXTENSIONS:
                found[entry.stem] = entry.name
        if not any(frame.video in found for frame in frames):
            raise ValueError(
                f"{self.data_root}/{self.folder} contains none of the videos of {self.ann_file!r}, "
                f"for example {frames[0].video!r}"
            )
        self.timestamps = np.array([frame.timestamp for frame in frames], dtype=np.int64)
        self._ids = VideoList.from_paths([frame.video for frame in frames], [0] * len(frames))
        chosen = [self._choose_boxes(frame) for frame in frames]
        self._begins = np.cumsum([0, *(len(boxes) for boxes, _ in chosen)], dtype=np.int64)
        self._boxes = np.concatenate([boxes for boxes, _ in chosen])
        self._actions = np.packbits(np.concatenate([actions for _, actions in chosen]), axis=1)
        paths = [os.path.join(self.folder, found.get(frame.video, frame.video)) for frame in frames]
        return VideoList.from_paths(paths, [-1] * len(frames))

    def _choose_boxes(self, frame: KeyFrame) -> tuple[np.ndarray, np.ndarray]:
        """Choose the boxes (n, 4) of a key frame, and their actions (n, 80), each 0 or 1."""
        truth = np.zeros((len(frame.boxes), NUM_ACTIONS), dtype=np.uint8)
        for row, actions in zip(truth, frame.actions, strict=True):
            row[np.array(actions, dtype=int) - 1] = 1  # ids count from 1
        found = frame.detections[frame.detections[:, 4] >= self.min_score, :4]
        if not self.training:
            return found, np.zeros((len(found), NUM_ACTIONS), dtype=np.uint8)
        overlap = box_iou(found, frame.boxes)
        matches = overlap.max(axis=1, initial=0) >= _MATCH_IOU
        targets = np.zeros((len(found), NUM_ACTIONS), dtype=np.uint8)
        if len(truth) > 0:
            targets[matches] = truth[overlap.argmax(axis=1)[matches]]
        kept = matches | self.include_unmatched
        return np.concatenate([frame.boxes, found[kept]]), np.concatenate([truth, targets[kept]])

    @property
    def num_films(self) -> int:
        """Return the number of videos to which the key frames belong."""
        return len({self._ids.path(index) for index in range(len(self._ids))})

    def key(self, index: int) -> tuple[str, int]:
        """Return the video id and the second of a key frame."""
        return self._ids.path(index), int(self.timestamps[index])

    def boxes(self, index: int) -> np.ndarray:
        """Return the boxes of a key frame, (n, 4) float32 in [0, 1]."""
        return self._boxes[self._begins[index] : self._begins[index + 1]]

    def actions(self, index: int) -> np.ndarray:
        """Return the actions of the boxes, (n, 80) float32, 0 or 1. For test boxes, all are 0."""
        packed = self._actions[self._begins[index] : self._begins[index + 1]]
        return np.unpackbits(packed, axis=1, count=NUM_ACTIONS).astype(np.float32)

    def row_columns(self, indices: list[int]) -> dict[str, list]:
        """Return the columns ``key`` (video id and second) and ``boxes`` for a metric's rows."""
        return {
            "key": [self.key(index) for index in indices],
            "boxes": [self.boxes(index) for index in indices],
        }

    def inputs(self, index: int, seed: int) -> PipelineResults:
        return {
            **super().inputs(index, seed),
            "timestamp": int(self.timestamps[index]),
            "boxes": self.boxes(index).copy(),
            "actions": self.actions(index),
        }


def box_iou(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compute the intersection over union (n, m) of every pair of (n, 4) and (m, 4) boxes."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:4], second[None, :, 2:4])
    inter = np.prod(np.clip(high - low, 0, None), axis=2)
    areas = [np.prod(boxes[:, 2:4] - boxes[:, :2], axis=1) for boxes in (first, second)]
    union = areas[0][:, None] + areas[1][None] - inter
    return inter / np.maximum(union, 1e-12)
