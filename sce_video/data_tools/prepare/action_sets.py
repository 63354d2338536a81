"""UCF101, HMDB51, Something-Something V2, Diving48 and NTU RGB+D, read from their official lists.

Each function ``read_SET`` reads the official files below ``root``, or in ``annotations`` if it is
given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sce_video.data_tools.prepare.official import (
    ClassMap,
    Downloads,
    Entry,
    Folder,
    Located,
    OfficialLists,
    Split,
    check_disjoint,
    files_below,
    is_count,
    nearest,
    read_class_file,
    read_lines,
    read_matches,
    unique_entries,
)
from sce_video.utils.files import read_json

UCF101 = Downloads(
    """\
  UCF-101/ApplyEyeMakeup/v_ApplyEyeMakeup_g01_c01.avi   (UCF101.rar)
  ucfTrainTestlist/classInd.txt                         (UCF101TrainTestSplits-RecognitionTask.zip)
  ucfTrainTestlist/{trainlist,testlist}{01,02,03}.txt""",
    lists=("ucfTrainTestlist",),
    files=("UCF-101",),
)
#: Number of videos in UCF101 (Soomro et al. 2012).
_UCF101_VIDEOS = 13320
#: Number of classes in UCF101 (Soomro et al. 2012).
_UCF101_CLASSES = 101
#: Number of lines in the official train and test lists, by split.
_UCF101_COUNTS = {1: (9537, 3783), 2: (9586, 3734), 3: (9624, 3696)}


def read_ucf101(root: Path, annotations: Folder = None) -> OfficialLists:
    """Read classInd.txt, trainlist0N.txt and testlist0N.txt of ``root/ucfTrainTestlist``.

    Names are ``CLASS/FILE.avi``, and labels are the numbers of classInd.txt minus one. The lists
    are ``train_splitN.txt`` and ``test_splitN.txt`` for N = 1, 2, 3.
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
    class_map = ClassMap("classes.txt", classes, _UCF101_CLASSES)
    return OfficialLists("ucf101", tuple(splits), (class_map,), _UCF101_VIDEOS)


def read_class_index(path: Path) -> tuple[str, ...]:
    """Read the class names of classInd.txt, whose lines are ``1 ApplyEyeMakeup``."""
    names: list[str] = []
    for where, line in read_lines(path):
        index, _, name = (part.strip() for part in line.partition(" "))
        if index != str(len(names) + 1) or not name:
            raise ValueError(
                f"{where}: {line!r} must be '{len(names) + 1} CLASS', because classes are numbered "
                "from 1 without gaps"
            )
        if name in names:
            raise ValueError(f"{where}: class {name!r} is listed twice")
        names.append(name)
    return tuple(names)


def read_split_list(path: Path, classes: tuple[str, ...], labelled: bool) -> tuple[Entry, ...]:
    """Read the videos of a list with lines ``CLASS/FILE.avi NUMBER`` or ``CLASS/FILE.avi``.

    Labels are the numbers minus one. The case of class names is ignored, because some copies of the
    lists spell HandstandPushups as HandStandPushups.
    """
    label_of = {name.lower(): label for label, name in enumerate(classes)}
    pattern, form = r"(([^/\s]+)/[^/\s]+)", "'CLASS/FILE.avi'"
    if labelled:
        pattern, form = pattern + r"\s+(\S+)", "'CLASS/FILE.avi NUMBER'"

    def rows() -> Iterator[tuple[str, str, int]]:
        for where, match in read_matches(path, pattern, form):
            if match[2].lower() not in label_of:
                near = nearest(match[2], classes)
                raise ValueError(f"{where}: unknown class {match[2]!r}; {near} (classInd.txt)")
            label = label_of[match[2].lower()]
            if labelled and match[3] != str(label + 1):
                raise ValueError(
                    f"{where}: {match[0]!r:.200} has number {match[3]:.40}, but the number of "
                    f"{match[2]} in classInd.txt is {label + 1}"
                )
            yield where, match[1], label

    return unique_entries(rows())


