"""At the end of a pretraining: its network next to random weights, within the time that is left."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import print_log
from torch import nn

from sce_video.engine.hooks.alarms import report_alarm
from sce_video.engine.hooks.budget import BudgetHook
from sce_video.engine.hooks.progress import log_row
from sce_video.engine.runner import RANDOM, VideoRunner
from sce_video.evaluation.random_weights import (
    LEAST_GAIN,
    NO_BETTER,
    compare_features,
    decision,
    sentences,
)
from sce_video.inference.embed_job import iterate_features
from sce_video.inference.model import VideoModel, build_model, load_model, with_random_weights
from sce_video.inference.multi_view import BatchRows, mean_representation
from sce_video.inference.network_input import ViewOptions
from sce_video.pages.run_record import FINISHED, RunRecord, run_state
from sce_video.runs.keep_best import keeps_best
from sce_video.utils.command import Progress
from sce_video.utils.errors import NamedWarning
from sce_video.utils.files import WriteError, append_text
from sce_video.utils.run_files import ALARMS, METRICS, newest_checkpoint

_OPTIONS = ViewOptions(num_clips=2, num_workers=1, timeout=20.0)
#: Seconds that the comparison may take if the command has no time budget.
_SECONDS = 300.0
#: Share of the remaining budget for the comparison. The page needs the rest.
_SHARE_OF_REST = 0.75
#: Smallest share of the whole budget for the comparison, if training has used up the rest.
_LEAST_SHARE = 0.03


def compare_with_random(
    checkpoint: str | Path,
    dataset: Any,
    videos: int,
    start: str | Path | None = None,
    seconds: float = math.inf,
) -> dict[str, float]:
    """Compare the network of a checkpoint with random weights, on training videos.

    Two clips of each of up to ``videos`` videos, at equal steps through the set, are embedded.
    Files that cannot be read are left out.

    Args:
        checkpoint: Checkpoint of the trained network.
        dataset: Training set.
        videos: Largest number of videos.
        start: Checkpoint that the training started from, which is compared too.
        seconds: The comparison is of the videos that are done by then. They are read in mixed
            order, so that they are of the whole set.

    Returns:
        A row of :func:`~sce_video.evaluation.random_weights.compare_features`.

    Raises:
        ValueError: If a checkpoint cannot be read, or fewer than two videos can.
    """
    end = time.monotonic() + seconds
    networks = compared_networks(load_model(checkpoint), start)
    order = np.random.default_rng(0).permutation(evenly(dataset, videos)).tolist()
    paths = [str(dataset.path(index)) for index in order]
    progress = Progress(len(order), "comparing with random weights:", unit="videos", quiet=True)
    found: dict[int, np.ndarray] = {}  # by number in the set
    with closing(iterate_features(networks, paths, _OPTIONS)) as embedded:
        for index, row in zip(order, embedded, strict=True):
            progress.advance(bool(row.failures))
            if not row.failures:
                found[index] = row.values[0]
            if len(found) >= 2 and time.monotonic() > end:
                break
    progress.finish()
    if len(found) < 2:
        raise ValueError(f"{len(found)} of {len(order)} videos could be read in {seconds:.0f} s")
    chosen = sorted(found)
    matrix = torch.from_numpy(np.stack([found[index] for index in chosen]))
    parts = matrix.view(len(chosen), len(networks.encoder), -1, networks.feature_size)
    features = {name: parts[:, number] for number, name in enumerate(networks.encoder)}
    return compare_features(features, torch.from_numpy(np.asarray(dataset.labels)[chosen]))


@dataclass(frozen=True, eq=False)
class ComparedNetworks(VideoModel):
    """Networks of one shape, whose row of a video are the features of its clips by each of them.

    Decoding takes longest, so every video is read once for all of them.

    Attributes:
        encoder: The networks by name.
    """

    encoder: nn.ModuleDict

    @property
    def row_size(self) -> int:
        """Size of a row: networks x clips x C."""
        return len(self.encoder) * _OPTIONS.num_clips * self.feature_size

    def rows(self, batch: dict[str, Any], max_views: int) -> BatchRows:
        """Rows (n, networks x clips x C) of the videos of a batch."""
        function = mean_representation(max_views, clips=True)
        with torch.inference_mode():
            found = [function(encoder, batch) for encoder in self.encoder.values()]
        parts = [one.values.reshape(len(batch["videos"]), -1) for one in found]
        return BatchRows(torch.cat(parts, dim=1), found[0].num_views)


def compared_networks(trained: VideoModel, start: str | Path | None) -> ComparedNetworks:
    """Put a network next to random weights and, if it is given, the checkpoint of its start."""
    encoders = {"trained": trained.encoder, "random": with_random_weights(trained).encoder}
    if start is not None:
        # A video network can start from an image network, which lacks its temporal layers.
        initial = build_model(trained.settings, start, trained.device, allow_identity=True)
        encoders["start"] = initial.encoder
    return ComparedNetworks(**{**vars(trained), "encoder": nn.ModuleDict(encoders)})


def evenly(dataset: Any, videos: int) -> np.ndarray:
    """Indices of up to so many videos, at equal steps through the set."""
    return np.linspace(0, len(dataset) - 1, min(videos, len(dataset))).round().astype(int)


def compare_at_end(runner: VideoRunner, videos: int, budget: BudgetHook | None) -> None:
    """Log whether the network is better than random weights; an alarm if it is not.

    It takes what is left of the ``budget`` of the command, less the time for its page.
    """
    seconds = _SECONDS
    if budget is not None:
        seconds = max(_SHARE_OF_REST * budget.left, _LEAST_SHARE * budget.budget.seconds)
    count = min(videos, len(runner.train_dataloader.dataset))
    runner.logger.info(
        f"comparing the network with random weights on up to {count} videos, for at most "
        f"{seconds:.0f} s"
    )
    try:
        checkpoint = newest_checkpoint(runner.work_dir)
        start = runner.cfg.get("pretrained") or runner.cfg.get("load_from")
        start = None if start == RANDOM or runner.resumed_from == start else start
        # It says itself, by held-out videos, whether its result is better than the start.
        start = None if keeps_best(runner.cfg) else start
        dataset = runner.train_dataloader.dataset
        row = compare_with_random(checkpoint, dataset, videos, start, seconds)
    except Exception as error:  # as for the page: a data set of one's own can raise anything
        text = str(error) or type(error).__name__
        runner.logger.warning(f"the network was not compared with random weights: {text}")
        return
    log_row(runner, "random", runner.iter, runner.epoch, row)
    for sentence in sentences(row):
        print_log(sentence, logger="current")
    if (alarm := no_better(row)) is not None:
        report_alarm(runner, alarm, runner.iter)


def no_better(row: Mapping[str, Any]) -> NamedWarning | None:
    """The alarm of a comparison in which the network is no better than random weights."""
    if decision(row) != NO_BETTER:
        return None
    first = next(iter(sentences(row)))
    text = (
        f"the network is {first}. Train longer (--hours, --epochs); look at the loss, which "
        "should fall below chance level, and at the views on the page, which should show what "
        "tells the videos apart; the documentation says more: logs and alarms, no_better"
    )
    return NamedWarning(text, "no_better", row["gain_random"], LEAST_GAIN)


def lacks_comparison(record: RunRecord) -> bool:
    """Whether a finished pretraining should have been compared with random weights, and was not."""
    return bool(_planned(record)) and not record.compared and run_state(record).name == FINISHED


def _planned(record: RunRecord) -> int:
    """Videos of the comparison that the config plans."""
    settings = record.config.get("run_page")
    videos = settings.get("compared") if isinstance(settings, dict) else None
    return videos if isinstance(videos, int) and videos > 0 else 0


def compared_later(record: RunRecord, dataset: Any, notes: list[str]) -> RunRecord:
    """The record of a run whose comparison was interrupted, with the comparison made now.

    It is added to the log and the alarms of the run, so that it is made once.
    """
    try:
        checkpoint = newest_checkpoint(record.folder)
        row = compare_with_random(checkpoint, dataset, _planned(record), seconds=_SECONDS)
    except Exception as error:  # a network or data set of one's own can raise anything
        text = str(error) or type(error).__name__
        notes.append(f"The network was not compared with random weights: {text}.")
        return record
    when = {
        "iter": (record.end and record.end.iter) or 0,
        "epoch": record.max_epochs,
        "time": time.time(),
    }
    whole = {"kind": "random", **when, **row}
    _append(record, METRICS, whole)
    alarms = record.alarms
    if (alarm := no_better(row)) is not None:
        entry = {"alarm": alarm.alarm, "level": alarm.level, "message": str(alarm), **when}
        entry |= {"value": alarm.value, "threshold": alarm.threshold}
        _append(record, ALARMS, entry)
        alarms = [*alarms, entry]
    return replace(record, compared=whole, alarms=alarms)


def _append(record: RunRecord, name: str, row: dict[str, Any]) -> None:
    with suppress(WriteError):  # a folder that is read only is shown, too
        append_text(Path(record.folder, name), json.dumps(row) + "\n")
