"""Options of the commands that embed videos: embed, index."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from sce_video.options.declare import OptionError, Options, option
from sce_video.options.shared import (
    ALL_FILES,
    BACKEND,
    CHANGES,
    CONFIG,
    DATA_ROOT,
    DATASET,
    DEVICE,
    LAUNCHER,
    MAX_VIEWS,
    OF_WINDOWS,
    PROCESSES_PER_GPU,
    RAY,
    RUN,
    SHOTS,
    STRIDE,
    TIMEOUT,
    WINDOWS,
    check_dataset,
    check_windows,
    is_table,
)

#: Numbers of crops of a clip: the centre, or three along the longer side.
CROPS = (1, 3)
# Whole videos are embedded as the config's test reads them, windows as an index does. Options of
# one way are refused in the other, where nothing would read them.
_OF_CONFIGS = ("part", "ann_file", "backend", "cfg_options", "launcher")
_OF_INDEXES = ("clips", "crops", "device")


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(Options):
    """Write one feature vector per video of a folder, a table or a config to an .npz file.

    The file contains features (N, D) float32, paths, labels (N,) from sub-folders, the table or the
    list, and their provenance as JSON. sce-video retrieve and sce-video probe evaluate it. Features
    are saved one by one in F.npz.parts, so that the same command resumes an interrupted run.

    With --windows, every row is a window of a video, and the arrays starts and ends contain its
    start and end in seconds.
    """

    videos: str | None = option(
        "folder or table (v.lance) of videos; with --windows also a video; not needed with "
        "--config",
        None,
        positional=True,
        metavar="VIDEOS",
    )
    checkpoint: str = option(
        replace(RUN, help=f"{RUN.help}; with --config, 'random' is an untrained network")
    )
    out: str = option("file or URL to write", metavar="FILE.npz")
    dataset: str | None = option(DATASET, None)
    all_files: bool = option(ALL_FILES, False)
    config: str | None = option(
        "config file to run (default: the config inside the checkpoint, which is read as data)",
        None,
        metavar="FILE",
    )
    part: str = option(
        "data of the config; the bank is the gallery of a retrieval recipe",
        "test",
        choices=("test", "bank", "train"),
        group="data of a config",
    )
    ann_file: str | None = option(
        "annotation list of videos in VIDEOS", None, metavar="LIST", group="data of a config"
    )
    backend: str | None = option(BACKEND, None, group="data of a config")
    cfg_options: tuple[str, ...] = option(CHANGES, (), group="data of a config")
    workers: int | None = option(
        "number of processes of each rank; 0 works in this process (default: as in the config; "
        "with --ray, all cores of the cluster)",
        None,
        least=0,
        group="processes",
    )
    ray: str | None = option(RAY, None, group="processes")
    processes_per_gpu: int = option(PROCESSES_PER_GPU, 4, group="processes")
    launcher: str = option(LAUNCHER, "none", group="processes")
    windows: str | None = option(WINDOWS, None)
    stride: str | None = option(STRIDE, None)
    shots: bool = option(SHOTS, False)
    clips: int = option("clips per window", 4, least=1, group=OF_WINDOWS)
    crops: int = option("crops per clip", 1, choices=CROPS, group=OF_WINDOWS)
    device: str | None = option(DEVICE, None, group=OF_WINDOWS)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video embed VIDEOS --checkpoint RUN --out features.npz",
        "sce-video embed match.mp4 --checkpoint RUN --out features.npz --windows 5s --stride 2.5s",
        "sce-video embed --config CONFIG --checkpoint RUN --out F.npz --part bank --ray auto",
    )
    more: ClassVar[str] = (
        "Exit status: 0 embedded, 1 some windows are missing, 2 wrong usage, 130 interrupted.\n"
        "More: docs/long_videos.md, docs/jobs.md (clusters)"
    )

    def check(self) -> None:
        """Raise OptionError if there is nothing to embed, or an option would have no effect."""
        check_windows(self)
        check_dataset(self, "all_files", "config", "ann_file")
        for name in _OF_INDEXES if self.windows is None else _OF_CONFIGS:
            if getattr(self, name) == self.__dataclass_fields__[name].default:
                continue
            if self.windows is None:
                raise OptionError(f"{{{name}}} needs {{windows}}, for example {{windows}} 5s")
            raise OptionError(f"{{{name}}} has no effect with {{windows}}. Remove one of them")
        if self.videos is None and (self.config is None or self.windows is not None):
            raise OptionError(
                "give {videos}, a folder or a table of videos, or {config} for the data of a config"
            )


@dataclass(frozen=True, kw_only=True)
class IndexOptions(Options):
    """Build or update the search index of a folder or a table of videos.

    A second run embeds only new and changed videos. An interrupted run resumes where it stopped.
    With --windows, the rows of the index are moments of the videos. With a CSV file
    (path,start,end,label), they are the segments that it lists, with their labels.
    """

    videos: str = option(
        "folder of videos, table (v.lance), or list or CSV file with labels",
        positional=True,
        metavar="VIDEOS",
    )
    checkpoint: str | None = option(
        replace(RUN, help=f"{RUN.help} (default: the network of the index)"), None
    )
    out: str = option("folder of the index", metavar="DIR")
    data_root: str | None = option(DATA_ROOT, None)
    dataset: str | None = option(
        replace(DATASET, help=f"{DATASET.help} (default: as in the index)"), None
    )
    all_files: bool = option(ALL_FILES, False)
    config: str | None = option(CONFIG, None)
    device: str | None = option(DEVICE, None)
    rebuild: bool = option("discard the existing index", False)
    retry_failed: bool = option("try unreadable files again, even if they have not changed", False)
    check_only: bool = option(
        "only read the index, and list its damaged files (exit status 1 if there are any)",
        False,
        flag="--check",
    )
    clips: int | None = option(
        "clips per video or window (default: as in the index, or 4)", None, least=1, group="views"
    )
    crops: int | None = option(
        "crops per clip (default: as in the index, or 1)", None, choices=CROPS, group="views"
    )
    windows: str | None = option(
        replace(
            WINDOWS,
            help="divide every video into windows of this length, 5s or 0:30 (default: as in the "
            "index, or whole videos)",
        ),
        None,
    )
    stride: str | None = option(STRIDE, None)
    shots: bool = option(SHOTS, False)
    table: bool = option(
        "keep the features in a Lance table, for millions of videos; an existing index is "
        "converted",
        False,
        group="storage",
    )
    approximate: bool = option(
        "search the table by a vector index (default: with more than 200,000 videos)",
        False,
        group="storage",
    )
    column: str | None = option(
        "also write the features into the column feature_NAME of the table of videos",
        None,
        metavar="NAME",
        group="storage",
    )
    workers: int | None = option(
        "number of processes; 0 works in this process (default: one per core, at most 8 per GPU; "
        "with --ray, all cores of the cluster)",
        None,
        least=0,
        group="processes",
    )
    timeout: float = option(TIMEOUT, 60.0, group="processes")
    max_views: int = option(MAX_VIEWS, 32, group="processes")
    ray: str | None = option(RAY, None, group="processes")
    processes_per_gpu: int = option(PROCESSES_PER_GPU, 4, group="processes")

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video index VIDEOS --checkpoint RUN --out INDEX",
        "sce-video index VIDEOS --checkpoint RUN --out INDEX --windows 5s --stride 2.5s",
        "sce-video index LABELS.csv --data-root VIDEOS --checkpoint RUN --out INDEX",
        "sce-video index VIDEOS --out INDEX --check",
    )
    more: ClassVar[str] = (
        "Exit status: 0 built, also if some files are unreadable, 1 damaged (--check), 2 wrong "
        "usage,\n130 interrupted.\nMore: docs/search.md, docs/long_videos.md, docs/jobs.md"
    )

    def check(self) -> None:
        """Raise OptionError for options that have no effect together."""
        check_windows(self)
        check_dataset(self, "all_files", "data_root")
        if self.column is not None and not is_table(self.videos):
            raise OptionError(
                f"{{column}} names a column of a table of videos, but {self.videos} is not a table"
            )
        if self.column is not None and self.windows is not None:
            raise OptionError(
                "{column} contains a feature of every whole video. Remove {column} or {windows}"
            )