HMDB51 = Downloads(
    """\
  hmdb51_org/brush_hair/April_09_brush_hair_u_nm_np1_ba_goo_0.avi   (unpack hmdb51_org.rar, and
                                                then the archive of each class, into hmdb51_org/)
  testTrainMulti_7030_splits/brush_hair_test_split{1,2,3}.txt       (test_train_splits.rar)""",
    lists=("testTrainMulti_7030_splits",),
    files=("hmdb51_org",),
)
#: Number of videos in HMDB51 (Kuehne et al. 2011).
_HMDB51_VIDEOS = 6766
#: Number of classes in HMDB51 (Kuehne et al. 2011).
_HMDB51_CLASSES = 51
#: Number of videos per class and split (Kuehne et al. 2011).
_HMDB51_PER_CLASS = {"train": 70, "test": 30}
_MARKS = "'NAME.avi MARK' with mark 0 (not used), 1 (train) or 2 (test)"


def read_hmdb51(root: Path, annotations: Folder = None) -> OfficialLists:
    """Read all files ``testTrainMulti_7030_splits/CLASS_test_split{1,2,3}.txt``.

    Labels are ranks of the sorted class names. Names are ``CLASS/NAME.avi``. Videos with mark 0 are
    ``unused``, once for each split that leaves them out. The lists are ``train_splitN.txt`` and
    ``test_splitN.txt``.
    """
    folder = HMDB51.find(root, annotations, "folder of splits", "")
    found = [re.fullmatch(r"([^.].*)_test_split[123]\.txt", name) for name in os.listdir(folder)]
    classes = tuple(sorted({match[1] for match in found if match}))
    if not classes:
        raise FileNotFoundError(
            f"{folder} contains no CLASS_test_split1.txt\n"
            f"{root} must contain the unpacked official downloads:\n{HMDB51.layout}"
        )
    splits, unused = [], []
    for number in (1, 2, 3):
        parts: dict[str, list[Entry]] = {"train": [], "test": []}
        for label, name in enumerate(classes):
            list_name = f"{name}_test_split{number}.txt"
            path = HMDB51.find(root, folder, f"split {number}", list_name)
            # File names may contain special characters such as # & ( ; [ !
            lines = read_matches(path, r"([^/]*[^/\s])\s* ([012])", _MARKS)
            for video in unique_entries((where, m[1], int(m[2])) for where, m in lines):
                if video.label == 0:
                    unused.append(f"{name}/{video.name}")
                else:
                    part = "train" if video.label == 1 else "test"
                    parts[part].append(Entry(f"{name}/{video.name}", label))
        for part, each in _HMDB51_PER_CLASS.items():
            list_name, count = f"{part}_split{number}.txt", _HMDB51_CLASSES * each
            splits.append(Split(list_name, tuple(parts[part]), count, per_class=each))
    class_map = ClassMap("classes.txt", classes, _HMDB51_CLASSES)
    return OfficialLists("hmdb51", tuple(splits), (class_map,), _HMDB51_VIDEOS, tuple(unused))


SSV2 = Downloads(
    """\
  20bn-something-something-v2/78687.webm              (join the parts of the download, and unpack)
  labels/something-something-v2-train.json            (the labels; or directly in ROOT, or
  labels/something-something-v2-validation.json        without the prefix: labels/train.json, ...)
  labels/something-something-v2-labels.json""",
    lists=("labels", ""),
    files=("20bn-something-something-v2",),
)
#: Number of classes. The numbers are from Goyal et al. 2017 and the dataset's page.
SSV2_CLASSES = 174
#: Number of videos in each split.
SSV2_PUBLISHED = {"train": 168913, "validation": 24777}


def read_ssv2(root: Path, annotations: Folder = None) -> OfficialLists:
    """Read the JSON files of labels, train and validation. Labels are the ids in the first file.

    Names are ``ID.webm``, and the lists are ``train.txt`` and ``val.txt``.
    """
    labels, *lists = (
        SSV2.find(
            root, annotations, f"{part} file", f"something-something-v2-{part}.json", f"{part}.json"
        )
        for part in ("labels", *SSV2_PUBLISHED)
    )
    classes = read_templates(labels)
    splits = [
        Split(name, read_template_entries(path, classes), published)
        for name, path, published in zip(
            ("train.txt", "val.txt"), lists, SSV2_PUBLISHED.values(), strict=True
        )
    ]
    check_disjoint(str(labels.parent), *splits)
    return OfficialLists(
        name="ssv2",
        splits=tuple(splits),
        class_maps=(ClassMap("classes.txt", classes, SSV2_CLASSES),),
        published_videos=sum(SSV2_PUBLISHED.values()),
        notes=("the videos of the test set have no labels and are not listed",),
    )


