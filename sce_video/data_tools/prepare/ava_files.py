"""Read and check AVA's official files and person detections, line by line."""

from __future__ import annotations

import math
import re
import reprlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sce_video.data_tools.prepare.official import Downloads, is_count, nearest, read_csv
from sce_video.datasets.ava import NUM_ACTIONS, Action
from sce_video.utils.files import read_text
from sce_video.utils.plain_pickle import load_plain_pickle

LAYOUT = """\
  annotations/ava_{train,val}_v2.2.csv                (or directly in ROOT)
  annotations/ava_action_list_v2.2_for_activitynet_2019.pbtxt
  annotations/ava_action_list_v2.2.pbtxt              (all 80 actions; optional)
  annotations/ava_{train,val}_excluded_timestamps_v2.2.csv
  annotations/ava_{train,val}_predicted_boxes.csv     (person detections of SlowFast), or
  annotations/ava_dense_proposals_{train,val}.FAIR.recall_93.9.pkl             (of mmaction2)
  videos/1j20qq1JyX4.mkv        (or in videos_15min/; cut all or none with ffmpeg -ss 900 -t 901)
  frames/1j20qq1JyX4/1j20qq1JyX4_000001.jpg (or in rawframes/; 30 per second, of the cut videos)"""

AVA = Downloads(
    LAYOUT,
    lists=("annotations", ""),
    files=("videos", "videos_15min", "frames", "rawframes"),
    what="videos or frames",
)
#: First annotated second of each film, according to ava_included_timestamps_v2.2.txt.
FIRST_SECOND = 902
#: Last annotated second of each film, according to the same file.
LAST_SECOND = 1798
OVERSHOOT = 0.005  # boxes that exceed the frame by at most this share of its size are clipped

Key = tuple[str, int]
Corners = tuple[float, float, float, float]

_BLOCK = re.compile(r"\b(?:item|label)\s*\{((?:[^{}\"]|\"(?:[^\"\\]|\\.)*\")*)\}")
_FIELD = re.compile(r"\b(name|id|label_id|label_type)\s*:\s*(\"(?:[^\"\\]|\\.)*\"|[\w.+-]+)")


@dataclass
class ListedKeyFrame:
    """Ground truth of a key frame.

    Attributes:
        where: ``PATH, line NUMBER`` of the first line about the key frame.
        boxes: Action ids in the order of the file, by corners and person. Corners are x1, y1, x2
            and y2 relative to the frame. A person without an id is -1.
    """

    where: str
    boxes: dict[tuple[Corners, int], list[int]] = field(default_factory=dict)


@dataclass
class Annotations:
    """Content of ``ava_{train,val}_v2.2.csv``.

    Attributes:
        path: Path of the file.
        frames: Key frames by video and second.
        remarks: How often something unusual occurs, by its description.
    """

    path: Path
    frames: dict[Key, ListedKeyFrame] = field(default_factory=dict)
    remarks: Counter[str] = field(default_factory=Counter)

    def videos(self) -> dict[str, str]:
        """Return the place of each video's first key frame, in the order of the file."""
        first: dict[str, str] = {}
        for (video, _), frame in self.frames.items():
            first.setdefault(video, frame.where)
        return first


def read_action_list(path: Path) -> dict[int, str]:
    """Read an action list and return the names by id.

    ``ava_action_list_v2.2.pbtxt`` consists of blocks ``label { name: "..." label_id: 1 ... }``, and
    ``..._for_activitynet_2019.pbtxt`` of blocks ``item { name: "..." id: 1 }``.
    """
    text = read_text(path, "surrogateescape")
    names: dict[int, str] = {}
    for block in _BLOCK.finditer(text):
        where = f"{path}, line {text.count(chr(10), 0, block.start()) + 1}"
        fields: dict[str, str] = dict(_FIELD.findall(block[1]))
        name, number = fields.get("name", ""), fields.get("id") or fields.get("label_id", "")
        if not name.startswith('"') or not is_count(number):
            raise ValueError(f'{where}: the block has no name: "..." with id: or label_id: NUMBER')
        if not 1 <= int(number) <= NUM_ACTIONS:
            raise ValueError(f"{where}: id {number} is not in 1 to {NUM_ACTIONS}")
        if int(number) in names:
            raise ValueError(f"{where}: id {number} is listed twice")
        names[int(number)] = re.sub(r"\\(.)", r"\1", name[1:-1])
    if not names:
        raise ValueError(
            f'{path} is not an action list: no block item {{ name: "..." id: 1 }} and no '
            'label { name: "..." label_id: 1 }'
        )
    return names


