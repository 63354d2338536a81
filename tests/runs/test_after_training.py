"""The comparison with random weights at the end: in batches, in time, and made up for later."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.tiny_encoder import save_tiny
from helpers.training import make_videos, small_config

from sce_video.commands.main import main
from sce_video.engine.checkpoint import newest_checkpoint
from sce_video.engine.hooks.budget import BudgetHook
from sce_video.evaluation.random_weights import compare_features
from sce_video.inference.embed import embed_videos
from sce_video.inference.embed_job import VideoFiles
from sce_video.inference.model import load_model, with_random_weights
from sce_video.inference.network_input import ViewOptions
from sce_video.pages.run_page import tiles
from sce_video.runs import after_training
from sce_video.runs import page as run_page
from sce_video.runs.after_training import compare_at_end, compare_with_random
from sce_video.runs.folder import chance_level, read_run
from sce_video.runs.page import train_with_page
from sce_video.utils.command import command
from sce_video.utils.cores import cores_for_workers
from sce_video.utils.run_files import ALARMS, METRICS, PAGE


def config_of(root, videos, **changes):
    cfg = small_config(videos, root / "run", train_cfg__max_epochs=1, **changes)
    cfg.run_page = dict(videos=0, compared=6)
    return cfg


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"), count=6)


@pytest.fixture(scope="module")
def interrupted(videos, tmp_path_factory):
    """A finished training whose comparison Ctrl-C ended, and the message; not to be changed."""
    root = tmp_path_factory.mktemp("interrupted")

    def end(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_page, "compare_at_end", end)
        with pytest.raises(KeyboardInterrupt) as raised:
            train_with_page(config_of(root, videos))
    return root / "run", str(raised.value)


@pytest.fixture
def run(interrupted, tmp_path):
    return shutil.copytree(interrupted[0], tmp_path / "copy")


class Files:
    """A training set of the videos of a folder."""

    def __init__(self, folder):
        self.files = sorted(map(str, folder.rglob("*.mp4")))
        self.labels = np.arange(len(self.files)) % 2

    def __len__(self):
        return len(self.files)

    def path(self, index):
        return self.files[index]


def test_the_numbers_equal_those_of_single_clips(run, videos):
    dataset, checkpoint = Files(videos), newest_checkpoint(run)
    found = compare_with_random(checkpoint, dataset, videos=6)
    trained = load_model(checkpoint)
    features = {}
    of_pixels = replace(trained.settings, backbone={"type": "GreyPixels"})
    networks = {
        "trained": trained,
        "random": with_random_weights(trained),
        "pixels": with_random_weights(replace(trained, settings=of_pixels)),
    }
    for name, network in networks.items():
        means = embed_videos(network, dataset.files, ViewOptions(num_clips=2))
        reader = VideoFiles(network, after_training.TWO_CLIPS)
        clips = []
        for sample in map(reader.read, dataset.files):
            parts = [{**sample, "positions": positions[None]} for positions in sample["positions"]]
            clips.append(torch.cat([network.rows({"videos": [p]}, 1).values for p in parts]))
        features[name] = torch.stack(clips)
        np.testing.assert_allclose(features[name].mean(dim=1), means, atol=1e-5)
    assert found == pytest.approx(
        compare_features(features, torch.from_numpy(dataset.labels)), rel=1e-3
    )


def test_the_time_limit_ends_it_with_the_videos_that_are_done(run, videos):
    found = compare_with_random(newest_checkpoint(run), Files(videos), videos=6, seconds=0)
    assert 2 <= found["videos"] < 6


def test_it_takes_what_is_left_of_the_budget(monkeypatch, run):
    asked = []

    def compare(checkpoint, dataset, videos, start, seconds, teacher):
        asked.append(seconds)
        raise ValueError("enough")

    monkeypatch.setattr(after_training, "compare_with_random", compare)
    said = []
    logger = SimpleNamespace(info=said.append, warning=said.append)
    loader = SimpleNamespace(dataset=range(6))
    runner = SimpleNamespace(
        work_dir=str(run), cfg={}, resumed_from=None, train_dataloader=loader, logger=logger
    )
    hook = BudgetHook(hours=0.1, spent=260.0)
    hook.clock = lambda: hook._begun
    compare_at_end(runner, 6, hook)
    hook._before = 500.0  # the budget is used up
    compare_at_end(runner, 6, hook)
    compare_at_end(runner, 6, None)
    assert asked == pytest.approx([75.0, 10.8, 300.0])
    assert "up to 6 videos, for at most 75 s" in said[0] and "enough" in said[1]


def test_ctrl_c_after_the_training_does_not_promise_that_it_goes_on(interrupted, capsys):
    run, message = interrupted
    assert "interrupted after training, which is complete" in message and f"report {run}" in message

    @command(interrupted="--resume continues")
    def tool(argv=None):
        raise KeyboardInterrupt(message)

    assert tool() == 130
    shown = capsys.readouterr().err
    assert "complete" in shown and "--resume" not in shown
    assert read_run(run).end.status == "finished"


def test_a_page_without_the_comparison_says_so_and_is_not_green(run):
    html = run_page.write_run_page(run, run_page.PageOptions(videos=0)).read_text()
    assert "Does it help?" in html and "not compared with random weights" in html
    assert '<div class="alarm none">No alarm was raised.</div>' not in html


def test_the_report_makes_up_for_the_comparison_once(run, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sce-video"])
    monkeypatch.setattr(after_training, "decision", lambda row: after_training.NO_BETTER)
    assert main(["report", str(run), "--videos", "2"]) == 0
    record, html = read_run(run), (run / PAGE).read_text()
    assert record.compared["videos"] == 6 and "gain_random" in record.compared
    assert "not compared" not in html and "Does it help?" in html
    (alarm,) = [json.loads(line) for line in (run / ALARMS).read_text().splitlines()]
    assert alarm["alarm"] == "no_better" and "Train longer" in html
    length = len((run / METRICS).read_text())
    assert main(["report", str(run), "--videos", "2"]) == 0
    assert len((run / METRICS).read_text()) == length


def test_the_report_compares_with_the_start_and_the_teacher_if_they_are_here(
    run, tmp_path, monkeypatch
):
    """A config may come from somebody else, so no name in it leads to a download."""
    asked = []

    def compare(checkpoint, dataset, videos, start, seconds, teacher):
        asked.append((start, teacher and teacher.checkpoint))
        raise ValueError("enough")

    monkeypatch.setattr(after_training, "compare_with_random", compare)
    network, record = str(save_tiny(tmp_path / "net.pth")), read_run(run)
    step = {"type": "OneOfClips", "clip_duration": 0.4, "num_frames": 4, "num_clips": 2}
    for start, teacher, wanted in (
        (network, network, (network, network)),
        (None, None, (None, None)),
        ("hf:facebook/dinov2-small", "efficientnet-lite0", (None, None)),
        (str(tmp_path / "gone.pth"), "s3://bucket/net.pth", (None, None)),
    ):
        config = {**record.config, "pretrained": start, "teacher_checkpoint": teacher}
        loader = record.config["train_dataloader"]
        dataset = {**loader["dataset"], "pipeline": [step]}
        config["train_dataloader"] = {**loader, "dataset": dataset}
        after_training.compared_later(replace(record, config=config), None, notes := [])
        assert asked.pop() == wanted and len(notes) == 1
    config = {**record.config, "pretrained": network, "custom_hooks": [{"keep": "rankme"}]}
    after_training.compared_later(replace(record, config=config), None, [])
    assert asked == [(None, None)]  # the best checkpoint was compared with it in training


def test_the_number_of_iterations_is_that_of_the_end(run):
    record = read_run(run)
    history = [dict(row) for row in record.history]
    history[-1]["iter"] = record.last["iter"] + 5
    assert (
        tiles(replace(record, history=history))[0].detail
        == f"iteration {record.last['iter'] + 5:,}"
    )


def test_a_resumed_training_keeps_its_number_of_threads(run, monkeypatch):
    starts = [row for row in read_run(run).history if row["event"] == "start"]
    assert isinstance(starts[-1]["threads"], int)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("sce_video.utils.cores.free_cores", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with cores_for_workers(0, threads=3):
            assert torch.get_num_threads() == 3
        with cores_for_workers(0):
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_the_chance_level_of_the_page_is_the_logged_one(run):
    """Of SimCLR it depends on the batch of a step, which a config does not tell."""
    record = read_run(run)
    assert record.last["chance_level"] == pytest.approx(chance_level(record.config))
    assert record.chance == record.last["chance_level"]
    lines = (run / METRICS).read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows:
        row["chance_level"] = 1.25
    (run / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_run(run).chance == 1.25
