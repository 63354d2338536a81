"""NTU RGB+D (60 actions): its RGB videos, split by performer or by camera."""

from __future__ import annotations

import re
from pathlib import Path

from sce_video.data_tools.prepare.official import (
    ClassMap,
    Entry,
    Located,
    OfficialLists,
    Split,
    first_existing,
    list_videos,
    locate_by_stem,
)

LAYOUT = """\
  nturgb+d_rgb/S001C001P001R001A001_rgb.avi     (nturgbd_rgb_s001.zip to _s017.zip, unpacked)"""

# Shahroudy et al. 2016, section 3.2.
PUBLISHED_VIDEOS = 56880
TRAINING_PERFORMERS = frozenset(
    (1, 2, 4, 5, 8, 9, 13, 14, 15, 16, 17, 18, 19, 25, 27, 28, 31, 34, 35, 38)
)
TRAINING_CAMERAS = frozenset((2, 3))
PUBLISHED = {
    "train_subject.txt": 40320,
    "test_subject.txt": 16560,
    "train_view.txt": 37920,
    "test_view.txt": 18960,
}
#: In the order of the numbers A001 to A060.
CLASSES = (
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
_NAME = re.compile(r"S(\d{3})C(\d{3})P(\d{3})R(\d{3})A(\d{3})_rgb")


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
    folder = first_existing([videos or root / "nturgb+d_rgb"], root, LAYOUT, "folder of videos")
    paths = list_videos(folder)
    entries: dict[str, list[Entry]] = {name: [] for name in PUBLISHED}
    later = strange = 0
    for path in paths:
        name = Path(path).stem
        match = _NAME.fullmatch(name)
        if match is None:
            strange += 1
            continue
        _, camera, performer, _, action = map(int, match.groups())
        if not 1 <= action <= len(CLASSES):
            later += 1
            continue
        entry = Entry(name, action - 1)
        by_subject = "train" if performer in TRAINING_PERFORMERS else "test"
        by_view = "train" if camera in TRAINING_CAMERAS else "test"
        entries[f"{by_subject}_subject.txt"].append(entry)
        entries[f"{by_view}_view.txt"].append(entry)
    if not any(entries.values()):
        raise ValueError(
            f"{folder} holds no video named like S001C001P001R001A001_rgb.avi, of {len(paths)}"
        )
    counts = {"of actions from A061 on": later, "with another name": strange}
    official = OfficialLists(
        name="ntu60",
        splits=tuple(Split(name, tuple(found), PUBLISHED[name]) for name, found in entries.items()),
        class_maps=(ClassMap("classes.txt", CLASSES, len(CLASSES)),),
        published_videos=PUBLISHED_VIDEOS,
        notes=tuple(
            f"{count:,} files {what} are not listed" for what, count in counts.items() if count
        ),
    )
    return official, locate_by_stem(root, folder, official.names(), paths, ".avi")
