"""Sets of clips that are cut from long videos: FineGym-99 and EPIC-KITCHENS-100.

The official files list the clips, and where each lies in its video.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sce_video.data_tools.prepare.official import (
    ClassMap,
    Clip,
    Downloads,
    Entry,
    OfficialLists,
    Split,
    check_disjoint,
    is_count,
    read_lines,
)
from sce_video.utils.json_files import read_json

FINEGYM = Downloads(
    """\
  annotations/gym99_train_element_v1.1.txt      (or v1.0; or directly in the folder)
  annotations/gym99_val_element.txt
  annotations/gym99_categories.txt
  annotations/finegym_annotation_info_v1.1.json (to cut the videos; or v1.0)
  videos/0LtLS9wROrk.mp4                        (the whole videos)
  subactions/0LtLS9wROrk_E_002407_002435_A_0003_0005.mp4   (the clips, cut from them)""",
    lists=("annotations", ""),
    files=("subactions",),
    what="clips",
    uncut="videos",
    by_stem=True,
)
# Shao et al. 2020; numbers of lines of the lists, the training list in version 1.0.
_FINEGYM_CLASSES = 99
_FINEGYM_TRAIN, _FINEGYM_VAL = 20484, 8521
#: Sets of elements with lists of their own, and their labels in FineGym-99: leaps, jumps and hops
#: on the floor, and circles on the uneven bars (the SEVERE benchmark's FX-S1 and UB-S1;
#: fmthoker/SEVERE-BENCHMARK, action_recognition/datasets/gym_set_{FX,UB}_S1.py).
FINEGYM_SETS = {"fx_s1": range(6, 17), "ub_s1": range(74, 89)}
_PUBLISHED_SETS = {"fx_s1": (1882, 777), "ub_s1": (3511, 1471)}  # lines of the lists, version 1.0
_CATEGORY = re.compile(r"Clabel:\s*(\d+)\s*;\s*set:\s*\d+\s*;\s*Glabel:\s*\d+\s*;\s*(.+)")


def read_finegym(root: Path, annotations: Path | None = None) -> OfficialLists:
    """Read the element lists and categories of FineGym-99.

    Writes train.txt and val.txt, and for each of :data:`FINEGYM_SETS` lists with labels from 0.

    Args:
        root: Folder of the data set.
        annotations: Folder of the official files; ``root/annotations`` or ``root`` unless given.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A malformed line, a label without a name, an element listed twice; the message
            names file and line.
    """
    path = FINEGYM.find(root, annotations, "gym99_categories file", "gym99_categories.txt")
    classes = _read_categories(path)
    stem, versions = "gym99_train_element", ("_v1.1", "_v1.0", "")
    names = [f"{stem}{version}.txt" for version in versions]
    train_path = FINEGYM.find(root, annotations, f"{stem} file", *names)
    old = train_path.stem.endswith("1.0")
    published = _FINEGYM_TRAIN if old else None
    train = Split("train.txt", _read_elements(train_path, len(classes)), published)
    stem = "gym99_val_element"
    names = [f"{stem}{version}.txt" for version in versions[::-1]]
    val_path = FINEGYM.find(root, annotations, f"{stem} file", *names)
    val = Split("val.txt", _read_elements(val_path, len(classes)), _FINEGYM_VAL)
    check_disjoint(str(train_path.parent), train, val)
    splits, maps = [train, val], [ClassMap("classes.txt", classes, _FINEGYM_CLASSES)]
    for name, labels in FINEGYM_SETS.items():
        first, counts = labels.start, _PUBLISHED_SETS[name]
        parts = []
        for split, count in zip((train, val), (counts[0] if old else None, counts[1]), strict=True):
            entries = [Entry(e.name, e.label - first) for e in split.entries if e.label in labels]
            parts.append(Split(f"{split.title}_{name}.txt", tuple(entries), count))
        if all(part.entries for part in parts):
            splits += parts
            maps.append(ClassMap(f"classes_{name}.txt", classes[first : labels.stop], len(labels)))
    return OfficialLists("finegym", tuple(splits), tuple(maps))


def _read_categories(path: Path) -> tuple[str, ...]:
    """The names of gym99_categories.txt, ``Clabel: 0; set: 1; Glabel: 1; (VT) round-off, ...``."""
    names: list[str] = []
    for number, line in read_lines(path):
        match = _CATEGORY.fullmatch(line)
        if match is None or int(match[1]) != len(names):
            raise ValueError(
                f"{path}, line {number}: {line!r:.80} must be 'Clabel: {len(names)}; set: S; "
                "Glabel: G; NAME'"
            )
        names.append(match[2].strip())
    return tuple(names)


def _read_elements(path: Path, classes: int) -> tuple[Entry, ...]:
    """The clips of a list with lines ``VIDEO_E_START_END_A_START_END LABEL``."""
    entries: dict[str, Entry] = {}
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        name, _, label = line.partition(" ")
        if "_E_" not in name or "_A_" not in name or not is_count(label.strip()):
            raise ValueError(f"{where}: {line!r:.120} must be 'VIDEO_E_..._A_... LABEL'")
        if int(label) >= classes:
            raise ValueError(
                f"{where}: label {int(label)} has no name, there are {classes} classes"
            )
        if name in entries:
            raise ValueError(f"{where}: {name!r} is listed twice")
        entries[name] = Entry(name, int(label))
    return tuple(entries.values())


def finegym_clips(
    root: Path, official: OfficialLists, annotations: Path | None = None
) -> Iterator[Clip]:
    """Where the listed clips lie in the whole videos.

    An element's times count from the start of its event, those of the event from the start of the
    video: ``{VIDEO: {E_...: {"timestamps": [[5.1, 9.3]], "segments": {A_...: {"timestamps":
    [[0.2, 1.4]]}}}}}``.

    Raises:
        FileNotFoundError: The annotation file is missing.
        ValueError: It lacks an element, or has another form.
    """
    stem = "finegym_annotation_info"
    names = (f"{stem}{version}.json" for version in ("_v1.1", "_v1.0", ""))
    path = FINEGYM.find(root, annotations, f"{stem} file", *names)
    data: Any = read_json(path)
    for name in official.names():
        video, _, rest = name.partition("_E_")
        event, _, element = rest.partition("_A_")
        try:
            of_event = data[video][f"E_{event}"]
            begin = float(of_event["timestamps"][0][0])
            times = of_event["segments"][f"A_{element}"]["timestamps"]
            start, end = begin + float(times[0][0]), begin + float(times[-1][1])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"{path} has no times of {name}: {error!r:.80}") from None
        yield Clip(video, start, end, name)


EPIC_KITCHENS = Downloads(
    """\
  epic-kitchens-100-annotations/EPIC_100_train.csv          (or directly in the folder)
  epic-kitchens-100-annotations/EPIC_100_validation.csv
  epic-kitchens-100-annotations/EPIC_100_verb_classes.csv
  epic-kitchens-100-annotations/EPIC_100_noun_classes.csv
  EPIC-KITCHENS/P01/videos/P01_01.MP4                       (the whole videos)
  clips/P01_01_0.mp4                                        (the actions, cut from them)""",
    lists=("epic-kitchens-100-annotations", ""),
    files=("clips",),
    what="clips",
    uncut="EPIC-KITCHENS",
    by_stem=True,
)
# Damen et al. 2022, table 2; epic-kitchens/epic-kitchens-100-annotations, README.md.
_EPIC_COUNTS = {"train": 67217, "validation": 9668}
_EPIC_CLASSES = {"verb": 97, "noun": 300}
_TIME = re.compile(r"(\d{2,}):([0-5]\d):([0-5]\d(?:\.\d+)?)")


class _Action(NamedTuple):
    """A row of a table: a clip, named by its narration id, and the numbers of its classes."""

    clip: Clip
    verb: int
    noun: int


def read_epic_kitchens(root: Path, annotations: Path | None = None) -> OfficialLists:
    """Lists of verbs, nouns and actions.

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
    names, actions = _read_tables(root, annotations)
    pairs = sorted({(a.verb, a.noun) for part in actions.values() for a in part})
    number_of = {pair: number for number, pair in enumerate(pairs)}
    splits = []
    for kind in ("verb", "noun", "action"):
        for (part, rows), name in zip(actions.items(), ("train", "val"), strict=True):
            entries = [
                Entry(
                    r.clip.name, number_of[r.verb, r.noun] if kind == "action" else getattr(r, kind)
                )
                for r in rows
            ]
            splits.append(Split(f"{name}_{kind}.txt", tuple(entries), _EPIC_COUNTS[part]))
    check_disjoint(str(annotations or root / EPIC_KITCHENS.lists[0]), *splits[:2])
    maps = [ClassMap(f"classes_{k}.txt", names[k], n) for k, n in _EPIC_CLASSES.items()]
    labels = tuple(f"{names['verb'][verb]} {names['noun'][noun]}" for verb, noun in pairs)
    return OfficialLists(
        name="epic_kitchens",
        splits=tuple(splits),
        class_maps=(*maps, ClassMap("classes_action.txt", labels)),
        published_videos=sum(_EPIC_COUNTS.values()),
        notes=("the actions of the test set have no labels and are not listed",),
    )


