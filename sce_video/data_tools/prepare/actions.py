"""Sets of labelled clips from their official lists: UCF101, HMDB51, Something-Something V2,
Diving48 and NTU RGB+D."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from sce_video.data_tools.prepare.official import (
    ClassMap,
    Downloads,
    Entry,
    Located,
    OfficialLists,
    Split,
    check_disjoint,
    is_count,
    list_videos,
    locate_by_stem,
    nearest,
    read_lines,
)
from sce_video.utils.json_files import read_json

UCF101 = Downloads(
    """\
  UCF-101/ApplyEyeMakeup/v_ApplyEyeMakeup_g01_c01.avi   (UCF101.rar)
  ucfTrainTestlist/classInd.txt                         (UCF101TrainTestSplits-RecognitionTask.zip)
  ucfTrainTestlist/{trainlist,testlist}{01,02,03}.txt""",
    lists=("ucfTrainTestlist",),
    files=("UCF-101",),
)
# Soomro et al. 2012; numbers of lines in the official lists.
_UCF101_VIDEOS, _UCF101_CLASSES = 13320, 101
_UCF101_COUNTS = {1: (9537, 3783), 2: (9586, 3734), 3: (9624, 3696)}


def read_ucf101(root: Path, annotations: Path | None = None) -> OfficialLists:
    """Read classInd.txt, trainlist0N.txt and testlist0N.txt.

    Args:
        root: Folder of the data set.
        annotations: Folder of the lists, ``root/ucfTrainTestlist`` unless given.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A malformed line, an unknown class, a video listed twice; the message names file
            and line.
    """
    path = UCF101.find(root, annotations, "class index", "classInd.txt")
    classes = read_class_index(path)
    splits: list[Split] = []
    for number, counts in _UCF101_COUNTS.items():
        for part, published in zip(("train", "test"), counts, strict=True):
            what, name = f"{part} list {number}", f"{part}list0{number}.txt"
            listed = UCF101.find(root, annotations, what, name)
            entries = read_split_list(listed, classes, labelled=part == "train")
            splits.append(Split(f"{part}_split{number}.txt", entries, published))
        check_disjoint(str(path.parent), *splits[-2:])
    return OfficialLists(
        name="ucf101",
        splits=tuple(splits),
        class_maps=(ClassMap("classes.txt", classes, _UCF101_CLASSES),),
        published_videos=_UCF101_VIDEOS,
    )


def read_class_index(path: Path) -> tuple[str, ...]:
    """The names of classInd.txt (lines such as ``1 ApplyEyeMakeup``), in order of their numbers.

    Raises:
        ValueError: A malformed line, a name listed twice, numbers that are not 1, 2, 3, ...
    """
    names: list[str] = []
    for number, line in read_lines(path):
        index, _, name = line.partition(" ")
        where = f"{path}, line {number}"
        if index != str(len(names) + 1) or not name.strip():
            raise ValueError(
                f"{where}: {line!r} must be '{len(names) + 1} CLASS': classes are numbered from 1 "
                "without gaps"
            )
        if name.strip() in names:
            raise ValueError(f"{where}: class {name.strip()!r} is listed twice")
        names.append(name.strip())
    return tuple(names)


def read_split_list(path: Path, classes: tuple[str, ...], labelled: bool) -> tuple[Entry, ...]:
    """The videos of a list with lines ``CLASS/FILE.avi NUMBER`` (labelled) or ``CLASS/FILE.avi``.

    Labels are the numbers minus one. Class names are compared without regard to case: there are
    copies of the lists that spell HandstandPushups as HandStandPushups.

    Raises:
        ValueError: A malformed line, an unknown class, the number of another class, a video listed
            twice; the message names file and line.
    """
    label_of = {name.lower(): label for label, name in enumerate(classes)}
    entries: dict[str, Entry] = {}
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        words = line.split()
        folder, _, name = words[0].partition("/")
        if len(words) != (2 if labelled else 1) or not folder or not name or "/" in name:
            expected = "CLASS/FILE.avi NUMBER" if labelled else "CLASS/FILE.avi"
            raise ValueError(f"{where}: {line!r} must be '{expected}'")
        label = label_of.get(folder.lower())
        if label is None:
            raise ValueError(
                f"{where}: unknown class {folder!r}; {nearest(folder, classes)} (classInd.txt)"
            )
        if labelled and words[1] != str(label + 1):
            raise ValueError(
                f"{where}: {line!r:.200} gives number {words[1]:.40}, but classInd.txt numbers "
                f"{folder} {label + 1}"
            )
        if words[0] in entries:
            raise ValueError(f"{where}: {words[0]!r} is listed twice")
        entries[words[0]] = Entry(words[0], label)
    return tuple(entries.values())


HMDB51 = Downloads(
    """\
  hmdb51_org/brush_hair/April_09_brush_hair_u_nm_np1_ba_goo_0.avi   (hmdb51_org.rar, and the
                                                     archives of all classes in it, in hmdb51_org/)
  testTrainMulti_7030_splits/brush_hair_test_split{1,2,3}.txt       (test_train_splits.rar)""",
    lists=("testTrainMulti_7030_splits",),
    files=("hmdb51_org",),
)
# Kuehne et al. 2011: 70 training and 30 test videos per class and split.
_HMDB51_VIDEOS, _HMDB51_CLASSES = 6766, 51
_HMDB51_PER_CLASS = {"train": 70, "test": 30}
_MARKS = {"0": None, "1": "train", "2": "test"}
_CLASS_SPLIT = re.compile(r"(.+)_test_split([123])\.txt")


def read_hmdb51(root: Path, annotations: Path | None = None) -> OfficialLists:
    """Read all ``CLASS_test_split{1,2,3}.txt``; labels number the sorted class names.

    Args:
        root: Folder of the data set.
        annotations: Folder of the splits, ``root/testTrainMulti_7030_splits`` unless given.

    Raises:
        FileNotFoundError: There are no split files, or a class lacks one of its three.
        ValueError: A malformed line, an unknown mark, a video listed twice; the message names file
            and line.
    """
    folder = HMDB51.find(root, annotations, "folder of splits", "")
    found = [m for name in os.listdir(folder) if (m := _CLASS_SPLIT.fullmatch(name))]
    classes = tuple(sorted({match[1] for match in found if not match[1].startswith(".")}))
    if not classes:
        raise FileNotFoundError(
            f"no CLASS_test_split1.txt in {folder}\n"
            f"{root} must hold the unpacked official downloads:\n{HMDB51.layout}"
        )
    splits, unused = [], []
    for number in (1, 2, 3):
        parts: dict[str, list[Entry]] = {"train": [], "test": []}
        for label, name in enumerate(classes):
            list_name = f"{name}_test_split{number}.txt"
            path = HMDB51.find(root, folder, f"split {number}", list_name)
            for video, part in read_class_split(path).items():
                if part is None:
                    unused.append(f"{name}/{video}")
                else:
                    parts[part].append(Entry(f"{name}/{video}", label))
        for part, per_class in _HMDB51_PER_CLASS.items():
            published = _HMDB51_CLASSES * per_class
            entries = tuple(parts[part])
            splits.append(
                Split(f"{part}_split{number}.txt", entries, published, per_class=per_class)
            )
    return OfficialLists(
        name="hmdb51",
        splits=tuple(splits),
        class_maps=(ClassMap("classes.txt", classes, _HMDB51_CLASSES),),
        published_videos=_HMDB51_VIDEOS,
        unused=tuple(unused),
    )


def read_class_split(path: Path) -> dict[str, str | None]:
    """File name -> "train", "test" or None (not used), from lines ``NAME.avi MARK``.

    Mark 1 is train, 2 is test, 0 is neither. Names contain characters such as ``# & ( ; [ !``.

    Raises:
        ValueError: A malformed line, an unknown mark, a name listed twice; the message names file
            and line.
    """
    parts: dict[str, str | None] = {}
    for number, line in read_lines(path):
        name, _, mark = line.rpartition(" ")
        name = name.strip()
        where = f"{path}, line {number}"
        if not name or "/" in name or mark not in _MARKS:
            raise ValueError(
                f"{where}: {line!r} must be 'NAME.avi MARK' with mark 0 (not used), 1 (train) "
                "or 2 (test)"
            )
        if name in parts:
            raise ValueError(f"{where}: {name!r} is listed twice")
        parts[name] = _MARKS[mark]
    return parts


SSV2 = Downloads(
    """\
  20bn-something-something-v2/78687.webm              (the parts of the download, joined, unpacked)
  labels/something-something-v2-train.json            (the labels; or directly in the folder, or
  labels/something-something-v2-validation.json        without the prefix: labels/train.json, ...)
  labels/something-something-v2-labels.json""",
    lists=("labels", ""),
    files=("20bn-something-something-v2",),
)
# Goyal et al. 2017 and the data set's page.
SSV2_CLASSES = 174
SSV2_PUBLISHED = {"train": 168913, "validation": 24777}


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
    paths = {
        part: SSV2.find(
            root, annotations, f"{part} file", f"something-something-v2-{part}.json", f"{part}.json"
        )
        for part in ("labels", *SSV2_PUBLISHED)
    }
    classes = read_templates(paths["labels"])
    splits = [
        Split(name, read_template_entries(paths[part], classes), SSV2_PUBLISHED[part])
        for part, name in (("train", "train.txt"), ("validation", "val.txt"))
    ]
    check_disjoint(str(paths["labels"].parent), *splits)
    return OfficialLists(
        name="ssv2",
        splits=tuple(splits),
        class_maps=(ClassMap("classes.txt", classes, SSV2_CLASSES),),
        published_videos=sum(SSV2_PUBLISHED.values()),
        notes=("the videos of the test set have no labels and are not listed",),
    )


def read_templates(path: Path) -> tuple[str, ...]:
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


def read_template_entries(path: Path, classes: tuple[str, ...]) -> tuple[Entry, ...]:
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
            shown = json.dumps(item)
            shown = shown if len(shown) <= 80 else shown[:77] + "..."
            raise ValueError(f"{where}: {shown} has no 'id' and 'template'")
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


DIVING48 = Downloads(
    """\
  rgb/_8Vy3dlHg2w_00000.mp4          (Diving48_rgb.tar.gz, unpacked; or in videos/)
  Diving48_V2_train.json             (or in annotations/)
  Diving48_V2_test.json
  Diving48_vocab.json""",
    lists=("", "annotations"),
    files=("rgb", "videos"),
    by_stem=True,
)
# Li et al. 2018; numbers of entries of the V2 files (October 2020), which replace the first labels.
_DIVING48_CLASSES = 48
_DIVING48_COUNTS = {"train": 15027, "test": 1970}


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
    vocabulary, *lists = (
        DIVING48.find(root, annotations, name, name)
        for name in ("Diving48_vocab.json", *(f"Diving48_V2_{p}.json" for p in _DIVING48_COUNTS))
    )
    classes = _read_dives(vocabulary)
    splits = [
        Split(f"{part}.txt", _read_diving_entries(path, len(classes)), published)
        for path, (part, published) in zip(lists, _DIVING48_COUNTS.items(), strict=True)
    ]
    check_disjoint(str(annotations or root), *splits)
    return OfficialLists(
        name="diving48",
        splits=tuple(splits),
        class_maps=(ClassMap("classes.txt", classes, _DIVING48_CLASSES),),
        published_videos=sum(_DIVING48_COUNTS.values()),
    )


def _read_dives(path: Path) -> tuple[str, ...]:
    """The classes of Diving48_vocab.json, ``[["Back", "15som", "05Twis", "FREE"], ...]``."""
    names: list[str] = []
    for number, words in enumerate(
        _load(path, list, "[[TAKEOFF, SOMERSAULTS, TWISTS, POSITION], ...]")
    ):
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"{path}, entry {number}: {words!r:.80} is no list of words")
        names.append("+".join(words))
        if not words or names[-1] in names[:-1]:
            raise ValueError(f"{path}, entry {number}: {names[-1]!r} is empty or listed twice")
    return tuple(names)


def _read_diving_entries(path: Path, classes: int) -> tuple[Entry, ...]:
    """The videos of a list, ``[{"vid_name": "8qRmKunCjtY_00016", "label": 0, ...}, ...]``.

    ``start_frame`` and ``end_frame`` count from the start of the long video that the clip was cut
    from, so they are not used.
    """
    data = _load(path, list, '[{"vid_name": ..., "label": ...}, ...]')
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


NTU60 = Downloads(
    """\
  nturgb+d_rgb/S001C001P001R001A001_rgb.avi     (nturgbd_rgb_s001.zip to _s017.zip, unpacked)""",
    files=("nturgb+d_rgb",),
)
# Shahroudy et al. 2016, section 3.2.
_NTU60_VIDEOS = 56880
_TRAINING_PERFORMERS = frozenset(
    (1, 2, 4, 5, 8, 9, 13, 14, 15, 16, 17, 18, 19, 25, 27, 28, 31, 34, 35, 38)
)
_TRAINING_CAMERAS = frozenset((2, 3))
_NTU60_COUNTS = {
    "train_subject.txt": 40320,
    "test_subject.txt": 16560,
    "train_view.txt": 37920,
    "test_view.txt": 18960,
}
#: In the order of the numbers A001 to A060.
NTU60_CLASSES = (
    "drink water", "eat meal", "brush teeth", "brush hair", "drop", "pick up", "throw", "sit down",
    "stand up", "clapping", "reading", "writing", "tear up paper", "put on jacket",
    "take off jacket", "put on a shoe", "take off a shoe", "put on glasses", "take off glasses",
    "put on a hat/cap", "take off a hat/cap", "cheer up", "hand waving", "kicking something",
    "reach into pocket", "hopping", "jump up", "phone call", "play with phone/tablet",
    "type on a keyboard", "point to something", "taking a selfie", "check time (from watch)",
    "rub two hands", "nod head/bow", "shake head", "wipe face", "salute", "put palms together",
    "cross hands in front", "sneeze/cough", "staggering", "falling down", "headache", "chest pain",
    "back pain", "neck pain", "nausea/vomiting", "fan self", "punch/slap", "kicking", "pushing",
    "pat on back", "point finger", "hugging", "giving object", "touch pocket", "shaking hands",
    "walking towards", "walking apart",
)  # fmt: skip
_NTU60_NAME = re.compile(r"S(\d{3})C(\d{3})P(\d{3})R(\d{3})A(\d{3})_rgb")


def read_ntu60(root: Path, videos: Path | None = None) -> tuple[OfficialLists, dict[str, Located]]:
    """Both official splits of the videos on disk, and where they are.

    There are no official lists: a file name gives setup (S), camera (C), performer (P), repetition
    (R) and action (A), and the performers and cameras of the training sets are published. Missing
    files show in the counts. Actions from A061 on belong to the later set of 120 actions.

    Args:
        root: Folder of the data set.
        videos: Folder of the videos, ``root/nturgb+d_rgb`` unless given.

    Raises:
        FileNotFoundError: The folder does not exist.
        ValueError: It has no video with such a name.
    """
    folder = NTU60.folder(root, videos)
    paths = list_videos(folder)
    entries: dict[str, list[Entry]] = {name: [] for name in _NTU60_COUNTS}
    later = strange = 0
    for path in paths:
        name = Path(path).stem
        match = _NTU60_NAME.fullmatch(name)
        if match is None:
            strange += 1
            continue
        _, camera, performer, _, action = map(int, match.groups())
        if not 1 <= action <= len(NTU60_CLASSES):
            later += 1
            continue
        entry = Entry(name, action - 1)
        by_subject = "train" if performer in _TRAINING_PERFORMERS else "test"
        by_view = "train" if camera in _TRAINING_CAMERAS else "test"
        entries[f"{by_subject}_subject.txt"].append(entry)
        entries[f"{by_view}_view.txt"].append(entry)
    if not any(entries.values()):
        raise ValueError(
            f"{folder} holds no video named like S001C001P001R001A001_rgb.avi, of {len(paths)}"
        )
    counts = {"of actions from A061 on": later, "with another name": strange}
    official = OfficialLists(
        name="ntu60",
        splits=tuple(
            Split(name, tuple(found), _NTU60_COUNTS[name]) for name, found in entries.items()
        ),
        class_maps=(ClassMap("classes.txt", NTU60_CLASSES, len(NTU60_CLASSES)),),
        published_videos=_NTU60_VIDEOS,
        notes=tuple(
            f"{count:,} files {what} are not listed" for what, count in counts.items() if count
        ),
    )
    return official, locate_by_stem(root, folder, official.names(), paths, ".avi")


#: Where the files of each set are, and the reader of its lists.
SETS = {
    "ucf101": (UCF101, read_ucf101),
    "hmdb51": (HMDB51, read_hmdb51),
    "ssv2": (SSV2, read_ssv2),
    "diving48": (DIVING48, read_diving48),
    "ntu60": (NTU60, read_ntu60),
}
