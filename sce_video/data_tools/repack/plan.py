"""The files that a run repacks, and the paths of their outputs."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sce_video.datasets.named_files import ListedVideos
from sce_video.datasets.text_tables import read_csv_table
from sce_video.datasets.video_list import MAX_LABEL
from sce_video.options.prepare import RepackOptions


@dataclass(frozen=True)
class PlannedFile:
    """A file to repack: the paths of source and output, each below its root.

    ``span`` is (start, end) in seconds of a segment; None for the whole file.
    """

    path: str
    output: str
    span: tuple[float, float] | None = None

    @property
    def key(self) -> str:
        """Return the item's name in records and reports: the path, and a segment's times."""
        if self.span is None:
            return self.path
        return f"{self.path}@{self.span[0]:.3f}-{self.span[1]:.3f}"


@dataclass(frozen=True)
class RepackPlan:
    """All files of a dataset."""

    source: str  # the folder or list, as given
    root: str  # folder that the paths of the items are relative to
    # Every file once, sorted by path; of a table of segments every segment.
    items: list[PlannedFile]
    # Keys of the entries of the list in its order; None for a folder.
    listed: list[str] | None = None
    labels: list[int] | None = None  # labels of these entries, -1 without one
    # Prefix of the files for report and failures: ``LIST.`` for a list, empty for a folder.
    prefix: str = ""
    list_name: str = ""  # file name of the list; empty for a folder

    @property
    def digest(self) -> str:
        """Hash of the relative paths and labels: equal for the same list at another path."""
        entries = hashlib.blake2b(digest_size=16)
        paths = [item.key for item in self.items] if self.listed is None else self.listed
        for path in [self.list_name, *paths, *map(str, self.labels or [])]:
            entries.update(os.fsencode(path) + b"\0")
        return entries.hexdigest()


def make_plan(source: str, destination: str, listed: ListedVideos) -> RepackPlan:
    """Choose the paths of the outputs of a folder or a list.

    Args:
        source: Folder of videos, or the path of an annotation list.
        destination: Output folder.
        listed: Videos of the source.

    Raises:
        ValueError: If source and destination contain each other, a path of the list lies outside
            its root, two outputs would have the same path, or an output would have the path of a
            folder.
    """
    is_list, root = not os.path.isdir(source), listed.root
    list_name = os.path.basename(source) if is_list else ""
    inner, outer = os.path.realpath(destination), os.path.realpath(root)
    if is_list and inner == outer:
        raise ValueError(f"{destination!r} is the folder of the sources: choose another folder")
    if not is_list and (
        inner == outer or inner.startswith(outer + os.sep) or outer.startswith(inner + os.sep)
    ):
        raise ValueError(
            f"one of {source!r} and {destination!r} contains the other: choose a separate "
            "output folder, or outputs would be taken for sources"
        )
    new_list = os.path.realpath(os.path.join(destination, list_name))
    if is_list and os.path.realpath(source) == new_list:
        raise ValueError(f"the new list would overwrite {source!r}: choose another folder")
    videos = listed.videos
    paths = [inside(videos.path(i), root) for i in range(len(videos))]
    unique = sorted(set(paths))
    outputs = name_outputs(unique)
    # For example, v.avi next to a folder v.mp4 of videos.
    folders = {o[:end] for o in outputs.values() for end, char in enumerate(o) if char == os.sep}
    for path, output in outputs.items():
        if output in folders:
            raise ValueError(
                f"{path!r} would become {output!r}, which is the name of a folder with videos: "
                "rename one"
            )
    if list_name and (list_name in folders or list_name in outputs.values()):
        raise ValueError(f"the new list {list_name!r} and an output have the same name: rename one")
    items = [PlannedFile(path, outputs[path]) for path in unique]
    if not is_list:
        return RepackPlan(source, root, items)
    prefix = f"{os.path.splitext(list_name)[0]}."
    return RepackPlan(source, root, items, paths, videos.labels.tolist(), prefix, list_name)


def name_outputs(paths: Sequence[str]) -> dict[str, str]:
    """Return the output's path for each source: the extension becomes .mp4.

    If several sources differ only in their extension, the one with .mp4 keeps its name and .mp4 is
    appended to the others. For example, ``a.avi`` becomes ``a.avi.mp4`` next to ``a.mp4``.

    Raises:
        ValueError: If two outputs would still have the same path.
    """
    # Count over all paths first, because whether a.avi keeps its name depends on a later a.mp4.
    stems = Counter(os.path.splitext(path)[0] for path in paths)
    names, first = {}, dict[str, str]()
    for path in paths:
        stem, extension = os.path.splitext(path)
        name = f"{stem if stems[stem] == 1 or extension == '.mp4' else path}.mp4"
        if first.setdefault(name, path) != path:
            raise ValueError(f"{first[name]!r} and {path!r} would both become {name!r}: rename one")
        names[path] = name
    return names


def inside(path: str, root: str) -> str:
    """Return a path of a list relative to its root; ValueError for one that lies outside of it."""
    if os.path.isabs(path):
        path = os.path.relpath(path, os.path.abspath(root))
    path = os.path.normpath(path)
    if path == os.pardir or path.startswith(os.pardir + os.sep):
        raise ValueError(
            f"{path!r} of the list lies outside of {root!r}, so it has no path in the output "
            "folder: give a --data-root that contains all files"
        )
    return path


#: Columns of a table of segments, which may have a ``label``, too.
COLUMNS = ("path", "start", "end", "output")


def plan_segments(source: str, data_root: str | None = None) -> RepackPlan:
    """Return the outputs of a table of segments, which ends in ``.csv``.

    ::

        path,start,end,output,label
        P01/videos/P01_01.MP4,0.14,3.37,P01_01_0.mp4,3

    Args:
        source: Table whose header names the columns ``path``, ``start`` and ``end`` (seconds from
            the first frame of the video), ``output`` (path below the output folder) and, if all
            segments have one, ``label``.
        data_root: Folder that the paths are relative to. The default is the folder of the table.

    Raises:
        ValueError: If a column or value is missing or wrong, two segments have one output, or a
            segment is listed twice. The message names the line.
    """
    root = data_root or os.path.dirname(os.path.abspath(source))
    items: dict[str, PlannedFile] = {}
    labels: list[int] = []
    outputs: set[str] = set()
    for where, row in read_csv_table(source, COLUMNS):
        path, *times, output = (row[name] for name in COLUMNS)
        empty = [name for name in COLUMNS if not row[name]]
        if empty:
            raise ValueError(f"{where}: column {empty[0]!r} is empty")
        seconds = []
        for name, text in zip(("start", "end"), times, strict=True):
            try:
                seconds.append(float(text))
            except ValueError:
                seconds.append(math.nan)
            if not 0 <= seconds[-1] < math.inf:
                raise ValueError(
                    f"{where}: {name} {text!r:.40} must be a number of seconds of at least 0"
                )
        start, end = seconds
        if end <= start:
            raise ValueError(f"{where}: end {end:g} must lie after start {start:g}")
        inner = os.path.normpath(output)
        if os.path.isabs(inner) or inner.startswith(os.pardir) or not inner.endswith(".mp4"):
            raise ValueError(
                f"{where}: output {output!r} must be a path below the output folder that ends in "
                ".mp4"
            )
        label = row.get("label")
        if label is not None and (not label.isdecimal() or int(label[:18]) > MAX_LABEL):
            most = f"must be a whole number up to {MAX_LABEL}"
            raise ValueError(f"{where}: label {label!r:.40} {most}")
        item = PlannedFile(inside(path, root), inner, (start, end))
        if item.key in items:
            raise ValueError(f"{where}: {item.key} is listed twice")
        if inner in outputs:
            raise ValueError(f"{where}: output {inner!r} is listed twice")
        items[item.key] = item
        outputs.add(inner)
        labels.append(-1 if label is None else int(label))
    if not items:
        raise ValueError(f"{source} lists no segments")
    stem = os.path.splitext(os.path.basename(source))[0]
    names = f"{stem}.", f"{stem}.txt"
    return RepackPlan(source, root, list(items.values()), list(items), labels, *names)


_VERSION = 1  # version of the encoding; a new version repacks all files


@dataclass(frozen=True)
class Settings:
    """Settings that, together with the source, determine an output.

    Attributes:
        short_side: Pixels of the shorter side, an even number. None keeps the size.
        enlarge: Whether to scale up smaller videos too.
        keyint: Distance of key frames. Every ``keyint``-th frame is one, beginning with the first.
        crf: Quality of x264 from 0 (best) to 51. None chooses for each file the highest value in
            ``CRF_RANGE``, in steps of a quarter, that reaches ``psnr``.
        psnr: PSNR that luma and all planes should reach if ``crf`` is None, dB.
        preset: Preset of x264, which trades encoding speed against file size.
        tune: Tunings of x264, separated by commas; empty for none.
    """

    short_side: int | None = RepackOptions.short_side
    enlarge: bool = RepackOptions.enlarge
    keyint: int = RepackOptions.keyint
    crf: float | None = RepackOptions.crf
    psnr: float = RepackOptions.psnr
    preset: str = RepackOptions.preset
    tune: str = RepackOptions.tune

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values. Outputs with equal settings stay as they are."""
        values = asdict(self)
        if self.crf is not None:
            del values["psnr"]  # has no effect then
        return {"version": _VERSION, **values}

    def target_size(self, height: int, width: int) -> tuple[int, int]:
        """Return (H, W) of the output for an upright source of H x W. Both are even, at least 2.

        A side that is odd and not scaled loses its last row or column of pixels.
        """
        short = min(height, width)
        # Both sides must be even, because the chroma planes of yuv420p have half of each.
        target = self.short_side or short
        if short == target or (short < target and not self.enlarge):
            return max(2, height // 2 * 2), max(2, width // 2 * 2)
        # The shorter side exactly, the longer one to the nearest even number.
        factor = target / short
        tall, wide = (max(2, 2 * round(side * factor / 2)) for side in (height, width))
        return target if height == short else tall, target if width == short else wide


@dataclass(frozen=True)
class EncoderLimits:
    """Limits of the work on one file. They do not change the content of a good output.

    Attributes:
        threads: Threads of the encoder.
        min_psnr: Smallest PSNR of a good output, dB.
        max_pixels: Largest frame (height x width) of a file that is repacked.
    """

    threads: int = RepackOptions.threads
    min_psnr: float = RepackOptions.min_psnr
    max_pixels: int = RepackOptions.max_pixels
