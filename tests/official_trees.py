"""Small trees of exactly the official layouts of UCF101, HMDB51, Kinetics-400 and SSv2.

Names, split files, csv and JSON are as in the official downloads, counts are scaled down. Videos
show toy actions, so that the classes can be learned: class number i is toy action number i.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from helpers import write_video

from sce_video.datasets.toy_actions import CLASSES, render_toy_action

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
# Beginnings of HMDB51's file names, among them those with characters that a shell or a glob reads.
_HMDB51_FILMS = (
    "April_09",
    "(Rad)Schlag_die_Bank!",
    "#122_Tom_&_Jerry;_part_2",
    "Brushing_Her_Hair__[_NEW_AUDIO_]_UPDATED!!!!",
    "20060723sfjffbartsinger",
)
_SSV2_PLACEHOLDERS = ("potato", "vicks vaporub bottle")


def write_toy_video(path: Path, class_number: int, number: int, frames: int = 20) -> Path:
    """A video of toy action ``class_number`` (64 x 64, 15 a second); no two numbers are alike."""
    what, how = CLASSES[class_number % len(CLASSES)].split("_")
    rng = np.random.default_rng([class_number, number])
    pictures = render_toy_action(what, how, rng, size=SIZE, num_frames=frames, fps=FPS)
    codec, options = _CODECS[path.suffix]
    return write_video(path, pictures, fps=FPS, codec=codec, options=dict(options))


def make_ucf101(
    root: Path,
    classes: Sequence[str] = UCF101_CLASSES,
    videos_per_class: int = 4,
    frames: int = 20,
) -> Path:
    """UCF-101/ and ucfTrainTestlist/ in ``root``.

    As in the original, the group of a video (g01 to g25) decides: groups 1 to 7 are tested in
    split 1, 8 to 14 in split 2, 15 to 21 in split 3, all others trained on. With ``n`` videos a
    class the groups are 1, 8, 15, 22, 2, 9, ...; 3 give every list a video of every class. The
    folder HandstandPushups holds files v_HandStandPushups_..., as it does in the original.
    """
    groups = [first + step for step in range(7) for first in (1, 8, 15, 22) if first + step <= 25]
    lists: dict[str, list[str]] = {}
    for label, name in enumerate(classes):
        stem = name.replace("Handstand", "HandStand") if name == "HandstandPushups" else name
        chosen = [(groups[i % 25], i // 25 + 1) for i in range(videos_per_class)]
        for i, (group, clip) in enumerate(sorted(chosen)):
            video = f"{name}/v_{stem}_g{group:02d}_c{clip:02d}.avi"
            write_toy_video(root / "UCF-101" / video, label, i, frames)
            for split in (1, 2, 3):
                if 7 * split - 6 <= group <= 7 * split:
                    lists.setdefault(f"testlist0{split}.txt", []).append(video)
                else:
                    lists.setdefault(f"trainlist0{split}.txt", []).append(f"{video} {label + 1}")
    lists["classInd.txt"] = [f"{i} {name}" for i, name in enumerate(classes, 1)]
    for file_name, lines in lists.items():
        _write_lines(root / "ucfTrainTestlist" / file_name, lines, end="\r\n")
    return root


def make_hmdb51(
    root: Path,
    classes: Sequence[str] = HMDB51_CLASSES,
    videos_per_class: int = 5,
    frames: int = 20,
) -> Path:
    """hmdb51_org/ and testTrainMulti_7030_splits/ in ``root``.

    Of every five videos of a class, number s is tested in split s, the fourth always trained on,
    the fifth used in split 2 and 3 only; 3 give every list a video of every class. File names hold
    ``# & ( ; [ !``, as some do in the original.
    """
    for label, name in enumerate(classes):
        videos = [
            f"{_HMDB51_FILMS[i % 5]}_{name}_u_nm_np1_fr_goo_{i // 5}.avi"
            for i in range(videos_per_class)
        ]
        for i, video in enumerate(videos):
            write_toy_video(root / "hmdb51_org" / name / video, label, i, frames)
        for split in (1, 2, 3):
            marks = [
                0 if i % 5 == 4 and split == 1 else 2 if i % 5 == split - 1 else 1
                for i in range(videos_per_class)
            ]
            lines = [f"{video} {mark} " for video, mark in zip(videos, marks, strict=True)]
            folder = root / "testTrainMulti_7030_splits"
            _write_lines(folder / f"{name}_test_split{split}.txt", lines)
    return root


def make_kinetics(
    root: Path,
    classes: Sequence[str] = KINETICS_CLASSES,
    train_per_class: int = 4,
    val_per_class: int = 2,
    frames: int = 20,
    layout: str = "tars",
) -> Path:
    """train/, val/, annotations/ and the replacement of one damaged video in ``root``.

    The first training video is damaged in train/ and whole in replacement/.

    Args:
        root: Folder to write to.
        classes: Class names.
        train_per_class: Training videos of a class.
        val_per_class: Validation videos of a class.
        frames: Frames of a video.
        layout: ``tars``: directly in train/, ``parts``: in train/part_0/, train/part_1/;
            ``classes``: in train/CLASS/.
    """
    damaged = None
    for part, count in (("train", train_per_class), ("val", val_per_class)):
        rows: list[tuple[object, ...]] = []
        for label, name in enumerate(classes):
            for i in range(count):
                video = f"-{part[0]}_{label:04d}{i:04d}"  # ids are of 11 characters, - and _ too
                start = 10 * i + 7
                file_name = f"{video}_{start:06d}_{start + 10:06d}.mp4"
                inside = {"tars": "", "parts": f"part_{i % 2}", "classes": name}[layout]
                number = i if part == "train" else 1000 + i
                path = write_toy_video(root / part / inside / file_name, label, number, frames)
                damaged = damaged or path
                rows.append((name, video, start, start + 10, part, i % 2))
        path = root / "annotations" / f"{part}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([KINETICS_HEADER, *rows])
    assert damaged is not None
    whole = root / REPLACEMENT / damaged.name
    whole.parent.mkdir(parents=True)
    damaged.rename(whole)
    damaged.write_bytes(whole.read_bytes()[:100])
    return root


def make_ssv2(
    root: Path,
    templates: Sequence[str] = SSV2_TEMPLATES,
    train_per_class: int = 4,
    val_per_class: int = 2,
    frames: int = 20,
    prefix: str = "something-something-v2-",
) -> Path:
    """20bn-something-something-v2/ and labels/ in ``root``; one video is in no list (test set)."""
    names = [template.replace("[", "").replace("]", "") for template in templates]
    parts: dict[str, list[dict[str, object]]] = {"train": [], "validation": []}
    for label, template in enumerate(templates):
        for i in range(train_per_class + val_per_class):
            video = str(78687 + 1000 * label + i)
            folder = root / "20bn-something-something-v2"
            write_toy_video(folder / f"{video}.webm", label, i, frames)
            fillers = list(_SSV2_PLACEHOLDERS[: template.count("[")])
            text = template.lower()
            for filler in fillers:
                text = text.replace("[something]", filler, 1)
            item = {"id": video, "label": text, "template": template, "placeholders": fillers}
            parts["train" if i < train_per_class else "validation"].append(item)
    write_toy_video(root / "20bn-something-something-v2" / "1420.webm", 0, 1000, frames)
    labels = {name: str(label) for label, name in enumerate(names)}
    for part, content in {**parts, "labels": labels, "test": [{"id": "1420"}]}.items():
        path = root / "labels" / f"{prefix}{part}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    return root


def _write_lines(path: Path, lines: Sequence[str], end: str = "\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + end for line in lines).encode())