def read_templates(path: Path) -> tuple[str, ...]:
    """Return the templates of a label file ``{"Holding something": "0", ...}`` in id order."""
    labels = _load(path, dict, '{"TEMPLATE": "ID", ...}')
    by_id = {str(text): template for template, text in labels.items()}
    ids = [str(number) for number in range(len(labels))]
    odd = next((template for template, text in labels.items() if str(text) not in ids), "")
    if odd or len(by_id) < len(ids):
        which = f", not {labels[odd]!r:.40} of {odd!r}" if odd else ""
        raise ValueError(f"{path}: ids must be 0 to {len(ids) - 1}, each once{which}")
    return tuple(by_id[number] for number in ids)


def read_template_entries(path: Path, classes: tuple[str, ...]) -> tuple[Entry, ...]:
    """Read a list of videos, ``[{"id": "78687", "template": "Holding [something]", ...}, ...]``.

    Brackets in templates are ignored. Messages count entries from 1.
    """
    label_of = {name: label for label, name in enumerate(classes)}

    def rows() -> Iterator[tuple[str, str, int]]:
        for where, item in _items(path, "id", "template"):
            video, template = item["id"], item["template"]
            if not isinstance(video, str | int) or not is_count(str(video)):
                raise ValueError(f"{where}: id {video!r:.40} is not a number")
            if not isinstance(template, str):
                raise ValueError(f"{where} (id {video}): template {template!r} is not a string")
            name = re.sub(r"[\[\]]", "", template)
            if name not in label_of:
                what = f"unknown template {template!r}; {nearest(name, label_of)}"
                raise ValueError(f"{where} (id {video}): {what}")
            yield where, f"{video}.webm", label_of[name]

    return unique_entries(rows(), lambda name: f"id {name.removesuffix('.webm')}")


def _load(path: Path, kind: type, form: str) -> Any:
    data = read_json(path)
    if not isinstance(data, kind) or not data:
        raise ValueError(f"{path} must contain {form}")
    return data