def epic_kitchens_clips(
    root: Path, official: OfficialLists, annotations: Path | None = None
) -> Iterator[Clip]:
    """Where the listed clips lie in the whole videos; errors as :func:`read_epic_kitchens`."""
    for rows in _read_tables(root, annotations)[1].values():
        yield from (row.clip for row in rows)


def _read_tables(
    root: Path, annotations: Path | None
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[_Action, ...]]]:
    """Names of the classes by kind, and the actions by part."""
    tables = [f"EPIC_100_{kind}_classes.csv" for kind in _EPIC_CLASSES]
    tables += [f"EPIC_100_{part}.csv" for part in _EPIC_COUNTS]
    verbs, nouns, *lists = (EPIC_KITCHENS.find(root, annotations, t, t) for t in tables)
    names = {"verb": _read_classes(verbs), "noun": _read_classes(nouns)}
    parts = zip(_EPIC_COUNTS, lists, strict=True)
    return names, {part: _read_actions(path, names) for part, path in parts}


def _read_classes(path: Path) -> tuple[str, ...]:
    """The column ``key`` of a table of classes, whose ``id`` counts from 0."""
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


def _read_actions(path: Path, names: dict[str, tuple[str, ...]]) -> tuple[_Action, ...]:
    """The rows of EPIC_100_train.csv or EPIC_100_validation.csv, for classes of verb and noun."""
    found: dict[str, _Action] = {}
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
            found[name] = _Action(clip, numbers["verb"], numbers["noun"])
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


#: Where the files of each set are, the reader of its lists, and its clips.
SETS = {
    "finegym": (FINEGYM, read_finegym, finegym_clips),
    "epic_kitchens": (EPIC_KITCHENS, read_epic_kitchens, epic_kitchens_clips),
}
