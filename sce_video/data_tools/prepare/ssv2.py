"""Something-Something V2: the official JSON lists and folder (20bn-something-something-v2)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sce_video.data_tools.prepare.official import (
    ClassMap,
    Entry,
    Located,
    OfficialLists,
    Split,
    check_disjoint,
    first_existing,
    is_count,
    locate_by_name,
    nearest,
)
from sce_video.utils.json_files import read_json

LAYOUT = """\
  20bn-something-something-v2/78687.webm              (the parts of the download, joined, unpacked)
  labels/something-something-v2-train.json            (the labels; or directly in the folder, or
  labels/something-something-v2-validation.json        without the prefix: labels/train.json, ...)
  labels/something-something-v2-labels.json"""

# Goyal et al. 2017 and the data set's page.
PUBLISHED_CLASSES = 174
PUBLISHED = {"train": 168913, "validation": 24777}
_LIST_NAMES = {"train": "train.txt", "validation": "val.txt"}
_PREFIXES = ("something-something-v2-", "")


def read_ssv2(root: Path, annotations: Path | None = None) -> OfficialLists:
    """Read the JSON files of labels, train and validation; labels are the ids in the first.

    Args:
        root: Folder of the data set.
        annotations: Folder of the JSON files; ``root/labels`` or ``root`` unless given.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: Not JSON, a malformed entry, an unknown template, a video listed twice; the
            message names file and entry.
    """
    folders = [annotations] if annotations else [root / "labels", root]

    def find(part: str) -> Path:
        candidates = [folder / f"{p}{part}.json" for folder in folders for p in _PREFIXES]
        return first_existing(candidates, root, LAYOUT, f"{part} file")

    path = find("labels")
    classes = read_labels(path)
    splits = []
    for part, published in PUBLISHED.items():
        entries = read_entries(find(part), classes)
        splits.append(Split(_LIST_NAMES[part], entries, published))
    check_disjoint(str(path.parent), *splits)
    return OfficialLists(
        name="ssv2",
        splits=tuple(splits),
        class_maps=(ClassMap("classes.txt", classes, PUBLISHED_CLASSES),),
        published_videos=sum(PUBLISHED.values()),
        notes=("the videos of the test set have no labels and are not listed",),
    )


def read_labels(path: Path) -> tuple[str, ...]:
    """The templates of the label file, ``{"Holding something": "0", ...}``, by their ids.

    Raises:
        ValueError: Not such an object, or ids that are not 0, 1, 2, ... without gaps.
    """
    labels = _load(path, dict, '{"TEMPLATE": "ID", ...}')
    by_id: dict[int, str] = {}
    for template, text in labels.items():
        if not isinstance(text, str | int) or not is_count(str(text)):
            raise ValueError(f"{path}: entry {template!r} has id {text!r:.40}, not a whole number")
        if int(text) in by_id:
            raise ValueError(f"{path}: entries {by_id[int(text)]!r} and {template!r} share {text}")
        by_id[int(text)] = template
    if sorted(by_id) != list(range(len(by_id))):
        gap = next(number for number in range(len(by_id)) if number not in by_id)
        raise ValueError(f"{path}: no entry has id {gap}; ids go from 0 to {len(by_id) - 1}")
    return tuple(by_id[number] for number in range(len(by_id)))


def read_entries(path: Path, classes: tuple[str, ...]) -> tuple[Entry, ...]:
    """The videos of a list, ``[{"id": "78687", "template": "Holding [something]", ...}, ...]``.

    Templates are looked up without their brackets.

    Raises:
        ValueError: Not such a list, a malformed entry, an unknown template, an id listed twice;
            the message names file and entry, counted from 1.
    """
    label_of = {name: label for label, name in enumerate(classes)}
    entries: dict[str, Entry] = {}
    for number, item in enumerate(_load(path, list, '[{"id": ..., "template": ...}, ...]'), 1):
        where = f"{path}, entry {number}"
        if not isinstance(item, dict) or not {"id", "template"} <= item.keys():
            raise ValueError(f"{where}: {_short(item)} has no 'id' and 'template'")
        video, template = item["id"], item["template"]
        if not isinstance(video, str | int) or not is_count(str(video)):
            raise ValueError(f"{where}: id {video!r:.40} is not a number")
        if not isinstance(template, str):
            raise ValueError(f"{where} (id {video}): template {template!r} is not a string")
        name = re.sub(r"[\[\]]", "", template)
        if name not in label_of:
            raise ValueError(
                f"{where} (id {video}): unknown template {template!r}; {nearest(name, label_of)}"
            )
        file_name = f"{video}.webm"
        if file_name in entries:
            raise ValueError(f"{where}: id {video} is listed twice")
        entries[file_name] = Entry(file_name, label_of[name])
    return tuple(entries.values())


def _load(path: Path, kind: type, form: str) -> Any:
    data = read_json(path)
    if not isinstance(data, kind) or not data:
        raise ValueError(f"{path} must hold {form}")
    return data


def _short(item: object) -> str:
    text = json.dumps(item)
    return text if len(text) <= 80 else text[:77] + "..."


def locate_ssv2(
    root: Path, official: OfficialLists, videos: Path | None = None
) -> dict[str, Located]:
    """Locations of the videos, by name.

    ``videos`` is ``root/20bn-something-something-v2`` unless given.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    folder = first_existing(
        [videos or root / "20bn-something-something-v2"], root, LAYOUT, "folder of videos"
    )
    return locate_by_name(root, folder, official.names())
