"""Makes the page of a run: reads its folder, embeds some videos, writes ``run.html``."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.logging import print_log

from sce_video.apis.launch import train
from sce_video.apis.run_features import (
    class_names,
    compare_with_random,
    given_features,
    run_features,
    with_existing_paths,
)
from sce_video.apis.run_folder import read_run
from sce_video.engine.alarms import Alarm, report_alarm
from sce_video.engine.checkpoint import find_checkpoints
from sce_video.engine.hooks.logger import log_row
from sce_video.engine.runner import RANDOM, VideoRunner
from sce_video.engine.untrusted_network import checked_parts
from sce_video.evaluation.random_weights import LEAST_GAIN, NO_BETTER, sentences, verdict
from sce_video.evaluation.rows import Rows
from sce_video.utils.atomic_file import write_text
from sce_video.utils.command import explain
from sce_video.utils.run_files import PAGE
from sce_video.visualization.clip_reader import ClipReader
from sce_video.visualization.curves import read_history
from sce_video.visualization.feature_map import feature_map_part
from sce_video.visualization.neighbour_rows import neighbour_rows
from sce_video.visualization.page_parts import Part, random_weights_part
from sce_video.visualization.run_page.page import render_run_page
from sce_video.visualization.run_page.record import FAILED, RunRecord
from sce_video.visualization.view_sheet import view_sheet

MAX_BYTES = 8_000_000
_VIDEOS = 64
#: Points of the map whose clips are on the page.
_MAP_CLIPS = 80
#: Bytes of the images of each part; smaller ones are tried where the page becomes too large.
_BUDGETS = (1_000_000, 400_000, 100_000)


@dataclass(frozen=True)
class PageOptions:
    """What a page shows besides the logs.

    Attributes:
        videos: Training videos that are embedded and drawn; with 0 no network is built and no
            video is read.
        features: A file of ``sce-video embed`` with the features to draw instead.
        compared: Training videos on which the network is compared with random weights when a
            training has ended; 0 for no comparison.
    """

    videos: int = _VIDEOS
    features: Path | None = None
    compared: int = 0

    def __post_init__(self) -> None:
        for name, value in (("videos", self.videos), ("compared", self.compared)):
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be a whole number of at least 0, got {value!r}")


def write_run_page(
    folder: str | Path, options: PageOptions | None = None, trusted: bool = False
) -> Path:
    """Write ``run.html`` into the folder of a run, also while it trains; returns its path.

    What cannot be shown is a sentence on the page. The folder may be a stranger's: of its config,
    which is read as data, only data sets and transforms of this package are built, and no store is
    opened that it names.

    Args:
        folder: Of the run.
        options: What to show.
        trusted: The run was trained here and now, with the classes and the data of its config.

    Raises:
        FileNotFoundError: no such folder, or no such file of features.
        ValueError: the folder holds no training, or the features are not of one of its checkpoints.
        WriteError: the page cannot be written.
    """
    options = options or PageOptions()
    record = read_run(folder)
    notes: list[str] = []
    views = record.config if trusted or not options.videos else _of_views(record, notes)
    rows = _features(record, views, options, notes)
    path = Path(folder, PAGE)
    reader, html = ClipReader(), ""
    for budget in _BUDGETS:
        parts = _parts(record, views, rows, reader if options.videos else None, budget)
        html = render_run_page(record, parts, notes)
        if len(html) <= MAX_BYTES:
            break
    write_text(path, html)
    return path


def _of_views(record: RunRecord, notes: list[str]) -> dict[str, Any]:
    """What the training views are made by, from a config that may be a stranger's."""
    preprocessor = (record.config.get("model") or {}).get("data_preprocessor")
    try:
        return checked_parts(
            {
                "train_dataloader": {"dataset": _training_set(record.config)},
                "data_preprocessor": preprocessor or record.config.get("data_preprocessor"),
            }
        )
    except (AttributeError, ValueError) as error:
        notes.append(f"No views and no videos are shown: {error}.")
        return {}


def _features(
    record: RunRecord, views: dict[str, Any], options: PageOptions, notes: list[str]
) -> Rows | None:
    """The features to draw; None without any, with the reason among the notes."""
    dataset = _training_set(views)
    if options.features is not None:
        given, said = given_features(options.features, record.folder)
        notes += said
        return with_existing_paths(given, str(dataset.get("data_root") or ""))
    if not options.videos:
        return None
    if not dataset:
        if not _training_set(record.config):
            notes.append("The config names no training videos, so none were embedded.")
        return None
    try:
        rows, said = run_features(record.folder, dataset, options.videos)
    except Exception as error:  # a network or data set of one's own can raise anything
        notes.append(f"No video was embedded: {_reason(error)}.")
        return None
    notes += said
    return rows


