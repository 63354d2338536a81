"""Options of the command that chooses a network for the user's videos: choose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from sce_video.options.connect import FRAME_POOLS
from sce_video.options.declare import OptionError, Options, option
from sce_video.options.shared import ALL_FILES, DEVICE, FOLDS, GROUP_PATTERN, TIME
from sce_video.options.training import FOLDERS
from sce_video.utils.seconds import parse_seconds

#: Pool of a candidate that stands for all of its pools.
ALL_POOLS = "all"


@dataclass(frozen=True, kw_only=True)
class ChooseOptions(Options):
    """Choose a network for your videos: compare candidates on a sample of them.

    With labels, the candidates are compared by a linear probe and kNN, with paired intervals. If no
    difference can be shown, the cheaper one is recommended. Without labels, the page shows nearest
    neighbours of each candidate, because no measure without labels ranks networks reliably. Grey
    pixels, pixels in time order and random weights are always compared, too. The command prints a
    table, a recommendation if there is enough evidence for one, and the line to run next. It writes
    DIR/choose.html and DIR/choose.json.
    """

    videos: str = option("folder or table (v.lance) of videos", positional=True, metavar="VIDEOS")
    out: str = option("folder for the page and the JSON file", metavar="DIR")
    among: tuple[str, ...] = option(
        "candidates: runs, checkpoints, hf:NAME, or efficientnet-lite0. NAME:POOL chooses how "
        f"frames of an image network are pooled ({', '.join(FRAME_POOLS)}), and NAME:{ALL_POOLS} "
        f"compares all pools (default: efficientnet-lite0:{ALL_POOLS}, if it is installed)",
        (),
        metavar="NETWORK",
    )
    labels: str | None = option(
        f"CSV file with the columns path,label, or '{FOLDERS}' if the sub-folders are classes "
        "(default: no labels)",
        None,
        metavar="CSV",
    )
    group_column: str | None = option(
        "column of the CSV file with groups (person, scene), which are tested as a whole",
        None,
        metavar="NAME",
    )
    fold_column: str | None = option(
        "column of the CSV file with folds, which are used as they are", None, metavar="NAME"
    )
    group_pattern: str | None = option(GROUP_PATTERN, None)
    folds: int | str | None = option(
        replace(
            FOLDS,
            help="with groups: number of folds, or loo for one fold per group (default: loo below "
            "20 groups, else 5)",
        ),
        None,
    )
    budget: str = option(
        replace(TIME, help="time that the command may take. It decides how many videos are used"),
        "10m",
    )
    all_files: bool = option(ALL_FILES, False)
    workers: int | None = option("number of processes (default: one per core)", None, least=1)
    device: str | None = option(DEVICE, None)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video choose VIDEOS --out DIR",
        "sce-video choose VIDEOS --among RUN efficientnet-lite0 --out DIR --labels folders",
        "sce-video choose VIDEOS --out DIR --labels clips.csv --group-column person --budget 30m",
    )
    more: ClassVar[str] = (
        "Exit status: 0 compared, 1 some videos could not be decoded, 2 wrong usage, 130 "
        "interrupted.\nMore: docs/choose.md"
    )

    @property
    def seconds(self) -> float:
        """Time that the command may take, in seconds."""
        return parse_seconds(self.budget)

    def check(self) -> None:
        """Raise OptionError for options that need labels, or exclude each other."""
        columns = [n for n in ("group_column", "fold_column") if getattr(self, n) is not None]
        grouped = [n for n in ("group_pattern", *columns) if getattr(self, n) is not None]
        if grouped and self.labels is None:
            raise OptionError(f"{{{grouped[0]}}} divides labelled videos. Give {{labels}}, too")
        if columns and self.labels == FOLDERS:
            raise OptionError(
                f"{{{columns[0]}}} names a column of a CSV file. Give it as {{labels}}"
            )
        if self.group_pattern is not None and columns:
            raise OptionError(f"give either {{group_pattern}} or {{{columns[0]}}}, not both")
        if "=" in (self.fold_column or ""):
            raise OptionError(
                "every fold is tested. Give {fold_column} only the name of the column"
            )
        if self.folds is not None and (not grouped or self.fold_column):
            raise OptionError("{folds} needs groups. Give only {group_pattern} or {group_column}")
        if self.seconds <= 0:
            raise OptionError("{budget} must be above 0", self.budget)
