"""Work after a training run: a comparison with random weights, or a test of the classifier."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.logging import print_log
from torch import nn

from sce_video.engine.hooks.alarms import report_alarm
from sce_video.engine.hooks.budget import BudgetHook
from sce_video.engine.hooks.progress import log_row
from sce_video.engine.restarts import append_row
from sce_video.engine.run_json import FINISHED
from sce_video.engine.runner import RANDOM, VideoRunner
from sce_video.evaluation.grey_pixels import GreyPixels
from sce_video.evaluation.linear_fit_loop import LinearFitLoop
from sce_video.evaluation.random_weights import (
    LEAST_GAIN,
    NO_BETTER,
    compare_features,
    decision,
    sentences,
)
from sce_video.inference.embed_job import iterate_features
from sce_video.inference.features import Features
from sce_video.inference.model import (
    VideoModel,
    build_model,
    load_model,
    untrained_model,
    with_random_weights,
)
from sce_video.inference.multi_view import Batch, BatchRows, mean_representation
from sce_video.inference.network_input import ViewOptions
from sce_video.pages.run_record import AlarmLine, RunRecord, run_state
from sce_video.runs.configs import testing_config
from sce_video.runs.keep_best import keeps_best
from sce_video.runs.launch import run_test
from sce_video.runs.teacher import compared_teacher
from sce_video.utils.command import Progress
from sce_video.utils.errors import Alarm
from sce_video.utils.files import WriteError, read_json
from sce_video.utils.records import at, lenient_record
from sce_video.utils.run_files import (
    ALARMS,
    METRICS,
    PROBE,
    RESULTS,
    SCORES,
    is_model,
    newest_checkpoint,
)

#: Options for embedding videos after training, with two clips per video
TWO_CLIPS = ViewOptions(num_clips=2, num_workers=1, timeout=20.0)
#: Time limit in seconds for the comparison with random weights if there is no time budget
_SECONDS = 300.0
#: Share of the remaining time budget that this comparison may use. The rest is left for the page.
_SHARE_OF_REST = 0.75
#: Minimum share of the whole time budget for the comparison, and again for embedding the page's
#: videos, even if no time is left
LEAST_SHARE = 0.03
#: Number of clips per video whose features are averaged for the probe, as in sce-video embed
_CLIPS = 4


def compare_with_random(
    checkpoint: str | Path,
    dataset: Any,
    videos: int,
    start: str | Path | None = None,
    seconds: float = math.inf,
    teacher: VideoModel | None = None,
) -> dict[str, float]:
    """Compare the network in a checkpoint with random weights and others, on training videos.

    Two clips of each video are embedded. The videos are at equal steps through the set. Files that
    cannot be read are left out.

    Args:
        checkpoint: Checkpoint of the trained network.
        dataset: Training set.
        videos: Largest number of videos.
        start: Checkpoint from which training started, which is compared as well; None for random
            weights.
        seconds: Time limit. The videos embedded by then are compared. They are read in random
            order, so they come from the whole set.
        teacher: Teacher of a distillation, which is compared as well, with frames in its own size.

    Returns:
        Row of :func:`~sce_video.evaluation.random_weights.compare_features`.

    Raises:
        ValueError: If a checkpoint cannot be read, or fewer than two videos can be read.
    """
    compared = [compared_networks(load_model(checkpoint), start)]
    if teacher is not None:
        compared.append(side_by_side({"teacher": teacher}))
    found: dict[int, dict[str, np.ndarray]] = {}  # sample index -> network -> features
    title = "comparing with random weights:"
    for index, rows in embed_some(compared, dataset, videos, seconds, title, least=2):
        if not any(row.failures for row in rows):
            pairs = zip(compared, rows, strict=True)
            clips = [networks.clips(row.values[0]) for networks, row in pairs]
            found[index] = {name: x for one in clips for name, x in one.items()}
    if len(found) < 2:
        tried = min(videos, len(dataset))
        raise ValueError(f"{len(found)} of {tried} videos could be read in {seconds:.0f} s")
    chosen = sorted(found)
    features = {
        name: torch.from_numpy(np.stack([found[index][name] for index in chosen]))
        for name in found[chosen[0]]
    }
    return compare_features(features, torch.from_numpy(np.asarray(dataset.labels)[chosen]))


@dataclass(frozen=True, eq=False)
class ComparedNetworks(VideoModel):
    """Networks with the same input. A video's row contains its clips' features from each network.

    Every video is read once for all networks, because decoding takes most of the time.

    Attributes:
        encoder: Networks by name.
        sizes: Size of each network's clip feature.
    """

    encoder: nn.ModuleDict
    sizes: Mapping[str, int]

    @property
    def row_size(self) -> int:
        """Size of a row: the clips of the first network, then those of the next one."""
        return TWO_CLIPS.num_clips * sum(self.sizes.values())

    def rows(self, batch: Batch, max_views: int) -> BatchRows:
        """Compute rows (n, row_size) of the videos in a batch."""
        function = mean_representation(max_views, clips=True)
        with torch.inference_mode():
            found = [function(encoder, batch) for encoder in self.encoder.values()]
        parts = [one.values.reshape(len(batch["videos"]), -1) for one in found]
        return BatchRows(torch.cat(parts, dim=1), found[0].num_views)

    def clips(self, row: np.ndarray) -> dict[str, np.ndarray]:
        """Split a video's row into the features (clips, C) of each network."""
        ends = np.cumsum([TWO_CLIPS.num_clips * size for size in self.sizes.values()])
        parts = np.split(row, ends[:-1])
        shaped = [part.reshape(TWO_CLIPS.num_clips, -1) for part in parts]
        return dict(zip(self.sizes, shaped, strict=True))


