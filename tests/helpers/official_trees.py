"""Small trees of exactly the official layouts of UCF101, HMDB51, Kinetics-400, SSv2 and AVA.

Names, split files, csv and JSON are as in the official downloads, counts are scaled down. Videos
show toy actions, so that the classes can be learned: class number i is toy action number i.
"""

from __future__ import annotations

import csv
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from helpers.videos import write_video

from sce_video.data_tools.generated import CLASSES, render_toy_action

FPS = 15
SIZE = 64
UCF101_CLASSES = ("ApplyEyeMakeup", "HandstandPushups", "JumpRope", "YoYo")
HMDB51_CLASSES = ("brush_hair", "cartwheel", "shoot_ball", "wave")
KINETICS_CLASSES = ("abseiling", "massaging person's head", "petting animal (not cat)", "zumba")
SSV2_TEMPLATES = (
    "Holding [something] next to [something]",
    "Pretending to put [something] behind [something]",
    "Pushing [something] from left to right",
    "Pushing [something] from right to left",
)
KINETICS_HEADER = ("label", "youtube_id", "time_start", "time_end", "split", "is_cc")
REPLACEMENT = "replacement/replacement_for_corrupted_k400"

# By extension: codec and fast settings.
_CODECS = {
    ".avi": ("mpeg4", {"qmin": "2", "qmax": "5"}),
    ".mp4": ("libx264", {"preset": "ultrafast", "crf": "18"}),
    ".webm": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "crf": "20", "b": "0"}),
}
# Beginnings of HMDB51's file names, some with characters special in a shell or a glob.
_HMDB51_FILMS = (
    "April_09",
    "(Rad)Schlag_die_Bank!",
    "#122_Tom_&_Jerry;_part_2",
    "Brushing_Her_Hair__[_NEW_AUDIO_]_UPDATED!!!!",
    "20060723sfjffbartsinger",
)


def write_toy_video(path: Path, class_number: int, number: int, frames: int = 20) -> Path:
    """A video of toy action ``class_number`` (64 x 64, 15 per second); all numbers differ."""
    what, how = CLASSES[class_number % len(CLASSES)].split("_")
    rng = np.random.default_rng([class_number, number])
    clip = render_toy_action(what, how, rng, size=SIZE, num_frames=frames, fps=FPS)
    codec, options = _CODECS[path.suffix]
    return write_video(path, clip, fps=FPS, codec=codec, options=dict(options))


def make_ucf101(root: Path, frames: int = 20) -> Path:
    """UCF-101/ and ucfTrainTestlist/ in ``root``.

    As in the original, the group of a video (g01 to g25) decides: groups 1 to 7 are tested in
    split 1, 8 to 14 in split 2, 15 to 21 in split 3, all others trained on. The folder
    HandstandPushups holds files v_HandStandPushups_..., as it does in the original.
    """
    lists: dict[str, list[str]] = {}
    for label, name in enumerate(UCF101_CLASSES):
        for i, group in enumerate((1, 8, 15, 22)):
            stem = name.replace("Handstand", "HandStand")
            video = f"{name}/v_{stem}_g{group:02d}_c01.avi"
            write_toy_video(root / "UCF-101" / video, label, i, frames)
            for split in (1, 2, 3):
                if 7 * split - 6 <= group <= 7 * split:
                    lists.setdefault(f"testlist0{split}.txt", []).append(video)
                else:
                    lists.setdefault(f"trainlist0{split}.txt", []).append(f"{video} {label + 1}")
    lists["classInd.txt"] = [f"{i} {name}" for i, name in enumerate(UCF101_CLASSES, 1)]
    for file_name, lines in lists.items():
        _write_lines(root / "ucfTrainTestlist" / file_name, lines, end="\r\n")
    return root


