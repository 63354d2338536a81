"""The files of docs/extend.md, in a folder outside the repository, go through every command."""

from __future__ import annotations

import importlib
import json
import re
import shutil

import numpy as np
import pytest
import torch
from helpers.own_parts import REPO, page_files, registries_restored
from helpers.run_tool import run_tool
from helpers.training import make_videos

import sce_video

IMPORT = ("--import", "my_parts")
ADVICE = "The training used --import my_parts. If you trust this code, add the same"
SMALL = "--epochs 1 --size 32 --frames 2 --batch 4 --epoch-samples 8 --workers 0".split()
#: Options that make a training of the recipe small, by config.
TRAINING = {
    "train_dataloader.dataset.data_root": "videos",
    "train_dataloader.batch_size": 4,
    "train_dataloader.num_workers": 0,
    "train_dataloader.persistent_workers": False,
    "train_dataloader.sampler.min_samples": 0,
    "train_dataloader.dataset.pipeline.RandomClips.num_frames": 2,
    "train_dataloader.dataset.pipeline.RandomClips.clip_duration": 0.3,
    "train_dataloader.dataset.pipeline.RandomResizedCropClips.size": 32,
    "custom_hooks.ScheduleHook.lr.warmup_epochs": 0,
    "train_cfg.max_epochs": 1,
    "visualizer": None,
}
TEST = {
    "test_dataloader.dataset.data_root": "videos",
    "test_dataloader.num_workers": 0,
    "test_cfg.gallery_dataloader.dataset.data_root": "videos",
    "test_cfg.gallery_dataloader.num_workers": 0,
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A folder with the files of the page, twelve videos and the run that pretrains on them."""
    folder = tmp_path_factory.mktemp("lab")
    for name, block in page_files(REPO / "docs/extend.md").items():
        (folder / name).write_text(block)
    make_videos(folder / "videos", count=12)
    (folder / "videos/class0/short.mp4").write_bytes(b"left out by LargeFiles")
    done(folder, "pretrain", "videos", "--out", "run", "--method", "simsiam", *SMALL, *IMPORT)
    return folder


def done(folder, *words):
    """What a command prints that ends with status 0."""
    ended = run_tool(*words, cwd=folder)
    assert ended.returncode == 0, f"{words}: {ended.stdout[-500:]}{ended.stderr[-2000:]}"
    return ended.stdout + ended.stderr


def refused(folder, *words):
    """The one line of a command that ends with status 2."""
    ended = run_tool(*words, cwd=folder)
    assert ended.returncode == 2 and "Traceback" not in ended.stderr, ended.stderr
    return ended.stderr.strip().splitlines()[-1]


def options(values):
    return ["--cfg-options", *(f"{key}={value}" for key, value in values.items())]


def test_a_pretraining_has_all_parts_and_records_them(lab):
    described = json.loads((lab / "run/run.json").read_text())
    classes = ["Cutout of my_transform", "LargeFiles of my_videos", "Reminder of my_hooks"]
    classes += ["SimSiam of my_method", "SmallConv3d of my_backbone"]
    assert described["plan"]["recipe"] == "simsiam"
    assert described["environment"]["imports"] == ["my_parts"]
    assert described["environment"]["foreign_classes"] == classes
    content = torch.load(lab / "run/epoch_1.pth", weights_only=True)
    record = content["meta"]["training"]
    assert (record["imports"], record["foreign_classes"]) == (["my_parts"], classes)
    assert record["data"]["samples"] == 12 and "backbone.layers.0.weight" in content["state_dict"]


def test_a_pretraining_resumes_with_its_module_alone(lab):
    line = refused(lab, "pretrain", "--out", "run", "--resume")
    assert ADVICE in line and "run/run.json" in line
    assert "the training is finished" in done(lab, "pretrain", "--out", "run", "--resume", *IMPORT)


def test_a_run_is_evaluated_with_its_metric(lab):
    words = ("evaluate", "run", "--test", "videos", "--gallery", "videos")
    assert ADVICE in refused(lab, *words)
    assert "sparsity" in done(lab, *words, *IMPORT)
    written = json.loads((lab / "run/results.json").read_text())
    assert 0 <= written["metrics"]["sparsity"] < 1
    assert written["protocol"]["imports"] == ["my_parts"]
    assert "Sparsity of my_sparsity" in written["protocol"]["foreign_classes"]


def test_a_run_is_finetuned_and_predicts(lab):
    words = ("finetune", "run", "--train", "videos", "--out", "tuned", "--epochs", "1")
    assert ADVICE in refused(lab, *words)
    done(lab, *words, "--workers", "0", *IMPORT)
    stored = torch.load(lab / "tuned/epoch_1.pth", weights_only=True)
    before = torch.load(lab / "run/epoch_1.pth", weights_only=True)
    name = "backbone.layers.0.weight"
    assert stored["state_dict"][name].shape == before["state_dict"][name].shape
    words = ("predict", "tuned", "videos/class1")
    assert ADVICE in refused(lab, *words)
    assert "6 of 6 files classified" in done(lab, *words, "--workers", "1", *IMPORT)


def test_an_index_is_built_searched_and_curated(lab):
    words = ("index", "videos", "--checkpoint", "run", "--out", "index")
    assert ADVICE in refused(lab, *words)
    done(lab, *words, "--workers", "2", *IMPORT)
    shutil.copy(lab / "videos/class0/v00.mp4", lab / "query.mp4")  # is not in the index
    query = ("search", "--index", "index", "query.mp4", "--no-html", "--device", "cpu")
    assert "--import MODULE" in refused(lab, *query)
    found = done(lab, *query, *IMPORT)
    assert re.search(r"1\s+1\.0000.*class0/v00\.mp4", found)
    done(lab, "curate", "index", "--out", "curated", "--workers", "1", *IMPORT)
    assert "class0/v00.mp4" in (lab / "curated/keep.txt").read_text()


def test_features_are_those_of_an_exported_network(lab):
    words = ("embed", "videos", "--out", "features.npz", "--checkpoint")
    assert ADVICE in refused(lab, *words, "run")
    done(lab, *words, "run", "--workers", "2", *IMPORT)
    done(lab, "export", "run", "--to", "pretrained", "--out", "exported", *IMPORT)
    other = ("embed", "videos", "--out", "others.npz", "--checkpoint", "exported")
    done(lab, *other, "--workers", "0", *IMPORT)
    features, others = (np.load(lab / name)["features"] for name in ("features.npz", "others.npz"))
    assert features.shape[1] == 16
    np.testing.assert_array_equal(features[:12], others[:12])


def test_a_config_is_trained_resumed_and_tested(lab):
    work = ("--work-dir", "trained")
    train = ("train.py", "my_recipe.py", *work)
    assert "name its module by --import" in refused(lab, *train, *options(TRAINING))
    done(lab, *train, *IMPORT, *options(TRAINING))
    line = refused(lab, *train, "--resume", *options(TRAINING))
    assert ADVICE in line and "trained/epoch_1.pth" in line
    done(lab, *train, "--resume", *IMPORT, *options({**TRAINING, "train_cfg.max_epochs": 2}))
    test = ("test", "my_recipe.py", "trained/epoch_2.pth", *work, *IMPORT, *options(TEST))
    assert "sparsity" in done(lab, *test)
    (row,) = [
        json.loads(line)
        for line in (lab / "trained/history.jsonl").read_text().splitlines()
        if '"start"' in line and '"iter": 3' in line
    ]
    assert "SimSiam of my_method" in row["own_parts"]


def test_a_sweep_trains_and_tests_with_the_module(lab):
    content = f"""
title = "One point"
pretrain = dict(config="my_recipe.py", options={TRAINING})
points = [dict(name="four", options={{"model.backbone.channels": 4}})]
columns = [dict(name="kNN", config="my_recipe.py", metric="knn_top1", options={TEST})]
"""
    (lab / "my_sweep.py").write_text(content)
    sweep = ("sweep", "my_sweep.py", "--out", "swept")
    failed = run_tool(*sweep, cwd=lab)
    assert failed.returncode == 1 and "name its module by --import" in failed.stdout
    assert "| four |" in done(lab, *sweep, *IMPORT)


def test_in_python_an_import_is_enough(lab, monkeypatch):
    monkeypatch.chdir(lab)
    monkeypatch.syspath_prepend(str(lab))
    with registries_restored(lab):
        with pytest.raises(ValueError, match=ADVICE):
            sce_video.load_model("run", device="cpu")
        importlib.import_module("my_parts")
        assert sce_video.load_model("run", device="cpu").feature_size == 16
        assert sce_video.resolved("simsiam").config.model.type == "SimSiam"


def test_the_report_names_the_parts(lab):
    done(lab, "report", "run", *IMPORT)
    report, page = ((lab / "run" / name).read_text() for name in ("report.md", "run.html"))
    assert "own parts: " in report and "SmallConv3d of my\\_backbone" in report
    assert "SmallConv3d of my_backbone" in page
