"""A grid of attentive probes: trained, validated, one selected and tested, by the recipes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from helpers.recognition import small_options
from helpers.training import REPO

from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.evaluation.loop import select_probe
from sce_video.evaluation.rows import Rows
from sce_video.inference.classifier import load_classifier
from sce_video.models.heads import GridPoint
from sce_video.runs import configs, launch

RECIPE = REPO / "configs/downstream/attentive_probe/r3d50_8xb32-8x224-20e_k400.py"
NAMES = ["lr0.01_wd0.1", "lr0.01_wd0.2", "lr0.001_wd0.1", "lr0.001_wd0.2"]
SELECTION = "test_cfg__selection_dataloader"


def options(root, **changes):
    select = f"{SELECTION}__dataset__pipeline"
    changes = {
        "model__backbone__depth": 18,
        "model__cls_head__num_heads": 4,
        "model__cls_head__lrs": "0.01,0.001",
        "model__cls_head__weight_decays": "0.1,0.2",
        "train_cfg__max_epochs": 1,
        "test_dataloader__dataset__pipeline__UniformClips__num_clips": 2,
        "val_dataloader__dataset__ann_file": "test_split2.txt",
        f"{SELECTION}__num_workers": 0,
        f"{SELECTION}__dataset__data_root": root,
        f"{SELECTION}__dataset__ann_file": "test_split2.txt",
        f"{select}__UniformClips__num_frames": 2,
        f"{select}__ResizeShortSide__size": 36,
        f"{select}__CenterCropClips__size": 36,
        **changes,
    }
    return small_options(root, **changes)


@pytest.fixture(scope="module")
def trained(split_videos, tmp_path_factory):
    """Checkpoint and log of the recipe, made small."""
    folder = tmp_path_factory.mktemp("probes")
    cfg = configs.training_config(
        RECIPE, work_dir=folder, pretrained="random", amp="float32",
        cfg_options=options(split_videos),
    )  # fmt: skip
    launch.run_training(cfg)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return folder / "epoch_1.pth", rows


def run_test(root, checkpoint, folder, **changes):
    cfg = configs.testing_config(
        RECIPE, str(checkpoint), work_dir=folder, cfg_options=options(root, **changes)
    )
    launch.run_test(cfg)
    return json.loads((folder / "results.json").read_text())


def test_validation_names_every_point(trained):
    (row,) = [
        row for row in trained[1] if f"top1_{NAMES[0]}" in row or f"val/top1_{NAMES[0]}" in row
    ]
    found = {key.removeprefix("val/"): value for key, value in row.items()}
    accuracies = [found[f"top1_{name}"] for name in NAMES]
    assert found["top1"] == max(accuracies) and "mean_class_accuracy" in found


def test_a_probe_is_selected_before_the_test(split_videos, trained, tmp_path):
    # The grid is that of the checkpoint, not of the config of the test.
    results = run_test(split_videos, trained[0], tmp_path, model__cls_head__lrs="0.5,0.7")
    points = load_checkpoint_file(trained[0])["state_dict"]["cls_head.points"]
    assert points.tolist() == [[0.01, 0.1], [0.01, 0.2], [0.001, 0.1], [0.001, 0.2]]
    assert results["protocol"]["num_classes"] == 2 and results["protocol"]["videos"] == 5
    selection = results["protocol"]["selection"]
    points = selection["points"]
    assert [point["name"] for point in points] == NAMES
    assert selection["selected"] == max(points, key=lambda point: point["top1"])
    assert selection["videos"] == 5 and selection["rule"].startswith("highest top-1")
    assert selection["data"]["ann_file"].endswith("test_split2.txt")
    assert len(selection["data"]["ann_sha256"]) == 64
    assert selection["tested_videos"] == 4, "of lists 1 and 2"
    given = run_test(
        split_videos, trained[0], tmp_path / "given", model__cls_head__selected=3,
        **{SELECTION: None},
    )  # fmt: skip
    described = given["protocol"]["selection"]
    assert described["selected"]["name"] == NAMES[3] and "given" in described["rule"]


def test_a_grid_is_not_tested_without_a_choice(split_videos, trained, tmp_path):
    with pytest.raises(ValueError, match="grid of probes .* Set test_cfg.selection_dataloader"):
        run_test(split_videos, trained[0], tmp_path, **{SELECTION: None})
    with pytest.raises(ValueError, match=r"cls_head.points \(4, 2\).*the grid of probes differs"):
        run_test(split_videos, trained[0], tmp_path, model__cls_head__lrs="0.01,0.1,0.2")
    with pytest.raises(ValueError, match=r"grid of probes. Set model.cls_head.selected"):
        load_classifier(trained[0], config=trained[0].parent / RECIPE.name, device="cpu")


def rows_of(values, labels):
    count = len(labels)
    return Rows(
        torch.as_tensor(values), torch.as_tensor(labels), torch.arange(count),
        [f"{i}.mp4" for i in range(count)],
    )  # fmt: skip


def test_the_selection_equals_a_loop():
    generator = np.random.default_rng(0)
    scores, labels = generator.random((40, 5, 3), np.float32), generator.integers(0, 3, 40)
    scores[:, 4] = scores[:, 1]  # as good as another
    scores[:, 0] = np.nan  # of a probe that has diverged
    rows = rows_of(scores.reshape(40, 15), labels)
    grid = [GridPoint(0.1 * (i + 1), 0.0) for i in range(5)]
    accuracies = [np.mean(scores[:, g].argmax(1) == labels) if g else 0.0 for g in range(5)]
    selection = select_probe(rows, grid)
    found, text = selection.described(), selection.sentence
    assert [point["top1"] for point in found["points"]] == pytest.approx(accuracies)
    assert [point["name"] for point in found["points"]] == [point.name for point in grid]
    best = int(np.argmax(accuracies))
    assert found["selected"]["index"] == best != 4 and grid[best].name in text
    with pytest.raises(ValueError, match="selection of a probe needs them"):
        select_probe(rows_of(scores.reshape(40, 15), np.full(40, -1)), grid)
