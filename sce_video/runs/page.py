"""Page of a run, which is written to ``run.html`` from its folder and some embedded videos."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.logging import print_log

from sce_video.datasets.sources import video_state
from sce_video.engine.checkpoint import file_sha256, find_checkpoints
from sce_video.engine.hooks.budget import BudgetHook
from sce_video.engine.run_json import FAILED
from sce_video.engine.runner import VideoRunner
from sce_video.engine.weights import checked_parts
from sce_video.evaluation.feature_files import load_features, rows_of
from sce_video.evaluation.rows import Rows
from sce_video.evaluation.scores import load_scores
from sce_video.inference.features import Features, join_features, read_features, write_features
from sce_video.inference.model import load_model
from sce_video.pages.classifier_part import classifier_parts
from sce_video.pages.feature_map import feature_map_part, neighbour_rows
from sce_video.pages.frames import ClipReader
from sce_video.pages.parts import random_weights_part, sentence_part
from sce_video.pages.run_page import render_run_page
from sce_video.pages.run_record import RunRecord, last_end, read_history
from sce_video.pages.view_sheets import view_sheet
from sce_video.registry import DATASETS
from sce_video.runs.after_training import (
    LEAST_SHARE,
    TWO_CLIPS,
    compare_at_end,
    compared_later,
    embed_some,
    lacks_comparison,
    test_classifier,
)
from sce_video.runs.folder import read_run
from sce_video.runs.launch import run_training
from sce_video.utils.command import explain
from sce_video.utils.files import write_text
from sce_video.utils.records import at
from sce_video.utils.run_files import KEPT, PAGE, PAGE_FEATURES, SCORES, newest_checkpoint

#: Time limit in seconds for embedding videos. The page shows the videos that are finished by then.
_SECONDS = 120.0
#: Page size in bytes above which the images are made smaller
MAX_BYTES = 8_000_000
#: Limits in bytes on the images of a section. If the page becomes too large, the next limit is
#: tried.
_BUDGETS = (1_000_000, 400_000, 100_000)
#: Number of points on the map whose clips are stored in the page
_MAP_CLIPS = 80
_HELPS = "Does it help?"
_NOT_COMPARED = (
    "The network was not compared with random weights, for example because it was interrupted. "
    "sce-video report RUN compares it."
)


def run_features(
    folder: str | Path, dataset_config: Mapping[str, Any], videos: int, seconds: float = _SECONDS
) -> tuple[Rows | None, list[str]]:
    """Return features of up to ``videos`` training videos, from the newest checkpoint.

    The features are stored in the run's folder with the hash of the checkpoint and the size,
    modification time and inode of each video. They are computed again for another checkpoint or
    other data, or if some videos could not be read. If all videos are missing, they count as
    unchanged.

    Returns:
        Features and sentences for the page. If nothing could be embedded, the features are None
        and the sentences explain why.
    """
    try:
        checkpoint = newest_checkpoint(folder)
    except FileNotFoundError:
        return None, [f"There is no checkpoint in {folder} yet, so no video was embedded."]
    data = [str(at(dataset_config, name)) for name in ("data_root", "ann_file")]
    key = {"sha256": file_sha256(checkpoint), "videos": videos, "data": data}
    cache = Path(folder, PAGE_FEATURES)
    with contextlib.suppress(OSError, ValueError):  # missing or damaged features are recomputed
        stored = read_features(cache)
        made = stored.provenance
        states = [video_state(path) for path in stored.paths]
        same = at(made, "checkpoint") == key and (states == at(made, "states") or not any(states))
        # Recompute if unreadable files may be readable again, or there is time for more videos.
        late_after = at(made, "late_after")
        in_time = late_after is None or late_after >= seconds
        if same and in_time and not stored.failures:
            return rows_of(stored), []
    dataset = DATASETS.build({**dataset_config, "pipeline": []})
    kind = getattr(dataset, "kind", type(dataset).__name__)
    if kind != "video":
        return None, [f"No video was embedded, because the dataset is of the kind {kind}."]
    found, notes = _embed(checkpoint, dataset, videos, seconds)
    if found.failures:
        first = ": ".join(filter(None, found.failures[0]))
        advice = "" if len(found) else " Restore the videos, or give --features FILE.npz."
        counts = f"{len(found.failures)} of {len(found) + len(found.failures)} videos"
        notes.append(f"{counts} could not be read; the first: {first}.{advice}")
    if not len(found):
        return None, notes
    late = len(found) + len(found.failures) < min(videos, len(dataset))
    states = [video_state(path) for path in found.paths]
    made = {"checkpoint": key, "states": states, "late_after": seconds if late else None}
    found = replace(found, provenance={**found.provenance, **made})
    write_features(cache, found)
    return rows_of(found), notes


def _embed(
    checkpoint: str, dataset: Any, videos: int, seconds: float
) -> tuple[Features, list[str]]:
    """Embed videos until the time limit. Return features in dataset order, and a note if late."""
    model = load_model(checkpoint)
    embedded = embed_some([model], dataset, videos, seconds, "embedding for the page:")
    parts = {index: replace(part, indices=np.full(len(part), index)) for index, (part,) in embedded}
    made = {"num_views": TWO_CLIPS.num_clips}
    found = join_features((parts[index] for index in sorted(parts)), model.row_size, made)
    labels = np.asarray(dataset.labels, dtype=np.int64)[found.indices]
    wanted = min(videos, len(dataset))
    late = f"{len(parts)} of {wanted} videos were embedded within {seconds:.0f} s."
    return replace(found, labels=labels), [late] * (len(parts) < wanted)


@dataclass(frozen=True)
class PageOptions:
    """Content of a page in addition to the logs.

    Attributes:
        videos: Number of training videos to embed and draw. With 0, no network is built and no
            video is read.
        features: Features from ``sce-video embed`` to draw instead.
        compared: Number of training videos on which a finished run is compared with random weights;
            0 for no comparison.
        seconds: Seconds that may be spent on embedding videos for the page.
        tested: Whether to test a finished run's classifier, and compare it with the linear probe of
            the network from which it started.
    """

    videos: int = 64
    features: Path | None = None
    compared: int = 0
    seconds: float = _SECONDS
    tested: bool = False

    def __post_init__(self) -> None:
        for name, value in (("videos", self.videos), ("compared", self.compared)):
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be a whole number of at least 0, got {value!r}")


def write_run_page(
    folder: str | Path, options: PageOptions | None = None, trusted: bool = False
) -> Path:
    """Write ``run.html`` into the folder of a run, which may still train, and return its path.

    If something cannot be shown, the page states why. The folder may be untrusted. Its config is
    read as data, only datasets and transforms of this package are built from it, and no object
    store that it names is opened.

    Args:
        folder: Folder of the run.
        options: Content of the page; None for the defaults.
        trusted: Whether this process has trained the run, so that the classes and the data in its
            config may be used.

    Raises:
        FileNotFoundError: If the folder or the feature file does not exist.
        ValueError: If the folder contains no run, or the features do not come from one of its
            checkpoints.
        WriteError: If the page cannot be written.
    """
    options = options or PageOptions()
    record = read_run(folder)
    notes: list[str] = []
    # An untrusted config may name any class, so use only its views, which are checked.
    views = record.config if trusted or not options.videos else _of_views(record, notes)
    if options.videos and lacks_comparison(record) and (data := _training_set(views)):
        dataset = DATASETS.build({**data, "pipeline": []})
        record = compared_later(record, dataset, notes)
    rows = _features(record, views, options, notes)
    scores = _scores(record, notes)
    names = at(record.data, "classes") or []
    reader, html = ClipReader() if options.videos else None, ""
    # Shrink the images until the page is small enough, so that no image has to be left out.
    for budget in _BUDGETS:
        parts = [random_weights_part(record.compared)] if record.compared else []
        if lacks_comparison(record):
            parts = [sentence_part("random-weights", _HELPS, _NOT_COMPARED, first=True)]
        if scores is not None:
            parts += classifier_parts(record, scores, max_bytes=budget, reader=reader)
        if reader is not None and views:
            cfg = Config(views, cfg_text=record.name, filename=record.folder)
            parts.append(view_sheet(cfg, max_bytes=budget))
        if rows is not None and reader is not None:
            parts.append(neighbour_rows(rows, names, max_bytes=budget, reader=reader))
        if rows is not None:
            clips = _MAP_CLIPS if reader is not None else 0
            drawn = feature_map_part(rows, names, max_bytes=budget, reader=reader, max_clips=clips)
            parts.append(drawn)
        html = render_run_page(record, parts, notes)
        if len(html) <= MAX_BYTES:
            break
    path = Path(folder, PAGE)
    write_text(path, html)
    return path


def _scores(record: RunRecord, notes: list[str]) -> Rows | None:
    """Read the test scores of a finetuning run; None if it was not tested."""
    path = Path(record.folder, SCORES)
    if not path.is_file():
        return None
    try:
        return load_scores(path)[0]
    except (OSError, ValueError) as error:
        notes.append(f"The test of the classifier is not shown: {error}.")
        return None


def _of_views(record: RunRecord, notes: list[str]) -> dict[str, Any]:
    """Return the parts of a config, which may be untrusted, that make training views."""
    places = ("model.data_preprocessor", "data_preprocessor")
    preprocessor = next(filter(None, (at(record.config, place) for place in places)), None)
    dataset = {"dataset": _training_set(record.config)}
    try:
        return checked_parts({"train_dataloader": dataset, "data_preprocessor": preprocessor})
    except (AttributeError, ValueError) as error:
        notes.append(f"No views and no videos are shown: {error}.")
        return {}


def _features(
    record: RunRecord, views: Mapping[str, Any], options: PageOptions, notes: list[str]
) -> Rows | None:
    """Return the features to draw. If there are none, return None and add the reason to the notes.

    Raises:
        FileNotFoundError: If the file given by ``--features`` does not exist.
        ValueError: If it is not a feature file, or comes from a checkpoint outside this run.
    """
    dataset = _training_set(views)
    if options.features is not None:
        rows, provenance = load_features(options.features)
        notes += _origin(options.features, provenance, record.folder)
        # A path may be relative to the video folder instead of the current folder.
        below = [Path(str(at(dataset, "data_root") or ""), path) for path in rows.paths]
        pairs = zip(rows.paths, below, strict=True)
        found = [str(b) if not Path(p).exists() and b.exists() else p for p, b in pairs]
        return replace(rows, paths=found)
    if not options.videos:
        return None
    if not dataset:
        if not _training_set(record.config):
            notes.append("The config names no training videos, so none were embedded.")
        return None
    try:
        drawn, said = run_features(record.folder, dataset, options.videos, options.seconds)
    except Exception as error:  # a user-defined network or dataset can raise any error
        drawn, said = None, [f"No video was embedded: {_reason(error)}."]
    notes += said
    return drawn


def _origin(file: Path, provenance: Mapping[str, Any], folder: str) -> list[str]:
    """Describe the checkpoint from which features come, unless it represents the run."""
    made_by = at(provenance, "checkpoint.sha256")
    if made_by is None:
        return [f"{file} does not state which checkpoint its features come from."]
    own = Path(newest_checkpoint(folder))
    paths = [own, *find_checkpoints(folder)]
    found = next((path for path in paths if file_sha256(path) == made_by), None)
    if found is None:
        raise ValueError(
            f"{file} contains features of a checkpoint that is not in {folder} (sha256 "
            f"{made_by[:12]}). Embed with the run's checkpoint: sce-video embed VIDEOS "
            f"--checkpoint {folder} --out FILE.npz, or remove --features"
        )
    newer = "the best one" if own.name == KEPT else "newer"
    return [f"The features come from {found.name}, but {own.name} is {newer}."] * (found != own)


def _training_set(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return at(config, "train_dataloader.dataset", dict) or {}


def _reason(error: Exception) -> str:
    return (explain(error) or f"{type(error).__name__}: {error}").rstrip(".")


def train_with_page(cfg: Config, overwrite: bool = False) -> VideoRunner:
    """Train like :func:`~sce_video.runs.launch.run_training`, then write the page on rank 0.

    ``run_page = dict(videos=64)`` in the config sets the options of the page, and None disables it.
    The work after training is part of the time budget, and ends when the budget is spent. If the
    page cannot be written, a warning is logged, and nothing else changes. If a signal has stopped
    the run, or the run has failed, the page is written immediately, without embedding videos.

    Raises:
        ValueError: If :func:`~sce_video.runs.launch.run_training` raises it, or the number of
            videos is wrong.
    """
    settings, begun = at(cfg, "run_page"), time.time()
    # Check the options now, so that a mistake does not show up only after training.
    options = None if settings is None else PageOptions(**settings)
    try:
        runner = run_training(cfg, overwrite)
    except Exception:
        if options is not None and is_main_process():
            with contextlib.suppress(OSError, ValueError):
                end = last_end(read_history(cfg.work_dir))
                # A start that was refused must not change the page of the earlier run.
                if end is not None and end.status == FAILED and (end.time or 0.0) >= begun:
                    _write_or_warn(cfg.work_dir, PageOptions(videos=0))
        raise
    stopped = getattr(runner.train_loop, "stopped_by", None) is not None
    if options is not None:
        try:
            _finish(runner, PageOptions(videos=0) if stopped else options)
        except KeyboardInterrupt:
            if stopped:
                raise
            # The default message would suggest --resume, although training is complete.
            next_step = f"sce-video report {cfg.work_dir} compares it and writes its page"
            if options.tested:
                next_step = "the same command with --resume tests it and writes its page"
            raise KeyboardInterrupt(
                f"interrupted after training, which is complete and saved; {next_step}"
            ) from None
    return runner


def _finish(runner: VideoRunner, options: PageOptions) -> None:
    """Test and compare a finished run, and write its page."""
    hook = next((hook for hook in runner.hooks if isinstance(hook, BudgetHook)), None)
    if options.tested:
        test_classifier(runner)  # must run on all ranks
    if not is_main_process():
        return
    # Compare before writing the page, which shows the logged comparison.
    if options.compared:
        compare_at_end(runner, options.compared, hook)
    if hook is not None:
        least = LEAST_SHARE * hook.budget.seconds
        options = replace(options, seconds=min(_SECONDS, max(least, hook.left)))
    _write_or_warn(runner.work_dir, options)
    runner.call_hook("after_page")


def _write_or_warn(folder: str, options: PageOptions) -> None:
    try:
        path = write_run_page(folder, options, trusted=True)
    except KeyboardInterrupt:
        _say(f"interrupted: no run page was written; sce-video report {folder} does it")
    except Exception as error:  # a page must not change how a run ends
        _say(f"no run page was written: {_reason(error)}; sce-video report {folder} tries again")
    else:
        print_log(f"run page: {path}", logger="current")


def _say(text: str) -> None:
    print_log(text, logger="current", level=logging.WARNING)