def _training_set(config: dict[str, Any]) -> dict[str, Any]:
    loader = config.get("train_dataloader")
    dataset = loader.get("dataset") if isinstance(loader, dict) else None
    return dataset if isinstance(dataset, dict) else {}


def _parts(
    record: RunRecord,
    views: dict[str, Any],
    rows: Rows | None,
    reader: ClipReader | None,
    budget: int,
) -> list[Part]:
    """Comparison with random weights, view sheet, neighbours and map.

    Without a reader of videos only the first, and the map without clips.
    """
    parts = [random_weights_part(record.compared)] if record.compared else []
    if reader is not None and views:
        cfg = Config(views, filename=record.config_file)
        parts.append(view_sheet(cfg, max_bytes=budget))
    if rows is not None:
        names = record.data.get("classes") or class_names(rows)
        if reader is not None:
            parts.append(neighbour_rows(rows, names, max_bytes=budget, reader=reader))
        clips = _MAP_CLIPS if reader is not None else 0
        parts.append(
            feature_map_part(rows, names, max_clips=clips, max_bytes=budget, reader=reader)
        )
    return parts


def _reason(error: Exception) -> str:
    return (explain(error) or f"{type(error).__name__}: {error}").rstrip(".")


def train_with_page(cfg: Config, overwrite: bool = False) -> VideoRunner:
    """As :func:`~sce_video.apis.launch.train`, then rank 0 writes the page of the run.

    ``run_page = dict(videos=64)`` of the config has the options of the page, None is for no page.
    A page that fails is a warning and changes nothing else. A training that a signal has stopped
    gets its page at once, without embedding videos; so does one that has failed.

    Raises:
        ValueError: as :func:`~sce_video.apis.launch.train`, or a wrong number of videos.
    """
    settings, begun = cfg.get("run_page"), time.time()
    options = None if settings is None else PageOptions(**settings)  # refused before the training
    try:
        runner = train(cfg, overwrite)
    except Exception:
        if options is not None and is_main_process() and _has_failed_since(begun, cfg.work_dir):
            _write_or_warn(cfg.work_dir, PageOptions(videos=0))
        raise
    if options is not None and is_main_process():
        stopped = getattr(runner.train_loop, "stopped_by", None) is not None
        if options.compared and not stopped:
            _compare_or_warn(runner, options.compared)
        _write_or_warn(cfg.work_dir, PageOptions(videos=0) if stopped else options)
        runner.call_hook("after_page")
    return runner


def _compare_or_warn(runner: VideoRunner, videos: int) -> None:
    """Log whether the network is better than random weights; an alarm if it is not."""
    try:
        checkpoint = find_checkpoints(runner.work_dir)[0]
        start = runner.cfg.get("pretrained") or runner.cfg.get("load_from")
        start = None if start == RANDOM or runner.resumed_from == start else start
        row = compare_with_random(checkpoint, runner.train_dataloader.dataset, videos, start)
    except Exception as error:  # as for the page: a data set of one's own can raise anything
        _say(f"the network was not compared with random weights: {_reason(error)}")
        return
    log_row(runner, "random", runner.iter, runner.epoch, row)
    for sentence in sentences(row):
        print_log(sentence, logger="current")
    if verdict(row) == NO_BETTER:
        first = next(iter(sentences(row)))
        text = (
            f"the network is {first}. Train longer (--hours, --epochs); look at the loss, which "
            "should fall below chance level, and at the views on the page, which should show what "
            "tells the videos apart; the documentation says more: logs and alarms, no_better"
        )
        report_alarm(runner, Alarm("no_better", text, row["gain_random"], LEAST_GAIN), runner.iter)


def _has_failed_since(begun: float, folder: str) -> bool:
    """Whether a training began in the folder and failed; not a start that was refused."""
    with contextlib.suppress(OSError, ValueError):
        end = next(iter(read_history(folder)[-1:]), {})
        return end.get("status") == FAILED and end.get("time", 0.0) >= begun
    return False


def _write_or_warn(folder: str, options: PageOptions) -> None:
    try:
        path = write_run_page(folder, options, trusted=True)
    except KeyboardInterrupt:
        _say(f"interrupted: no run page was written; sce-video report {folder} does it")
    except Exception as error:  # a page must not change how a training ends
        _say(f"no run page was written: {_reason(error)}; sce-video report {folder} tries again")
    else:
        print_log(f"run page: {path}", logger="current")


def _say(text: str) -> None:
    print_log(text, logger="current", level=logging.WARNING)
