"""Test of a finetuned classifier, and the linear probe of the network from which it started."""

from __future__ import annotations

import copy
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import is_main_process

from sce_video.engine.hooks.alarms import report_alarm
from sce_video.engine.runner import RANDOM, VideoRunner
from sce_video.evaluation.linear_fit_loop import LinearFitLoop
from sce_video.runs.configs import testing_config
from sce_video.runs.launch import run_test
from sce_video.utils.errors import NamedWarning
from sce_video.utils.files import read_json
from sce_video.utils.run_files import PROBE, RESULTS, SCORES, newest_checkpoint

#: Number of clips per video whose features are averaged for the probe, as in sce-video embed
_CLIPS = 4


def test_classifier(runner: VideoRunner) -> dict[str, float]:
    """Test the newest checkpoint of a training run and fit the probe. All ranks call this.

    An alarm is raised if the classifier is not better than guessing.

    ``results.json`` and ``scores.npz`` in the run's folder contain the test with all its views.
    ``linear_probe.json`` contains a logistic regression that is fitted to the training videos. It
    uses features of the frozen network from which training started. A classifier that was fitted to
    frozen features has no second probe. Return the test's metrics.
    """
    folder = Path(runner.work_dir)
    cfg = copy.deepcopy(runner.cfg)
    cfg.pop("experiment_name", None)  # gives each test its own log
    launcher = {"launcher": cfg.get("launcher", "none"), "work_dir": folder / "evaluation"}
    checkpoint = newest_checkpoint(folder)
    tested = testing_config(cfg, checkpoint, out=folder / RESULTS, dump=folder / SCORES, **launcher)
    metrics = run_test(tested)
    # A classifier on frozen features is a linear probe itself.
    if not isinstance(runner.train_loop, LinearFitLoop):
        start = cfg.get("pretrained") or RANDOM
        run_test(testing_config(probe_config(cfg), start, out=folder / PROBE, **launcher))
    if is_main_process() and (alarm := guessing_alarm(folder)) is not None:
        report_alarm(runner, alarm, runner.iter)
    return metrics


def guessing_alarm(folder: str | Path) -> NamedWarning | None:
    """Return an alarm if a classifier is not better than guessing, from its ``results.json``.

    Guessing means predicting a random class, or always the most frequent class. The classifier is
    not better if the 95 % interval of its top-1 accuracy begins at or below that accuracy.
    """
    path = Path(folder, RESULTS)
    content = read_json(path) if path.is_file() else {}
    top1, ends = (content.get(part, {}).get("top1") for part in ("metrics", "intervals"))
    guesses = content.get("chance") or {}
    if top1 is None or not guesses:
        return None
    level = max(guesses.values())
    if (top1 if ends is None else ends[0]) > level:
        return None
    between = "" if ends is None else f" (95 % interval {100 * ends[0]:.1f} to {100 * ends[1]:.1f})"
    text = (
        f"the classifier is no better than guessing: top-1 accuracy {100 * top1:.1f} %{between}, "
        f"guessing reaches {100 * level:.1f} %. Give it more videos of each class or more steps "
        "(--hours, --epochs), and look at the confusion matrix on the page; the documentation says "
        "more: logs and alarms, no_better"
    )
    return NamedWarning(text, "no_better", top1, level)


def probe_config(cfg: Config) -> Config:
    """Return a config that tests a linear probe of a finetuning run's backbone on the same data.

    The training videos are the gallery to which the probe is fitted. Both sets use up to four
    central crops without augmentation.
    """
    probed = copy.deepcopy(cfg)
    preprocessor = {
        k: cfg.data_preprocessor[k] for k in ("mean", "std") if k in cfg.data_preprocessor
    }
    backbone = {k: v for k, v in cfg.model.backbone.items() if k != "frozen_stages"}
    probed.model = {"type": "Encoder", "backbone": backbone}
    probed.data_preprocessor = {"type": "VideoDataPreprocessor", **preprocessor}
    most = {"num_clips": _CLIPS, "num_crops": 1}
    pipeline = [
        {k: min(v, most[k]) if k in most else v for k, v in step.items()}
        for step in cfg.test_dataloader.dataset.pipeline
    ]
    loader = {
        **cfg.test_dataloader,
        "dataset": {**cfg.test_dataloader.dataset, "pipeline": pipeline},
    }
    of_training = cfg.train_dataloader.dataset
    names = ("type", "data_root", "ann_file", "class_file")
    data = {name: of_training[name] for name in names if name in of_training}
    kept = {k: v for k, v in loader["dataset"].items() if k not in names}
    gallery = {**loader, "dataset": {**kept, **data, "on_error": "skip"}}
    probed.test_dataloader = loader
    probed.test_cfg = {"type": "MultiViewTestLoop", "gallery_dataloader": gallery}
    probed.test_evaluator = [{"type": "LinearProbe"}]
    return probed
