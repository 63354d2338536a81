"""Options of the commands that find and classify videos: curate, predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sce_video.options import shared
from sce_video.options.declare import Group, OptionError, Options, option

# Criteria for near-duplicates: aligned frames, features only, or nothing.
FRAMES = "frames"
FEATURES = "features"
NONE = "none"
#: Minimum similarity of near-duplicates, by criterion (measured in docs/curate.md)
THRESHOLDS = {FRAMES: 0.97, FEATURES: 0.99}
# Kinds of edited copies to search for in addition to near-duplicates (docs/curate.md).
MIRRORED = "mirrored"
PARTS = "parts"
SPEED = "speed"
SHORT = "short"
LATE = "late"
#: All kinds of edited copies. Each kind costs processor time, so users request them by name.
EDITS = (MIRRORED, PARTS, SPEED, SHORT, LATE)
#: Criteria for choosing which video of a group to keep, in their default order
PREFERENCES = ("length", "resolution", "bitrate")
_NEW_FEATURES = Group("features of new videos")
_NEAR_DUPLICATES = Group("near-duplicates")
_MORE_LISTS = Group("other videos to remove or list")
_SEGMENTS = Group("segments of long videos")


@dataclass(frozen=True, kw_only=True)
class CurateOptions(Options):
    """Find near-duplicates, outliers, clusters and a diverse subset of videos.

    The command writes lists for training (keep.txt, subset.txt, clusters.txt), removed.csv with
    the reason for every removed video, report.json, and curation.html, a page with examples.
    On the page, you can choose which videos of a group of near-duplicates are kept. After you have
    saved your decisions, repeat the command with --overwrite to apply them. No video is changed.
    """

    source: str = option(
        "index, feature file (.npz) or table with features; with --checkpoint, a folder or "
        "table of videos",
        positional=True,
        metavar="SOURCE",
    )
    out: str = option("folder for the lists, the report and the page", metavar="DIR")
    keep: str | None = option(
        "file for the list of videos to keep (default: DIR/keep.txt)", None, metavar="LIST"
    )
    column: str | None = option(
        "feature column to use, if the table has several", None, metavar="NAME"
    )
    labels: str | None = option(shared.LABELS, None)
    classes: str | None = option(shared.CLASSES, None)
    decisions: str | None = option(
        "decisions saved from an earlier page (default: DIR/decisions.csv, if it exists)",
        None,
        metavar="FILE",
    )
    no_page: bool = option("do not write the page", False)
    overwrite: bool = option("replace the results of an earlier curation in DIR", False)
    workers: int | None = option(
        "number of processes that decode and compare videos; 0 uses only this process (default: "
        "one per core)",
        None,
        least=0,
    )
    checkpoint: str | None = _NEW_FEATURES.option(
        "run or checkpoint with which the videos are embedded first, into DIR/index",
        None,
        metavar="RUN",
    )
    config: str | None = _NEW_FEATURES.option(shared.CONFIG, None)
    device: str | None = _NEW_FEATURES.option(shared.DEVICE, None)
    dataset: str | None = _NEW_FEATURES.option(
        shared.DATASET, None, help=shared.DATASET.help.replace("VIDEOS", "SOURCE")
    )
    all_files: bool = _NEW_FEATURES.option(shared.ALL_FILES, False)
    duplicates: str = _NEAR_DUPLICATES.option(
        "frames: compare frames; features: compare only features, without opening any video; none: "
        "do not search for near-duplicates",
        FRAMES,
        choices=(FRAMES, FEATURES, NONE),
    )
    similarity: float | None = _NEAR_DUPLICATES.option(
        "minimum similarity of near-duplicates (default: "
        + ", ".join(f"{value:g} for {name}" for name, value in THRESHOLDS.items())
        + ")",
        None,
        metavar="X",
        above=0,
        most=1,
    )
    copies: tuple[str, ...] = _NEAR_DUPLICATES.option(
        "kinds of edited copies to search for: mirrored, parts (crops down to 40 % of a side, and "
        "picture in picture), speed (0.8 to 1.25 times), short (the videos share as little as a "
        "sixth of the shorter one), late (copies after the first minute of a video), or all "
        "(default: none)",
        (),
        metavar="KIND",
        choices=(*EDITS, "all"),
    )
    prefer: tuple[str, ...] = _NEAR_DUPLICATES.option(
        "criteria for which video of a group is kept, the most important one first: length, "
        "resolution, bitrate",
        PREFERENCES,
        metavar="WHAT",
        choices=PREFERENCES,
    )
    intros: int = _NEAR_DUPLICATES.option(
        "a short stretch in more than N videos counts as an intro or credits, not as a copy",
        10,
        least=1,
    )
    neighbours: int = _NEAR_DUPLICATES.option(
        "compare each video with the K nearest videos by features, and with the K nearest by "
        "frames",
        20,
        metavar="K",
        least=1,
    )
    motion: float | None = _MORE_LISTS.option(
        "remove frozen videos, and videos whose motion is below this quantile. Without a value, "
        "0.05 is used",
        None,
        metavar="Q",
        least=0,
        most=0.99,
        alone=0.05,
    )
    drop_outliers: bool = _MORE_LISTS.option(
        "leave outliers out of the list of videos to keep", False
    )
    subset: int = _MORE_LISTS.option(
        "size of the diverse subset to list (default: no subset)", 0, metavar="K", least=0
    )
    clusters: int = _MORE_LISTS.option("number of clusters", 20, metavar="K", least=1)
    seed: int = _MORE_LISTS.option("random seed for clustering", 0, least=0)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video curate INDEX --out CURATED",
        "sce-video curate features.npz --out CURATED --duplicates features --subset 1000",
        "sce-video curate VIDEOS --checkpoint RUN --out CURATED --motion",
        "sce-video curate INDEX --out CURATED --overwrite",
    )
    more: ClassVar[str] = (
        "Exit status: 0 written; 1 written, but some videos could not be compared; 2 usage error.\n"
        "More: docs/curate.md"
    )

    @property
    def edits(self) -> tuple[str, ...]:
        """Kinds of edited copies to search for."""
        return EDITS if "all" in self.copies else self.copies

    @property
    def threshold(self) -> float:
        """Minimum similarity of near-duplicates."""
        return THRESHOLDS[self.duplicates] if self.similarity is None else self.similarity

    def check(self) -> None:
        """Raise OptionError for options that have no effect together."""
        if self.similarity is not None and self.duplicates == NONE:
            raise OptionError(
                "{similarity} has no effect with {duplicates} none. Remove one of them"
            )
        if self.copies and self.duplicates != FRAMES:
            raise OptionError("{copies} compares frames. Remove {copies} or {duplicates}")
        shared.check_classes(self, "labels")
        self.exclude("checkpoint", "column")
        if self.dataset is not None and self.checkpoint is None:
            raise OptionError("{dataset} lists videos to embed. Add {checkpoint} RUN")
        shared.check_dataset(self, "all_files")


#: Name of the class for everything else in a video. It does not produce segments.
BACKGROUND = "background"


@dataclass(frozen=True, kw_only=True)
class PredictOptions(Options):
    """Classify new videos with a finetuned checkpoint.

    The network, the class names and the views (clips x crops) are read from the checkpoint, so the
    probabilities are the same as in 'sce-video test'. The command prints the most probable classes
    of every video, or writes them to a CSV file. It also lists the files that cannot be decoded,
    each with the reason.

    With --windows, the command scores windows of long videos and returns segments, with path,
    start, end, label and score. A segment covers the moments at which the mean score of the
    surrounding windows is at least --threshold. Segments shorter than --min-length are left out.
    """

    checkpoint: str = option(
        "finetuned checkpoint, or the folder of its run", positional=True, metavar="CHECKPOINT"
    )
    videos: tuple[str, ...] = option(
        "files, folders, tables (v.lance), rows of tables (v.lance/a.mp4) or URLs",
        positional=True,
        metavar="VIDEOS",
    )
    csv: str | None = option(
        "write the classes to this CSV file instead of printing them, one row per video (with "
        "--windows, one row per segment)",
        None,
        metavar="OUT",
    )
    top: int = option("number of classes per video", 3, least=1)
    views: str | None = option(
        "number of views, for example 10x3, or 1x1 for the highest speed (default: as in the test "
        "config of the checkpoint; with --windows, as many clips as cover a window, and 1 crop)",
        None,
        metavar="CLIPSxCROPS",
        problem=shared.matching(
            r"[1-9]\d{0,3}x[13]", "must be CLIPSxCROPS with 1 or 3 crops, for example 10x3"
        ),
    )
    classes: str | None = option(
        shared.CLASSES, None, help=f"{shared.CLASSES.help}, if the checkpoint contains none"
    )
    config: str | None = option(shared.CONFIG, None)
    device: str | None = option(shared.DEVICE, None)
    all_files: bool = option(shared.ALL_FILES, False)
    timeout: float = option(shared.TIMEOUT, 60.0)
    max_views: int = option(shared.MAX_VIEWS, 32)
    workers: int | None = option(
        "number of processes that decode videos (default: one per core, at most 8)", None, least=0
    )
    windows: str | None = _SEGMENTS.option(
        shared.TIME,
        None,
        help="length of the windows that are scored and joined into segments, for example 2s or "
        "0:30",
    )
    stride: str | None = _SEGMENTS.option(
        shared.TIME, None, help="time between window starts (default: a quarter of a window)"
    )
    threshold: float | None = _SEGMENTS.option(
        "minimum score of a segment (default: 0.5)", None, metavar="P", above=0, most=1
    )
    min_length: str | None = _SEGMENTS.option(
        shared.TIME, None, help="minimum length of a segment (default: 0s)"
    )
    segments: str | None = _SEGMENTS.option(
        "CSV file of labelled segments (path,start,end,label). The command uses them to choose the "
        "threshold and the minimum length, and prints the segment mAP on their videos",
        None,
        metavar="LABELS",
    )
    data_root: str | None = _SEGMENTS.option(
        "folder to which the paths in LABELS are relative (default: the folder of LABELS)",
        None,
        metavar="DIR",
    )
    background: str = _SEGMENTS.option(
        "class that produces no segments", BACKGROUND, metavar="CLASS"
    )
    json: str | None = _SEGMENTS.option(
        "JSON file for the scores of all windows and the segments", None, metavar="OUT"
    )
    html: str | None = _SEGMENTS.option(
        "page to write, with a player and a timeline for each video", None, metavar="PAGE"
    )
    clips: str | None = _SEGMENTS.option(
        "save the segments as videos in this folder, cut to the exact frame", None, metavar="DIR"
    )
    fast: bool = _SEGMENTS.option("with --clips: cut at key frames, without re-encoding", False)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video predict CLASSIFIER VIDEOS --csv predictions.csv",
        "sce-video predict CLASSIFIER a.mp4 b.mp4 --top 1 --views 1x1",
        "sce-video predict CLASSIFIER long.mp4 --windows 2s --stride 0.5s --html segments.html",
    )
    more: ClassVar[str] = (
        "Exit status: 0 classified; 1 no file could be decoded; 2 usage error; 130 interrupted.\n"
        "More: docs/videos.md, docs/long_videos.md"
    )

    def check(self) -> None:
        """Raise OptionError for options of segments without windows."""
        only = "stride threshold min_length segments data_root json html clips".split()
        given = [name for name in only if getattr(self, name) is not None]
        if given and self.windows is None:
            raise OptionError(f"{{{given[0]}}} needs {{windows}}, for example {{windows}} 2s")
        shared.check_fast(self)
