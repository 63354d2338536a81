"""Datasets of clips that are cut from long videos: FineGym-99 and EPIC-KITCHENS-100.

The official files, below ``root`` or in ``annotations`` if it is given, list the clips and their
places in the long videos. ``repack`` cuts the clips by a table of segments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from sce_video.data_tools.prepare.official import (
    ClassMap,
    Downloads,
    Entry,
    Folder,
    OfficialLists,
    Split,
    check_disjoint,
    files_below,
    is_count,
    read_lines,
    read_matches,
    relative_to_root,
    unique_entries,
)
from sce_video.datasets.segments import segment_of_row
from sce_video.datasets.text_tables import read_csv_table, write_csv
from sce_video.options.data_commands import PrepareOptions
from sce_video.utils.files import read_json


class Clip(NamedTuple):
    """A segment of a video, from ``start`` to ``end`` in seconds.

    The names of video and clip have no extension. In FineGym, they are a YouTube id and an entry of
    the lists, such as ``0LtLS9wROrk_E_002407_002435_A_0003_0005``. In EPIC-KITCHENS, they are
    ``P01_01`` and a narration id such as ``P01_01_0``.
    """

    video: str
    start: float
    end: float
    name: str


FINEGYM = Downloads(
    """\
  annotations/gym99_train_element_v1.1.txt      (or v1.0; or directly in ROOT)
  annotations/gym99_val_element.txt
  annotations/gym99_categories.txt
  annotations/finegym_annotation_info_v1.1.json (to cut the videos; or v1.0)
  videos/0LtLS9wROrk.mp4                        (the whole videos)
  subactions/0LtLS9wROrk_E_002407_002435_A_0003_0005.mp4   (the clips, cut from them)""",
    lists=("annotations", ""),
    files=("subactions",),
    what="clips",
    uncut="videos",
    extension=".mp4",
)
#: Number of classes (Shao et al. 2020).
_FINEGYM_CLASSES = 99
#: Number of lines in the training list, version 1.0.
_FINEGYM_TRAIN = 20484
#: Number of lines in the validation list.
_FINEGYM_VAL = 8521
#: Labels of two sets of elements in FineGym-99, for which separate lists are written: leaps, jumps
#: and hops on the floor, and circles on the uneven bars (the SEVERE benchmark's FX-S1 and UB-S1;
#: fmthoker/SEVERE-BENCHMARK, action_recognition/datasets/gym_set_{FX,UB}_S1.py).
FINEGYM_SETS = {"fx_s1": range(6, 17), "ub_s1": range(74, 89)}
_PUBLISHED_SETS = {"fx_s1": (1882, 777), "ub_s1": (3511, 1471)}  # number of lines, version 1.0
_CATEGORY = re.compile(r"Clabel:\s*(\d+)\s*;\s*set:\s*\d+\s*;\s*Glabel:\s*\d+\s*;\s*(.+)")


def read_finegym(root: Path, annotations: Folder = None) -> OfficialLists:
    """Read the element lists and categories of FineGym-99.

    The lists are train.txt and val.txt, and lists with labels from 0 for each of
    :data:`FINEGYM_SETS`. Names of clips have no extension.

    Lines of the official lists are ``VIDEO_E_..._A_... LABEL``. Lines of gym99_categories.txt are
    ``Clabel: LABEL; set: S; Glabel: G; NAME``, sorted by label.
    """

    def find(stem: str, *versions: str) -> Path:
        names = (f"{stem}{version}.txt" for version in versions)
        return FINEGYM.find(root, annotations, f"{stem} file", *names)

    classes: list[str] = []
    for where, line in read_lines(find("gym99_categories", "")):
        match = _CATEGORY.fullmatch(line)
        if match is None or int(match[1]) != len(classes):
            form = f"'Clabel: {len(classes)}; set: S; Glabel: G; NAME'"
            raise ValueError(f"{where}: {line!r:.80} must be {form}")
        classes.append(match[2].strip())

    def rows(path: Path) -> Iterator[tuple[str, str, int]]:
        pattern = r"(?=\S*_E_)(?=\S*_A_)(\S+)\s+(\d{1,18})"
        for where, match in read_matches(path, pattern, "'VIDEO_E_..._A_... LABEL'"):
            label, count = int(match[2]), len(classes)
            if label >= count:
                raise ValueError(
                    f"{where}: label {label} has no name, because there are only {count} classes"
                )
            yield where, match[1], label

    train_path = find("gym99_train_element", "_v1.1", "_v1.0", "")
    old = train_path.stem.endswith("1.0")
    train_count = _FINEGYM_TRAIN if old else None
    train = Split("train.txt", unique_entries(rows(train_path)), train_count)
    val_path = find("gym99_val_element", "", "_v1.0", "_v1.1")
    val = Split("val.txt", unique_entries(rows(val_path)), _FINEGYM_VAL)
    check_disjoint(str(train_path.parent), train, val)
    splits, maps = [train, val], [ClassMap("classes.txt", tuple(classes), _FINEGYM_CLASSES)]
    for name, labels in FINEGYM_SETS.items():
        first, counts = labels.start, _PUBLISHED_SETS[name]
        parts = []
        for split, count in zip((train, val), (counts[0] if old else None, counts[1]), strict=True):
            entries = [Entry(e.name, e.label - first) for e in split.entries if e.label in labels]
            parts.append(Split(f"{split.title}_{name}.txt", tuple(entries), count))
        if all(part.entries for part in parts):
            splits += parts
            names = tuple(classes[first : labels.stop])
            maps.append(ClassMap(f"classes_{name}.txt", names, len(labels)))
    return OfficialLists("finegym", tuple(splits), tuple(maps))


def finegym_clips(root: Path, annotations: Folder = None) -> Iterator[Clip]:
    """Yield the listed clips with their places in the long videos.

    The times of an event count from the start of the video, and the times of its elements from the
    start of the event: ``{VIDEO: {E_...: {"timestamps": [[5.1, 9.3]], "segments": {A_...:
    {"timestamps": [[0.2, 1.4]]}}}}}``. A clip with several intervals extends from the start of the
    first to the end of the last.
    """
    stem = "finegym_annotation_info"
    names = (f"{stem}{version}.json" for version in ("_v1.1", "_v1.0", ""))
    path = FINEGYM.find(root, annotations, f"{stem} file", *names)
    data: Any = read_json(path)
    for name in read_finegym(root, annotations).names():
        video, _, rest = name.partition("_E_")
        event, _, element = rest.partition("_A_")
        try:
            of_event = data[video][f"E_{event}"]
            begin = float(of_event["timestamps"][0][0])
            times = of_event["segments"][f"A_{element}"]["timestamps"]
            start, end = begin + float(times[0][0]), begin + float(times[-1][1])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"{path} has no times for {name}: {error!r:.80}") from None
        yield Clip(video, start, end, name)


EPIC_KITCHENS = Downloads(
    """\
  epic-kitchens-100-annotations/EPIC_100_train.csv          (or directly in ROOT)
  epic-kitchens-100-annotations/EPIC_100_validation.csv
  epic-kitchens-100-annotations/EPIC_100_verb_classes.csv
  epic-kitchens-100-annotations/EPIC_100_noun_classes.csv
  EPIC-KITCHENS/P01/videos/P01_01.MP4                       (the whole videos)
  clips/P01_01_0.mp4                                        (the actions, cut from them)""",
    lists=("epic-kitchens-100-annotations", ""),
    files=("clips",),
    what="clips",
    uncut="EPIC-KITCHENS",
    extension=".mp4",
)
#: Number of clips (Damen et al. 2022, table 2; epic-kitchens/epic-kitchens-100-annotations).
_EPIC_COUNTS = {"train": 67217, "validation": 9668}
#: Number of classes for each kind of label.
_EPIC_CLASSES = {"verb": 97, "noun": 300}
#: Columns that are read from the tables of classes and actions.
_CLASS = ("id", "key")
_ACTION = (
    "narration_id", "video_id", "start_timestamp", "stop_timestamp", "verb_class", "noun_class"
)  # fmt: skip


#: A row of a table: a clip, and the class numbers of its verb and noun.
_Action = tuple[Clip, int, int]


def read_epic_kitchens(root: Path, annotations: Folder = None) -> OfficialLists:
    """Read the lists of verbs, nouns and actions.

    The lists are {train,val}_{verb,noun,action}.txt. An action is a pair of verb and noun that
    occurs in training or validation. The test set has no labels.
    """
    names, actions = _read_tables(root, annotations)
    pairs = sorted({(verb, noun) for part in actions.values() for _, verb, noun in part})
    number_of = {pair: number for number, pair in enumerate(pairs)}
    splits = []
    for position, kind in enumerate(("verb", "noun", "action")):
        for (part, rows), name in zip(actions.items(), ("train", "val"), strict=True):
            entries = tuple(
                Entry(clip.name, (verb, noun, number_of[verb, noun])[position])
                for clip, verb, noun in rows
            )
            splits.append(Split(f"{name}_{kind}.txt", entries, _EPIC_COUNTS[part]))
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


def epic_kitchens_clips(root: Path, annotations: Folder = None) -> Iterator[Clip]:
    """Yield the clips of training, then of validation, with their places in the long videos."""
    read_epic_kitchens(root, annotations)  # refuses clips that are in both splits
    for rows in _read_tables(root, annotations)[1].values():
        yield from (clip for clip, _, _ in rows)


def _read_tables(
    root: Path, annotations: Folder
) -> tuple[dict[str, tuple[str, ...]], dict[str, list[_Action]]]:
    """Return the class names of verbs and nouns, and the actions of each part."""
    names: dict[str, tuple[str, ...]] = {}
    for kind in _EPIC_CLASSES:
        keys: list[str] = []
        table = f"EPIC_100_{kind}_classes.csv"
        for where, row in read_csv_table(
            EPIC_KITCHENS.find(root, annotations, table, table), _CLASS
        ):
            if row["id"] != str(len(keys)) or not row["key"] or row["key"] in keys:
                raise ValueError(
                    f"{where}: expected id {len(keys)} and a new key, got id {row['id']!r:.40} "
                    f"and key {row['key']!r:.40}"
                )
            keys.append(row["key"])
        names[kind] = tuple(keys)
    tables = {part: f"EPIC_100_{part}.csv" for part in _EPIC_COUNTS}
    paths = {p: EPIC_KITCHENS.find(root, annotations, t, t) for p, t in tables.items()}
    return names, {part: _read_actions(path, names) for part, path in paths.items()}


def _read_actions(path: Path, names: Mapping[str, tuple[str, ...]]) -> list[_Action]:
    """Read EPIC_100_train.csv or EPIC_100_validation.csv; ``names`` are the classes by kind."""
    found: dict[str, _Action] = {}
    for where, row in read_csv_table(path, _ACTION):
        name, video, *times = (row[column] for column in _ACTION[:4])
        if not re.fullmatch(r"P\d+_\d+_\d+", name):
            raise ValueError(f"{where}: narration_id {name!r:.40} must be like 'P01_01_0'")
        if name in found:
            raise ValueError(f"{where}: {name} is listed twice")
        start, end = segment_of_row(where, *times)
        for column, classes in zip(_ACTION[4:], names.values(), strict=True):
            text = row[column]
            if not is_count(text) or int(text) >= len(classes):
                what = f"is not one of the {len(classes)} classes"
                raise ValueError(f"{where}: {column} {text!r:.40} {what}")
        verb, noun = (int(row[column]) for column in _ACTION[4:])
        found[name] = Clip(video, start, end, name), verb, noun
    if not found:
        raise ValueError(f"{path} lists no actions")
    return list(found.values())


#: Layout and reader of each dataset.
SETS = {
    "finegym": (FINEGYM, read_finegym),
    "epic_kitchens": (EPIC_KITCHENS, read_epic_kitchens),
}


def write_segments(options: PrepareOptions) -> str:
    """Write ``segments.csv`` for ``repack``, and describe it for the terminal.

    Clips whose video is missing are left out and counted.

    Raises:
        FileNotFoundError: If an official file or the folder of videos is missing.
        ValueError: If two videos have one name, or none of the videos exists.
    """
    root = Path(options.root)
    if options.name == "finegym":
        downloads, clips = FINEGYM, list(finegym_clips(root, options.annotations))
    else:
        downloads, clips = EPIC_KITCHENS, list(epic_kitchens_clips(root, options.annotations))
    folder = Path(options.videos or root / downloads.uncut)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder of videos {folder}. Give it with --videos")
    paths: dict[str, str] = {}
    for name in files_below(folder):
        video = relative_to_root(folder / name, root)
        other = paths.setdefault(Path(name).stem, video)
        if other != video:
            raise ValueError(f"{other} and {video} have the same name. Move one of them away")
    found = [clip for clip in clips if clip.video in paths]
    absent = {clip.video for clip in clips if clip.video not in paths}
    if not found:
        raise ValueError(
            f"{folder} has none of the {len(absent)} videos, for example {min(absent)}"
        )
    table = Path(options.out or root) / "segments.csv"
    rows = [
        (paths[clip.video], f"{clip.start:.3f}", f"{clip.end:.3f}", f"{clip.name}.mp4")
        for clip in found
    ]
    write_csv(table, [("path", "start", "end", "output"), *rows])
    missing = len(clips) - len(found)
    lost = f"; {missing:,} clips of {len(absent):,} missing videos" if missing else ""
    return f"{table}: {len(found):,} clips of {len(paths):,} videos{lost}"
