"""A pretraining whose result is its best checkpoint, and never one below the start."""

from __future__ import annotations

import copy
import json
import math
import shutil
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from helpers.run_tool import run_gloo
from helpers.training import (
    Recorder,
    clock_of_steps,
    make_videos,
    planned_pretraining,
    small_config,
    train,
)

import sce_video
from sce_video.commands.main import main
from sce_video.datasets import list_videos
from sce_video.datasets.labelled import GroupColumns
from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.hooks import checkpoint_hook as hook_module
from sce_video.engine.hooks.checkpoint_hook import add_mirror, restore_run
from sce_video.engine.hooks.progress import NonFiniteLossError
from sce_video.evaluation.online_evaluation_hook import BestSoFar
from sce_video.pages.run_record import read_history
from sce_video.registry import DATASETS
from sce_video.runs.after_training import compare_at_end
from sce_video.runs.configs import checkpoints_to_test, training_config
from sce_video.runs.folder import read_run
from sce_video.runs.folder_facts import examine_folder
from sce_video.runs.keep_best import (
    held_out_count,
    hold_out,
    keep_best,
    keeps_best,
    kept_message,
)
from sce_video.runs.planned_config import planned_config
from sce_video.utils.run_files import KEPT, newest_checkpoint
from sce_video.utils.storage import ObjectStoreError

TINY = dict(width=4, frames=2, size=32, hidden=16, embedding=8, batch=4, epoch_samples=8, workers=0)
EPOCHS, STEPS = 10, 20
HARMFUL = 0.2  # times 100


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"))


def config(videos, folder, lr=0.002, **changes):
    """20 steps, an evaluation after each; RankMe doubles with the learning rate of the recipe."""
    changes = {"train_cfg__max_epochs": EPOCHS, "model__queue_size": 100, **changes}
    cfg = small_config(videos, folder, optim_wrapper__optimizer__lr=lr, **changes)
    for step in cfg.test_dataloader.dataset.pipeline:
        tiny = dict(num_frames=2, clip_duration=0.4, size=32)
        step.update({name: value for name, value in tiny.items() if name in step})
    cfg.test_dataloader.num_workers = 0
    facts = examine_folder(str(videos))
    keep_best(cfg, hold_out(facts, seed=1))
    cfg.custom_hooks[-1].update(keep="rankme", metrics=[{"type": "RankMe"}])
    cfg.test_dataloader = cfg.test_cfg = cfg.test_evaluator = None
    return cfg


class Start(Recorder):
    """Also keeps the weights before the first step."""

    priority = "HIGHEST"

    def before_train(self, runner):
        self.start = copy.deepcopy(runner.model.state_dict())


@pytest.fixture(scope="module")
def runs(videos, tmp_path_factory):
    """Folder, runner and record of a training with a good and a harmful learning rate."""
    root = tmp_path_factory.mktemp("runs")
    found = {}
    for name, lr in (("good", 0.002), ("harmful", HARMFUL)):
        found[name] = (root / name, *train(config(videos, root / name, lr), recorder=Start()))
    return found


def evaluations(folder):
    rows = [json.loads(x) for x in (folder / "online_evaluation.jsonl").read_text().splitlines()]
    return [(row["iter"], row["epoch"], row.get("rankme", -math.inf)) for row in rows]


def same_weights(a, b):
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_the_best_checkpoint_is_the_result(runs):
    folder, _, record = runs["good"]
    rows = evaluations(folder)
    assert [step for step, *_ in rows] == list(range(STEPS + 1))
    best = max(rows, key=lambda row: row[2])[0]
    assert best > 0
    kept = load_checkpoint_file(folder / KEPT)
    assert kept["meta"]["iter"] == best and "optimizer" not in kept
    at_best = load_checkpoint_file(folder / f"iter_{best}.pth")["state_dict"]
    assert same_weights(kept["state_dict"], at_best)
    assert kept_message(folder).startswith(f"the result is {KEPT} of step {best} of 20: rankme ")
    # Where a run is given it stands for this one; it is resumed from the newest.
    assert newest_checkpoint(folder) == str(folder / KEPT) == checkpoints_to_test(str(folder))[0]
    assert newest_checkpoint(folder, to_resume=True) == str(folder / f"iter_{STEPS}.pth")
    with torch.no_grad():
        weights = sce_video.load_model(folder, device="cpu").encoder.state_dict()
    name = "backbone.conv1.weight"
    assert torch.equal(weights[name], at_best[name]) and not torch.equal(
        weights[name], record.start[name]
    )


