"""EPIC-KITCHENS-100: the official tables of actions, and the times of the actions in the videos."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from sce_video.data_tools.prepare.official import (
    ClassMap,
    Clip,
    Entry,
    Located,
    OfficialLists,
    Split,
    check_disjoint,
    first_existing,
    is_count,
    list_videos,
    locate_by_stem,
)

LAYOUT = """\
  epic-kitchens-100-annotations/EPIC_100_train.csv          (or directly in the folder)
  epic-kitchens-100-annotations/EPIC_100_validation.csv
  epic-kitchens-100-annotations/EPIC_100_verb_classes.csv
  epic-kitchens-100-annotations/EPIC_100_noun_classes.csv
  EPIC-KITCHENS/P01/videos/P01_01.MP4                       (the whole videos)
  clips/P01_01_0.mp4                                        (the actions, cut from them)"""

# Damen et al. 2022, table 2; epic-kitchens/epic-kitchens-100-annotations, README.md.
PUBLISHED = {"train": 67217, "validation": 9668}
PUBLISHED_CLASSES = {"verb": 97, "noun": 300}
_LIST_NAMES = {"train": "train", "validation": "val"}
_TIME = re.compile(r"(\d{2,}):([0-5]\d):([0-5]\d(?:\.\d+)?)")


@dataclass(frozen=True)
class Action:
    """A row of a table: one action of a video.

    Attributes:
        clip: Its times and its name, the narration id.
        verb: Number of the verb's class.
        noun: Number of the class of the first noun.
    """

    clip: Clip
    verb: int
    noun: int


def read_epic_kitchens(
    root: Path, annotations: Path | None = None
) -> tuple[OfficialLists, tuple[Clip, ...]]:
    """Lists of verbs, nouns and actions, and where the clips lie in the videos.

    Writes {train,val}_{verb,noun,action}.txt; an action is a pair of verb and noun that occurs in
    training or validation, in the order of the numbers. The test set has no labels.

    Args:
        root: Folder of the data set.
        annotations: Folder of the tables; ``root/epic-kitchens-100-annotations`` or ``root`` unless
            given.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A malformed row, a class without a name, an action listed twice; the message
            names file and line.
    """
    folders = [annotations] if annotations else [root / "epic-kitchens-100-annotations", root]

    def find(name: str) -> Path:
        return first_existing([folder / name for folder in folders], root, LAYOUT, name)

    names = {kind: read_classes(find(f"EPIC_100_{kind}_classes.csv")) for kind in PUBLISHED_CLASSES}
    actions = {part: read_actions(find(f"EPIC_100_{part}.csv"), names) for part in PUBLISHED}
    pairs = sorted({(a.verb, a.noun) for part in actions.values() for a in part})
    number_of = {pair: number for number, pair in enumerate(pairs)}
    splits = []
    for kind in ("verb", "noun", "action"):
        for part, rows in actions.items():
            entries = tuple(
                Entry(
                    row.clip.name,
                    number_of[row.verb, row.noun] if kind == "action" else getattr(row, kind),
                )
                for row in rows
            )
            splits.append(Split(f"{_LIST_NAMES[part]}_{kind}.txt", entries, PUBLISHED[part]))
    check_disjoint(str(folders[0]), splits[0], splits[1])
    maps = [ClassMap(f"classes_{k}.txt", names[k], n) for k, n in PUBLISHED_CLASSES.items()]
    labels = tuple(f"{names['verb'][verb]} {names['noun'][noun]}" for verb, noun in pairs)
    official = OfficialLists(
        name="epic_kitchens",
        splits=tuple(splits),
        class_maps=(*maps, ClassMap("classes_action.txt", labels)),
        published_videos=sum(PUBLISHED.values()),
        notes=("the actions of the test set have no labels and are not listed",),
    )
    return official, tuple(row.clip for part in actions.values() for row in part)


def read_classes(path: Path) -> tuple[str, ...]:
    """The column ``key`` of a table of classes, whose ``id`` counts from 0.

    Raises:
        ValueError: A column is missing, or ids have gaps.
    """
    names: list[str] = []
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        _require_columns(path, rows, ("id", "key"))
        for row in rows:
            if row["id"] != str(len(names)) or not row["key"] or row["key"] in names:
                raise ValueError(
                    f"{path}, line {rows.line_num}: id {row['id']!r:.40} with key "
                    f"{row['key']!r:.40}, where id {len(names)} and a new key must be"
                )
            names.append(row["key"])
    return tuple(names)


def read_actions(path: Path, names: dict[str, tuple[str, ...]]) -> tuple[Action, ...]:
    """The rows of EPIC_100_train.csv or EPIC_100_validation.csv.

    Args:
        path: The table.
        names: Classes of ``verb`` and ``noun``.

    Raises:
        ValueError: A column is missing, a malformed row, a class without a name, or an id listed
            twice.
    """
    found: dict[str, Action] = {}
    columns = ("narration_id", "video_id", "start_timestamp", "stop_timestamp")
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        _require_columns(path, rows, (*columns, "verb_class", "noun_class"))
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            name = row["narration_id"]
            if not re.fullmatch(r"P\d+_\d+_\d+", name or ""):
                raise ValueError(f"{where}: narration_id {name!r:.40} must be like 'P01_01_0'")
            if name in found:
                raise ValueError(f"{where}: {name} is listed twice")
            start, end = (_seconds(row[column], where) for column in columns[2:])
            if end <= start:
                raise ValueError(f"{where}: {name} ends at {end:g} s, before its start {start:g} s")
            numbers = {}
            for kind, classes in names.items():
                text = row[f"{kind}_class"] or ""
                if not is_count(text) or int(text) >= len(classes):
                    raise ValueError(
                        f"{where}: {kind}_class {text!r:.40} is none of the {len(classes)} classes"
                    )
                numbers[kind] = int(text)
            clip = Clip(row["video_id"], start, end, name)
            found[name] = Action(clip, numbers["verb"], numbers["noun"])
    if not found:
        raise ValueError(f"{path} lists no action")
    return tuple(found.values())


def _require_columns(path: Path, rows: csv.DictReader[str], columns: tuple[str, ...]) -> None:
    missing = [name for name in columns if name not in (rows.fieldnames or ())]
    if missing:
        raise ValueError(f"{path}: no column {missing[0]!r}: use the official file unchanged")


def _seconds(text: str | None, where: str) -> float:
    match = _TIME.fullmatch(text or "")
    if match is None:
        raise ValueError(f"{where}: time {text!r:.40} must be 'HH:MM:SS.ss'")
    return int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3])


def locate_epic_kitchens(
    root: Path, official: OfficialLists, videos: Path | None = None
) -> dict[str, Located]:
    """Locations of the clips, by narration id; ``videos`` is ``root/clips`` unless given.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    folder = first_existing([videos or root / "clips"], root, LAYOUT, "folder of clips")
    return locate_by_stem(root, folder, official.names(), list_videos(folder))
