"""Kinetics-400 as hosted by the CVD Foundation, and its subset Mini-Kinetics-200 (K200)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

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
    first_existing,
    is_count,
    nearest,
    read_class_file,
    read_lines,
    relative_to_root,
    unique_entries,
)
from sce_video.datasets.text_tables import read_csv_table

KINETICS = Downloads(
    """\
  annotations/{train,val}.csv                         (or directly in ROOT)
  train/0jtGi_wkZZk_000010_000020.mp4, val/...        (from the tars; sub-folders may have any name,
                                                       such as train/CLASS NAME/ or train/part_0/)
  replacement/replacement_for_corrupted_k400/...mp4   (optional)""",
    lists=("annotations", ""),
)
REPLACEMENT = "replacement/replacement_for_corrupted_k400"
REPLACED = "taken from the folder of replacements for damaged videos"

#: Sorted Kinetics-400 names of the 200 classes of Mini-Kinetics-200 (K200): the labels in train.csv
#: and val.csv for the 400 + 25 ids per class in train_ytid_list.txt and val_ytid_list.txt (Xie et
#: al. 2018, S3D; github.com/s9xie/Mini-Kinetics-200).
K200_CLASSES = read_class_file("k200")
#: Number of classes in Kinetics-400.
PUBLISHED_CLASSES = 400
#: Number of rows in each CSV file, from arrange_by_classes.py in cvdfoundation/kinetics-dataset.
#: The tar files contain fewer videos, because some had been removed from YouTube.
PUBLISHED = {"train": 246534, "val": 19906, "test": 39805}
#: Number of videos in the tar files of each split.
PUBLISHED_FILES = {"train": 240258, "val": 19881, "test": 38685}
#: Number of classes in K200 (Xie et al. 2018).
K200_PUBLISHED_CLASSES = 200
#: Number of videos per class and split.
K200_PER_CLASS = {"train": 400, "val": 25}

# In DeepMind's own archive of the CSV files, val.csv is called validate.csv.
_CSV_NAMES = {"train": ["train.csv"], "val": ["val.csv", "validate.csv"], "test": ["test.csv"]}
_SPLIT_MARKS = {"train": {"train"}, "val": {"val", "validate", "validation"}, "test": {"test"}}
_COLUMNS = ("label", "youtube_id", "time_start", "time_end", "split")
_YOUTUBE_ID = re.compile(r"[A-Za-z0-9_-]{11}")


def read_kinetics400(
    root: Path, annotations: Folder = None, parts: Sequence[str] = ("train", "val")
) -> OfficialLists:
    """Read train.csv, val.csv and, if requested, test.csv. Labels are ranks of the class names.

    Args:
        root: Folder of the dataset.
        annotations: Folder of the CSV files. None means ``root/annotations`` or ``root``.
        parts: Some of ``train``, ``val`` and ``test``. The first part defines the classes.
    """
    paths = {p: KINETICS.find(root, annotations, f"{p} csv file", *_CSV_NAMES[p]) for p in parts}
    clips = {part: list(_listed_clips(path, part)) for part, path in paths.items()}
    classes = tuple(sorted({name for _, _, name in clips[parts[0]]}))
    label_of = {name: label for label, name in enumerate(classes)}
    splits: list[Split] = []
    for part in parts:
        for where, _, name in clips[part]:
            if name not in label_of:
                near = f"{nearest(name, classes)} ({paths[parts[0]].name})"
                raise ValueError(f"{where}: unknown class {name!r}; {near}")
        entries = unique_entries((where, clip, label_of[name]) for where, clip, name in clips[part])
        splits.append(Split(f"k400_{part}.txt", entries, PUBLISHED[part], PUBLISHED_FILES[part]))
    # Names begin with their split, so compare them without it.
    bare = [
        replace(split, entries=tuple(Entry(_clip(e.name), e.label) for e in split.entries))
        for split in splits
    ]
    for one, other in combinations(bare, 2):
        check_disjoint(str(paths[parts[0]].parent), one, other)
    return OfficialLists(
        name="k400",
        splits=tuple(splits),
        class_maps=(ClassMap("k400_classes.txt", classes, PUBLISHED_CLASSES),),
        notes=(
            "published: rows of the CVD Foundation's CSV files and, in brackets, videos in its "
            "tars. The other videos were removed from YouTube",
        ),
    )


def _listed_clips(path: Path, part: str) -> Iterator[tuple[str, str, str]]:
    """Yield place, clip and class of rows ``label,youtube_id,time_start,time_end,split``.

    A clip is named ``PART/ID_START_END.mp4``, with start and end in seconds of six digits. There
    may be more columns (``is_cc``).
    """
    where = ""
    for where, row in read_csv_table(path, _COLUMNS):
        label, video, start, end, split = (row[column] for column in _COLUMNS)
        if not label:
            raise ValueError(f"{where}: the label is missing")
        if not _YOUTUBE_ID.fullmatch(video):
            what = "does not have 11 letters, digits, - or _"
            raise ValueError(f"{where}: youtube_id {video!r} {what}")
        if not (is_count(start) and is_count(end) and int(start) < int(end)):
            raise ValueError(
                f"{where}: time_start {start!r} and time_end {end!r} must be whole seconds, the "
                "first smaller than the second"
            )
        if split not in _SPLIT_MARKS[part]:
            raise ValueError(
                f"{where}: split {split!r} does not belong in the file of the split {part!r}"
            )
        yield where, f"{part}/{video}_{int(start):06d}_{int(end):06d}.mp4", label
    if not where:
        raise ValueError(f"{path} lists no video")


def _clip(name: str) -> str:
    """Return ``ID_START_END`` from a name. The id, its first 11 characters, may contain "_"."""
    return name.rpartition("/")[2].removesuffix(".mp4")


def locate_kinetics(
    root: Path, official: OfficialLists, videos: Folder = None
) -> dict[str, Located]:
    """Return the locations of the clips, by name.

    Clips are searched below ``videos/PART`` at any depth. If ``videos`` is None, it is ``root`` or
    ``root/videos``, whichever contains the part. A clip in the folder of replacements takes
    precedence. It is found by its YouTube id, as in the CVD Foundation's arrange_by_classes.py.
    """
    names = official.names()
    bases = [Path(videos)] if videos else [root, root / "videos"]
    replaced: dict[str, str] = {}
    if (root / REPLACEMENT).is_dir():
        for path in files_below(root / REPLACEMENT):
            replaced.setdefault(Path(path).name[:11], f"{REPLACEMENT}/{path}")
    located: dict[str, Located] = {}
    for part in dict.fromkeys(name.partition("/")[0] for name in names):
        folders, what = [base / part for base in bases], f"folder of {part} videos"
        folder = first_existing(folders, root, KINETICS.layout, what)
        prefix = relative_to_root(folder, root)
        by_clip: dict[str, str] = {}
        by_id: dict[str, str] = {}
        for path in files_below(folder):
            stem = Path(path).stem
            # If a clip is in two folders, use the path that comes first.
            by_clip.setdefault(stem, path)
            by_id.setdefault(stem[:11], path)
        for name in (name for name in names if name.startswith(f"{part}/")):
            clip = _clip(name)
            if clip[:11] in replaced:
                located[name] = Located(replaced[clip[:11]], remark=REPLACED)
            elif clip in by_clip:
                located[name] = Located(f"{prefix}/{by_clip[clip]}")
            else:
                reason = "no such file"
                if clip[:11] in by_id:
                    reason = f"only {prefix}/{by_id[clip[:11]]}, at other seconds"
                located[name] = Located(f"{prefix}/{clip}.mp4", reason)
    return located


def read_class_list(path: Path, known: Iterable[str]) -> tuple[str, ...]:
    """Read class names, one per line, which must be known. Lines that begin with # are comments."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no class list {path}")
    known = list(known)
    names = [(where, line) for where, line in read_lines(path) if not line.startswith("#")]
    unique_entries((where, name, -1) for where, name in names)
    for where, name in names:
        if name not in known:
            near = nearest(name, known)
            raise ValueError(f"{where}: {name!r} is not a class of Kinetics-400; {near}")
    if not names:
        raise ValueError(f"{path} lists no class")
    return tuple(name for _, name in names)


