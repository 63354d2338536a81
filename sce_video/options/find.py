"""Options of the commands that find and classify videos: curate, predict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from sce_video.options.declare import OptionError, Options, option
from sce_video.options.shared import (
    ALL_FILES,
    CONFIG,
    DATASET,
    DEVICE,
    LABELS,
    MAX_VIEWS,
    TIME,
    TIMEOUT,
    check_dataset,
    matching,
)

# Ways to decide on near-duplicates: aligned frames, only features, or nothing.
FRAMES = "frames"
FEATURES = "features"
NONE = "none"
#: Smallest similarity of a near-duplicate, by what is compared (measured: docs/curate.md).
THRESHOLDS = {FRAMES: 0.97, FEATURES: 0.99}
# Names of the kinds of edited copies that are searched besides near-duplicates (docs/curate.md).
MIRRORED = "mirrored"
PARTS = "parts"
SPEED = "speed"
SHORT = "short"
LATE = "late"
#: All kinds of edited copies. Each kind costs processor time, so it must be requested by name.
EDITS = (MIRRORED, PARTS, SPEED, SHORT, LATE)
#: Criteria for the video of a group that stays, in their default order.
PREFERENCES = ("length", "resolution", "bitrate")


@dataclass(frozen=True, kw_only=True)
class CurateOptions(Options):
    """Find near-duplicates, outliers, clusters and a diverse subset of videos.

    The command writes lists that training reads (keep.txt, subset.txt, clusters.txt), removed.csv
    with the reason for every removed video, report.json, and a page with examples, curation.html.
    The next run respects decisions on groups that you save on the page (with --overwrite). No video
    is changed.
    """

    source: str = option(
        "index, feature file (.npz) or table with features; with --checkpoint, a folder or "
        "table of videos",
        positional=True,
        metavar="SOURCE",
    )
    out: str = option("folder of the lists, the report and the page", metavar="DIR")
    keep: str | None = option(
        "list of the videos to keep (default: OUT/keep.txt)", None, metavar="LIST"
    )
    column: str | None = option(
        "column of the features, if the table has several", None, metavar="NAME"
    )
    labels: str | None = option(LABELS, None)
    classes: str | None = option("names of the labels' classes, one per line", None, metavar="FILE")
    decisions: str | None = option(
        "decisions that an earlier page has saved (default: OUT/decisions.csv, if it exists)",
        None,
        metavar="FILE",
    )
    no_page: bool = option("do not write the page", False)
    overwrite: bool = option("replace the results of an earlier curation in OUT", False)
    workers: int | None = option(
        "number of processes that decode and compare; 0 works in this process (default: all cores)",
        None,
        least=0,
    )
    checkpoint: str | None = option(
        "embed the videos first, into OUT/index, with this run or checkpoint",
        None,
        metavar="RUN",
        group="features of new videos",
    )
    config: str | None = option(CONFIG, None, group="features of new videos")
    device: str | None = option(DEVICE, None, group="features of new videos")
    dataset: str | None = option(
        replace(DATASET, help=DATASET.help.replace("VIDEOS", "SOURCE")),
        None,
        group="features of new videos",
    )
    all_files: bool = option(ALL_FILES, False, group="features of new videos")
    duplicates: str = option(
        "what decides on near-duplicates: their frames, only their features (no video is opened), "
        "or none (no search)",
        FRAMES,
        choices=(FRAMES, FEATURES, NONE),
        group="near-duplicates",
    )
    similarity: float | None = option(
        "smallest similarity of near-duplicates (default: "
        + ", ".join(f"{value:g} for {name}" for name, value in THRESHOLDS.items())
        + ")",
        None,
        metavar="X",
        above=0,
        most=1,
        group="near-duplicates",
    )
    copies: tuple[str, ...] = option(
        "also search for edited copies: mirrored; parts (crops down to 40 % of a side, pictures "
        "in pictures); speed (0.8 to 1.25); short (a shared stretch); late (after the first "
        "minute); or all",
        (),
        metavar="KIND",
        choices=(*EDITS, "all"),
        group="near-duplicates",
    )
    prefer: tuple[str, ...] = option(
        "what decides which video of a group stays: its length, resolution or bitrate",
        PREFERENCES,
        metavar="WHAT",
        choices=PREFERENCES,
        group="near-duplicates",
    )
    intros: int = option(
        "a stretch that is part of more than N videos is treated as an intro or credits, and does "
        "not make videos copies",
        10,
        least=1,
        group="near-duplicates",
    )
    neighbours: int = option(
        "number of nearest videos by features, and as many by frames, that each video is "
        "compared with",
        20,
        metavar="K",
        least=1,
        group="near-duplicates",
    )
    motion: float | None = option(
        "remove frozen videos and those below this quantile of motion; 0.05 without a number",
        None,
        metavar="Q",
        least=0,
        most=0.99,
        alone=0.05,
        group="what else is removed or listed",
    )
    drop_outliers: bool = option(
        "remove outliers from the list to keep", False, group="what else is removed or listed"
    )
    subset: int = option(
        "list the K most diverse videos",
        0,
        metavar="K",
        least=0,
        group="what else is removed or listed",
    )
    clusters: int = option(
        "number of clusters", 20, metavar="K", least=1, group="what else is removed or listed"
    )
    seed: int = option(
        "random seed of the clusters", 0, least=0, group="what else is removed or listed"
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video curate INDEX --out CURATED",
        "sce-video curate features.npz --out CURATED --duplicates features --subset 1000",
        "sce-video curate VIDEOS --checkpoint RUN --out CURATED --motion",
        "sce-video curate INDEX --out CURATED --overwrite",
    )
    more: ClassVar[str] = (
        "Exit status: 0 written, 1 written and some videos could not be compared, 2 wrong usage.\n"
        "More: docs/curate.md"
    )

    @property
    def edits(self) -> tuple[str, ...]:
        """Kinds of edited copies to search for."""
        return EDITS if "all" in self.copies else self.copies

    @property
    def threshold(self) -> float:
        """Smallest similarity of near-duplicates."""
        return THRESHOLDS[self.duplicates] if self.similarity is None else self.similarity

    def check(self) -> None:
        """Raise OptionError for options that have no effect together."""
        if self.similarity is not None and self.duplicates == NONE:
            raise OptionError("{similarity} has no effect with {duplicates} none. Remove one")
        if self.copies and self.duplicates != FRAMES:
            raise OptionError("{copies} are found by frames. Remove {copies} or {duplicates}")
        if self.classes is not None and self.labels is None:
            raise OptionError("{classes} names the labels of a list. Give {labels}, too")
        if self.checkpoint is not None and self.column is not None:
            raise OptionError(
                "{column} names existing features, but {checkpoint} makes new ones. Remove one"
            )
        if self.dataset is not None and self.checkpoint is None:
            raise OptionError("{dataset} lists videos to embed. Add {checkpoint} RUN")
        check_dataset(self, "all_files")


#: The name of the class for everything else that a video shows. It does not produce segments.
BACKGROUND = "background"


@dataclass(frozen=True, kw_only=True)
class PredictOptions(Options):
    """Classify new videos with a finetuned checkpoint.

    Network, class names and views (clips x crops) are read from the checkpoint, so the
    probabilities are the same as in 'sce-video test'. The command prints the most probable classes
    of every video, or writes them to a CSV file, and lists files that cannot be decoded with the
    reason.

    With --windows, long videos are divided into windows, and the output consists of segments: path,
    start, end, label, score. A class has a segment wherever the mean score of the windows around a
    moment is at least --threshold for at least --min-length.
    """

    checkpoint: str = option(
        "finetuned checkpoint, or the folder of its run",
        positional=True,
        metavar="CHECKPOINT",
    )
    videos: tuple[str, ...] = option(
        "files, folders, tables (v.lance) and their rows (v.lance/a.mp4), or URLs",
        positional=True,
        metavar="VIDEOS",
    )
    csv: str | None = option("write a row per video instead of printing it", None, metavar="OUT")
    top: int = option("number of classes per video", 3, least=1)
    views: str | None = option(
        "for example 10x3, or 1x1, which is fastest (default: as in the test of the checkpoint)",
        None,
        metavar="CLIPSxCROPS",
        problem=matching(
            r"[1-9]\d{0,3}x[13]", "must be CLIPSxCROPS with 1 or 3 crops, for example 10x3"
        ),
    )
    classes: str | None = option(
        "class names, one per line, if the checkpoint contains none", None, metavar="FILE"
    )
    config: str | None = option(CONFIG, None)
    device: str | None = option(DEVICE, None)
    all_files: bool = option(ALL_FILES, False)
    timeout: float = option(TIMEOUT, 60.0)
    max_views: int = option(MAX_VIEWS, 32)
    workers: int | None = option(
        "number of decoding processes (default: one per core, at most 8)", None, least=0
    )
    windows: str | None = option(
        replace(TIME, help="score windows of this length, 2s or 0:30, and join them to segments"),
        None,
        group="segments of long videos",
    )
    stride: str | None = option(
        replace(TIME, help="time between window starts (default: a quarter of a window)"),
        None,
        group="segments of long videos",
    )
    threshold: float | None = option(
        "smallest score of a segment (default: 0.5)",
        None,
        metavar="P",
        above=0,
        most=1,
        group="segments of long videos",
    )
    min_length: str | None = option(
        replace(TIME, help="shortest segment (default: 0)"), None, group="segments of long videos"
    )
    segments: str | None = option(
        "CSV file with path,start,end,label: choose threshold and length on these segments, and "
        "print the segment mAP on their videos",
        None,
        metavar="LABELS",
        group="segments of long videos",
    )
    data_root: str | None = option(
        "folder that the paths of LABELS are relative to (default: the folder of LABELS)",
        None,
        metavar="DIR",
        group="segments of long videos",
    )
    background: str = option(
        "class for which no segments are made",
        BACKGROUND,
        metavar="CLASS",
        group="segments of long videos",
    )
    json: str | None = option(
        "write the scores of all windows, and the segments",
        None,
        metavar="OUT",
        group="segments of long videos",
    )
    html: str | None = option(
        "write a page with players and timelines, with one lane per class",
        None,
        metavar="PAGE",
        group="segments of long videos",
    )
    clips: str | None = option(
        "write the segments as frame-accurate video files",
        None,
        metavar="DIR",
        group="segments of long videos",
    )
    fast: bool = option(
        "with --clips, cut at key frames, without re-encoding",
        False,
        group="segments of long videos",
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video predict CLASSIFIER VIDEOS --csv predictions.csv",
        "sce-video predict CLASSIFIER a.mp4 b.mp4 --top 1 --views 1x1",
        "sce-video predict CLASSIFIER long.mp4 --windows 2s --stride 0.5s --html segments.html",
    )
    more: ClassVar[str] = (
        "Exit status: 0 classified, 1 no file could be decoded, 2 wrong usage, 130 interrupted.\n"
        "More: docs/videos.md, docs/long_videos.md"
    )

    def check(self) -> None:
        """Raise OptionError for options of segments without windows."""
        only = (
            "stride",
            "threshold",
            "min_length",
            "segments",
            "data_root",
            "json",
            "html",
            "clips",
        )
        given = [name for name in only if getattr(self, name) is not None]
        if given and self.windows is None:
            raise OptionError(f"{{{given[0]}}} needs {{windows}}: {{windows}} 2s")
        if self.fast and self.clips is None:
            raise OptionError("{fast} is how {clips} cuts: give {clips} DIR")
