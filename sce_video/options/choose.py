"""Options of the command that chooses a network for the user's videos: choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sce_video.options import shared
from sce_video.options.connect import FRAME_POOLS
from sce_video.options.declare import Group, OptionError, Options, option
from sce_video.options.training import FOLDERS
from sce_video.utils.seconds import parse_seconds

#: Pool name that stands for all pools of a candidate
ALL_POOLS = "all"
_LABELLED = Group("labels, and which videos are held out together")


@dataclass(frozen=True, kw_only=True)
class ChooseOptions(Options):
    """Choose a network for your videos: compare candidates on a sample of them.

    With labels, the candidates are compared by a linear probe and kNN, with paired confidence
    intervals. If two candidates do not differ significantly, the cheaper one is recommended.
    Without labels, the page shows the nearest neighbours for each candidate, because no measure
    without labels ranks networks reliably. The command always adds three baselines without a
    trained network: the mean and variation over time of each pixel in small grey frames, the small
    grey frames in temporal order, averaged over each quarter of the video, and a network with
    random weights. It prints a table, a recommendation if there is enough evidence for one, and the
    command to run next. It writes DIR/choose.html and DIR/choose.json.
    """

    videos: str = option("folder or table (v.lance) of videos", positional=True, metavar="VIDEOS")
    out: str = option("folder for the page and the JSON file", metavar="DIR")
    among: tuple[str, ...] = option(
        "candidates: runs, checkpoints, hf:NAME or efficientnet-lite0. NAME:POOL selects how the "
        f"features of frames are pooled ({', '.join(FRAME_POOLS)}), and NAME:{ALL_POOLS} compares "
        f"all pooling methods (default: efficientnet-lite0:{ALL_POOLS}, if it is installed)",
        (),
        metavar="NETWORK",
    )
    labels: str | None = _LABELLED.option(
        f"CSV file with the columns path and label, or '{FOLDERS}' if the sub-folders are classes "
        "(default: no labels)",
        None,
        metavar="CSV",
    )
    group_column: str | None = _LABELLED.option(shared.GROUP_COLUMN, None)
    fold_column: str | None = _LABELLED.option(shared.FOLD_COLUMN, None)
    group_pattern: str | None = _LABELLED.option(shared.GROUP_PATTERN, None)
    folds: int | str | None = _LABELLED.option(
        shared.FOLDS,
        None,
        help="with groups: number of folds, or loo for one fold per group (default: loo below 20 "
        "groups, else 5)",
    )
    budget: str = option(
        shared.TIME, "10m", help="time limit of the command, which decides how many videos are used"
    )
    all_files: bool = option(shared.ALL_FILES, False)
    workers: int | None = option("number of processes (default: one per core)", None, least=1)
    device: str | None = option(shared.DEVICE, None)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video choose VIDEOS --out DIR",
        "sce-video choose VIDEOS --among RUN efficientnet-lite0 --out DIR --labels folders",
        "sce-video choose VIDEOS --out DIR --labels clips.csv --group-column person --budget 30m",
    )
    more: ClassVar[str] = (
        "Exit status: 0 compared; 1 some videos could not be decoded; 2 usage error; 130 "
        "interrupted.\nMore: docs/choose.md"
    )

    @property
    def seconds(self) -> float:
        """The time limit, in seconds."""
        return parse_seconds(self.budget)

    def check(self) -> None:
        """Raise OptionError for options that need labels, or exclude each other."""
        columns = [n for n in ("group_column", "fold_column") if getattr(self, n) is not None]
        grouped = [n for n in ("group_pattern", *columns) if getattr(self, n) is not None]
        if grouped and self.labels is None:
            raise OptionError(f"{{{grouped[0]}}} divides labelled videos. Add {{labels}}")
        if columns and self.labels == FOLDERS:
            raise OptionError(
                f"{{{columns[0]}}} names a column of a CSV file, so {{labels}} must be that file"
            )
        self.exclude("group_pattern", "group_column")
        self.exclude("group_pattern", "fold_column")
        shared.check_folds(self)
        if self.seconds <= 0:
            raise OptionError("{budget} must be above 0", self.budget)
