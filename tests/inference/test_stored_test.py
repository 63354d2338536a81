"""The test of a checkpoint by the config inside it, against the recipe that trained it."""

from __future__ import annotations

import copy
import json

import pytest
import torch

from sce_video.engine.checkpoint import save_checkpoint_file
from sce_video.engine.config.load import load_config
from sce_video.engine.config.snapshot import plain, resolved_config
from sce_video.inference.stored_test import stored_test
from sce_video.registry import METRICS, TRANSFORMS

SMALL = "train_dataloader.dataset.pipeline.RandomResizedCropClips.size=64"


def saved(tmp_path, cfg):
    path = tmp_path / "epoch_1.pth"
    weights = {"backbone.weight": torch.zeros(1)}
    save_checkpoint_file(
        {"meta": {"config": json.dumps(resolved_config(cfg))}, "state_dict": weights}, path
    )
    return path


def steps(loader):
    """Data set, batch and pipeline of a loader."""
    dataset = loader["dataset"]
    return dataset.type, loader.batch_size, dataset.pipeline


@pytest.mark.parametrize(
    "recipe",
    [
        *("sce_r3d18_folder_small", "sce_r3d18_folder", "r3d18_folder", "attentive_r3d18_folder"),
        *("r3d18_8x224_ucf101", "sce_r18_1xb256-32-200e_cifar10", "r3d50_8xb8-16x224-22e_ssv2"),
    ],
)
def test_views_and_metrics_are_those_of_the_recipe(recipe, tmp_path):
    cfg = load_config(recipe)
    test = stored_test(saved(tmp_path, cfg))
    assert steps(test.test_dataloader) == steps(cfg.test_dataloader)
    gallery = cfg.test_cfg.get("gallery_dataloader")
    if gallery is not None:
        assert steps(test.test_cfg.gallery_dataloader) == steps(gallery)
    first, second = ([metric.type for metric in c.test_evaluator] for c in (test, cfg))
    assert first == second
    assert test.model.backbone.type == cfg.model.backbone.type
    assert plain(test.model.get("cls_head")) == plain(cfg.model.get("cls_head"))
    assert {"data_root", "ann_file"}.isdisjoint(test.test_dataloader.dataset)


def test_the_crop_is_that_of_the_training(tmp_path):
    """A training at another size by --cfg-options leaves the recipe's crop in its test."""
    test = stored_test(saved(tmp_path, load_config("sce_r3d18_folder", [SMALL])))
    kinds = {step["type"]: step for step in test.test_dataloader.dataset.pipeline}
    assert kinds["ResizeShortSide"]["size"] == 64
    assert {s.get("size", s.get("crop_size")) for s in kinds.values()} - {None} == {64}


def test_what_is_not_of_this_package_is_refused(tmp_path):
    cfg = load_config("sce_r3d18_folder_small")
    for path, value, message in [
        ("test_evaluator", [dict(type="AccMetric")], "type 'AccMetric' is not a dataset"),
        ("test_evaluator", [dict(type="AVAMeanAP", csv="x")], "type 'AVAMeanAP' is not"),
        ("test_dataloader.dataset.type", "RawframeDataset", "type 'RawframeDataset' is not"),
        ("model.cls_head", dict(type="TSNHead"), "type 'TSNHead' is not"),
        ("model.roi_head", dict(type="X"), "actions of person boxes"),
        ("test_dataloader.dataset.class_names", "s3://evil/x", "is a URL"),
    ]:
        changed = copy.deepcopy(cfg)
        changed.merge_from_dict({path: value})
        with pytest.raises(ValueError, match=rf"epoch_1\.pth: .*{message}.*sce-video test CONFIG"):
            stored_test(saved(tmp_path, changed))


def test_imported_parts_of_the_user_are_built(tmp_path):
    """A metric and a transform that code of the user's own has registered."""

    class OwnMetric:
        pass

    class OwnStep:
        pass

    cfg = load_config("sce_r3d18_folder_small", ["test_cfg.gallery_dataloader=None"])
    cfg.test_evaluator = [dict(type="OwnMetric", k=3)]
    cfg.test_dataloader.dataset.pipeline.append(dict(type="OwnStep"))
    with pytest.raises(ValueError, match="no module that was imported has registered it"):
        stored_test(saved(tmp_path, cfg))
    METRICS.register_module(module=OwnMetric)
    TRANSFORMS.register_module(module=OwnStep)
    try:
        test = stored_test(saved(tmp_path, cfg))
    finally:
        METRICS.module_dict.pop("OwnMetric")
        TRANSFORMS.module_dict.pop("OwnStep")
    assert plain(test.test_evaluator) == [{"type": "OwnMetric", "k": 3}]
    assert test.test_dataloader.dataset.pipeline[-1].type == "OwnStep"
