"""A pretraining that chooses its settings, from the folder to the search."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.training import make_videos, planned_pretraining

import sce_video
from sce_video.commands.main import main
from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import plain
from sce_video.engine.run_json import read_run_json
from sce_video.engine.work_dir import LOCK, is_locked
from sce_video.options.training import FOLDERS, FinetuneOptions, PretrainOptions, TrainOptions
from sce_video.pages.run_record import different_settings, read_scalars
from sce_video.runs import (
    launch,
    page,
    plan_finetuning,
    plan_pretraining,
    planned_training,
    train,
)
from sce_video.runs.folder import read_run
from sce_video.runs.planned_config import resumable_config
from sce_video.utils.files import write_text

TINY = dict(width=4, frames=2, size=32, hidden=16, embedding=8, batch=4, epoch_samples=8, workers=0)


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"))


@pytest.fixture(autouse=True)
def _own_argv(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sce-video"])


@pytest.fixture
def _without_page(monkeypatch):
    monkeypatch.setattr("sce_video.runs.page.write_run_page", lambda folder, *_, **__: folder)


def words(**settings):
    return [w for k, v in settings.items() for w in (f"--{k.replace('_', '-')}", str(v))]


#: Whatever the machine, whose GPU would change the default.
SCE = ["--method", "sce"]


@pytest.fixture(scope="module")
def trained(videos, tmp_path_factory):
    """A run of one epoch by the command, with its page, and what was printed; not to be changed."""
    run, shown = tmp_path_factory.mktemp("trained") / "run", io.StringIO()
    command = ["pretrain", str(videos), "--out", str(run), "--epochs", "1", *words(**TINY), *SCE]
    with redirect_stdout(shown), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sce-video"])
        assert main(command) == 0
    return run, shown.getvalue()


def test_a_run_of_one_command(trained, videos, tmp_path):
    run, shown = trained
    assert "12 videos in" in shown and "given" in shown and "sce_r3d18_folder_small" in shown
    written = load_config(run / "config.py")
    steps = {step.type: step for step in written.train_dataloader.dataset.pipeline}
    assert steps["DecodeClips"].skip_repeats is True  # the paper's recipes do not
    described = read_run_json(run)  # with the reasons, also after the training
    assert described.state == "finished" and described.plan.recipe == "sce_r3d18_folder_small"
    assert any("fewer keys than the 12 videos" in c.reason for c in described.plan.choices)
    assert any("12 videos are few" in remark for remark in described.plan.remarks)
    asked = {"videos": str(videos), "method": "sce", "epochs": 1, **TINY}
    assert described.request == asked and described.config == plain(written)
    assert described.environment["versions"]["torch"] == torch.__version__
    page = (run / "run.html").read_text()
    assert "fewer keys than the 12 videos" in page and "data:image/webp" in page
    row = read_run(run).compared  # beside random weights, in the log, on the page and on the screen
    assert row["videos"] == 12 and row["iter"] == 3 and {"knn", "rank", "rank_random"} <= set(row)
    assert "Does it help?" in page and f"{100 * row['knn_random']:.1f} %" in page
    log = next(run.glob("*/*.log")).read_text()
    assert "not decided against random weights: kNN accuracy" in log

    out = tmp_path / "results.json"
    given = {"test": videos, "gallery": videos, "protocols": ["knn"], "out": out}
    evaluated = sce_video.evaluate(run, **given)
    assert evaluated.metrics["knn_top1"] > 0.9  # a video finds itself
    assert evaluated.run == described and evaluated.out == str(out)
    of_random = sce_video.evaluate(run, random=True, **given).metrics
    stored = json.loads(out.read_text())
    assert stored["protocol"]["checkpoint"]["path"] is None and stored["metrics"] == of_random


def test_the_written_config_is_the_same_training(trained, videos, tmp_path):
    """``sce-video pretrain`` against ``tools/train.py`` with the config that it plans.

    The latter computes activations again, which changes no bit.
    """
    start = ["pretrain", str(videos), "--epochs", "1", "--memory", *words(**TINY), *SCE]
    assert main([*start, "--out", str(tmp_path), "--plan"]) == 0
    assert main(["train", str(tmp_path / "config.py"), "--cfg-options", "run_page=None"]) == 0
    assert load_config(tmp_path / "config.py").model.backbone.with_cp is True
    losses = [[row["loss"] for row in read_scalars(run)] for run in (trained[0], tmp_path)]
    assert losses[0] == losses[1] and losses[0]


def test_the_function_takes_the_settings_by_name(videos, trained, tmp_path, monkeypatch):
    stopped, trained_with = SimpleNamespace(train_loop=None), []
    monkeypatch.setattr(page, "train_with_page", lambda cfg, _: trained_with.append(cfg) or stopped)
    result = sce_video.pretrain(videos, out=tmp_path / "run", method="simclr", epochs=1, **TINY)
    (cfg,) = trained_with
    assert result.status == 0 and result.folders == (tmp_path / "run",)
    assert cfg.model.type == "SimCLR" and cfg.model.backbone.base_channels == TINY["width"]
    monkeypatch.undo()
    with pytest.raises(ValueError, match="earlier training"):
        sce_video.pretrain(videos, out=trained[0], epochs=1, **TINY)
    with pytest.raises(TypeError, match="pretrain.. has no argument frmes. Did you mean frames?"):
        sce_video.pretrain(videos, out=tmp_path, frmes=3)
    with pytest.raises(AttributeError):
        sce_video.pretrian


def test_with_few_steps_nothing_of_sce_lags(videos, tmp_path):
    def chosen(epochs, **given):
        settings = {**TINY, "batch": 2, "epochs": epochs, **given}
        planned = planned_pretraining(videos, tmp_path / "run", method="sce", **settings)
        start, model = planned.config.custom_hooks[0].model.momentum.start, planned.config.model
        return start, model.queue_size, model.predictor is None

    assert chosen(1) == (0.0, 4, True)
    assert chosen(1, momentum=0.5, queue=6) == (0.5, 6, True)
    assert chosen(2000) == (0.97, 10, False)  # 8000 steps: fewer keys than the 12 videos


def test_a_budget_makes_the_length(videos, tmp_path):
    plan = planned_pretraining(videos, tmp_path, hours=10, **TINY)
    budget = plan.config.default_hooks.budget
    assert plan.other_seconds == pytest.approx(budget.spent + budget.reserved, abs=0.02)
    assert 0 < budget.spent < plan.other_seconds and budget.hours == 10
    left = 36_000 - plan.other_seconds
    # Times are rounded in the config, and the quotient may lie next to a whole number.
    epochs = left / plan.epoch_seconds
    assert plan.config.train_cfg.max_epochs == pytest.approx(epochs, rel=1e-4, abs=1)
    assert plan.hours <= 10
    # 21 evaluations of the 4 videos that are held out and the 8 others, their gallery.
    best = planned_pretraining(videos, tmp_path, hours=10, keep="best", labels="folders", **TINY)
    evaluating = 21 * 12 * best.timing.features(networks=1)
    assert best.evaluation_seconds == pytest.approx(evaluating)
    epochs = (36_000 - best.other_seconds - evaluating) / best.epoch_seconds
    assert best.config.train_cfg.max_epochs == pytest.approx(epochs, rel=1e-4, abs=1)
    given = {**TINY, "epochs": 3, "keep": "best", "labels": "folders"}
    few = planned_pretraining(videos, tmp_path, **given)
    evaluating = 7 * 12 * few.timing.features(networks=1)  # six steps
    assert 3600 * few.hours == pytest.approx(3 * few.epoch_seconds + evaluating)
    assert f"s an epoch, {evaluating:.0f} s for all evaluations)" in "\n".join(few.plan.lines())
    free = planned_pretraining(videos, tmp_path, method="byol", **TINY)
    assert "budget" not in free.config.default_hooks and free.config.run_page.compared == 12
    assert free.config.train_cfg.max_epochs == 667  # 2000 steps: three of an epoch of 12 videos
    assert free.config.work_dir == str(tmp_path)


@pytest.mark.usefixtures("_without_page")
def test_resuming_takes_everything_from_the_run(trained, tmp_path, capsys):
    run = shutil.copytree(trained[0], tmp_path / "run")
    assert main(["pretrain", "--out", str(tmp_path / "none"), "--resume"]) == 2
    assert "contains no training run" in capsys.readouterr().err
    assert main(["pretrain", "--out", str(run), "--resume"]) == 0  # has nothing left to do


@pytest.mark.usefixtures("_without_page")
def test_seeds_are_planned_once_resumed_and_pooled(videos, tmp_path, capsys, monkeypatch):
    out = tmp_path / "runs"
    start = ["pretrain", str(videos), "--out", str(out), "--epochs", "1", *words(**TINY), *SCE]
    train, calls = page.train_with_page, []

    def fails_at_the_second(cfg, overwrite=False):
        calls.append(cfg.randomness.seed)
        if calls == [0, 2]:
            raise ValueError("the disk is full")
        return train(cfg, overwrite)

    monkeypatch.setattr(page, "train_with_page", fails_at_the_second)
    assert main([*start, "--seeds", "0", "2"]) == 2
    assert main([*start, "--seeds", "0", "2"]) == 2  # refused before the planning
    assert "seed0 contains an earlier training run" in capsys.readouterr().err
    assert main(["pretrain", "--out", str(out), "--resume"]) == 0
    assert calls == [0, 2, 2]  # the finished one is kept
    shown = capsys.readouterr().out
    # A new one gets the config of the first.
    added = sce_video.pretrain(out=out, seeds=[0, 5], resume=True)
    assert calls == [0, 2, 2, 5] and added.folders == (out / "seed0", out / "seed5")
    assert len(added.chance.seeds) > 0 and added.comparison == out / "compare.html"
    assert "seed0 (1 of 2) has finished and is kept" in shown
    assert "seed0 + seed2, loss of metrics.jsonl" in shown
    configs = [load_config(out / f"seed{n}/config.py").to_dict() for n in (0, 2, 5)]
    assert list(different_settings(configs)) == ["randomness.seed"]
    losses = [read_scalars(out / f"seed{n}")[-1]["loss"] for n in (0, 2)]
    mean, spread = np.mean(losses), np.std(losses, ddof=1)
    assert spread > 0 and f"loss of metrics.jsonl: {mean:.4g} ± {spread:.4g} (2 seeds)" in shown
    assert "seed0 + seed5" in (out / "compare.html").read_text()


def test_a_stopped_seed_ends_all(videos, tmp_path, monkeypatch, capsys):
    stopped = SimpleNamespace(train_loop=SimpleNamespace(stopped_by=15))
    monkeypatch.setattr(page, "train_with_page", lambda cfg, overwrite: stopped)
    monkeypatch.setattr(launch, "end_training", lambda runner: 128 + runner.train_loop.stopped_by)
    result = sce_video.pretrain(videos, out=tmp_path, seeds=[0, 1], method="sce", **TINY)
    shown = capsys.readouterr().out
    assert result.status == 143 and result.chance is None
    assert "seed0 (1 of 2)\n" in shown and "seed1 (" not in shown
    with pytest.raises(ValueError, match="seed cannot be combined with seeds"):
        sce_video.pretrain(videos, out=tmp_path, seeds=[0, 1], seed=3)
    with pytest.raises(ValueError, match="cannot resume: .* contains no training run"):
        sce_video.pretrain(out=tmp_path / "none", seeds=[0], resume=True)


def test_errors(videos, tmp_path):
    def refused(message, **changes):
        with pytest.raises(ValueError, match=message):
            sce_video.pretrain(videos, out=tmp_path / "run", **changes)

    refused("--method must be one of .*sce.*, got 'x'", method="x")
    refused("precision must be one of", precision="int8")
    refused("hours cannot be combined with epochs", hours=1, epochs=3)
    refused("--queue is not a setting of --method simclr", method="simclr", queue=3)
    refused("teacher belongs to method distill", method="sce", teacher="nothing")
    assert not (tmp_path / "run").exists()


def test_all_files_is_an_argument_of_every_listing(videos, tmp_path):
    """The next command lists as before."""
    root, out = shutil.copytree(videos, tmp_path / "videos"), str(tmp_path / "run")
    for path in sorted(root.rglob("*.mp4")):
        path.rename(path.with_suffix(".rec"))
    with pytest.raises(ValueError, match="12 .rec.*--all-files reads files that contain a video"):
        sce_video.pretrain(root, out=out)
    given = {"videos": str(root), "out": out, "all_files": True, "keep": "best", "labels": FOLDERS}
    planned = plan_pretraining.plan_pretraining(PretrainOptions(**given, **TINY), time.monotonic())
    hook = planned.config.custom_hooks[-1]
    sets = [planned.config.train_dataloader.dataset, hook.gallery.dataset, hook.queries.dataset]
    small = {"source": "none", "train": str(root), "width": 4, "batch": 4, "workers": 0}
    options = FinetuneOptions(**small, out=out, all_files=True)
    config = plan_finetuning.plan_finetuning(options, time.monotonic()).config
    sets += [config[f"{part}_dataloader"].dataset for part in ("train", "val", "test")]
    assert planned.facts.num_videos == 12 and all("*" in part.extensions for part in sets)
    options = TrainOptions(config="c.py", data_root=str(root), all_files=True)
    changes = {change.key: change.value for change in train._other_videos(options)}
    assert "*" in changes["train_dataloader.dataset.extensions"]


def hold(folder):
    """A process that holds a work folder, as a training there would, until it is killed."""
    program = (
        "import sys, time; from sce_video.engine.work_dir import locked_folder\n"
        "with locked_folder(sys.argv[1]): print(flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def contents(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and p.name != LOCK}


#: What starts in a folder, as a command or a function, without and with --overwrite.
STARTS = {
    "plan": lambda v, out, *more: main(["pretrain", v, "--out", out, "--plan", *more, *SMALL]),
    "pretrain": lambda v, out, *more: main(["pretrain", v, "--out", out, *more, *SMALL]),
    "seeds": lambda v, out, *more: main(
        ["pretrain", v, "--out", str(Path(out).parent), "--seeds", "7", *more, *SMALL]
    ),
    "finetune": lambda v, out, *more: main(
        ["finetune", "none", "--train", v, "--out", out, "--epochs", "1", *more]
    ),
    "pretrain()": lambda v, out, *more: sce_video.pretrain(v, out=out, overwrite=bool(more)),
    "pretrain(seeds)": lambda v, out, *more: sce_video.pretrain(
        v, out=Path(out).parent, seeds=[7], overwrite=bool(more)
    ),
    "finetune()": lambda v, out, *more: sce_video.finetune(
        "none", train=v, out=out, overwrite=bool(more)
    ),
}
SMALL = ["--epochs", "1", *words(**TINY), *SCE]


@pytest.mark.parametrize("start", STARTS)
def test_a_folder_is_claimed_before_anything_is_planned_or_written(
    start, trained, videos, tmp_path, monkeypatch, capsys
):
    def planned(*args, **kwargs):
        raise AssertionError("planned in a folder that is used")

    monkeypatch.setattr(plan_pretraining, "plan_pretraining", planned)
    monkeypatch.setattr(plan_finetuning, "plan_finetuning", planned)
    run = shutil.copytree(trained[0], tmp_path / "seed7")
    before = contents(run)
    (run / LOCK).unlink()

    def refused(message, *more):
        try:
            assert STARTS[start](str(videos), str(run), *more) == 2
            assert message in capsys.readouterr().err
        except ValueError as error:
            assert message in str(error)
        assert contents(run) == before

    refused("contains an earlier training run")
    holder = hold(run)
    try:
        refused("another training run is using", "--overwrite")
    finally:
        holder.kill()
        holder.wait()


class KilledError(BaseException):
    """What ends a start before its first step."""


@pytest.mark.parametrize("start", ["pretrain", "seeds", "finetune", "pretrain()"])
def test_what_overwriting_leaves_when_it_is_killed_is_not_mixed(
    start, trained, videos, tmp_path, monkeypatch
):
    """The checkpoints are gone before the new config is there."""
    run = shutil.copytree(trained[0], tmp_path / "seed7")
    (run / "train.txt").write_text("of the earlier training")
    found = []

    def write(path, text):
        if Path(path).parent == run:
            found.append(sorted(p.name for p in run.glob("*.pth")))
            raise KilledError
        write_text(path, text)

    for module in ("runs.planned_training", "datasets.labelled", "datasets.video_list"):
        monkeypatch.setattr(f"sce_video.{module}.write_text", write)
    with pytest.raises(KilledError):
        if start == "pretrain()":
            sce_video.pretrain(videos, out=run, overwrite=True, epochs=1, **TINY)
        STARTS[start](str(videos), str(run), "--overwrite")
    assert found == [[]] and not is_locked(run)


@pytest.mark.usefixtures("_without_page")
def test_another_config_does_not_continue_the_weights(trained, tmp_path, capsys):
    run = shutil.copytree(trained[0], tmp_path / "seed0")
    config, record = run / "config.py", run / "run.json"
    texts = {path: path.read_text() for path in (config, record)}
    history = (run / "history.jsonl").read_text().splitlines(keepends=True)
    (run / "history.jsonl").write_text(history[0])  # killed, not finished
    changes = {
        config: {"base_channels=4": "base_channels=8", "max_epochs=1": "max_epochs=2"},
        record: {'"base_channels": 4': '"base_channels": 8', '"tau": 0.1': '"tau": 0.3'},
    }
    messages = {
        config: r"config\.py was edited \((model|train_cfg)\.\S+: \d -> \d\), but --resume reads",
        record: r"run\.json is not the one that epoch_1\.pth was trained with \(model\.",
    }
    cases = [(path, *change) for path, pairs in changes.items() for change in pairs.items()]
    for path, old, new in cases:
        assert old in texts[path]
        path.write_text(texts[path].replace(old, new))
        if path == record:
            config.unlink()  # for people alone
        before = contents(run)
        for out in (run, tmp_path) if path == config else ():  # one run, and all seeds
            assert main(["pretrain", "--out", str(out), "--resume"]) == 2
            shown = capsys.readouterr().err
            assert re.search(messages[path], shown) and shown.count("\n") == 1
        if path == record:
            with pytest.raises(ValueError, match=messages[path]):
                resumable_config(config, resume=True)
        assert contents(run) == before
        for each, text in texts.items():
            each.write_text(text)


@pytest.mark.usefixtures("_without_page")
def test_an_edited_config_is_trained_as_a_program(trained, tmp_path):
    """The description follows, so that the run can be resumed as before."""
    run = shutil.copytree(trained[0], tmp_path / "run")
    text = (run / "config.py").read_text()
    (run / "config.py").write_text(text.replace("max_epochs=1", "max_epochs=2"))
    given = ["--resume", "--work-dir", str(run)]
    assert main(["train", str(run / "config.py"), *given]) == 0
    assert (run / "epoch_2.pth").is_file()
    described = read_run_json(run)
    assert described.config["train_cfg"]["max_epochs"] == 2 and described.state == "finished"
    assert described.plan == read_run_json(trained[0]).plan
    assert main(["pretrain", "--out", str(run), "--resume"]) == 0


@pytest.mark.usefixtures("_without_page")
def test_a_run_without_a_description_is_not_resumed(trained, tmp_path, capsys):
    run = shutil.copytree(trained[0], tmp_path / "run")
    (run / "run.json").unlink()
    before = contents(run)
    assert main(["pretrain", "--out", str(run), "--resume"]) == 2
    shown = capsys.readouterr().err
    assert f"{run} contains no run.json" in shown and shown.count("\n") == 1
    assert f"sce-video train {run / 'config.py'} --resume" in shown and contents(run) == before


@pytest.mark.usefixtures("_without_page")
def test_a_restarted_function_does_not_plan_again(trained, videos, tmp_path, monkeypatch):
    run = shutil.copytree(trained[0], tmp_path / "seed0")
    monkeypatch.setattr(planned_training, "is_restart", lambda folder: True)
    before = read_run_json(run)
    sce_video.pretrain(videos, out=run, overwrite=True, epochs=3, **TINY)
    runs = sce_video.pretrain(videos, out=tmp_path, seeds=[0], overwrite=True)
    assert runs.status == 0 and (run / "epoch_1.pth").is_file()
    assert read_run_json(run).plan == before.plan
