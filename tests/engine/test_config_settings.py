"""Settings by one name that stand at several places of a recipe."""

from __future__ import annotations

import pytest

from sce_video.engine.config.changes import available_settings, options_of_settings
from sce_video.engine.config.load import load_config
from sce_video.runs.pretrain import methods

FOLDER = "sce_r3d18_folder"


def test_every_place_that_the_recipe_declares_is_there():
    cfg = load_config(FOLDER)
    assert available_settings(cfg) == {k: tuple(v) for k, v in cfg.settings.items()}


def test_a_setting_reaches_training_test_and_gallery():
    cfg = load_config(FOLDER)
    cfg = load_config(FOLDER, options_of_settings(cfg, {"frames": 5, "size": 96, "width": 16}))
    test = cfg.test_dataloader.dataset.pipeline
    gallery = cfg.test_cfg.gallery_dataloader.dataset.pipeline
    train = cfg.train_dataloader.dataset.pipeline
    assert [t.num_frames for t in (train[1], test[1], gallery[1])] == [5, 5, 5]
    assert [t["size"] for t in (train[3], *test[3:5], *gallery[3:5])] == [96] * 5
    assert cfg.model.backbone.base_channels == 16


def test_methods_lack_what_they_have_no_place_for():
    lacking = {}
    complete = set(load_config(FOLDER).settings)
    for method, recipe in methods().items():
        lacking[method] = complete - set(available_settings(load_config(recipe)))
    assert lacking == {
        "sce": set(),
        "moco": set(),
        "ressl": set(),
        "byol": {"queue"},
        "moco_v3": {"queue"},
        "simclr": {"queue", "momentum"},
        "swav": {"momentum"},
        "lejepa": {"queue", "momentum"},
    }
    simclr = load_config(methods()["simclr"])
    with pytest.raises(ValueError, match="no setting 'queue' here"):
        options_of_settings(simclr, {"queue": 32})
    assert options_of_settings(simclr, {"hidden": 7}) == {"model.projector.hidden_channels": 7}


def test_errors():
    cfg = load_config(FOLDER)
    with pytest.raises(ValueError, match="'frame' here, meant frames"):
        options_of_settings(cfg, {"frame": 3})
    for key in ("train_dataloader.dataset.pipeline.1.num_frames", "model.queue_size"):
        with pytest.raises(ValueError, match=f"set the same: give one.*|{key}"):
            options_of_settings(cfg, {"frames": 3, "queue": 8}, [key])
    assert options_of_settings(cfg, {"queue": 8}, ["model.tau"]) == {"model.queue_size": 8}