def test_a_harmful_learning_rate_ends_after_a_fifth_and_leaves_the_start(runs, videos):
    folder, runner, record = runs["harmful"]
    (_, _, bar), *others = evaluations(folder)
    assert len(others) == STEPS // 5 == runner.iter and all(value < bar for *_, value in others)
    kept = load_checkpoint_file(folder / KEPT)
    assert (kept["meta"]["iter"], kept["meta"]["epoch"]) == (0, 0)
    assert same_weights(kept["state_dict"], record.start)
    assert "the result is the start, best.pth of step 0" in kept_message(folder)
    events = {row["event"]: row for row in read_history(folder)}
    assert events["replanned"]["epochs"] == 2 and "instead of 20" in events["replanned"]["message"]
    assert events["end"]["status"] == "finished"
    # It stays ended.
    cfg = config(videos, folder, HARMFUL)
    cfg.resume = True
    again, _ = train(cfg)
    assert again.iter == STEPS // 5 and len(evaluations(folder)) == 1 + STEPS // 5


def test_a_dip_within_the_noise_of_a_share_does_not_end_a_training():
    """One standard error of 0.5 among 100 videos is 0.05."""
    for value, is_lost in ((0.46, False), (0.44, True)):
        best = BestSoFar("knn_top1")
        assert best.update(0, 0.5, 100) and not best.update(20, value, 100)
        assert best.is_lost(20, 100) == is_lost and best.best == 0.5


def test_training_is_bit_identical_without_the_hook(runs, videos, tmp_path):
    cfg = config(videos, tmp_path)
    cfg.custom_hooks = cfg.custom_hooks[:-1]
    runner, record = train(cfg)
    assert record.rows == runs["good"][2].rows and not (tmp_path / KEPT).exists()
    assert same_weights(runner.model.state_dict(), runs["good"][1].model.state_dict())


@pytest.mark.parametrize(("name", "stop_after"), [("good", 7), ("harmful", 3)])
def test_resumed_in_the_middle_it_equals_the_uninterrupted_one(
    runs, videos, tmp_path, name, stop_after
):
    lr = {"good": 0.002, "harmful": HARMFUL}[name]
    train(config(videos, tmp_path, lr), stop_after)
    assert len(evaluations(tmp_path)) == 1 + stop_after
    cfg = config(videos, tmp_path, lr)
    cfg.resume = True
    train(cfg)
    folder = runs[name][0]
    assert evaluations(tmp_path) == evaluations(folder)
    assert kept_message(tmp_path) == kept_message(folder)
    one, two = (load_checkpoint_file(path / KEPT) for path in (tmp_path, folder))
    assert one["kept"] == two["kept"] and same_weights(one["state_dict"], two["state_dict"])


