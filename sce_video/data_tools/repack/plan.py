"""The files to repack, the paths of their outputs, and the settings."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sce_video.data_tools.listed_videos import ListedVideos
from sce_video.datasets.segments import segment_of_row
from sce_video.datasets.text_tables import read_csv_table
from sce_video.datasets.video_list import MAX_LABEL
from sce_video.options.prepare import RepackOptions


@dataclass(frozen=True)
class PlannedFile:
    """A file to repack.

    Attributes:
        path: Path of the source, relative to the folder of the sources.
        output: Path of the output, relative to the output folder.
        span: Start and end of a segment in seconds; None for the whole file.
    """

    path: str
    output: str
    span: tuple[float, float] | None = None

    @property
    def key(self) -> str:
        """Return the name in records and reports: the path, and the times of a segment."""
        return self.path if self.span is None else "{}@{:.3f}-{:.3f}".format(self.path, *self.span)


@dataclass(frozen=True)
class RepackPlan:
    """All files of a dataset."""

    source: str  # the folder or list, as given
    root: str  # folder that the paths of the items are relative to
    items: list[PlannedFile]  # each file once, sorted by path, or each segment of a table
    listed: list[str] | None = None  # keys of the list's entries, in order; None for a folder
    labels: list[int] | None = None  # labels of these entries; -1 for an entry without a label
    prefix: str = ""  # prefix for the names of report and failures; empty for a folder
    list_name: str = ""  # file name of the list; empty for a folder

    @property
    def digest(self) -> str:
        """Return a hash of the paths and labels, which is the same if the list is moved."""
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
            the root, or an output would have the path of another output or of a folder.
    """
    is_list, root = not os.path.isdir(source), listed.root
    list_name = os.path.basename(source) if is_list else ""
    inner, outer = os.path.realpath(destination), os.path.realpath(root)
    if is_list and inner == outer:
        raise ValueError(f"{destination!r} is the folder of the sources. Choose another folder")
    if not is_list and (
        inner == outer or inner.startswith(outer + os.sep) or outer.startswith(inner + os.sep)
    ):
        raise ValueError(
            f"one of {source!r} and {destination!r} contains the other, so outputs would be taken "
            "for sources. Choose a separate output folder"
        )
    new_list = os.path.realpath(os.path.join(destination, list_name))
    if is_list and os.path.realpath(source) == new_list:
        raise ValueError(f"the new list would overwrite {source!r}. Choose another folder")
    videos = listed.videos
    paths = [inside(videos.path(i), root) for i in range(len(videos))]
    unique = sorted(set(paths))
    outputs = name_outputs(unique)
    # An output can have the name of a folder, for example if v.avi is next to a folder named v.mp4.
    folders = {o[:end] for o in outputs.values() for end, char in enumerate(o) if char == os.sep}
    for path, output in outputs.items():
        if output in folders:
            raise ValueError(
                f"{path!r} would become {output!r}, which is the name of a folder with videos. "
                "Rename one of them"
            )
    if list_name and (list_name in folders or list_name in outputs.values()):
        raise ValueError(
            f"the new list {list_name!r} and an output would have the same name. Rename one of them"
        )
    items = [PlannedFile(path, outputs[path]) for path in unique]
    if not is_list:
        return RepackPlan(source, root, items)
    prefix = f"{os.path.splitext(list_name)[0]}."
    return RepackPlan(source, root, items, paths, videos.labels.tolist(), prefix, list_name)


def name_outputs(paths: Sequence[str]) -> dict[str, str]:
    """Return the output path of each source, in which the extension is replaced by .mp4.

    If several sources differ only in their extension, .mp4 is appended to it instead. For example,
    ``a.avi`` becomes ``a.avi.mp4`` next to ``a.mp4``, which keeps its name.

    Raises:
        ValueError: If two outputs would still have the same path.
    """
    # Count all paths first, because the output name of a.avi depends on whether a.mp4 exists.
    stems = Counter(os.path.splitext(path)[0] for path in paths)
    names, first = {}, dict[str, str]()
    for path in paths:
        stem, extension = os.path.splitext(path)
        name = f"{stem if stems[stem] == 1 or extension == '.mp4' else path}.mp4"
        if first.setdefault(name, path) != path:
            raise ValueError(
                f"{first[name]!r} and {path!r} would both become {name!r}. Rename one of them"
            )
        names[path] = name
    return names