def side_by_side(networks: Mapping[str, VideoModel]) -> ComparedNetworks:
    """Return networks with the same input as one network that reads every video once."""
    encoders = nn.ModuleDict({name: model.encoder for name, model in networks.items()})
    sizes = {name: model.feature_size for name, model in networks.items()}
    fields = {**vars(next(iter(networks.values()))), "encoder": encoders}
    return ComparedNetworks(**fields, sizes=sizes)


def compared_networks(trained: VideoModel, start: str | Path | None) -> ComparedNetworks:
    """Return a network with random weights, pixels and, if given, the initial checkpoint."""
    settings = trained.settings
    networks = {"trained": trained, "random": with_random_weights(trained)}
    if start is not None:
        # If training started from an image network, that checkpoint has no temporal layers.
        networks["start"] = build_model(settings, start, trained.device, allow_identity=True)
    of_pixels = replace(settings, backbone={"type": GreyPixels.__name__})
    networks["pixels"] = untrained_model(of_pixels, trained.device)
    return side_by_side(networks)


def embed_some(
    networks: Sequence[VideoModel],
    dataset: Any,
    videos: int,
    seconds: float,
    title: str,
    least: int = 0,
) -> Iterator[tuple[int, list[Features]]]:
    """Yield the index of some training videos, with the features of two clips from each network.

    The videos are at equal steps through the set and are read in random order. Those embedded
    before the time limit therefore come from all of the set's folders.

    Args:
        networks: Networks that embed each video.
        dataset: Training set.
        videos: Largest number of videos.
        seconds: Time limit.
        title: First words of the progress line.
        least: Number of readable videos that are embedded even if the time limit is exceeded.
    """
    end, read = time.monotonic() + seconds, 0
    chosen = np.linspace(0, len(dataset) - 1, min(videos, len(dataset))).round().astype(int)
    order = np.random.default_rng(0).permutation(chosen).tolist()
    paths = [str(dataset.path(index)) for index in order]
    progress = Progress(len(order), title, unit="videos", quiet=True)
    with ExitStack() as stack:
        embedded = [
            stack.enter_context(closing(iterate_features(network, paths, TWO_CLIPS)))
            for network in networks
        ]
        for index, *rows in zip(order, *embedded, strict=True):
            failed = any(row.failures for row in rows)
            progress.advance(failed)
            yield index, rows
            read += not failed
            if read >= least and time.monotonic() > end:
                break
    progress.finish()