def make_hmdb51(root: Path, frames: int = 20) -> Path:
    """hmdb51_org/ and testTrainMulti_7030_splits/ in ``root``.

    Of the five videos of a class, number s is tested in split s, the fourth always trained on, the
    fifth used in split 2 and 3 only. File names hold ``# & ( ; [ !``, as some do in the original.
    """
    for label, name in enumerate(HMDB51_CLASSES):
        videos = [f"{film}_{name}_u_nm_np1_fr_goo_0.avi" for film in _HMDB51_FILMS]
        for i, video in enumerate(videos):
            write_toy_video(root / "hmdb51_org" / name / video, label, i, frames)
        for split, marks in enumerate(("21110", "12111", "11211"), 1):
            lines = [f"{video} {mark} " for video, mark in zip(videos, marks, strict=True)]
            folder = root / "testTrainMulti_7030_splits"
            _write_lines(folder / f"{name}_test_split{split}.txt", lines)
    return root


def make_kinetics(root: Path, frames: int = 20) -> Path:
    """train/, val/, annotations/ and the replacement of one damaged video in ``root``.

    Of each class there are four training videos and two for validation. The first training video
    is damaged in train/ and whole in replacement/.
    """
    for part, count in (("train", 4), ("val", 2)):
        rows: list[tuple[object, ...]] = []
        for label, name in enumerate(KINETICS_CLASSES):
            for i in range(count):
                video = f"-{part[0]}_{label:04d}{i:04d}"  # ids are of 11 characters, - and _ too
                start = 10 * i + 7
                path = root / part / f"{video}_{start:06d}_{start + 10:06d}.mp4"
                write_toy_video(path, label, i if part == "train" else 1000 + i, frames)
                rows.append((name, video, start, start + 10, part, i % 2))
        path = root / "annotations" / f"{part}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([KINETICS_HEADER, *rows])
    damaged = min((root / "train").iterdir())
    whole = root / REPLACEMENT / damaged.name
    whole.parent.mkdir(parents=True)
    damaged.rename(whole)
    damaged.write_bytes(whole.read_bytes()[:100])
    return root


def make_ssv2(root: Path, frames: int = 20) -> Path:
    """20bn-something-something-v2/ and labels/ in ``root``; one video is in no list (test set).

    Of each class there are four training videos and two for validation.
    """
    folder = root / "20bn-something-something-v2"
    parts: dict[str, list[dict[str, object]]] = {"train": [], "validation": []}
    for label, template in enumerate(SSV2_TEMPLATES):
        for i in range(6):
            video = str(78687 + 1000 * label + i)
            write_toy_video(folder / f"{video}.webm", label, i, frames)
            text = template.lower().replace("[something]", "a potato")
            placeholders = ["a potato"] * template.count("[")
            item = {"id": video, "label": text, "template": template, "placeholders": placeholders}
            parts["train" if i < 4 else "validation"].append(item)
    write_toy_video(folder / "1420.webm", 0, 1000, frames)
    names = [template.replace("[", "").replace("]", "") for template in SSV2_TEMPLATES]
    labels = {name: str(label) for label, name in enumerate(names)}
    (root / "labels").mkdir()
    for part, content in {**parts, "labels": labels, "test": [{"id": "1420"}]}.items():
        path = root / f"labels/something-something-v2-{part}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
    return root


def _write_lines(path: Path, lines: Sequence[str], end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode())


# -- AVA --------------------------------------------------------------------------------------

AVA_FPS = 30
AVA_BEGIN = 900  # second of the film at which a cut begins: second 902 is at 2 s
AVA_FIRST = 902
# Actions of a person, by how it moves and by what it is; 16 is not a scored one.
AVA_POSES = {"bounce": 10, "circle": 14, "shake": 4, "pulse": 7}
AVA_THINGS = {"stripes": (17,), "checks": (59, 79), "rings": (16, 80)}
AVA_NAMES = {
    4: "dance", 7: "jump/leap", 10: "run/jog", 12: "stand", 14: "walk", 16: "brush teeth",
    17: "carry/hold (an object)", 59: "touch (an object)",
    79: "talk to (e.g., self, a person, a group)", 80: "watch (a person)",
}  # fmt: skip
AVA_UNSCORED = (16,)
AVA_MOVIES = {
    "train": ("-5KQ66BBWC4", "1j20qq1JyX4", "_-Z6wFjXtGQ", "053oq2xB3oU"),
    "val": ("0f39OWEqJ24", "Ab-cd_ef01h"),
}
_AVA_TINTS = {"stripes": (1.0, 0.55, 0.55), "checks": (0.55, 1.0, 0.55), "rings": (0.55, 0.55, 1.0)}
_AVA_PERSONS = 3


