"""Options of the commands that measure networks: evaluate, test, report, compare, look."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from sce_video.options.declare import OptionError, Options, option
from sce_video.options.shared import (
    ALL_FILES,
    BACKEND,
    CHANGES,
    CLASSES,
    CONFIG,
    DATA_ROOT,
    DEVICE,
    FACTORS,
    FOLDS,
    GROUP_PATTERN,
    LAUNCHER,
    PAIRS,
    RUN,
    matching,
    protocol_problem,
)
from sce_video.utils.own_parts import imported_classes

#: Protocols that need no labels, and so no gallery to compare with.
LABEL_FREE = frozenset(("clip_retrieval", "lidar", "rankme"))


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Options):
    """Evaluate a network on labelled videos: kNN, linear probe and retrieval.

    Labelled videos are a folder with a sub-folder for each class, a table with labels (v.lance), a
    list, or a CSV file of videos (path,label) or segments (path,start,end,label). The config inside
    the checkpoint is read as data, and RUN/config.py is not executed. The command prints a table in
    which chance and random weights stand next to every number, and writes the results with their
    provenance.
    """

    run: str = option(RUN, positional=True)
    test: str = option("labelled videos to evaluate on", metavar="VIDEOS")
    gallery: str | None = option(
        "labelled videos that the test videos are compared with", None, metavar="VIDEOS"
    )
    group_pattern: str | None = option(GROUP_PATTERN, None)
    group_column: str | None = option(
        "column of the CSV file with groups (person, scene), which are tested as a whole",
        None,
        metavar="NAME",
    )
    fold_column: str | None = option(
        "column of the CSV file with folds, which are used as they are", None, metavar="NAME"
    )
    folds: int | str | None = option(FOLDS, None)
    data_root: str | None = option(DATA_ROOT, None)
    all_files: bool = option(ALL_FILES, False)
    protocols: tuple[str, ...] = option(
        "protocols on the features, or metrics of your own (default: those in the recipe); time: "
        "tell videos apart from shuffled, reversed and still copies",
        (),
        metavar="NAME",
        problem=protocol_problem,
    )
    pairs: str | None = option(PAIRS, None)
    factors: str | None = option(FACTORS, None)
    random: bool = option("evaluate random weights instead", False)
    no_random: bool = option("do not evaluate random weights for comparison", False)
    out: str | None = option(
        "JSON file or URL of the results (default: RUN/results.json; for a model, "
        "work_dirs/MODEL/results.json)",
        None,
        metavar="FILE",
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video evaluate RUN --gallery TRAIN_VIDEOS --test TEST_VIDEOS",
        "sce-video evaluate RUN --test VIDEOS --group-pattern 'person(\\d+)' --folds 5",
        "sce-video evaluate RUN --test clips.csv --group-column person",
        "sce-video evaluate RUN --gallery A --test B --protocols time",
        "sce-video evaluate RUN --test VIDEOS --protocols rankme lidar   # without labels",
    )
    more: ClassVar[str] = "More: docs/videos.md, docs/metrics.md"

    @property
    def grouped(self) -> bool:
        """Whether groups or folds divide the test videos."""
        return (self.group_pattern or self.group_column or self.fold_column) is not None

    def check(self) -> None:
        """Raise OptionError for options that exclude each other or miss another one."""
        for name in ("pairs", "factors"):
            if getattr(self, name) is not None and "time" not in self.protocols:
                raise OptionError(f"{{{name}}} needs the protocol time. Add it to {{protocols}}")
        columns = self.group_column or self.fold_column
        if self.group_pattern is not None and (self.gallery or columns):
            raise OptionError(
                "{group_pattern}, {gallery} and columns each choose what the test videos are "
                "compared with. Give one of them"
            )
        if self.gallery is not None and columns:
            raise OptionError("groups and folds divide the test videos. Remove {gallery}")
        own = imported_classes("metric")
        alone = {name for name in own if not getattr(own[name], "needs_gallery", True)}
        needs_labels = not self.protocols or not alone.union(LABEL_FREE).issuperset(self.protocols)
        if needs_labels and self.gallery is None and not self.grouped:
            raise OptionError("give {gallery}, {group_pattern} or {group_column}")
        if self.folds is not None and (not self.grouped or self.fold_column):
            raise OptionError("{folds} needs groups. Give only {group_pattern} or {group_column}")
        if "=" in (self.fold_column or ""):
            raise OptionError(
                "every fold is tested. Give {fold_column} only the name of the column"
            )
        if self.random and self.no_random:
            raise OptionError("give {random} or {no_random}, not both")


@dataclass(frozen=True, kw_only=True)
class TestOptions(Options):
    """Test a checkpoint with the loaders, views and metrics of a config.

    The command prints a table, and writes the results and their provenance as JSON: results.json,
    or best.json for an epoch that its validation metric has selected (save_best of the checkpoint
    hook). For a folder with both, both are tested.
    """

    __test__ = False  # not a test class, which pytest would collect

    config: str = option("config with test_dataloader and test_cfg", positional=True)
    checkpoint: str = option(
        "checkpoint, or folder of a run (its last epoch, and its best one if kept), or 'random'",
        positional=True,
    )
    work_dir: str | None = option(
        "folder for logs (default: work_dirs/CONFIG_NAME)", None, metavar="DIR"
    )
    out: str | None = option(
        "JSON file (default: results.json in the folder for logs, best.json for a selected epoch)",
        None,
        metavar="FILE",
    )
    dump: str | None = option(
        "save the scores (for sce-video fuse-scores), or the features that are evaluated",
        None,
        metavar="FILE.npz",
    )
    backend: str | None = option(BACKEND, None)
    launcher: str = option(LAUNCHER, "none")
    cfg_options: tuple[str, ...] = option(CHANGES, ())
    data_root: str | None = option(
        "folder or table of videos", None, metavar="DIR", group="other videos than the config's"
    )
    test_list: str | None = option(
        "list with 'path label' on every line, for test_dataloader",
        None,
        metavar="LIST",
        group="other videos than the config's",
    )
    classes: str | None = option(CLASSES, None, group="other videos than the config's")
    all_files: bool = option(ALL_FILES, False, group="other videos than the config's")

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video test CONFIG CHECKPOINT --out results.json --dump scores.npz",
        "sce-video test CONFIG RUN       # the last epoch; the best too, if it was kept",
        "sce-video test CONFIG random    # the baseline: random initialisation",
        "bash tools/dist_test.sh CONFIG CHECKPOINT 8   # on 8 GPUs",
    )

    def check(self) -> None:
        """Raise OptionError for names of the labels of no list."""
        if self.classes is not None and self.test_list is None:
            raise OptionError("{classes} names the labels of a list. Give {test_list}, too")


def _ends_with(*endings: str) -> str:
    """Return the pattern of a path with one of some endings."""
    return rf"(?i).*({'|'.join(map(re.escape, endings))})"


_HTML = matching(_ends_with(".html", ".htm"), "must end in .html")


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """Write the page of a run, and a table of results next to the paper's numbers.

    The command reads every JSON file with results below the folders: results.json of 'test' and
    'evaluate', splits.json of 'finetune-splits', and the JSON files of 'retrieve' and 'transfer'.
    The table lists every number of the paper that a recipe reproduces, measured or not. A result is
    shown next to such a number only if its network, pretraining and test set are the same as in the
    paper. The other results follow, each with the reason. For the folder of a run, the command also
    writes the page RUN/run.html, even during the training.
    """

    sources: tuple[str, ...] = option(
        "folders to search, or JSON files", positional=True, metavar="WORK_DIR"
    )
    out: str | None = option(
        "markdown file, or folder for report.md and report.html (default: the first WORK_DIR)",
        None,
        metavar="PATH",
    )
    html: str | None = option(
        "HTML file (default: report.html, if --out is a folder)",
        None,
        metavar="FILE",
        problem=_HTML,
    )
    videos: int = option(
        "number of training videos that are embedded with the newest checkpoint and shown; 0 "
        "reads no video",
        64,
        least=0,
        group="the page of a run",
    )
    features: str | None = option(
        "features for the map, from sce-video embed with a checkpoint of this run",
        None,
        metavar="FILE.npz",
        group="the page of a run",
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video report RUN",
        "sce-video report RUN --features features.npz",
        "sce-video report work_dirs/ucf101 retrieval.json --out reports",
        "sce-video report work_dirs --out results.md --html results.html",
    )
    more: ClassVar[str] = "More: docs/run_page.md, docs/results.md"


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Options):
    """Compare several runs on one page: curves, results, and differences of their configs.

    Differences between results on the same videos are tested for statistical significance. Runs
    that differ only in their seed count as one group, with their mean.
    """

    runs: tuple[str, ...] = option("folders of runs, two or more", positional=True, metavar="RUN")
    out: str = option("HTML file", "compare.html", metavar="FILE", problem=_HTML)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video compare RUN RUN",
        "sce-video compare RUN RUN RUN --out compare.html",
        "sce-video compare work_dirs/seeds/*",
    )
    more: ClassVar[str] = "More: docs/run_page.md"

    def check(self) -> None:
        """Raise OptionError for a single run."""
        if len(self.runs) < 2:
            raise OptionError("give two runs or more. sce-video report RUN shows a single one")


#: Value that compares a query frame by the mean of its cells.
MEAN = "mean"
#: Value that compares a query frame by all its cells, of which the most similar counts.
BEST = "best"
_EXPLAINED = "explain a class"
_COMPARED = "compare two videos"


@dataclass(frozen=True, kw_only=True)
class LookOptions(Options):
    """Draw which cells of a frame support a class, or match a frame of another video.

    With VIDEOS, the checkpoint is a finetuned classifier. The command draws class-activation maps
    of the predicted class, or of --class, for the frames of each video. With --query and --key, any
    network works: the command draws the cosine similarity between cells of one frame of the query
    and every cell of the key. Images are videos of one frame.
    """

    checkpoint: str = option(
        "checkpoint, or the folder of a run", positional=True, metavar="CHECKPOINT"
    )
    videos: tuple[str, ...] = option(
        "videos or images to explain the class of", (), positional=True, metavar="VIDEO"
    )
    out: str = option(
        "look.png or look.html",
        metavar="FILE",
        problem=matching(_ends_with(".png", ".html"), "must end in .png or .html"),
    )
    clips: int | None = option(
        "number of clips of each video or of the key (default: only the centre clip)", None, least=1
    )
    at: float | None = option(
        "time of the clip in seconds; with --query, of the query's clip",
        None,
        metavar="SECONDS",
        least=0,
    )
    size: int | None = option(
        "height and width of the frames that the network sees (default: as in its test)",
        None,
        metavar="PIXELS",
        least=1,
    )
    frames: int = option("number of frames shown of a clip", 8, least=1)
    scale: tuple[float, ...] | None = option(
        "values of the darkest and the brightest colour (default: from the maps)",
        None,
        metavar=("LOW", "HIGH"),
    )
    config: str | None = option(CONFIG, None)
    device: str | None = option(DEVICE, None)
    class_name: str | None = option(
        "class to explain (default: the predicted one)",
        None,
        flag="--class",
        metavar="NAME",
        group=_EXPLAINED,
    )
    classes: str | None = option(CLASSES, None, group=_EXPLAINED)
    query: str | None = option(
        "video or image whose frame is searched", None, metavar="FILE", group=_COMPARED
    )
    key: str | None = option(
        "video or image in which it is searched", None, metavar="FILE", group=_COMPARED
    )
    frame: int | None = option(
        "number of the frame in the query's clip (default: the middle one)",
        None,
        least=0,
        group=_COMPARED,
    )
    cell: str = option(
        f"row and column of a cell of that frame; {MEAN}: the mean of all cells; {BEST}: the most "
        "similar cell",
        MEAN,
        metavar="Y,X",
        problem=matching(
            rf"{MEAN}|{BEST}|\d{{1,4}},\d{{1,4}}",
            f"must be {MEAN}, {BEST} or a row and a column, for example 2,3",
        ),
        group=_COMPARED,
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video look CLASSIFIER VIDEO --out look.png",
        "sce-video look CLASSIFIER a.mp4 b.mp4 --class run --out look.html",
        "sce-video look RUN --query a.mp4 --key b.mp4 --out look.html",
    )
    more: ClassVar[str] = (
        "Exit status: 0 drawn, 1 some files could not be decoded, 2 wrong usage, 130 interrupted.\n"
        "More: docs/evaluate.md"
    )

    @property
    def chosen_cell(self) -> str | tuple[int, int]:
        """Row and column of the cell, or one of the words."""
        if self.cell in (MEAN, BEST):
            return self.cell
        row, column = map(int, self.cell.split(","))
        return row, column

    def check(self) -> None:
        """Raise OptionError for options that belong to the other way to look."""
        if self.scale is not None and (len(self.scale) != 2 or not self.scale[0] < self.scale[1]):
            raise OptionError("{scale} must be two numbers, the lower one first", self.scale)
        if (self.query is None) != (self.key is None):
            raise OptionError("{query} and {key} belong together. Give both, or videos instead")
        if self.query is not None:
            if self.videos or self.class_name or self.classes:
                raise OptionError(
                    "{videos}, {class_name} and {classes} explain a class. Remove them, or {query} "
                    "and {key}"
                )
        elif not self.videos:
            raise OptionError(
                "give videos to explain the class of, or {query} and {key} to compare two"
            )
        elif self.frame is not None or self.cell != MEAN:
            raise OptionError("{frame} and {cell} belong to a query. Give {query} and {key}")
        elif self.at is not None and self.clips is not None:
            raise OptionError("{at} chooses one clip. Remove {clips}")