def compare_at_end(runner: VideoRunner, videos: int, budget: BudgetHook | None) -> None:
    """Log whether the network is better than random weights, and raise an alarm if it is not.

    Args:
        runner: Runner of the finished training.
        videos: Largest number of compared videos.
        budget: Time budget of the command, of which a part is left for the page; None without one.
    """
    seconds = _SECONDS
    if budget is not None:
        seconds = max(_SHARE_OF_REST * budget.left, LEAST_SHARE * budget.budget.seconds)
    count = min(videos, len(runner.train_dataloader.dataset))
    runner.logger.info(
        f"comparing the network with random weights on up to {count} videos, for at most "
        f"{seconds:.0f} s"
    )
    try:
        checkpoint = newest_checkpoint(runner.work_dir)
        start = _initial_network(runner.cfg, runner.resumed_from)
        dataset, teacher = runner.train_dataloader.dataset, compared_teacher(runner.cfg)
        row = compare_with_random(checkpoint, dataset, videos, start, seconds, teacher)
    except Exception as error:  # a user-defined dataset can raise any error
        text = str(error) or type(error).__name__
        runner.logger.warning(f"the network was not compared with random weights: {text}")
        return
    log_row(runner, "random", runner.iter, runner.epoch, row)
    for sentence in sentences(row):
        print_log(sentence, logger="current")
    if (alarm := no_better(row)) is not None:
        report_alarm(runner, alarm, runner.iter)


def _initial_network(cfg: Config, resumed_from: str | None) -> str | None:
    """Return the network from which a run started, if a comparison includes it; otherwise None."""
    start = at(cfg, "pretrained") or at(cfg, "load_from")
    # A run that keeps its best checkpoint was already compared with its start on held-out videos.
    return None if start in (RANDOM, resumed_from) or keeps_best(cfg) else start


def no_better(row: Mapping[str, Any]) -> Alarm | None:
    """Return an alarm if the network is not better than random weights in a comparison."""
    if decision(row) != NO_BETTER:
        return None
    first = next(iter(sentences(row)))
    text = (
        f"the network is {first}. Train longer (--hours, --epochs). Check that the loss falls "
        "below chance level, and that the views on the page show what tells the videos apart. "
        "See no_better in docs/logging.md"
    )
    return Alarm(text, "no_better", row["gain_random"], LEAST_GAIN)


def lacks_comparison(record: RunRecord) -> bool:
    """Return whether a finished pretraining run lacks a planned comparison with random weights."""
    return bool(_planned(record)) and not record.compared and run_state(record).name == FINISHED


def _planned(record: RunRecord) -> int:
    """Return the number of videos in the comparison that the config plans."""
    return max(0, at(record.config, "run_page.compared", int) or 0)


def compared_later(record: RunRecord, dataset: Any, notes: list[str]) -> RunRecord:
    """Make the comparison that an interrupted run lacks, and return the record with it.

    The comparison is added to the run's log and alarms, so it is made only once. It includes the
    initial network and the teacher if they are on this machine. A run's config may be untrusted, so
    nothing that it names is downloaded.
    """
    try:
        checkpoint, cfg = newest_checkpoint(record.folder), Config(record.config)
        start = _initial_network(cfg, record.starts[-1].resumed_from if record.starts else None)
        start = start if _is_here(start) else None
        teacher = compared_teacher(cfg) if _is_here(at(cfg, "teacher_checkpoint")) else None
        videos = _planned(record)
        row = compare_with_random(checkpoint, dataset, videos, start, _SECONDS, teacher)
    except Exception as error:  # a user-defined network or dataset can raise any error
        text = str(error) or type(error).__name__
        notes.append(f"The network was not compared with random weights: {text}.")
        return record
    last = (record.end and record.end.iter) or 0
    when = {"iter": last, "epoch": record.max_epochs, "time": time.time()}
    whole, alarm = {"kind": "random", **when, **row}, no_better(row)
    alarms = [] if alarm is None else [{**alarm.row(), **when}]
    with suppress(WriteError):  # the page of a read-only folder can still be shown
        append_row(Path(record.folder, METRICS), whole)
        for entry in alarms:
            append_row(Path(record.folder, ALARMS), entry)
    raised = [lenient_record(AlarmLine, entry) for entry in alarms]
    return replace(record, compared=whole, alarms=[*record.alarms, *raised])


def _is_here(network: Any) -> bool:
    """Return whether a config names a network in a file or folder on this machine."""
    return isinstance(network, str) and not is_model(network) and Path(network).exists()


