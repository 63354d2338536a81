"""Options of the commands that embed videos: embed, index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sce_video.options import shared
from sce_video.options.declare import Group, OptionError, Options, given_options, option

#: Numbers of crops per clip: one at the centre, or three along the longer side
CROPS = (1, 3)
_WHOLE = Group("whole videos, without --windows")
_VIEWS = Group("views")
_STORAGE = Group("storage")
# Whole videos are read as in the test of a config, and windows as in an index. Options that apply
# to only one of these are refused for the other.
_OF_CONFIGS = ("part", "ann_file", "backend", "cfg_options", "launcher")
_OF_INDEXES = ("clips", "crops", "device")


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(Options):
    """Write one feature vector for each video in a folder, a table or a config to an .npz file.

    The file contains the features (N, D) as float32, the paths, the provenance as JSON, and the
    labels (N,), which come from the sub-folders, the table or the list. It can be evaluated with
    sce-video retrieve and sce-video probe. Features are saved one by one in FILE.npz.parts, so that
    the same command resumes an interrupted run.

    With --windows, every row is a window of a video. The arrays starts and ends contain the start
    and end of each window in seconds.
    """

    videos: str | None = option(
        "folder or table (v.lance) of videos or, with --windows, a single video. It is not needed "
        "with --config",
        None,
        positional=True,
        metavar="VIDEOS",
    )
    checkpoint: str = option(
        shared.RUN, help=f"{shared.RUN.help}. With --config, 'random' stands for random weights"
    )
    out: str = option("file to write, a path or a URL", metavar="FILE.npz")
    dataset: str | None = option(shared.DATASET, None)
    all_files: bool = option(shared.ALL_FILES, False)
    config: str | None = option(
        "config file, which is executed (default: the config inside the checkpoint, which is read "
        "as data)",
        None,
        metavar="FILE",
    )
    part: str = _WHOLE.option(
        "with --config: which of its sets of videos to embed; bank is the gallery of a retrieval "
        "recipe",
        "test",
        choices=("test", "bank", "train"),
    )
    ann_file: str | None = _WHOLE.option(
        "annotation list of the videos in VIDEOS", None, metavar="LIST"
    )
    backend: str | None = _WHOLE.option(shared.BACKEND, None)
    cfg_options: tuple[str, ...] = _WHOLE.option(shared.CHANGES, ())
    workers: int | None = shared.PROCESSES.option(
        "number of processes per rank; 0 uses only this process (default: as in the config; with "
        "--ray, one per core of the cluster)",
        None,
        least=0,
    )
    ray: str | None = shared.PROCESSES.option(shared.RAY, None)
    processes_per_gpu: int = shared.PROCESSES.option(shared.PROCESSES_PER_GPU, 4)
    launcher: str = shared.PROCESSES.option(shared.LAUNCHER, "none")
    windows: str | None = shared.WINDOWED.option(shared.WINDOWS, None)
    stride: str | None = shared.WINDOWED.option(shared.STRIDE, None)
    shots: bool = shared.WINDOWED.option(shared.SHOTS, False)
    clips: int = shared.WINDOWED.option("number of clips per window", 4, least=1)
    crops: int = shared.WINDOWED.option("number of crops per clip", 1, choices=CROPS)
    device: str | None = shared.WINDOWED.option(shared.DEVICE, None)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video embed VIDEOS --checkpoint RUN --out features.npz",
        "sce-video embed match.mp4 --checkpoint RUN --out features.npz --windows 5s --stride 2.5s",
        "sce-video embed --config CONFIG --checkpoint RUN --out bank.npz --part bank --ray auto",
    )
    more: ClassVar[str] = (
        "Exit status: 0 embedded; 1 some windows are missing; 2 usage error; 130 interrupted.\n"
        "More: docs/long_videos.md, docs/jobs.md (clusters)"
    )

    def check(self) -> None:
        """Raise OptionError if there is nothing to embed, or an option would have no effect."""
        shared.check_windows(self)
        shared.check_dataset(self, "all_files", "config", "ann_file")
        for name in _OF_INDEXES if self.windows is None else ():
            if name in given_options(self):
                raise OptionError(f"{{{name}}} needs {{windows}}, for example {{windows}} 5s")
        for name in _OF_CONFIGS:
            self.exclude(name, "windows")
        if self.videos is None and (self.config is None or self.windows is not None):
            raise OptionError(
                "there are no videos to embed. Add {videos}, a folder or a table, or a {config} "
                "that names videos"
            )


@dataclass(frozen=True, kw_only=True)
class IndexOptions(Options):
    """Build or update the search index of a folder or a table of videos.

    A second run embeds only new and changed videos, and an interrupted run resumes where it
    stopped. With --windows, the index contains windows of the videos instead of whole videos. With
    a CSV file (path,start,end,label), it contains the listed segments with their labels.
    """

    videos: str = option(
        "folder of videos, table (v.lance), or labelled videos in a list or a CSV file",
        positional=True,
        metavar="VIDEOS",
    )
    checkpoint: str | None = option(
        shared.RUN, None, help=f"{shared.RUN.help} (default: the network of the index)"
    )
    out: str = option("folder of the index", metavar="DIR")
    data_root: str | None = option(shared.DATA_ROOT, None)
    dataset: str | None = option(
        shared.DATASET, None, help=f"{shared.DATASET.help} (default: as in the index)"
    )
    all_files: bool = option(shared.ALL_FILES, False)
    config: str | None = option(shared.CONFIG, None)
    device: str | None = option(shared.DEVICE, None)
    rebuild: bool = option("discard the existing index", False)
    retry_failed: bool = option("retry unreadable files, even if they have not changed", False)
    check_only: bool = option(
        "only read the index and list its damaged files. The exit status is 1 if there are any",
        False,
        flag="--check",
    )
    clips: int | None = _VIEWS.option(
        "number of clips per video or window (default: as in the index, or 4)", None, least=1
    )
    crops: int | None = _VIEWS.option(
        "number of crops per clip (default: as in the index, or 1)", None, choices=CROPS
    )
    windows: str | None = shared.WINDOWED.option(
        shared.WINDOWS,
        None,
        help="divide every video into windows of this length, for example 5s or 0:30 (default: as "
        "in the index, or whole videos)",
    )
    stride: str | None = shared.WINDOWED.option(shared.STRIDE, None)
    shots: bool = shared.WINDOWED.option(shared.SHOTS, False)
    table: bool = _STORAGE.option(
        "store the features in a Lance table, for millions of videos. An existing index is "
        "converted",
        False,
    )
    approximate: bool = _STORAGE.option(
        "build a vector index for the table (default: only above 200,000 videos)", False
    )
    column: str | None = _STORAGE.option(
        "also write the features to the column feature_NAME of the table of videos",
        None,
        metavar="NAME",
    )
    workers: int | None = shared.PROCESSES.option(
        "number of processes; 0 uses only this process (default: one per core, at most 8 per GPU; "
        "with --ray, one per core of the cluster)",
        None,
        least=0,
    )
    timeout: float = shared.PROCESSES.option(shared.TIMEOUT, 60.0)
    max_views: int = shared.PROCESSES.option(shared.MAX_VIEWS, 32)
    ray: str | None = shared.PROCESSES.option(shared.RAY, None)
    processes_per_gpu: int = shared.PROCESSES.option(shared.PROCESSES_PER_GPU, 4)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video index VIDEOS --checkpoint RUN --out INDEX",
        "sce-video index VIDEOS --checkpoint RUN --out INDEX --windows 5s --stride 2.5s",
        "sce-video index LABELS.csv --data-root VIDEOS --checkpoint RUN --out INDEX",
        "sce-video index VIDEOS --out INDEX --check",
    )
    more: ClassVar[str] = (
        "Exit status: 0 built, even if some files are unreadable; 1 damaged (--check); 2 usage "
        "error;\n130 interrupted.\nMore: docs/search.md, docs/long_videos.md, docs/jobs.md"
    )

    def check(self) -> None:
        """Raise OptionError for options that have no effect together."""
        shared.check_windows(self)
        shared.check_dataset(self, "all_files", "data_root")
        if self.column is not None and not shared.is_table(self.videos):
            raise OptionError(
                f"{{column}} names a column of a table of videos, but {self.videos} is not a table"
            )
        self.exclude("column", "windows")  # a row of the table is a whole video
