"""Options of the commands that find videos: curate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sce_video.options.declare import OptionError, Options, Spec, option
from sce_video.options.shared import ALL_FILES, CONFIG, DEVICE, LABELS

# What decides on near-duplicates: aligned frames, features alone, or nothing.
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
#: All kinds of edited copies. Each of them costs processor time, so each is switched on by name.
EDITS = (MIRRORED, PARTS, SPEED, SHORT, LATE)
#: What decides which video of a group stays, in this order by default.
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
        Spec(
            "index, feature file (.npz) or table with features; with --checkpoint, a folder or "
            "table of videos",
            positional=True,
            metavar="SOURCE",
        )
    )
    out: str = option(Spec("folder of the lists, the report and the page", metavar="DIR"))
    keep: str | None = option(
        Spec("list of the videos to keep (default: OUT/keep.txt)", metavar="LIST"), None
    )
    column: str | None = option(
        Spec("column of the features, if the table has several", metavar="NAME"), None
    )
    labels: str | None = option(LABELS, None)
    classes: str | None = option(
        Spec("names of the labels' classes, one per line", metavar="FILE"), None
    )
    decisions: str | None = option(
        Spec(
            "decisions that an earlier page has saved (default: OUT/decisions.csv, if it exists)",
            metavar="FILE",
        ),
        None,
    )
    no_page: bool = option(Spec("do not write the page"), False)
    overwrite: bool = option(Spec("replace the results of an earlier curation in OUT"), False)
    workers: int | None = option(
        Spec(
            "number of processes that decode and compare; 0 works in this process (default: all "
            "cores)",
            metavar="N",
            least=0,
        ),
        None,
    )
    checkpoint: str | None = option(
        Spec(
            "embed the videos first, into OUT/index, with this run or checkpoint",
            metavar="RUN",
            group="features of new videos",
        ),
        None,
    )
    config: str | None = option(CONFIG.in_group("features of new videos"), None)
    device: str | None = option(DEVICE.in_group("features of new videos"), None)
    all_files: bool = option(ALL_FILES.in_group("features of new videos"), False)
    duplicates: str = option(
        Spec(
            "what decides on near-duplicates: their frames, their features alone (no video is "
            "opened), or none, which does not search them",
            choices=(FRAMES, FEATURES, NONE),
            group="near-duplicates",
        ),
        FRAMES,
    )
    similarity: float | None = option(
        Spec(
            "smallest similarity of near-duplicates (default: "
            + ", ".join(f"{value:g} for {name}" for name, value in THRESHOLDS.items())
            + ")",
            metavar="X",
            above=0,
            most=1,
            group="near-duplicates",
        ),
        None,
    )
    copies: tuple[str, ...] = option(
        Spec(
            "also search edited copies: mirrored; parts (crops down to 40 % of a side, pictures in "
            "pictures); speed (0.8 to 1.25); short (a shared stretch); late (after the first "
            "minute); or all",
            metavar="KIND",
            choices=(*EDITS, "all"),
            group="near-duplicates",
        ),
        (),
    )
    prefer: tuple[str, ...] = option(
        Spec(
            "what decides which video of a group stays: its length, resolution or bitrate",
            metavar="WHAT",
            choices=PREFERENCES,
            group="near-duplicates",
        ),
        PREFERENCES,
    )
    intros: int = option(
        Spec(
            "a stretch that is part of more than N videos is an intro or credits, and makes no "
            "copies",
            metavar="N",
            least=1,
            group="near-duplicates",
        ),
        10,
    )
    neighbours: int = option(
        Spec(
            "number of nearest videos by features, and as many by frames, that each video is "
            "compared with",
            metavar="K",
            least=1,
            group="near-duplicates",
        ),
        20,
    )
    motion: float | None = option(
        Spec(
            "remove frozen videos and those below this quantile of motion; 0.05 without a number",
            metavar="Q",
            least=0,
            most=0.99,
            alone=0.05,
            group="what else is removed or listed",
        ),
        None,
    )
    drop_outliers: bool = option(
        Spec("remove outliers from the list to keep", group="what else is removed or listed"), False
    )
    subset: int = option(
        Spec(
            "list the K most diverse videos",
            metavar="K",
            least=0,
            group="what else is removed or listed",
        ),
        0,
    )
    clusters: int = option(
        Spec("number of clusters", metavar="K", least=1, group="what else is removed or listed"),
        20,
    )
    seed: int = option(
        Spec(
            "random seed of the clusters",
            metavar="N",
            least=0,
            group="what else is removed or listed",
        ),
        0,
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
        """The edited copies that are searched."""
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
