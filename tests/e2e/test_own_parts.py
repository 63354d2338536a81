"""The files of docs/extend.md, in a folder outside the repository, go through every command."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil

import numpy as np
import pytest
import torch
from helpers.own_parts import REPO, page_files, registries_restored
from helpers.run_tool import run_tool, run_tool_ranks
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
    assert "the run is finished" in done(lab, "pretrain", "--out", "run", "--resume", *IMPORT)


def test_a_run_is_evaluated_with_its_metric(lab):
    words = ("evaluate", "run", "--test", "videos", "--gallery", "videos")
    assert ADVICE in refused(lab, *words)
    assert "sparsity" in done(lab, *words, *IMPORT)
    written = json.loads((lab / "run/results.json").read_text())
    assert 0 <= written["metrics"]["sparsity"] < 1
    assert written["protocol"]["imports"] == ["my_parts"]
    assert "Sparsity of my_sparsity" in written["protocol"]["foreign_classes"]


def test_a_metric_needs_no_recipe_and_no_gallery(lab):
    """Of videos, and of a file of features."""
    words = ("evaluate", "run", "--test", "videos", "--protocols", "Sparsity", "--out", "s.json")
    line = refused(lab, *words)
    assert "rankme" in line and "or a metric that a module of --import registers" in line
    done(lab, *words, "--no-random", *IMPORT)
    done(lab, "embed", "videos", "--out", "s.npz", "--checkpoint", "run", "--workers", "0", *IMPORT)
    probe = ("probe", "--test", "s.npz", "--group-pattern", r"(v\d+)", "--json", "probe.json")
    done(lab, *probe, "--protocols", "Sparsity", *IMPORT)
    rows = np.load(lab / "s.npz")["features"]
    for name in ("s.json", "probe.json"):
        metrics = json.loads((lab / name).read_text())["metrics"]
        assert metrics["sparsity"] == pytest.approx((rows == 0).mean())
        assert "knn_top1" not in metrics


TUNE = "--epochs 1 --size 32 --frames 2 --clips 1 --crops 1 --workers 0".split()


def test_a_run_is_finetuned_and_predicts(lab):
    words = ("finetune", "run", "--train", "videos", "--out", "tuned", *TUNE)
    assert ADVICE in refused(lab, *words)
    done(lab, *words, *IMPORT)
    stored = torch.load(lab / "tuned/epoch_1.pth", weights_only=True)
    before = torch.load(lab / "run/epoch_1.pth", weights_only=True)
    name = "backbone.layers.0.weight"
    assert stored["state_dict"][name].shape == before["state_dict"][name].shape
    words = ("predict", "tuned", "videos/class1")
    assert ADVICE in refused(lab, *words)
    assert "6 of 6 files classified" in done(lab, *words, "--workers", "1", *IMPORT)


@pytest.mark.parametrize("source", ["none", "run"])
def test_a_finetuning_has_a_recipe_with_all_parts(lab, source):
    """Network, classifier, dataset and hook; it is resumed, tested and predicts."""
    out = f"tuned_{source}"
    words = ("finetune", source, "--train", "videos", "--out", out, "--recipe", "cosine", *TUNE)
    assert "--recipe must be one of r3d18_folder, got 'cosine'" in refused(lab, *words)
    assert "which is a CosineHead" in refused(lab, *words, "--head", "linear", *IMPORT)
    shown = done(lab, *words, *IMPORT)
    assert re.search(r"head +CosineHead +of the recipe", shown) and "width" not in shown
    described = json.loads((lab / out / "run.json").read_text())
    classes = ["CosineHead of my_head", "LargeFiles of my_videos", "Reminder of my_hooks"]
    assert described["plan"]["recipe"] == "cosine"
    assert described["environment"]["foreign_classes"] == [*classes, "SmallConv3d of my_backbone"]
    weights = torch.load(lab / out / "epoch_1.pth", weights_only=True)["state_dict"]
    assert weights["cls_head.directions"].shape == (2, 16)
    assert weights["backbone.layers.0.weight"].shape[0] == 8
    resume = ("finetune", "--out", out, "--resume")
    assert ADVICE in refused(lab, *resume)
    assert "the run is finished" in done(lab, *resume, *IMPORT)
    predict = ("predict", out, "videos/class1", "--csv", f"{out}.csv")
    assert ADVICE in refused(lab, *predict)
    done(lab, *predict, "--workers", "0", *IMPORT)
    table = (lab / f"{out}.csv").read_text().splitlines()
    assert len(table) > 6 and all("class" in line for line in table[1:])
    tested = ("evaluate", out, "--test", "videos", "--gallery", "videos", "--no-random", *IMPORT)
    assert "top1" in done(lab, *tested)


def test_an_index_is_built_searched_and_curated(lab):
    words = ("index", "videos", "--checkpoint", "run", "--out", "index")
    assert ADVICE in refused(lab, *words)
    assert "1 unreadable" in done(lab, *words, "--workers", "2", *IMPORT)
    assert json.loads((lab / "index/index.json").read_text())["imports"] == ["my_parts"]
    shutil.copy(lab / "videos/class0/v00.mp4", lab / "query.mp4")  # is not in the index
    query = ("search", "--index", "index", "query.mp4", "--no-html", "--device", "cpu")
    line = refused(lab, *query)
    assert "the network of the index index cannot be built" in line
    assert "The index used --import my_parts. If you trust this code" in line
    found = done(lab, *query, *IMPORT)
    assert re.search(r"1\s+1\.0000.*class0/v00\.mp4", found)
    done(lab, "curate", "index", "--out", "curated", "--workers", "1", *IMPORT)
    assert "class0/v00.mp4" in (lab / "curated/keep.txt").read_text()


def test_a_dataset_lists_what_is_indexed_curated_and_embedded(lab):
    """Without it, the small file is listed and cannot be decoded."""
    given = ("--checkpoint", "run", "--dataset", "LargeFiles", "--workers", "0")
    for command, out in (("index", "large"), ("curate", "kept"), ("embed", "large.npz")):
        words = (command, "videos", "--out", out, *given)
        line = refused(lab, *words)
        assert "--dataset must be the name of a dataset that a module of --import reg" in line, line
        done(lab, *words, *IMPORT)
    described = json.loads((lab / "large/index.json").read_text())
    assert len(described["files"]) == 12 and described["failures"] == []
    assert described["settings"]["dataset"] == "LargeFiles"
    embedded = np.load(lab / "large.npz")
    assert len(embedded["features"]) == 12
    kept = (lab / "kept/keep.txt").read_text()
    assert "class0/v00.mp4" in kept and "short.mp4" not in kept
    windows = ("embed", "videos", "--out", "windows.npz", *given, "--windows", "0.5s", *IMPORT)
    assert "short.mp4" not in done(lab, *windows)
    # An update lists the same videos, and asks for the module.
    update = ("index", "videos", "--out", "large", "--workers", "0")
    assert "The index used --import my_parts" in refused(lab, *update)
    assert "12 kept" in done(lab, *update, *IMPORT)
    line = refused(lab, "index", "a.csv", "--out", "x", *given, *IMPORT)
    assert "lists the videos of a folder" in line


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
    assert "name its module with --import" in refused(lab, *train, *options(TRAINING))
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


@pytest.mark.distributed
def test_two_processes_train_and_test_with_the_module(lab):
    """Each rank imports it, and the network is that of both: the features of all videos agree."""
    work, launched = ("--work-dir", "ranks"), ("--launcher", "pytorch", *IMPORT)
    train = ("train.py", "my_recipe.py", *work, *launched)
    small = {**TRAINING, "train_dataloader.batch_size": 2}
    # After 12 steps the hook has logged.
    for ended in run_tool_ranks(*train, *options({**small, "train_cfg.max_epochs": 4}), cwd=lab):
        assert ended.returncode == 0, ended.stderr[-2000:]
    (log,) = (lab / "ranks").glob("2*/*.log")
    assert "10 iterations are done" in log.read_text()
    record = torch.load(lab / "ranks/epoch_4.pth", weights_only=True)["meta"]["training"]
    assert record["imports"] == ["my_parts"] and "SimSiam of my_method" in record["foreign_classes"]
    test = ("test", "my_recipe.py", "ranks/epoch_4.pth", "--work-dir")
    for ended in run_tool_ranks(*test, "ranks/two", *launched, *options(TEST), cwd=lab):
        assert ended.returncode == 0, ended.stderr[-2000:]
    done(lab, *test, "ranks/one", *IMPORT, *options(TEST))
    two, one = (json.loads((lab / f"ranks/{n}/results.json").read_text()) for n in ("two", "one"))
    assert two["metrics"] == pytest.approx(one["metrics"])


def test_a_ray_cluster_embeds_with_the_module(lab):
    """Its processes import the module, which they find on their own PYTHONPATH."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    words = ("embed", "videos", "--checkpoint", "run", *IMPORT)
    done(lab, *words, "--out", "here.npz", "--workers", "0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("PYTHONPATH", f"{REPO}{os.pathsep}{lab}")
        node = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "include_dashboard": False}
        cluster = Cluster(True, head_node_args=node)
        try:
            done(lab, *words, "--out", "ray.npz", "--ray", cluster.address)
        finally:
            cluster.shutdown()
    here, there = (np.load(lab / name) for name in ("here.npz", "ray.npz"))
    np.testing.assert_array_equal(here["paths"], there["paths"])
    np.testing.assert_array_equal(here["features"], there["features"])


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
    assert failed.returncode == 1 and "name its module with --import" in failed.stdout
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