class Breaks(Recorder):
    """Makes the network infinite before a step."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 6:
            next(runner.model.projector.parameters()).data.fill_(torch.inf)


def test_a_training_that_ends_with_nan_says_what_its_result_is(runs, videos, tmp_path):
    cfg = config(videos, tmp_path, default_hooks__log_reduction__max_nonfinite=2)
    with pytest.raises(NonFiniteLossError, match="for 3 iterations up to iteration 9"):
        train(cfg, recorder=Breaks())
    best = max(evaluations(tmp_path), key=lambda row: row[2])[0]
    assert 0 < best <= 6
    assert kept_message(tmp_path).startswith(f"the result is {KEPT} of step {best} of 8: rankme ")
    assert load_checkpoint_file(newest_checkpoint(tmp_path))["meta"]["iter"] == best
    events = [row["event"] for row in read_history(tmp_path)]
    assert events == ["start", "kept", "end"]
    assert f"{kept_message(tmp_path)}." in read_run(tmp_path).notes
    # It goes on from before the fault, and has no result until it ends.
    for number in (7, 8):
        (tmp_path / f"iter_{number}.pth").unlink()
    cfg.resume = True
    train(cfg, stop_after=9)
    assert kept_message(tmp_path) is None
    train(cfg)
    assert kept_message(tmp_path) == kept_message(runs["good"][0])


@pytest.mark.parametrize(
    ("lr", "evaluated"), [(0.002, [0, 3, 5, 7, 9, 11]), (HARMFUL, [0, 3])], ids=["good", "harmful"]
)
def test_a_budget_of_time_shortens_it(videos, tmp_path, monkeypatch, lr, evaluated):
    """11 steps of the 20 fit into it, found after two; the schedules go twice as fast from there.

    Resumed after four steps it is the same.
    """
    clock = clock_of_steps(monkeypatch)

    def within(folder):
        budget = dict(type="BudgetHook", hours=20 / 3600, spent=3.0, reserved=6.0)
        cfg = config(videos, folder, lr, default_hooks__budget=budget)
        cfg.custom_hooks[-1].evaluations = 5
        return cfg

    whole, _ = train(within(tmp_path / "whole"), recorder=clock())
    assert [step for step, *_ in evaluations(tmp_path / "whole")] == evaluated
    assert whole.iter == evaluated[-1] and kept_message(tmp_path / "whole")
    cfg = within(tmp_path / "run")
    train(cfg, min(4, evaluated[-1]), clock(min(4, evaluated[-1])))
    cfg.resume = True
    again, _ = train(cfg, recorder=clock())
    assert again.iter == whole.iter
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "whole")
    assert kept_message(tmp_path / "run") == kept_message(tmp_path / "whole")


@pytest.mark.parametrize("name", ["good", "harmful"])
def test_its_mirror_has_the_best_checkpoint(runs, videos, tmp_path, bucket, monkeypatch, name):
    """Also where the upload of the best one had failed, and no better one came afterwards."""
    folder, url = runs[name][0], bucket.url("run")
    cfg = config(videos, tmp_path / "first", {"good": 0.002, "harmful": HARMFUL}[name])
    add_mirror(cfg, url)
    put = hook_module.put_file

    def fails_for_the_best(path, to):
        if path.name == KEPT:
            raise ObjectStoreError("the network is busy")
        put(path, to)

    with monkeypatch.context() as patch:
        patch.setattr(hook_module, "put_file", fails_for_the_best)
        train(cfg, stop_after=2)
    assert f"run/{KEPT}" not in bucket.keys()
    cfg.resume = True
    train(cfg, stop_after=3)
    assert bucket.get(f"run/{KEPT}") == (tmp_path / "first" / KEPT).read_bytes()
    # It goes on where the folder is not.
    restore_run(url, tmp_path / "second")
    cfg.work_dir = str(tmp_path / "second")
    train(cfg)
    assert evaluations(tmp_path / "second") == evaluations(folder)
    assert kept_message(tmp_path / "second") == kept_message(folder)
    assert newest_checkpoint(url) == f"{url}/{KEPT}"


def test_an_epoch_is_timed_on_the_training_videos_alone(videos, tmp_path):
    planned = planned_pretraining(videos, tmp_path / "run", method="simclr", keep="best", **TINY)
    row = next(choice for choice in planned.choices if choice.setting == "keep")
    assert "4 videos" in row.reason
    dataset = DATASETS.build(planned.config.train_dataloader.dataset)
    assert planned.timing.samples == len(dataset) == 8  # all 12 videos would take 3 steps, not 2


def test_what_is_held_out(videos):
    assert [held_out_count(n) for n in (6, 12, 36, 60, 100, 400, 9999)] == [
        2,
        4,
        12,
        16,
        20,
        80,
        100,
    ]
    with pytest.raises(ValueError, match=r"got 5\. Use --keep last"):
        held_out_count(5)
    facts = examine_folder(str(videos))
    cfg = small_config(videos, "run", model__queue_size=100)
    keep_best(cfg, hold_out(facts, "folders", seed=1))
    hook = cfg.custom_hooks[-1]
    assert hook.keep == "knn_top1" and cfg.model.queue_size == 4  # a batch, of the 8 that are left
    parts = [cfg.train_dataloader.dataset, hook.gallery.dataset, hook.queries.dataset]
    built = [DATASETS.build({**part, "pipeline": []}) for part in parts]
    training, gallery, held_out = ({d.path(i) for i in range(len(d))} for d in built)
    assert len(training) == 8 and len(held_out) == 4 and not training & held_out
    assert gallery == training  # there are fewer than a gallery may have


def test_sub_folders_are_no_classes_unless_the_user_says_so(videos):
    """They may be cameras or dates, of which the best recogniser is not wanted."""
    facts = examine_folder(str(videos))
    assert facts.num_classes == 2
    cfg = small_config(videos, "run", model__queue_size=100)
    choice = keep_best(cfg, hold_out(facts))
    hook = cfg.custom_hooks[-1]
    assert hook.keep == "rankme" and "queries" not in hook and "by rankme on 4" in choice.reason
    one = replace(facts, num_classes=1)
    with pytest.raises(ValueError, match="needs 2 to 3 sub-folders .* got 1"):
        hold_out(one, "folders")


def listed_scenes(videos, folder, scenes, folds=3):
    """A CSV file of all videos: labels that cross the folders, scenes, folds; and its rows."""
    names = list_videos(str(videos))
    paths = [names.path(i) for i in range(len(names))]
    rows = {p: ("xy"[i % 2], f"s{i // 2 % scenes}", str(i % folds)) for i, p in enumerate(paths)}
    lines = [",".join((path, *row)) for path, row in rows.items()]
    file = folder / "labels.csv"
    file.write_text("\n".join(["path,label,scene,fold", *lines, ""]))
    return str(file), rows


@pytest.mark.parametrize(
    "columns", [GroupColumns("scene"), GroupColumns(fold="fold=1"), GroupColumns()]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_labels_of_a_file_hold_whole_groups_or_a_fold_out(videos, tmp_path, columns, seed):
    file, rows = listed_scenes(videos, tmp_path, scenes=5)
    facts = examine_folder(str(videos))
    cfg = small_config(videos, tmp_path, model__queue_size=100)
    held = hold_out(facts, file, columns, seed)
    keep_best(cfg, held)
    hook = cfg.custom_hooks[-1]
    parts = (cfg.train_dataloader.dataset, hook.gallery.dataset, hook.queries.dataset)
    built = [DATASETS.build({**part, "pipeline": []}) for part in parts]
    training, gallery, queries = ([d.videos.path(i) for i in range(len(d))] for d in built)
    assert hook.keep == "knn_top1" and held.evaluated == len(gallery) + len(queries)
    assert sorted([*training, *queries]) == sorted(rows) and set(gallery) <= set(training)
    assert held.count == len(queries) >= 2
    for dataset, paths in zip(built[1:], (gallery, queries), strict=True):
        assert dataset.labels.tolist() == ["xy".index(rows[path][0]) for path in paths]
    if columns.group:
        assert not {rows[p][1] for p in queries} & {rows[p][1] for p in training}
    if columns.fold:
        assert {rows[p][2] for p in queries} == {"1"} and "of the fold 1" in held.words
    assert built[0].labels.tolist() == [-1] * len(training)


def test_labels_that_nothing_can_be_held_out_of(videos, tmp_path):
    file, rows = listed_scenes(videos, tmp_path, scenes=1)
    facts = examine_folder(str(videos))
    with pytest.raises(ValueError, match="every class of .* is in only one group or fold"):
        hold_out(facts, file, GroupColumns("scene"))
    lines = [f"{path},{'ab'[row[2] == '1']},{row[2]}" for path, row in rows.items()]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label,fold", *lines]))
    with pytest.raises(ValueError, match="the class 'b' of .* is in only one group or fold"):
        hold_out(facts, file, GroupColumns(fold="fold=1"))


def test_one_line_says_whether_the_result_is_better_than_the_start(videos, tmp_path, monkeypatch):
    """The comparison with random weights has other videos, and another measure."""
    compared = []
    room = "sce_video.runs.after_training"
    monkeypatch.setattr(
        f"{room}.compare_with_random", lambda *given: compared.append(given[3]) or {}
    )
    cfg = small_config(videos, tmp_path / "last")
    assert not keeps_best(cfg)
    facts = examine_folder(str(videos))
    keep_best(cfg, hold_out(facts))
    assert keeps_best(cfg)
    for config in (cfg, small_config(videos, tmp_path / "last")):
        config.pretrained = "start.pth"
        loader = MagicMock(dataset=range(8))
        runner = SimpleNamespace(
            cfg=config,
            work_dir=str(tmp_path),
            resumed_from=None,
            train_dataloader=loader,
            logger=MagicMock(),
        )
        monkeypatch.setattr(f"{room}.newest_checkpoint", lambda _: "end.pth")
        with suppress(KeyError, AttributeError):  # nothing is logged here
            compare_at_end(runner, 4, None)
    assert compared == [None, "start.pth"]


def test_by_command_with_classes(videos, tmp_path, capsys, monkeypatch):
    """The last line, the page and the config; a later training does not keep the old result."""
    monkeypatch.setattr(sys, "argv", ["sce-video"])
    run = tmp_path / "run"
    words = [w for k, v in TINY.items() for w in (f"--{k.replace('_', '-')}", str(v))]
    start = ["pretrain", str(videos), "--out", str(run), "--epochs", "2", "--method", "sce", *words]
    assert main([*start, "--keep", "best", "--labels", "folders"]) == 0
    shown = capsys.readouterr().out
    assert "by knn_top1 on 4 videos, which are held out" in shown
    assert shown.splitlines()[-1] == f"{run}: {kept_message(run)}"
    assert kept_message(run)[1:] in (run / "run.html").read_text()
    cfg = planned_config(run)  # as data
    assert cfg.custom_hooks[-1].keep == "knn_top1" and cfg.model.queue_size < 8
    (run / "run.json").write_text((run / "run.json").read_text().replace("KNN", "evil.Metric"))
    with pytest.raises(ValueError, match=r"names 'evil\.Metric', which is neither in the recipe"):
        planned_config(run)
    resumed = training_config(cfg, work_dir=run, resume=str(run))
    assert resumed.load_from == newest_checkpoint(run, to_resume=True)
    assert main(["pretrain", "--out", str(run), "--resume", "--keep", "best"]) == 2
    assert main([*start, "--overwrite"]) == 0
    assert not (run / KEPT).exists() and kept_message(run) is None
    for words in (["--labels", "folders"], ["--keep", "best", "--group-column", "scene"]):
        assert main([*start, "--overwrite", *words]) == 2
    said = capsys.readouterr().err
    assert "--labels needs --keep best" in said and "'scene' names a column of a CSV" in said
    few = make_videos(tmp_path / "few", 4)
    assert main(["pretrain", str(few), "--out", str(tmp_path / "no"), "--keep", "best"]) == 2
    assert "needs at least 6 videos, got 4" in capsys.readouterr().err


def ranks(videos, folder, rank, world):
    cfg = config(videos, folder / f"of{world}", HARMFUL, train_dataloader__batch_size=4 // world)
    cfg.launcher = "pytorch"
    runner, _ = train(cfg)
    return [runner.iter, *runner.hooks[-1].rows[-1]]


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_agree_on_the_end(videos, tmp_path):
    first, second = run_gloo(partial(ranks, videos, tmp_path), tmp_path)
    # By a loop, since normalisation over half a batch may make the first step a good one.
    rows = evaluations(tmp_path / "of2")
    reached = end = 0
    while end < STEPS and end - reached < STEPS // 5:
        end += 1
        reached = end if rows[end][2] >= rows[0][2] else reached
    assert first[0] == second[0] == end == len(rows) - 1
    kept = load_checkpoint_file(tmp_path / "of2" / KEPT)
    assert kept["meta"]["iter"] == max(rows, key=lambda row: row[2])[0]


def test_a_result_of_a_start_without_a_checkpoint_is_none(videos, tmp_path):
    """Else a later training that keeps the last checkpoint would stand for the earlier start."""
    cfg = config(videos, tmp_path, train_cfg__max_epochs=1, run_page=None)
    shutil.copy(videos / "class0/v00.mp4", tmp_path / KEPT)
    cfg.custom_hooks = cfg.custom_hooks[:-1]
    sce_video.runs.launch.run_training(training_config(cfg, work_dir=tmp_path))
    assert not (tmp_path / KEPT).exists()