def add_k200(
    official: OfficialLists, class_names: Sequence[str], ids: Mapping[str, Path] | None = None
) -> OfficialLists:
    """Return the lists of Kinetics-400, followed by the lists of K200.

    Labels are ranks of the sorted class names. Without ``ids``, K200 contains **all** videos of its
    classes. The published Mini-Kinetics-200 contains 400 + 25 videos per class, whose ids are
    listed.

    Args:
        official: Official lists from :func:`read_kinetics400`.
        class_names: Kinetics-400 names of K200's classes.
        ids: Files with a YouTube id per line, by split (``train``, ``val``).

    Raises:
        FileNotFoundError: If a file of ids does not exist.
        ValueError: If a class is not in Kinetics-400, or if an id is malformed, unknown or belongs
            to another class.
    """
    k400 = official.class_maps[0].names
    for name in class_names:
        if name not in k400:
            raise ValueError(
                f"class {name!r} of K200 is not in the CSV files; {nearest(name, k400)}. For "
                "another subset of Kinetics-400, give its list of classes with --k200-classes FILE"
            )
    classes = tuple(sorted(class_names))
    new_label = {k400.index(name): label for label, name in enumerate(classes)}
    splits = []
    for part, each in K200_PER_CLASS.items():
        (whole,) = (s for s in official.splits if s.list_name == f"k400_{part}.txt")
        entries = [Entry(e.name, new_label[e.label]) for e in whole.entries if e.label in new_label]
        split = Split(f"k200_{part}.txt", tuple(entries))
        if ids is not None:
            chosen, count = _select_ids(ids[part], entries, whole), K200_PUBLISHED_CLASSES * each
            split = replace(split, entries=chosen, published=count, per_class=each)
        splits.append(split)
    note = "K200 by the given lists of ids"
    if ids is None:
        note = (
            "K200 contains all videos of its classes. The published Mini-Kinetics-200 contains "
            "400 + 25 per class, which --k200-ids selects"
        )
    class_map = ClassMap("k200_classes.txt", classes, K200_PUBLISHED_CLASSES)
    return replace(
        official,
        splits=(*official.splits, *splits),
        class_maps=(*official.class_maps, class_map),
        notes=(*official.notes, note),
    )


def _select_ids(path: Path, entries: Sequence[Entry], whole: Split) -> tuple[Entry, ...]:
    """Return the entries whose ids are listed in a file, in the order of ``entries``."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no list of ids {path}")
    known = {_clip(entry.name)[:11] for entry in entries}
    everywhere = {_clip(entry.name)[:11] for entry in whole.entries}
    listed = read_lines(path, unique=True)
    for where, line in listed:
        if not _YOUTUBE_ID.fullmatch(line):
            raise ValueError(f"{where}: {line!r} does not have 11 letters, digits, - or _")
        if line not in known:
            why = "is of a class that is not in K200" if line in everywhere else "is unknown"
            raise ValueError(f"{where}: id {line!r} {why} ({whole.title})")
    wanted = {line for _, line in listed}
    return tuple(entry for entry in entries if _clip(entry.name)[:11] in wanted)
