"""The last epoch is the result; the best one is kept if asked, apart and marked."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers import image_trees
from helpers.run_tool import load
from helpers.training import REPO

from sce_video.engine.checkpoint import selected_on
from sce_video.evaluation.metrics.base import format_metrics
from sce_video.reporting.comparability import selection_of
from sce_video.runs import configs, launch
from sce_video.runs.configs import checkpoints_to_test

RECIPE = REPO / "configs/downstream/linear/r18_1xb256-32-100e_cifar10.py"
EPOCHS = 3
KEEP_BEST = ["default_hooks.checkpoint.save_best=top1", "train_cfg.val_interval=1"]


def small(root):
    """Options of the recipe on a small tree."""
    options = {
        "visualizer": None,
        "model.backbone.base_channels": 4,
        "model.cls_head.in_channels": 32,
        "train_cfg.max_epochs": EPOCHS,
        "train_dataloader.batch_size": 20,
        "train_dataloader.persistent_workers": False,
    }
    for name in ("train_dataloader", "val_dataloader", "test_dataloader"):
        options |= {f"{name}.num_workers": 0, f"{name}.dataset.data_root": root}
        options |= {f"{name}.dataset.check_counts": False}
    return [f"{key}={value}" for key, value in options.items()]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return image_trees.make_cifar10(tmp_path_factory.mktemp("cifar10"))


@pytest.fixture(scope="module")
def kept_best(root, tmp_path_factory):
    folder, options = tmp_path_factory.mktemp("best"), [*small(root), *KEEP_BEST]
    cfg = configs.training_config(RECIPE, work_dir=folder, pretrained="random", cfg_options=options)
    launch.run_training(cfg)
    return folder


def test_one_command_tests_the_last_and_the_best_epoch(root, kept_best, tmp_path):
    (best,) = kept_best.glob("best_top1_epoch_*.pth")
    options = ["--work-dir", str(tmp_path), "--cfg-options", *small(root)]
    assert load("test").main([str(RECIPE), str(kept_best), *options]) == 0
    results = {p.stem: json.loads(p.read_text()) for p in tmp_path.glob("*.json")}
    assert results.keys() == {"results", "best"}
    # Tested alone, the best one does not replace the result.
    alone = configs.testing_config(RECIPE, str(best), cfg_options=small(root))
    assert alone.test_cfg.out == "best.json"
    last, chosen = results["results"]["protocol"], results["best"]["protocol"]
    assert last["checkpoint"]["path"] == str(kept_best / f"epoch_{EPOCHS}.pth")
    assert "chosen_on_test" not in last and selection_of(last) is None
    assert chosen["checkpoint"]["path"] == str(best) and chosen["chosen_on_test"] is True
    assert selection_of(chosen) == "best epoch on the test set; the result is the last"
    shown = {name: format_metrics(r["metrics"], r["protocol"]) for name, r in results.items()}
    assert "chosen on these very samples; the result is the last" in shown["best"]
    assert "chosen" not in shown["results"]
    # One view of each image: no other numbers for "one view".
    metrics = {name: r["metrics"] for name, r in results.items()}
    assert metrics["results"].keys() == {"top1", "top5", "mean_class_accuracy"}
    # The test repeats the validation: one view, the same images.
    assert metrics["best"]["top1"] == chosen["checkpoint"]["selected"]["value"]
    lines = [json.loads(text) for text in (kept_best / "metrics.jsonl").read_text().splitlines()]
    curve = [line["top1"] for line in lines if line["kind"] == "val"]
    assert len(curve) == EPOCHS and chosen["epochs"] == 1 + int(np.argmax(curve))


def test_what_is_tested(tmp_path, capsys):
    assert checkpoints_to_test("random") == ["random"]
    assert checkpoints_to_test(str(tmp_path / "epoch_1.pth")) == [str(tmp_path / "epoch_1.pth")]
    with pytest.raises(ValueError, match=r"contains no checkpoint epoch_N\.pth"):
        checkpoints_to_test(str(tmp_path))
    for name in ("epoch_9.pth", "epoch_10.pth", "best_top1_epoch_3.pth"):
        (tmp_path / name).touch()
    both = [str(tmp_path / name) for name in ("epoch_10.pth", "best_top1_epoch_3.pth")]
    assert checkpoints_to_test(str(tmp_path)) == both
    assert load("test").main([str(RECIPE), str(tmp_path), "--out", "a.json"]) != 0
    assert "Give one of the checkpoints" in capsys.readouterr().err
    (tmp_path / "best_top5_epoch_4.pth").touch()
    with pytest.raises(ValueError, match="several best checkpoints.*best_top5_epoch_4"):
        checkpoints_to_test(str(tmp_path))


def test_a_checkpoint_was_selected_on_a_list_by_its_hash_else_by_folder_and_split():
    first, part = {"data_root": "a", "ann_sha256": "1"}, {"data_root": "a", "split": "test"}
    assert selected_on(first, {"data_root": "b", "ann_sha256": "1"}) and selected_on(part, part)
    for ours, other in ((first, {**first, "ann_sha256": "2"}), (part, {**part, "split": "train"})):
        assert not selected_on(ours, other) and not selected_on(ours, {"data_root": "a"})
