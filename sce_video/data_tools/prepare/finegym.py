"""FineGym-99: the official element lists, and the times of the elements in their videos."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
    read_lines,
)
from sce_video.utils.json_files import read_json

LAYOUT = """\
  annotations/gym99_train_element_v1.1.txt      (or v1.0; or directly in the folder)
  annotations/gym99_val_element.txt
  annotations/gym99_categories.txt
  annotations/finegym_annotation_info_v1.1.json (to cut the videos; or v1.0)
  videos/0LtLS9wROrk.mp4                        (the whole videos)
  subactions/0LtLS9wROrk_E_002407_002435_A_0003_0005.mp4   (the clips, cut from them)"""

# Shao et al. 2020; numbers of lines of the lists, the training list in version 1.0.
PUBLISHED_CLASSES = 99
PUBLISHED_TRAIN, PUBLISHED_VAL = 20484, 8521
#: Sets of elements with lists of their own, and their labels in FineGym-99: leaps, jumps and hops
#: on the floor, and circles on the uneven bars (the SEVERE benchmark's FX-S1 and UB-S1;
#: fmthoker/SEVERE-BENCHMARK, action_recognition/datasets/gym_set_{FX,UB}_S1.py).
SETS = {"fx_s1": range(6, 17), "ub_s1": range(74, 89)}
_PUBLISHED_SETS = {"fx_s1": (1882, 777), "ub_s1": (3511, 1471)}  # lines of the lists, version 1.0
_CATEGORY = re.compile(r"Clabel:\s*(\d+)\s*;\s*set:\s*\d+\s*;\s*Glabel:\s*\d+\s*;\s*(.+)")
_VERSIONS = ("_v1.1", "_v1.0", "")


def read_finegym(root: Path, annotations: Path | None = None) -> OfficialLists:
    """Read the element lists and categories of FineGym-99.

    Writes train.txt and val.txt, and for each of :data:`SETS` lists with labels from 0.

    Args:
        root: Folder of the data set.
        annotations: Folder of the official files; ``root/annotations`` or ``root`` unless given.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A malformed line, a label without a name, an element listed twice; the message
            names file and line.
    """
    path = _find(root, annotations, "gym99_categories", ".txt", ("",))
    classes = read_categories(path)
    train_path = _find(root, annotations, "gym99_train_element", ".txt")
    old = train_path.stem.endswith("1.0")
    train = Split(
        "train.txt",
        read_elements(train_path, len(classes)),
        PUBLISHED_TRAIN if old else None,
    )
    val_path = _find(root, annotations, "gym99_val_element", ".txt", _VERSIONS[::-1])
    val = Split("val.txt", read_elements(val_path, len(classes)), PUBLISHED_VAL)
    check_disjoint(str(train_path.parent), train, val)
    splits, maps = [train, val], [ClassMap("classes.txt", classes, PUBLISHED_CLASSES)]
    for name, labels in SETS.items():
        counts = _PUBLISHED_SETS[name] if old else (None, _PUBLISHED_SETS[name][1])
        parts = [
            _of_set(split, name, labels, count)
            for split, count in zip((train, val), counts, strict=True)
        ]
        if all(part.entries for part in parts):
            splits += parts
            maps.append(
                ClassMap(f"classes_{name}.txt", classes[labels.start : labels.stop], len(labels))
            )
    return OfficialLists("finegym", tuple(splits), tuple(maps))


def _find(
    root: Path,
    annotations: Path | None,
    stem: str,
    extension: str,
    versions: Sequence[str] = _VERSIONS,
) -> Path:
    folders = [annotations] if annotations else [root / "annotations", root]
    candidates = [folder / f"{stem}{v}{extension}" for folder in folders for v in versions]
    return first_existing(candidates, root, LAYOUT, f"{stem} file")


def _of_set(split: Split, name: str, labels: range, published: int | None) -> Split:
    entries = (Entry(e.name, e.label - labels.start) for e in split.entries if e.label in labels)
    return Split(f"{split.title}_{name}.txt", tuple(entries), published)


def read_categories(path: Path) -> tuple[str, ...]:
    """The names of gym99_categories.txt, ``Clabel: 0; set: 1; Glabel: 1; (VT) round-off, ...``.

    Raises:
        ValueError: A malformed line, or labels that are not 0, 1, 2, ...
    """
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


def read_elements(path: Path, classes: int) -> tuple[Entry, ...]:
    """The clips of a list with lines ``VIDEO_E_START_END_A_START_END LABEL``.

    Raises:
        ValueError: A malformed line, a label without a name, a clip listed twice.
    """
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


def locate_finegym(
    root: Path, official: OfficialLists, videos: Path | None = None
) -> dict[str, Located]:
    """Locations of the clips, by name; ``videos`` is ``root/subactions`` unless given.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    folder = first_existing([videos or root / "subactions"], root, LAYOUT, "folder of clips")
    return locate_by_stem(root, folder, official.names(), list_videos(folder))


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
    path = _find(root, annotations, "finegym_annotation_info", ".json")
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