def merge_actions(scored: Mapping[int, str], every: Mapping[int, str] | None) -> list[Action]:
    """Merge two lists of actions. Without the full list, unscored actions are named by ids."""
    every = every or {i: scored.get(i, f"action {i}") for i in range(1, NUM_ACTIONS + 1)}
    missing = sorted(set(scored) - set(every))
    if missing:
        raise ValueError(
            f"action {missing[0]} ({scored[missing[0]]}) is in the list of scored actions, but "
            "not in the list of all actions. Use both lists from the same official download"
        )
    return [Action(number, every[number], number in scored) for number in sorted(every)]


def read_annotations(path: Path, actions: Mapping[int, str]) -> Annotations:
    """Read ``video_id,middle_frame_timestamp,x1,y1,x2,y2,action_id,person_id``, one action per row.

    Rows of the same box and person are merged. The person may be omitted. A row with only a video
    and a timestamp is a key frame without persons, as in the official evaluation.

    Args:
        path: Path of the file.
        actions: Names of the actions by id.

    Raises:
        ValueError: If the file is empty, a row is malformed, a second lies outside 902 to 1798, an
            action is unknown, or :func:`check_box` refuses a box. The message names the line.
    """
    found = Annotations(path)
    for where, cells in read_csv(path):
        if len(cells) < 2 or not cells[0]:
            raise ValueError(f"{where}: {','.join(cells)!r} does not begin with VIDEO,TIMESTAMP")
        key = cells[0], _second(cells[1], where)
        frame = found.frames.setdefault(key, ListedKeyFrame(where))
        if not any(cells[2:]):
            continue
        if len(cells) not in (7, 8):
            raise ValueError(
                f"{where}: {len(cells)} cells, not 8: video_id,middle_frame_timestamp,"
                "x1,y1,x2,y2,action_id,person_id"
            )
        corners = check_box([_number(cell, where) for cell in cells[2:6]], where, found.remarks)
        action = _whole(cells[6], where, "action_id")
        if action not in actions:
            raise ValueError(
                f"{where}: action {action} is not in the action list, ids "
                f"{min(actions)} to {max(actions)}"
            )
        person = _whole(cells[7], where, "person_id") if len(cells) == 8 and cells[7] else -1
        if corners is None:  # the box is skipped, but its action and person were checked
            continue
        own = frame.boxes.setdefault((corners, person), [])
        if action in own:
            found.remarks["rows that repeat an earlier row"] += 1
        else:
            own.append(action)
    if not found.frames:
        raise ValueError(f"{path} is empty. Unpack it again from the official download")
    return found


def check_box(numbers: list[float], where: str, remarks: Counter[str]) -> Corners | None:
    """Clip corners to the frame; return None for a box without width or height.

    Both are counted in ``remarks``.

    Raises:
        ValueError: If corners exceed the frame by more than :data:`OVERSHOOT`, or are inverted.
    """
    x1, y1, x2, y2 = numbers
    shown = f"box {x1:g},{y1:g},{x2:g},{y2:g}"
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"{where}: {shown} has a coordinate that is not a number")
    if min(numbers) < -OVERSHOOT or max(numbers) > 1 + OVERSHOOT:
        raise ValueError(
            f"{where}: {shown} is outside the frame. Coordinates must be relative to width and "
            "height, from 0 to 1 (divide pixels by them)"
        )
    if x1 > x2 or y1 > y2:
        raise ValueError(
            f"{where}: {shown} has inverted corners. It must have x1 <= x2 and y1 <= y2"
        )
    if min(numbers) < 0 or max(numbers) > 1:
        remarks[f"boxes outside the frame by up to {OVERSHOOT:g}, clipped to it"] += 1
        x1, y1, x2, y2 = (min(max(number, 0.0), 1.0) for number in numbers)
    if x1 == x2 or y1 == y2:
        remarks["boxes without width or height, left out"] += 1
        return None
    return x1, y1, x2, y2


def read_excluded(path: Path) -> set[Key]:
    """Read ``video_id,timestamp`` of key frames that neither training nor testing uses."""
    excluded = set()
    for where, cells in read_csv(path):
        if len(cells) != 2 or not cells[0] or not is_count(cells[1]):
            raise ValueError(f"{where}: {','.join(cells)!r} is not VIDEO,TIMESTAMP")
        excluded.add((cells[0], int(cells[1])))
    return excluded


#: A detection: its place in the file, and its key frame, corners and score.
_Detection = tuple[str, Key, list[float], float]