def _items(path: Path, *keys: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the place and the content of each entry of a list; ValueError if a key is missing."""
    form = ", ".join(f'"{key}": ...' for key in keys)
    for number, item in enumerate(_load(path, list, f"[{{{form}}}, ...]"), 1):
        where = f"{path}, entry {number}"
        if not isinstance(item, dict) or not item.keys() >= set(keys):
            raise ValueError(f"{where}: {item!r:.80} has no {' and '.join(map(repr, keys))}")
        yield where, item


DIVING48 = Downloads(
    """\
  rgb/_8Vy3dlHg2w_00000.mp4          (Diving48_rgb.tar.gz, unpacked; or in videos/)
  Diving48_V2_train.json             (or in annotations/)
  Diving48_V2_test.json
  Diving48_vocab.json""",
    lists=("", "annotations"),
    files=("rgb", "videos"),
    extension=".mp4",
)
#: Number of classes (Li et al. 2018). The V2 files of October 2020 replace the first labels.
_DIVING48_CLASSES = 48
#: Number of entries in the file of each split.
_DIVING48_COUNTS = {"train": 15027, "test": 1970}


def read_diving48(root: Path, annotations: Folder = None) -> OfficialLists:
    """Read Diving48_vocab.json, Diving48_V2_train.json and Diving48_V2_test.json.

    A class is named after its four attributes, as in ``Back+15som+05Twis+FREE``, and its label is
    its position in the vocabulary. Names are the values of ``vid_name``, which have no extension.
    The lists are ``train.txt`` and ``test.txt``.
    """
    vocabulary, *lists = (
        DIVING48.find(root, annotations, name, name)
        for name in ("Diving48_vocab.json", *(f"Diving48_V2_{p}.json" for p in _DIVING48_COUNTS))
    )
    classes: list[str] = []
    form = "[[TAKEOFF, SOMERSAULTS, TWISTS, POSITION], ...]"
    for number, words in enumerate(_load(vocabulary, list, form)):
        where = f"{vocabulary}, entry {number}"
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"{where}: {words!r:.80} is not a list of words")
        name = "+".join(words)
        if not words or name in classes:
            raise ValueError(f"{where}: {name!r} is empty or listed twice")
        classes.append(name)

    # Ignore the frame numbers of an entry, because they refer to the long video from which the clip
    # was cut.
    def rows(path: Path) -> Iterator[tuple[str, str, int]]:
        for where, item in _items(path, "vid_name", "label"):
            name, label, count = str(item["vid_name"]), item["label"], len(classes)
            if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < count:
                what = f"label {label!r:.40} is not one of the {count} classes"
                raise ValueError(f"{where} ({name:.40}): {what}")
            yield where, name, label

    splits = [
        Split(f"{part}.txt", unique_entries(rows(path)), published)
        for path, (part, published) in zip(lists, _DIVING48_COUNTS.items(), strict=True)
    ]
    check_disjoint(str(annotations or root), *splits)
    class_map = ClassMap("classes.txt", tuple(classes), _DIVING48_CLASSES)
    total = sum(_DIVING48_COUNTS.values())
    return OfficialLists("diving48", tuple(splits), (class_map,), total)


NTU60 = Downloads(
    """\
  nturgb+d_rgb/S001C001P001R001A001_rgb.avi     (nturgbd_rgb_s001.zip to _s017.zip, unpacked)""",
    files=("nturgb+d_rgb",),
    extension=".avi",
)
#: Number of videos. The numbers and both splits are from Shahroudy et al. 2016, section 3.2.
_NTU60_VIDEOS = 56880
_TRAINING_PERFORMERS = frozenset(
    (1, 2, 4, 5, 8, 9, 13, 14, 15, 16, 17, 18, 19, 25, 27, 28, 31, 34, 35, 38)
)
_TRAINING_CAMERAS = frozenset((2, 3))
#: Number of videos in each list.
_NTU60_COUNTS = {
    "train_subject.txt": 40320,
    "test_subject.txt": 16560,
    "train_view.txt": 37920,
    "test_view.txt": 18960,
}
#: Names of the actions A001 to A060.
NTU60_CLASSES = read_class_file("ntu60")
_NTU60_NAME = re.compile(r"S(\d{3})C(\d{3})P(\d{3})R(\d{3})A(\d{3})_rgb")


def read_ntu60(root: Path, videos: Folder = None) -> tuple[OfficialLists, dict[str, Located]]:
    """Divide the videos on disk into both official splits, and locate them.

    There are no official lists, but the performers and cameras of the training sets are published.
    A file name contains setup (S), camera (C), performer (P), repetition (R) and action (A). The
    counts show if files are missing. Actions from A061 on belong to the later set of 120 actions.
    """
    folder = NTU60.folder(root, videos)
    names = [Path(path).stem for path in files_below(folder)]
    entries: dict[str, list[Entry]] = {name: [] for name in _NTU60_COUNTS}
    counts = {"of actions from A061 on": 0, "with another name": 0}
    for name in names:
        match = _NTU60_NAME.fullmatch(name)
        if match is None:
            counts["with another name"] += 1
            continue
        _, camera, performer, _, action = map(int, match.groups())
        if not 1 <= action <= len(NTU60_CLASSES):
            counts["of actions from A061 on"] += 1
            continue
        by_subject = "train" if performer in _TRAINING_PERFORMERS else "test"
        by_view = "train" if camera in _TRAINING_CAMERAS else "test"
        for list_name in (f"{by_subject}_subject.txt", f"{by_view}_view.txt"):
            entries[list_name].append(Entry(name, action - 1))
    if not any(entries.values()):
        raise ValueError(
            f"none of the {len(names)} videos in {folder} has a name like "
            "S001C001P001R001A001_rgb.avi"
        )
    official = OfficialLists(
        name="ntu60",
        splits=tuple(Split(name, tuple(entries[name]), n) for name, n in _NTU60_COUNTS.items()),
        class_maps=(ClassMap("classes.txt", NTU60_CLASSES, len(NTU60_CLASSES)),),
        published_videos=_NTU60_VIDEOS,
        notes=tuple(f"{n:,} files {what} are not listed" for what, n in counts.items() if n),
    )
    return official, NTU60.locate(root, official, videos)


#: Layout and reader of each dataset that has official lists.
SETS = {
    "ucf101": (UCF101, read_ucf101),
    "hmdb51": (HMDB51, read_hmdb51),
    "ssv2": (SSV2, read_ssv2),
    "diving48": (DIVING48, read_diving48),
}
