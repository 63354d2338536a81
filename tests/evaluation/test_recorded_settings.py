"""Settings by the paper's names, from what the configs of real recipes and small ones record."""

from __future__ import annotations

import pytest
from mmengine.config import Config

from sce_video.engine.config.load import load_config
from sce_video.engine.training_record import changed_entries, record_settings
from sce_video.evaluation.recorded_settings import crop_size, num_frames, settings_of

MODEL = {
    "type": "SCE",
    "backbone": {"type": "ResNet2d", "depth": 18},
    "projector": {"type": "MLP", "hidden_channels": 16},
    "lambda_": (0.3, 0.7, 0.2),
    "queue_size": 64,
    "symmetric": False,
}
VIEWS = [{"name": "strong", "strength": 0.5}, {"name": "weak"}]


def config(model=None, **changes):
    whole = {
        "model": {**MODEL, **(model or {})},
        "data_preprocessor": {"type": "VideoDataPreprocessor", "views": VIEWS},
        "train_dataloader": {
            "dataset": {
                "pipeline": [
                    {"type": "LoadImage", "num_views": 2},
                    {"type": "RandomResizedCropClips", "size": 32, "area": (0.2, 1.0)},
                ]
            }
        },
        "optim_wrapper": {"optimizer": {"type": "SGD", "lr": 0.06}},
        "custom_hooks": [
            {"type": "OptimizerStepHook"},
            {"type": "ScheduleHook", "model": {"momentum": {"name": "cosine", "start": 0.9}}},
        ],
    }
    return Config({**whole, **changes})


def test_what_a_config_records_beside_single_values():
    record = record_settings(config())
    assert record["model"] == {"type": "SCE", "queue_size": 64, "symmetric": False}
    assert record["model_parts"] == {
        "projector": {"type": "MLP", "hidden_channels": 16},
        "lambda_": [0.3, 0.7, 0.2],
    }
    # Of the class, as far as the config leaves them to it.
    defaults = record["model_defaults"]
    assert (defaults["tau"], defaults["mask_positive"], defaults["target_views"]) == (
        *(0.1, True),
        None,
    )
    assert not {"lambda_", "symmetric", "projector", "backbone"} & set(defaults)
    assert record["optimizer"] == {"type": "SGD", "lr": 0.06}
    assert record["schedules"] == {"model": {"momentum": {"name": "cosine", "start": 0.9}}}
    nothing = record_settings(Config({}))
    assert nothing["model_defaults"] == nothing["schedules"] == nothing["optimizer"] == {}


def test_what_changed_when_a_training_was_resumed():
    record = record_settings(config())
    other = record_settings(config({"predictor": {"type": "MLP"}, "tau": 0.2}))
    assert changed_entries(record, record) == []
    # tau moves from the class's default into the config, the predictor is a part.
    assert changed_entries(record, other) == ["model", "model_parts"]
    default = {**record, "model_defaults": {**record["model_defaults"], "tau": 0.2}}
    assert changed_entries(record, default) == ["model_defaults"], "of another version"
    assert changed_entries(record, {**record, "changed": ["data"]}) == ["data"]
    assert changed_entries(record, {}) == sorted(record), "nothing is known of the earlier part"
    earlier = {name: record[name] for name in ("model", "views", "pipeline")}
    assert changed_entries(record, earlier) == [], "a record of an earlier version"
    assert changed_entries(record, {**earlier, "views": []}) == ["views"]


def settings(cfg, **changes):
    return settings_of({**record_settings(cfg), **changes})


def test_settings_by_the_names_of_the_paper():
    found = settings(config())
    assert found["lambda_"] == (0.3, 0.7, 0.2) and found["predictor"] is False
    assert (found["views"], found["target_views"]) == (("strong", "weak"), (1,))
    assert (found["area"], found["local_sizes"], found["optimizer"]) == ((0.2, 1.0), (), "SGD")
    assert "cosine" in str(found["momentum"]), "no end: not the schedule to 1"
    symmetric = settings(config({"symmetric": True, "predictor": {"type": "MLP"}}))
    assert symmetric["target_views"] == (0, 1) and symmetric["predictor"] is True
    default = settings(config({"symmetric": True, "lambda_": (0.9, 0.1, 0.1)}))
    assert default["lambda_"] == 0.9, "mu = eta = 1 - lambda is SCE"


def test_a_scheduled_number_is_not_the_one_of_the_model():
    hook = {"type": "ScheduleHook", "model": {"lambda_": {"name": "linear", "start": 0, "end": 1}}}
    assert settings(config(custom_hooks=[hook]))["lambda_"]["name"] == "linear"


def test_local_views():
    cfg = config({"symmetric": True})
    steps = cfg.train_dataloader.dataset.pipeline
    steps[0].update(num_views=4, num_local_views=2)
    for given, expected in ((16, (16, 16)), ([24, 16], (24, 16))):
        steps[1].update(local_size=given, local_area=(0.1, 0.4))
        found = settings(cfg, views=VIEWS * 2)
        assert found["local_sizes"] == expected
        assert found["local_areas"] == ((0.1, 0.4), (0.1, 0.4))
        assert found["target_views"] == (0, 1) and len(found["views"]) == 4
    steps[1].update(local_area=[(0.1, 0.4), (0.1, 0.2)])
    assert settings(cfg, views=VIEWS * 2)["local_areas"] == ((0.1, 0.4), (0.1, 0.2))


def test_clips_of_images_and_videos():
    assert (num_frames(record_settings(config())), crop_size(record_settings(config()))) == (1, 32)
    other = {"pipeline": [{"type": "RandomClips", "num_frames": 8}]}
    assert (num_frames(other), crop_size(other)) == (8, None)
    assert num_frames({"pipeline": [{"type": "PackClips"}]}) is None


@pytest.mark.parametrize(
    ("recipe", "symmetric", "target_views", "predictor"),
    [
        ("sce/sce_r3d18_8xb64-8x224-200e_k200", True, (0, 1), True),
        ("moco/moco_r3d18_8xb64-8x224-200e_k200", False, (1,), False),
        ("ressl/ressl_r3d18_8xb64-8x224-200e_k200", False, (1,), False),
    ],
)
def test_defaults_of_the_methods_count(repo, recipe, symmetric, target_views, predictor):
    cfg = load_config(repo / "configs" / f"{recipe}.py")
    assert "symmetric" not in cfg.model
    found = settings(cfg)
    assert (found["symmetric"], found["target_views"]) == (symmetric, target_views)
    assert found["predictor"] is predictor


HOSTILE = [5, "x", None, [], {}, [[1]], -3, 1e30, True]


@pytest.mark.parametrize("value", HOSTILE)
def test_records_of_strangers_raise_nothing(value):
    record = record_settings(config())
    for name in ("lambda_", "symmetric", "target_views", "predictor", "momentum"):
        settings_of({**record, "model": {"type": "SCE", name: value}})
        settings_of({**record, "model_parts": {name: value}})
    for name in ("num_local_views", "local_size", "local_area", "area", "duration_jitter"):
        step = {"type": "RandomResizedCropClips", "num_local_views": 2, name: value}
        settings_of({**record, "pipeline": [step, value]})
    settings_of({**record, "views": [value], "optimizer": {"type": value}})
    settings_of({**record, "schedules": {"model": value}})
    settings_of({**record, "schedules": {"model": {"momentum": value}}})