def test_classifier(runner: VideoRunner) -> dict[str, float]:
    """Test the newest checkpoint of a training run, and fit a linear probe. All ranks call this.

    An alarm is raised if the classifier is not better than guessing. ``results.json`` and
    ``scores.npz`` in the run's folder contain the test with all its views. ``linear_probe.json``
    contains the result of a logistic regression on features of the frozen network from which
    training started. There is no probe if the classifier itself was fitted to frozen features.

    Returns:
        Metrics of the test.
    """
    folder = Path(runner.work_dir)
    cfg = copy.deepcopy(runner.cfg)
    cfg.pop("experiment_name", None)  # so that each test gets its own log
    launcher = at(cfg, "launcher") or "none"
    testing = partial(testing_config, work_dir=folder / "evaluation", launcher=launcher)
    out, dump = folder / RESULTS, folder / SCORES
    metrics = run_test(testing(cfg, newest_checkpoint(folder), out=out, dump=dump))
    # A classifier on frozen features is already a linear probe, so it needs no other one.
    if not isinstance(runner.train_loop, LinearFitLoop):
        start = at(cfg, "pretrained") or RANDOM
        try:
            run_test(testing(probe_config(cfg), start, out=folder / PROBE))
        except ValueError as error:  # for example, no training video of a class can be decoded
            runner.logger.warning(f"The linear probe could not be computed: {error}")
    if is_main_process() and (alarm := guessing_alarm(folder)) is not None:
        report_alarm(runner, alarm, runner.iter)
    return metrics


def guessing_alarm(folder: str | Path) -> Alarm | None:
    """Return an alarm if a classifier is not better than guessing, from its ``results.json``.

    Guessing means predicting a random class, or always the most frequent class. The classifier is
    not better if the 95 % interval of its top-1 accuracy begins at or below the accuracy of
    guessing.
    """
    path = Path(folder, RESULTS)
    content = read_json(path) if path.is_file() else {}
    top1, ends = (at(content, f"{part}.top1") for part in ("metrics", "intervals"))
    guesses = at(content, "chance") or {}
    if top1 is None or not guesses:
        return None
    level = max(guesses.values())
    if (top1 if ends is None else ends[0]) > level:
        return None
    between = "" if ends is None else f" (95 % interval {100 * ends[0]:.1f} to {100 * ends[1]:.1f})"
    text = (
        f"the classifier is no better than guessing: top-1 accuracy {100 * top1:.1f} %{between}, "
        f"guessing reaches {100 * level:.1f} %. Give more videos of each class or more steps "
        "(--hours, --epochs), and look at the confusion matrix on the page. See no_better in "
        "docs/logging.md"
    )
    return Alarm(text, "no_better", top1, level)


def probe_config(cfg: Config) -> Config:
    """Return a config that tests a linear probe of a finetuning run's backbone on the same data.

    The training videos are the gallery to which the probe is fitted. Both sets use up to four
    central crops without augmentation.
    """
    probed = copy.deepcopy(cfg)
    kept = ("mean", "std")
    preprocessor = {k: cfg.data_preprocessor[k] for k in kept if k in cfg.data_preprocessor}
    backbone = {k: v for k, v in cfg.model.backbone.items() if k != "frozen_stages"}
    probed.model = {"type": "Encoder", "backbone": backbone}
    probed.data_preprocessor = {"type": "VideoDataPreprocessor", **preprocessor}
    most = {"num_clips": _CLIPS, "num_crops": 1}
    for step in probed.test_dataloader.dataset.pipeline:
        step.update({name: min(step[name], value) for name, value in most.items() if name in step})
    gallery = copy.deepcopy(probed.test_dataloader)
    for name in ("type", "data_root", "ann_file", "class_file"):
        gallery.dataset.pop(name, None)
        if name in cfg.train_dataloader.dataset:
            gallery.dataset[name] = cfg.train_dataloader.dataset[name]
    gallery.dataset.on_error = "skip"
    probed.test_cfg = {"type": "MultiViewTestLoop", "gallery_dataloader": gallery}
    probed.test_evaluator = [{"type": "LinearProbe"}]
    return probed
