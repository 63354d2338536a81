"""Diving48: the official JSON files (V2) and folder of videos."""

from __future__ import annotations

from pathlib import Path

from sce_video.data_tools.prepare.official import (
    ClassMap,
    Entry,
    Located,
    OfficialLists,
    Split,
    check_disjoint,
    first_existing,
    list_videos,
    locate_by_stem,
)
from sce_video.utils.json_files import read_json

LAYOUT = """\
  rgb/_8Vy3dlHg2w_00000.mp4          (Diving48_rgb.tar.gz, unpacked; or in videos/)
  Diving48_V2_train.json             (or in annotations/)
  Diving48_V2_test.json
  Diving48_vocab.json"""

# Li et al. 2018; numbers of entries of the V2 files (October 2020), which replace the first labels.
PUBLISHED_CLASSES = 48
PUBLISHED = {"train": 15027, "test": 1970}


def read_diving48(root: Path, annotations: Path | None = None) -> OfficialLists:
    """Read Diving48_vocab.json, Diving48_V2_train.json and Diving48_V2_test.json.

    A class is named by its four attributes, as in ``Back+15som+05Twis+FREE``.

    Args:
        root: Folder of the data set.
        annotations: Folder of the JSON files; ``root`` or ``root/annotations`` unless given.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A malformed entry, a label without a name, a video listed twice; the message
            names file and entry.
    """
    folders = [annotations] if annotations else [root, root / "annotations"]

    def find(name: str) -> Path:
        return first_existing([folder / name for folder in folders], root, LAYOUT, name)

    classes = read_vocabulary(find("Diving48_vocab.json"))
    splits = []
    for part, published in PUBLISHED.items():
        entries = read_entries(find(f"Diving48_V2_{part}.json"), len(classes))
        splits.append(Split(f"{part}.txt", entries, published))
    check_disjoint(str(folders[0]), *splits)
    return OfficialLists(
        name="diving48",
        splits=tuple(splits),
        class_maps=(ClassMap("classes.txt", classes, PUBLISHED_CLASSES),),
        published_videos=sum(PUBLISHED.values()),
    )


def read_vocabulary(path: Path) -> tuple[str, ...]:
    """The classes of Diving48_vocab.json, ``[["Back", "15som", "05Twis", "FREE"], ...]``.

    Raises:
        ValueError: Not such a list, or a class is listed twice.
    """
    data = read_json(path)
    if not isinstance(data, list) or not data:
        raise ValueError(f"{path} must hold [[TAKEOFF, SOMERSAULTS, TWISTS, POSITION], ...]")
    names: list[str] = []
    for number, words in enumerate(data):
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"{path}, entry {number}: {words!r:.80} is no list of words")
        names.append("+".join(words))
        if not words or names[-1] in names[:-1]:
            raise ValueError(f"{path}, entry {number}: {names[-1]!r} is empty or listed twice")
    return tuple(names)


def read_entries(path: Path, classes: int) -> tuple[Entry, ...]:
    """The videos of a list, ``[{"vid_name": "8qRmKunCjtY_00016", "label": 0, ...}, ...]``.

    ``start_frame`` and ``end_frame`` count from the start of the long video that the clip was cut
    from, so they are not used.

    Raises:
        ValueError: Not such a list, a malformed entry, a label without a name, or a video listed
            twice.
    """
    data = read_json(path)
    if not isinstance(data, list) or not data:
        raise ValueError(f'{path} must hold [{{"vid_name": ..., "label": ...}}, ...]')
    entries: dict[str, Entry] = {}
    for number, item in enumerate(data):
        where = f"{path}, entry {number}"
        if not isinstance(item, dict) or not isinstance(item.get("vid_name"), str):
            raise ValueError(f"{where}: {item!r:.80} has no 'vid_name'")
        name, label = item["vid_name"], item.get("label")
        if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < classes:
            raise ValueError(
                f"{where} ({name:.40}): label {label!r:.40} is none of the {classes} classes"
            )
        if name in entries:
            raise ValueError(f"{where}: {name!r:.40} is listed twice")
        entries[name] = Entry(name, label)
    return tuple(entries.values())


def locate_diving48(
    root: Path, official: OfficialLists, videos: Path | None = None
) -> dict[str, Located]:
    """Locations of the videos, by name; ``videos`` is ``root/rgb`` or ``root/videos`` unless given.

    Raises:
        FileNotFoundError: The folder does not exist.
    """
    candidates = [videos] if videos else [root / "rgb", root / "videos"]
    folder = first_existing(candidates, root, LAYOUT, "folder of videos")
    return locate_by_stem(root, folder, official.names(), list_videos(folder))
