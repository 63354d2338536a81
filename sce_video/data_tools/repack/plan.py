"""Which files a run repacks, and the paths of their outputs."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sce_video.datasets.video_list import VIDEO_EXTENSIONS, VideoList, scan_folder


@dataclass(frozen=True)
class Item:
    """A file to repack.

    Attributes:
        path: Relative to the root of the sources.
        output: Relative to the output folder.
        span: (start, end) in seconds of a segment; None for the whole file.
    """

    path: str
    output: str
    span: tuple[float, float] | None = None

    @property
    def key(self) -> str:
        """Names the item in records and reports: the path, of a segment with its times."""
        if self.span is None:
            return self.path
        return f"{self.path}@{self.span[0]:.3f}-{self.span[1]:.3f}"


@dataclass(frozen=True)
class Plan:
    """All files of a data set.

    Attributes:
        source: The folder or list, as given.
        root: Folder that the paths of the items are relative to.
        items: Every file once, sorted by path; of a table of segments every segment.
        listed: Keys of the entries of the list in its order; None for a folder.
        labels: Labels of these entries, -1 without one.
        name: Name of the list without its extension; empty for a folder.
        list_name: File name of the list; empty for a folder.
    """

    source: str
    root: str
    items: list[Item]
    listed: list[str] | None = None
    labels: list[int] | None = None
    name: str = ""
    list_name: str = ""

    @property
    def base(self) -> str:
        """Prefix of the names of report, failures and journals."""
        return f"{self.name}." if self.name else ""

    @property
    def digest(self) -> str:
        """Hash of the relative paths and labels: equal for the same list at another path."""
        entries = hashlib.blake2b(digest_size=16)
        paths = [item.key for item in self.items] if self.listed is None else self.listed
        for path in [self.list_name, *paths, *map(str, self.labels or [])]:
            entries.update(os.fsencode(path) + b"\0")
        return entries.hexdigest()


def make_plan(
    source: str,
    destination: str,
    *,
    data_root: str | None = None,
    extensions: Sequence[str] = VIDEO_EXTENSIONS,
    read_list: VideoList | None = None,
) -> Plan:
    """Collect the files of a data set and the paths of their outputs.

    Args:
        source: Folder of videos, or the path of an annotation list.
        destination: Output folder.
        data_root: Folder the paths of a list are relative to.
        extensions: Extensions of videos, for a folder.
        read_list: The content of a list.

    Raises:
        ValueError: One of source and destination contains the other, a path of the list lies
            outside of its root, two outputs would have the same path, or an output the path of a
            folder.
    """
    if read_list is None:
        videos, root = scan_folder(source, extensions), source
        _check_apart(source, destination)
    else:
        videos, root = read_list, data_root or "."
        if os.path.realpath(root) == os.path.realpath(destination):
            raise ValueError(f"{destination!r} is the folder of the sources: choose another folder")
    paths = [inside(videos.path(i), root) for i in range(len(videos))]
    unique = sorted(set(paths))
    outputs = name_outputs(unique)
    items = [Item(path, outputs[path]) for path in unique]
    list_name = "" if read_list is None else os.path.basename(source)
    _check_folders(outputs, list_name)
    if read_list is None:
        return Plan(source, root, items)
    if os.path.realpath(source) == os.path.realpath(os.path.join(destination, list_name)):
        raise ValueError(f"the new list would overwrite {source!r}: choose another folder")
    name = os.path.splitext(list_name)[0]
    return Plan(
        source, root, items, paths, [int(label) for label in videos.labels], name, list_name
    )


def name_outputs(paths: Sequence[str]) -> dict[str, str]:
    """The output's path for each source: the extension becomes .mp4.

    If several sources differ in their extension only, the one with .mp4 keeps its name and .mp4 is
    appended to the others: ``a.avi`` beside ``a.mp4`` becomes ``a.avi.mp4``.

    Raises:
        ValueError: Two outputs would still have the same path.
    """
    stems = Counter(os.path.splitext(path)[0] for path in paths)
    names = {}
    for path in paths:
        stem, extension = os.path.splitext(path)
        alone = stems[stem] == 1 or extension == ".mp4"
        names[path] = f"{stem if alone else path}.mp4"
    first: dict[str, str] = {}
    for path, name in names.items():
        if first.setdefault(name, path) != path:
            raise ValueError(f"{first[name]!r} and {path!r} would both become {name!r}: rename one")
    return names


def inside(path: str, root: str) -> str:
    """A path of a list relative to its root; ValueError for one that lies outside of it."""
    if os.path.isabs(path):
        path = os.path.relpath(path, os.path.abspath(root))
    path = os.path.normpath(path)
    if path == os.pardir or path.startswith(os.pardir + os.sep):
        raise ValueError(
            f"{path!r} of the list lies outside of {root!r}, so it has no path in the output "
            "folder: give a --data-root that contains all files"
        )
    return path


def _check_folders(outputs: dict[str, str], list_name: str) -> None:
    """Refuse outputs with the path of a folder: ``v.avi`` beside a folder ``v.mp4`` of videos."""
    folders: set[str] = set()
    for output in outputs.values():
        parent = os.path.dirname(output)
        while parent and parent not in folders:
            folders.add(parent)
            parent = os.path.dirname(parent)
    for path, output in outputs.items():
        if output in folders:
            raise ValueError(
                f"{path!r} would become {output!r}, which is the name of a folder with videos: "
                "rename one"
            )
    if list_name and (list_name in folders or list_name in outputs.values()):
        raise ValueError(f"the new list {list_name!r} and an output have the same name: rename one")


def _check_apart(source: str, destination: str) -> None:
    inner, outer = os.path.realpath(destination), os.path.realpath(source)
    if inner == outer or inner.startswith(outer + os.sep) or outer.startswith(inner + os.sep):
        raise ValueError(
            f"one of {source!r} and {destination!r} contains the other: choose a separate output "
            "folder, or outputs would be taken for sources"
        )
