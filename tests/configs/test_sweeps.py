"""The sweep files: numbers of the paper, settings that confirm them, and shared steps."""

from __future__ import annotations

import re

import pytest

from sce_video.engine.config.differences import differences
from sce_video.engine.config.load import load_config, recipe_config
from sce_video.engine.config.snapshot import resolved_config
from sce_video.published.paper_results import PAPER_RESULTS, Setting, pretraining_recipe
from sce_video.runs.sweep_plan import plan, read_sweep

VIDEO = {  # name: table of the paper, points
    "video_lambda": ("tab:video-lambda-vary", 9),
    "video_temperature": ("tab:video-temp", 6),
    "video_color": ("tab:video-color", 3),
    "video_time": ("tab:video-time", 5),
    "video_best": ("tab:video-best", 5),
}
DATASETS = {"K200": "kinetics200", "UCF101": "ucf101", "HMDB51": "hmdb51"}


@pytest.fixture(scope="module")
def sweeps(repo):
    files = sorted((repo / "configs/sweeps").glob("*.py"))
    return {path.stem: read_sweep(path) for path in files}


def test_the_video_ablations_are_24_pretrainings_and_72_evaluations(sweeps, repo):
    everything = plan([sweeps[name] for name in (*VIDEO, "loss")], "out", root=repo)
    assert len({cell.step.before.folder for cell in everything}) == 24 + 5
    cells = [cell for cell in everything if cell.sweep in VIDEO]
    assert len(cells) == 3 * sum(points for _, points in VIDEO.values()) == 84
    steps = {cell.step.folder for cell in cells}
    assert len(steps) == 72 and len({cell.step.before.folder for cell in cells}) == 24
    assert {cell.step.before.result for cell in cells} == {"epoch_200.pth"}


def pretraining_of(sweep, point):
    """The name under which a point's pretraining is confirmed."""
    config = point.config or sweep.pretrain.config
    base = "sce_baseline" if config.endswith("_baseline.py") else "sce"
    return point.options.get("benchmark.pretraining", base)


@pytest.mark.parametrize("name", [*VIDEO, "loss"])
def test_published_numbers_and_settings_are_those_of_the_pretraining(sweeps, repo, name):
    numbers = {
        (p.pretraining, p.dataset): p.value
        for p in PAPER_RESULTS
        if p.pretrained_on == "kinetics200" and p.network == "r3d18" and p.metric == "top1"
    }
    sweep = sweeps[name]
    for point in sweep.points:
        pretraining = pretraining_of(sweep, point)
        expected = {c: numbers.get((pretraining, data)) for c, data in DATASETS.items()}
        assert point.published == {c: value for c, value in expected.items() if value is not None}
        setting = {"pretrained_on": "kinetics200", "network": "r3d18", "frames": 8, "size": 224}
        recipe = pretraining_recipe(Setting.stated({**setting, "pretraining": pretraining}))
        if recipe is None:
            assert name == "loss" and pretraining.startswith("sce_free_") and not point.published
            continue
        cfg = load_config(repo / (point.config or sweep.pretrain.config), point.options)
        config = resolved_config(cfg, 8 * cfg.train_dataloader.batch_size)
        assert differences(config, recipe_config(*recipe)) == []


@pytest.mark.parametrize("name", VIDEO)
def test_a_sweep_has_every_row_of_its_table(sweeps, name):
    table, points = VIDEO[name]
    sweep = sweeps[name]
    assert sweep.source == table and len(sweep.points) == points
    rows = {p.pretraining for p in PAPER_RESULTS if p.table == table}
    named = {pretraining_of(sweep, point) for point in sweep.points}
    assert named == rows | {"sce_baseline"}
    assert all(set(point.published) == set(DATASETS) for point in sweep.points)


def test_columns_are_the_protocols_of_the_paper(sweeps, repo):
    """K200 is linear, UCF101 and HMDB51 finetuned on split 1, with a batch of 64 on 8 GPUs."""
    for name in (*VIDEO, "loss"):
        assert [column.name for column in sweeps[name].columns] == list(DATASETS)
        assert sweeps[name].columns == sweeps["loss"].columns
    linear, *finetuned = sweeps["loss"].columns
    assert "linear" in linear.config and not linear.options
    for column in finetuned:
        assert "finetune" in column.config and column.name.lower() in column.config
        assert column.options == {"train_dataloader.batch_size": 64 // 8}
    assert {(c.training, c.metric) for c in sweeps["loss"].columns} == {("one", "top1")}


def test_the_images_numbers_of_the_coefficients_are_marked(sweeps):
    """tab:loss: (tau_m 0.05, tau_m 0.07) by coefficients."""
    printed = {
        "1, 0, 0": ("81.11", "81.11"),
        "0.5, 0.5, 0": ("82.80", "82.49"),
        "0.5, 0.5, 0.5": ("82.94", "83.37"),
        "0, 1, 0": ("80.79", "78.35"),
        "0, 1, 1": ("81.53", "79.64"),
    }
    sweep = sweeps["loss"]
    assert "another protocol" in sweep.notes[0] and "tab:loss" not in sweep.source
    for point in sweep.points:
        coefficients = re.fullmatch(r"(?:[^:]*: )?([\d., ]+?)(?: \(.*\))?", point.name)[1]
        low, high = printed[coefficients]
        values = {"0.05": low, "0.07": high}.get(point.name[-5:-1], f"{low} and {high}")
        assert point.note == f"images: {values}"