@dataclass
class Detections:
    """Person detections of several files.

    Attributes:
        boxes: Highest score by corners, for each video and second.
        remarks: How often something unusual occurs, by its description.
        low: Number of detections with a score that is too low.
        files: Number of rows by file.
    """

    boxes: dict[Key, dict[Corners, float]] = field(default_factory=dict)
    remarks: Counter[str] = field(default_factory=Counter)
    low: int = 0
    files: Counter[Path] = field(default_factory=Counter)

    def add_file(self, path: Path, videos: Collection[str], min_score: float) -> None:
        """Read a CSV file of SlowFast, or a pickle of mmaction2 if the name ends with ``.pkl``.

        Args:
            path: Path of the file.
            videos: Names of the known videos.
            min_score: Detections with a lower score are left out.

        Raises:
            ValueError: If a video is unknown, a box or score is invalid, or the file has another
                format. The message names file and line or key.
        """
        is_pickle = path.suffix.lower() in (".pkl", ".pickle")
        for where, key, box, score in (self._pickle if is_pickle else self._csv)(path, videos):
            corners = check_box(box, where, self.remarks)
            self.files[path] += 1
            if score < min_score:
                self.low += 1
            elif corners is not None:
                # A box may have several rows, one for each action, and files may overlap.
                own = self.boxes.setdefault(key, {})
                own[corners] = max(score, own.get(corners, 0.0))

    def _csv(self, path: Path, videos: Collection[str]) -> Iterator[_Detection]:
        """Read ``video_id,timestamp,x1,y1,x2,y2,[action_id],score``; boxes may have many rows."""
        for where, cells in read_csv(path):
            if len(cells) != 8:
                raise ValueError(
                    f"{where}: {len(cells)} cells, not 8: video_id,timestamp,x1,y1,x2,y2,"
                    "action_id (may be empty),score"
                )
            key = self._key(cells[0], cells[1], where, videos)
            score = _number(cells[7], where)
            if not 0 <= score <= 1:
                raise ValueError(
                    f"{where}: score {cells[7]} is not in 0 to 1. Check that this is a file of "
                    "detections, because the last column of an annotation file is a person_id"
                )
            yield where, key, [_number(cell, where) for cell in cells[2:6]], score

    def _pickle(self, path: Path, videos: Collection[str]) -> Iterator[_Detection]:
        """Read ``{"video_id,0902": array (n, 5) of x1, y1, x2, y2, score}``."""
        content = load_plain_pickle(path)
        if not isinstance(content, dict) or not content:
            raise ValueError(
                f"{path} contains a {type(content).__name__}, not a dict of proposals: "
                '{"VIDEO,0902": array (n, 5) of x1, y1, x2, y2, score, ...}'
            )
        numbers_left = path.stat().st_size
        for name, value in content.items():
            where = f"{path}, key {reprlib.repr(name)}"
            video, comma, second = name.rpartition(",") if isinstance(name, str) else ("", "", "")
            if not comma:
                raise ValueError(f"{where} is not VIDEO,TIMESTAMP")
            key = self._key(video, second, where, videos)
            table = _proposals(value, where)
            numbers_left -= table.size  # each number takes at least a byte
            if numbers_left < 0:
                raise ValueError(f"{where}: the array has more boxes than the file has bytes")
            for row, numbers in enumerate(table.tolist()):
                yield f"{where}, row {row}", key, numbers[:4], numbers[4]

    def _key(self, video: str, second: str, where: str, videos: Collection[str]) -> Key:
        if video not in videos:
            near = nearest(video, videos)
            raise ValueError(f"{where}: video {video!r} is not in the annotation files; {near}")
        return video, _second(second, where)


def _proposals(value: Any, where: str) -> np.ndarray:
    """Return the proposals (n, 5) float64 of one key frame."""
    try:
        # Accept only rows of numbers, because in a small pickle, lists may refer to each other and
        # expand to a huge size.
        plain = isinstance(value, np.ndarray) or (
            isinstance(value, list)
            and all(isinstance(row, list | tuple | np.ndarray) and len(row) == 5 for row in value)
            and all(isinstance(n, int | float | np.number) for row in value for n in row)
        )
        table = np.asarray(value if plain else math.nan, dtype=np.float64)
    except OverflowError:  # a whole number that is too large for a float
        table = np.array(math.nan)
    if isinstance(value, np.ndarray | list) and table.size == 0:
        return np.zeros((0, 5))
    if table.ndim != 2 or table.shape[1] != 5:
        shape = table.shape if isinstance(value, np.ndarray) else type(value).__name__
        raise ValueError(f"{where}: {shape}, not an array (n, 5) of x1, y1, x2, y2, score")
    wrong = ~((table[:, 4] >= 0) & (table[:, 4] <= 1))
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"{where}, row {row}: score {table[row, 4]:g} is not in 0 to 1")
    return table


def _second(text: str, where: str) -> int:
    second = _whole(text, where, "timestamp")
    if not FIRST_SECOND <= second <= LAST_SECOND:
        raise ValueError(
            f"{where}: timestamp {second} is not in the annotated seconds {FIRST_SECOND} to "
            f"{LAST_SECOND}"
        )
    return second


def _whole(text: str, where: str, what: str) -> int:
    if not is_count(text):
        raise ValueError(f"{where}: {what} {text!r:.40} is not a whole number")
    return int(text)


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{where}: {text!r} is not a number") from None
