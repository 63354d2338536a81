"""Options of the commands that measure networks: evaluate, test, report, compare, look."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from sce_video.options import shared
from sce_video.options.declare import Group, OptionError, Options, option
from sce_video.utils.own_parts import imported_classes

#: Protocols that need no labels and therefore no gallery
LABEL_FREE = frozenset(("clip_retrieval", "lidar", "rankme"))
_COMPARED_WITH = Group("what the test videos are compared with")
_OTHER_VIDEOS = Group("videos instead of those in the config")
_RUN_PAGE = Group("HTML page of a run")
_EXPLAINED = Group("explaining a class")
_COMPARED = Group("comparing two videos")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Options):
    """Evaluate a network on labelled videos: kNN, linear probe and retrieval.

    Labelled videos can be a folder with a sub-folder for each class, a table with labels (v.lance),
    a list, or a CSV file of videos (path,label) or segments (path,start,end,label). The config
    inside the checkpoint is read as data, and RUN/config.py is not executed. The command prints a
    table that compares every number with chance and with random weights. It writes the results and
    their provenance to a JSON file.
    """

    run: str = option(shared.RUN, positional=True)
    test: str = option("labelled videos to evaluate on", metavar="VIDEOS")
    gallery: str | None = _COMPARED_WITH.option(
        "labelled videos, for example the training set", None, metavar="VIDEOS"
    )
    group_pattern: str | None = _COMPARED_WITH.option(shared.GROUP_PATTERN, None)
    group_column: str | None = _COMPARED_WITH.option(shared.GROUP_COLUMN, None)
    fold_column: str | None = _COMPARED_WITH.option(shared.FOLD_COLUMN, None)
    folds: int | str | None = _COMPARED_WITH.option(shared.FOLDS, None)
    data_root: str | None = option(shared.DATA_ROOT, None)
    all_files: bool = option(shared.ALL_FILES, False)
    protocols: tuple[str, ...] = option(
        f"protocols to compute: {', '.join(shared.PROTOCOLS)}, or metrics of your own. 'time' "
        "compares the accuracy with that on clips whose frames are shuffled, reversed or all equal "
        "to the middle frame (default: the protocols in the recipe)",
        (),
        metavar="NAME",
        problem=shared.protocol_problem,
    )
    pairs: str | None = option(shared.PAIRS, None)
    factors: str | None = option(shared.FACTORS, None)
    random: bool = option("evaluate random weights instead of the network's", False)
    no_random: bool = option("do not evaluate random weights for comparison", False)
    out: str | None = option(
        "JSON file for the results, a path or a URL (default: results.json, or "
        "results_random.json with --random, in RUN or, for a third-party or packaged network, in "
        "work_dirs/NAME)",
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
    more: ClassVar[str] = "More: docs/evaluate.md, docs/metrics.md"

    @property
    def grouped(self) -> bool:
        """Whether groups or folds divide the test videos."""
        return (self.group_pattern or self.group_column or self.fold_column) is not None

    def check(self) -> None:
        """Raise OptionError for options that exclude or need each other."""
        for name in ("pairs", "factors"):
            if getattr(self, name) is not None and "time" not in self.protocols:
                raise OptionError(f"{{{name}}} needs the protocol time. Add it to {{protocols}}")
        for column in ("group_column", "fold_column"):
            self.exclude("gallery", "group_pattern", column)
        own = imported_classes("metric")
        alone = {name for name in own if not getattr(own[name], "needs_gallery", True)}
        needs_labels = not self.protocols or not alone.union(LABEL_FREE).issuperset(self.protocols)
        if needs_labels and self.gallery is None and not self.grouped:
            raise OptionError(
                "there is nothing to compare the test videos with. Add {gallery}, {group_pattern} "
                "or {group_column}"
            )
        shared.check_folds(self)
        self.exclude("random", "no_random")


@dataclass(frozen=True, kw_only=True)
class TestOptions(Options):
    """Test a checkpoint with the data loaders, views and metrics of a config.

    The command prints a table, and writes the results and their provenance to a JSON file. The file
    is results.json, or best.json for the epoch that the validation metric has selected (save_best
    of the checkpoint hook). If CHECKPOINT is the folder of a run that contains both the last and
    the best checkpoint, both are tested.
    """

    __test__ = False  # keeps pytest from collecting this class

    config: str = option("config file with test_dataloader and test_cfg", positional=True)
    checkpoint: str = option(
        "checkpoint, folder of a run (its last epoch, and its best one if it was kept), or "
        "'random' for random weights",
        positional=True,
    )
    work_dir: str | None = option(
        "folder for logs (default: work_dirs/CONFIG_NAME)", None, metavar="DIR"
    )
    out: str | None = option(
        "JSON file for the results (default: results.json, or best.json for the best epoch, in "
        "the folder for logs)",
        None,
        metavar="FILE",
    )
    dump: str | None = option(
        "file for the class scores of a classifier (for sce-video fuse-scores), or for the "
        "features of a network without a classifier",
        None,
        metavar="FILE.npz",
    )
    backend: str | None = option(shared.BACKEND, None)
    launcher: str = option(shared.LAUNCHER, "none")
    cfg_options: tuple[str, ...] = option(shared.CHANGES, ())
    data_root: str | None = _OTHER_VIDEOS.option("folder or table of videos", None, metavar="DIR")
    test_list: str | None = _OTHER_VIDEOS.option(
        "list of test videos, with 'path label' on every line", None, metavar="LIST"
    )
    classes: str | None = _OTHER_VIDEOS.option(shared.CLASSES, None)
    all_files: bool = _OTHER_VIDEOS.option(shared.ALL_FILES, False)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video test CONFIG CHECKPOINT --out results.json --dump scores.npz",
        "sce-video test CONFIG RUN       # the last epoch, and the best one if it was kept",
        "sce-video test CONFIG random    # the baseline with random weights",
        "bash tools/dist_test.sh CONFIG CHECKPOINT 8   # on 8 GPUs",
    )

    def check(self) -> None:
        """Raise OptionError for class names without a list."""
        shared.check_classes(self, "test_list")


def _ends_with(*endings: str) -> str:
    """Return the pattern of a path with one of these endings, in upper or lower case."""
    return rf"(?i).*({'|'.join(map(re.escape, endings))})"


_HTML = shared.matching(_ends_with(".html", ".htm"), "must end in .html")


@dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """Write the HTML page of a run, and a table of results next to the paper's numbers.

    The command reads all JSON files with results below the folders: results.json from 'test' and
    'evaluate', splits.json from 'finetune-splits', and the JSON files from 'retrieve' and
    'transfer'. The table lists every number of the paper that a recipe reproduces, whether or not
    you have measured it. A result is shown next to the paper's number only if the network, the
    pretraining and the test set are the same. The other results follow, each with the reason why it
    is not compared. For the folder of a run, the command also writes the page RUN/run.html, even
    while the run is still training.
    """

    sources: tuple[str, ...] = option(
        "folders that are searched for results, or JSON files",
        positional=True,
        metavar="WORK_DIR",
    )
    out: str | None = option(
        "markdown file, or folder for report.md and report.html (default: the first WORK_DIR)",
        None,
        metavar="PATH",
    )
    html: str | None = option(
        "HTML file for the table (default: report.html, if --out is a folder)",
        None,
        metavar="FILE",
        problem=_HTML,
    )
    videos: int = _RUN_PAGE.option(
        "number of training videos to show, which are embedded with the newest checkpoint; 0 "
        "reads no videos",
        64,
        least=0,
    )
    features: str | None = _RUN_PAGE.option(
        "features to draw in the map of the page, written by sce-video embed with a checkpoint of "
        "this run",
        None,
        metavar="FILE.npz",
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
    """Compare several runs on one page: curves, results and differences between their configs.

    Differences between results on the same videos are tested for statistical significance. Runs
    that differ only in their seed form a group, which is represented by its mean.
    """

    runs: tuple[str, ...] = option("folders of two or more runs", positional=True, metavar="RUN")
    out: str = option("HTML file for the page", "compare.html", metavar="FILE", problem=_HTML)

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video compare RUN RUN",
        "sce-video compare RUN RUN RUN --out compare.html",
        "sce-video compare work_dirs/seeds/*",
    )
    more: ClassVar[str] = "More: docs/run_page.md"

    def check(self) -> None:
        """Raise OptionError for a single run."""
        if len(self.runs) < 2:
            raise OptionError(
                "two or more runs are needed. sce-video report RUN shows a single one"
            )


#: ``cell`` value that compares the mean over the query frame's cells.
MEAN = "mean"
#: ``cell`` value that compares all cells of the query frame and uses the most similar one.
BEST = "best"


@dataclass(frozen=True, kw_only=True)
class LookOptions(Options):
    """Show which regions of a frame support a class, or match a frame of another video.

    The regions are the cells of the network's feature map. With VIDEO, the checkpoint must be a
    finetuned classifier. The command draws class-activation maps of the predicted class, or of
    --class, for the frames of each video. With --query and --key, any network can be used. The
    command then draws the cosine similarity between cells of one query frame and every cell of the
    key. Images are treated as videos of one frame.
    """

    checkpoint: str = option(
        "checkpoint, or the folder of a run", positional=True, metavar="CHECKPOINT"
    )
    videos: tuple[str, ...] = option(
        "videos or images whose class is explained", (), positional=True, metavar="VIDEO"
    )
    out: str = option(
        "file to write, which ends in .png or .html",
        metavar="FILE",
        problem=shared.matching(_ends_with(".png", ".html"), "must end in .png or .html"),
    )
    clips: int | None = option(
        "number of clips per video, or of the key (default: only the centre clip; if a clip has "
        "only one frame, as many clips as --frames)",
        None,
        least=1,
    )
    at: float | None = option(
        "middle of the clip, in seconds from the start of the video; with --query, middle of the "
        "query's clip (default: the middle of the video)",
        None,
        metavar="SECONDS",
        least=0,
    )
    size: int | None = option(
        "height and width of the network's input frames, in pixels (default: as in the test config "
        "of the checkpoint)",
        None,
        metavar="PIXELS",
        least=1,
    )
    frames: int = option("number of frames to show per clip", 8, least=1)
    scale: tuple[float, ...] | None = option(
        "values that are shown in the darkest and the brightest colour (default: the range of the "
        "maps)",
        None,
        metavar=("LOW", "HIGH"),
    )
    config: str | None = option(shared.CONFIG, None)
    device: str | None = option(shared.DEVICE, None)
    class_name: str | None = _EXPLAINED.option(
        "class to explain (default: the predicted one)", None, flag="--class", metavar="NAME"
    )
    classes: str | None = _EXPLAINED.option(shared.CLASSES, None)
    query: str | None = _COMPARED.option(
        "video or image with the frame to look for", None, metavar="FILE"
    )
    key: str | None = _COMPARED.option(
        "video or image in which to look for it", None, metavar="FILE"
    )
    frame: int | None = _COMPARED.option(
        "index of the frame in the query's clip, from 0 (default: the middle frame)", None, least=0
    )
    cell: str = _COMPARED.option(
        f"cell of the query frame, as row and column; {MEAN}: the mean of all cells; {BEST}: for "
        "each cell of the key, the most similar cell",
        MEAN,
        metavar="Y,X",
        problem=shared.matching(
            rf"{MEAN}|{BEST}|\d{{1,4}},\d{{1,4}}",
            f"must be {MEAN}, {BEST} or a row and a column, for example 2,3",
        ),
    )

    examples: ClassVar[tuple[str, ...]] = (
        "sce-video look CLASSIFIER VIDEO --out look.png",
        "sce-video look CLASSIFIER a.mp4 b.mp4 --class run --out look.html",
        "sce-video look RUN --query a.mp4 --key b.mp4 --out look.html",
    )
    more: ClassVar[str] = (
        "Exit status: 0 drawn; 1 some files could not be decoded; 2 usage error; 130 interrupted.\n"
        "More: docs/evaluate.md"
    )

    @property
    def chosen_cell(self) -> str | tuple[int, int]:
        """Row and column of the cell, or ``mean`` or ``best``."""
        if self.cell in (MEAN, BEST):
            return self.cell
        row, column = map(int, self.cell.split(","))
        return row, column

    def check(self) -> None:
        """Raise OptionError for options that belong to another mode of the command."""
        if self.scale is not None and (len(self.scale) != 2 or not self.scale[0] < self.scale[1]):
            raise OptionError("{scale} must be two numbers, the lower one first", self.scale)
        if (self.query is None) != (self.key is None):
            raise OptionError("{query} and {key} are needed together. Add the missing one")
        if self.query is not None:
            if self.videos or self.class_name or self.classes:
                raise OptionError(
                    "{videos}, {class_name} and {classes} explain a class. Remove them, or remove "
                    "{query} and {key}"
                )
        elif not self.videos:
            raise OptionError(
                "there is nothing to show. Name the videos whose class is explained, or compare "
                "two videos with {query} and {key}"
            )
        elif self.frame is not None or self.cell != MEAN:
            raise OptionError("{frame} and {cell} select a part of a query. Add {query} and {key}")
        elif self.at is not None and self.clips is not None:
            raise OptionError("{at} selects a single clip. Remove {clips}")