def inside(path: str, root: str) -> str:
    """Return a listed path relative to the root; ValueError if it lies outside the root."""
    if os.path.isabs(path):
        path = os.path.relpath(path, os.path.abspath(root))
    path = os.path.normpath(path)
    if path == os.pardir or path.startswith(os.pardir + os.sep):
        raise ValueError(
            f"{path!r} of the list lies outside {root!r}, so its output has no place in the output "
            "folder. Set --data-root to a folder that contains all files"
        )
    return path


#: Columns that a table of segments must have. It may also have the column ``label``.
COLUMNS = ("path", "start", "end", "output")


def plan_segments(source: str, data_root: str | None = None) -> RepackPlan:
    """Read a table of segments, whose name ends with ``.csv``.

    ::

        path,start,end,output,label
        P01/videos/P01_01.MP4,0.14,3.37,P01_01_0.mp4,3

    Args:
        source: Table whose header names the columns ``path``, ``start`` and ``end`` (times from the
            first frame of the video), ``output`` (path below the output folder) and, optionally,
            ``label``.
        data_root: Folder that the paths are relative to. The default is the folder of the table.

    Raises:
        ValueError: If a column or value is missing or invalid, or if a segment or an output is
            listed twice. The message names the line.
    """
    root = data_root or os.path.dirname(os.path.abspath(source))
    items: dict[str, PlannedFile] = {}
    labels: list[int] = []
    outputs: set[str] = set()
    for where, row in read_csv_table(source, COLUMNS):
        path, *times, output = (row[name] for name in COLUMNS)
        empty = [name for name in COLUMNS if not row[name]]
        if empty:
            raise ValueError(f"{where}: the column {empty[0]!r} is empty")
        inner = os.path.normpath(output)
        if os.path.isabs(inner) or inner.startswith(os.pardir) or not inner.endswith(".mp4"):
            raise ValueError(
                f"{where}: output {output!r} must be a path below the output folder that ends in "
                ".mp4"
            )
        if "label" in row:
            label = row["label"]
            if not label.isdecimal() or int(label[:18]) > MAX_LABEL:
                most = f"must be a whole number up to {MAX_LABEL}"
                raise ValueError(f"{where}: label {label!r:.40} {most}")
        item = PlannedFile(inside(path, root), inner, segment_of_row(where, *times))
        if item.key in items:
            raise ValueError(f"{where}: {item.key} is listed twice")
        if inner in outputs:
            raise ValueError(f"{where}: output {inner!r} is listed twice")
        items[item.key] = item
        outputs.add(inner)
        labels.append(int(label) if "label" in row else -1)
    if not items:
        raise ValueError(f"{source} lists no segments")
    stem = os.path.splitext(os.path.basename(source))[0]
    names = f"{stem}.", f"{stem}.txt"
    return RepackPlan(source, root, list(items.values()), list(items), labels, *names)


_VERSION = 1  # version of the encoding. If it changes, all files are repacked


@dataclass(frozen=True)
class Settings:
    """Settings that determine an output together with its source.

    Attributes:
        short_side: Length of the shorter side in pixels, an even number. None keeps the size.
        enlarge: Whether to enlarge smaller videos.
        keyint: Distance of key frames. The first frame is a key frame.
        crf: Quality of x264 from 0 (best) to 51. None chooses for each file the highest value in
            ``CRF_RANGE``, in steps of a quarter, that reaches ``psnr``.
        psnr: PSNR in dB that luma and all planes together should reach if ``crf`` is None.
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
        """Return the settings as JSON values. An output with equal settings is not made again."""
        values = asdict(self)
        if self.crf is not None:
            del values["psnr"]  # it has no effect if crf is set
        return {"version": _VERSION, **values}

    def target_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the even height and width of the output for an upright source.

        If an odd side is not scaled, its last row or column of pixels is cut off.
        """
        short = min(height, width)
        # Both sides must be even, because the chroma planes of yuv420p are half as high and wide.
        target = self.short_side or short
        if short == target or (short < target and not self.enlarge):
            return max(2, height // 2 * 2), max(2, width // 2 * 2)
        # The longer side is rounded to the nearest even number.
        factor = target / short
        tall, wide = (max(2, 2 * round(side * factor / 2)) for side in (height, width))
        return target if height == short else tall, target if width == short else wide


@dataclass(frozen=True)
class EncoderLimits:
    """Limits of the work on one file. They do not change the content of a good output.

    Attributes:
        threads: Threads of the encoder.
        min_psnr: Smallest PSNR of a good output in dB.
        max_pixels: Largest number of pixels in a frame of a file that is repacked.
    """

    threads: int = RepackOptions.threads
    min_psnr: float = RepackOptions.min_psnr
    max_pixels: int = RepackOptions.max_pixels