class AvaPerson(NamedTuple):
    """Someone in a movie of :func:`make_ava`: a coloured square in which a toy action happens."""

    what: str  # pattern, and with it the colour
    how: str  # motion
    left: np.ndarray  # edges at every frame, pixels (T,)
    top: np.ndarray
    side: int  # pixels
    size: tuple[int, int]  # height and width of the frame

    @property
    def actions(self) -> tuple[int, ...]:
        return (AVA_POSES[self.how], *AVA_THINGS[self.what])

    def box(self, second: int) -> tuple[float, float, float, float]:
        """x1 y1 x2 y2 relative to the frame, with three digits, at a second of the film."""
        frame = (second - AVA_BEGIN) * AVA_FPS
        x, y = int(self.left[frame]), int(self.top[frame])
        height, width = self.size
        corners = (x / width, y / height, (x + self.side) / width, (y + self.side) / height)
        return tuple(round(corner, 3) for corner in corners)


def ava_persons(
    number: int, seconds: int = 11, size: tuple[int, int] = (96, 128)
) -> list[AvaPerson]:
    """Persons of movie ``number``: three side by side, drifting; four movies show all twelve."""
    height, width = size
    rng = np.random.default_rng([7, number])
    side = min(height // 2, width // _AVA_PERSONS - 6)
    persons = []
    for lane in range(_AVA_PERSONS):
        what, how = CLASSES[(number * _AVA_PERSONS + lane) * 5 % len(CLASSES)].split("_")
        times = np.arange(seconds * AVA_FPS) / AVA_FPS
        phase, speed = rng.uniform(0, 2 * np.pi), rng.uniform(0.3, 0.6)
        top = (height - side) / 2 * (1 + np.sin(phase + speed * times))
        left = lane * width / _AVA_PERSONS + 3 + 2 * np.sin(speed * times)
        persons.append(
            AvaPerson(what, how, left.astype(int), top.astype(int), side, (height, width))
        )
    return persons


def draw_ava_movie(number: int, seconds: int = 11, size: tuple[int, int] = (96, 128)) -> np.ndarray:
    """The frames of movie ``number``, uint8 (T, H, W, 3), 30 per second from second 900 on."""
    height, width = size
    rng = np.random.default_rng([8, number])
    shades = rng.uniform(60, 160, size=(height // 16 + 1, width // 16 + 1))
    back = np.kron(shades, np.ones((16, 16)))[:height, :width]
    movie = np.repeat(back[None, ..., None].astype(np.uint8), 3, axis=3)
    movie = np.repeat(movie, seconds * AVA_FPS, axis=0)
    for lane, person in enumerate(ava_persons(number, seconds, size)):
        tiles = render_toy_action(
            person.what,
            person.how,
            np.random.default_rng([9, number, lane]),
            size=person.side,
            num_frames=len(movie),
            fps=AVA_FPS,
        )
        tiles = (tiles * np.array(_AVA_TINTS[person.what])).astype(np.uint8)
        for frame, tile, x, y in zip(movie, tiles, person.left, person.top, strict=True):
            frame[y : y + person.side, x : x + person.side] = tile
    return movie


def make_ava(
    root: Path,
    movies: dict[str, Sequence[str]] = AVA_MOVIES,
    seconds: int = 11,
    size: tuple[int, int] = (96, 128),
    frames: bool = False,
    detections: Sequence[str] = ("csv",),
) -> Path:
    """annotations/, videos/ and perhaps frames/ in ``root``, as the public tools write them.

    A movie shows ``seconds`` of a film from second 900, as the 15-minute cuts do; those from 902,
    but for the last two, are annotated; movie i of all is number i. Three persons a frame: how one
    moves gives one action, what it is one or two more. Of every split the first movie's second 903
    is excluded, and the third person of its second 904 is not in the csv file; of second 905 of the
    last movie there are detections only. A detection with a score of 0.5 is off the persons, one of
    0.95 nearly on each; they are written as ``csv`` (SlowFast) or ``pkl`` (mmaction2).
    """
    numbers = iter(range(10**6))
    options = {"preset": "ultrafast", "crf": "18", "g": "30"}
    for split, ids in movies.items():
        own = {video: next(numbers) for video in ids}
        for video, number in own.items():
            movie = draw_ava_movie(number, seconds, size)
            path = root / f"videos/{video}.{('mp4', 'mkv')[number % 2]}"
            write_video(path, movie, fps=AVA_FPS, options=options)
            if frames:
                folder = root / "frames" / video
                folder.mkdir(parents=True)
                image = cv2.imencode(".jpg", movie[0])[1].tobytes()
                for i in range(1, len(movie) + 1):
                    (folder / f"{video}_{i:06d}.jpg").write_bytes(image)
        persons = {video: ava_persons(number, seconds, size) for video, number in own.items()}
        _write_ava_annotations(root / "annotations", split, persons, seconds, detections)
    kinds = {i: "PERSON_MOVEMENT" if i < 15 else "OBJECT_MANIPULATION" for i in AVA_NAMES}
    scored = [
        f'item {{\n  name: "{name}"\n  id: {i}\n}}'
        for i, name in AVA_NAMES.items()
        if i not in AVA_UNSCORED
    ]
    every = [
        f'label {{\n  name: "{name}"\n  label_id: {i}\n  label_type: {kinds[i]}\n}}'
        for i, name in AVA_NAMES.items()
    ]
    _write_lines(root / "annotations/ava_action_list_v2.2_for_activitynet_2019.pbtxt", scored)
    _write_lines(root / "annotations/ava_action_list_v2.2.pbtxt", every)
    return root


def _write_ava_annotations(
    folder: Path,
    split: str,
    persons: dict[str, list[AvaPerson]],
    seconds: int,
    detections: Sequence[str],
) -> None:
    rng = np.random.default_rng([10, len(split)])
    videos = list(persons)
    truth: list[str] = []
    found: list[str] = []
    proposals: dict[str, np.ndarray] = {}
    for video in videos:
        for second in range(AVA_FIRST, AVA_BEGIN + seconds - 1):
            key = f"{video},{second:04d}"
            boxes = []
            for i, person in enumerate(persons[video]):
                box = person.box(second)
                near = np.clip(np.array(box) + rng.uniform(-0.01, 0.01, 4), 0, 1).round(3)
                boxes.append((*near, round(rng.uniform(0.92, 0.999), 6)))
                hidden = (video, second, i) == (videos[0], 904, 2)
                if hidden or (video, second) == (videos[-1], 905):
                    continue
                corners = ",".join(f"{corner:.3f}" for corner in box)
                truth += [f"{key},{corners},{action},{i}" for action in person.actions]
            boxes.append((0.0, 0.0, 0.999, 0.3, 0.5))
            proposals[key] = np.array(boxes)
            for i, (*box, score) in enumerate(boxes):
                # SlowFast's file of train lists a box once per action of the person.
                actions = persons[video][i].actions if split == "train" and i < 3 else ("",)
                corners = ",".join(f"{corner:.3f}" for corner in box)
                found += [f"{key},{corners},{action},{score:.6f}" for action in actions]
    _write_lines(folder / f"ava_{split}_v2.2.csv", truth)
    _write_lines(folder / f"ava_{split}_excluded_timestamps_v2.2.csv", [f"{videos[0]},0903"])
    if "csv" in detections:
        _write_lines(folder / f"ava_{split}_predicted_boxes.csv", found)
    if "pkl" in detections:
        with open(folder / f"ava_dense_proposals_{split}.FAIR.recall_93.9.pkl", "wb") as file:
            pickle.dump(proposals, file, protocol=4)
