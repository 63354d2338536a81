"""Config options that are accepted and refused, their messages, and recipes by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from mmengine.config import Config

from sce_video.engine.config.load import check_config, load_config, parse_options, set_backend
from sce_video.engine.recipes import find_recipe, find_sweep, recipe_names
from sce_video.models import ResNet3dSlowPath
from sce_video.registry import MODELS

RECIPE = Path(__file__).parents[3] / "configs/sce/sce_r3d18_folder.py"
PIPELINE = "train_dataloader.dataset.pipeline"


@MODELS.register_module(name="ConfigTestBackbone")
class _Backbone(ResNet3dSlowPath):
    def __init__(self, width=1, **kwargs):
        super().__init__(**kwargs)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 0.001),
        ("true", True),
        ("None", None),
        ("abc", "abc"),
        ("1,2", [1, 2]),
        ("[(1,2),[a,None]]", [(1, 2), ["a", None]]),
        ("/my videos/train list.txt", "/my videos/train list.txt"),
        ("'quoted'", "quoted"),
    ],
)
def test_values_are_parsed(text, value):
    parsed = parse_options([f"some.key={text}"])["some.key"]
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize("option", ["model.tau", "=1", "model.tau=[1,2", "model.tau=(1,2]"])
def test_a_malformed_option_is_named(option):
    with pytest.raises(ValueError, match="option") as error:
        load_config(RECIPE, [option])
    assert option in str(error.value)


@pytest.mark.parametrize(
    ("option", "suggestion"),
    [
        ("model.lamda_=0.1", "model.lambda_"),
        ("model.backbone.frozen_stage=1", "model.backbone.frozen_stages"),  # of the signature only
        ("modle.tau=0.1", "model.tau"),
        ("lr=0.1", "optim_wrapper.optimizer.lr"),  # the same name elsewhere
        (f"{PIPELINE}.1.num_frame=8", f"{PIPELINE}.RandomClips.num_frames"),
        ("env_cfg.mp_cfg.opencv_num_thread=1", "env_cfg.mp_cfg.opencv_num_threads"),
        ("compile.mod=x", "compile.mode"),
        ("default_hooks.loger.interval=5", "default_hooks.logger.interval"),
        ("lod_from=x", "load_from"),
    ],
)
def test_a_mistyped_key_is_refused_with_a_suggestion(option, suggestion):
    with pytest.raises(ValueError, match="did you mean") as error:
        load_config(RECIPE, [option])
    assert repr(option.split("=")[0]) in str(error.value) and suggestion in str(error.value)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("model.backbone=resnet", "is a dict with the keys type, depth"),
        (f"{PIPELINE}=3", rf"is a list of \d dicts. .* for example {PIPELINE}.OpenVideo.type"),
        ("model.tau=O.1", "Give a number, got 'O.1'"),
        ("train_dataloader.persistent_workers=Flase", "Give true or false, got 'Flase'"),
        ("model.tau.start=1", "model.tau is 0.1, which has no keys"),
        ("param_scheduler.0.type=LinearLR", "has no list param_scheduler"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(option, message):
    with pytest.raises(ValueError, match=message) as error:
        load_config(RECIPE, [option])
    assert option.split("=")[0] in str(error.value)


def test_a_class_with_kwargs_takes_other_keys_but_no_near_ones():
    wide = "model.backbone.type=ConfigTestBackbone"
    assert load_config(RECIPE, [wide, "model.backbone.stem=7"]).model.backbone.stem == 7
    with pytest.raises(ValueError, match=r"did you mean model\.backbone\.base_channels"):
        load_config(RECIPE, [wide, "model.backbone.base_channel=32"])


def test_a_correct_config_passes():
    norm = dict(type="NobodyRegisteredThis", any_key=1)
    options = {
        "model.backbone.type": "ConfigTestBackbone",  # takes any key
        "model.backbone.norm_cfg": norm,
        "model.backbone.init_cfg": dict(type="Pretrained", checkpoint="x", prefix="y."),
        "optim_wrapper.paramwise_cfg": dict(norm_decay_mult=0),
        "default_hooks.logger.priority": "LOW",
        "custom_hooks": [dict(type="EMAHook", priority="LOW")],
        "param_scheduler": [dict(type="MultiStepLR", milestones=[1], convert_to_iter_based=True)],
        "model.target_views": [0, 1],
        "optim_wrapper.optimizer.betas": [0.9, 0.99],
        "optim_wrapper.clip_grad.max_norm": 1,
    }
    check_config(load_config(RECIPE, options))
    check_config(load_config(RECIPE, ["model.type=sce_video.SCE"]))


# -- the decoding backend ---------------------------------------------------------------------


def test_the_backend_of_all_pipelines(monkeypatch):
    cfg = load_config(RECIPE)
    text = cfg.pretty_text
    set_backend(cfg, "decord")
    changed = cfg.pretty_text
    assert changed.count("backend='decord'") == text.count("type='OpenVideo'") >= 2
    assert "backend='av'" not in changed
    check_config(cfg)
    with pytest.raises(ValueError, match="unknown backend 'ffmpeg'. Choose one of av"):
        set_backend(cfg, "ffmpeg")
    with pytest.raises(ValueError, match="opens no video files"):
        set_backend(Config({"model": {"type": "SCE"}}), "av")
    monkeypatch.setattr("sce_video.datasets.readers.base.backend_importable", lambda name: False)
    with pytest.raises(ValueError, match="'torchcodec' cannot be imported here"):
        set_backend(cfg, "torchcodec")


# -- files that cannot be read -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ny = undefined", r"a\.py, line 2: NameError: name 'undefined'"),
        ("custom_imports = dict(imports=['no_such_module'])", "no_such_module"),
        ("_base_ = ['no_such_base.py']", r"no_such_base\.py"),
    ],
)
def test_a_config_that_cannot_be_read_is_one_line(tmp_path, text, message):
    (tmp_path / "a.py").write_text(text)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
        load_config(tmp_path / "a.py")
    assert "\n" not in str(error.value)


def test_every_recipe_has_a_name_of_its_own(repo):
    folder = repo / "configs"
    files = [
        path
        for path in folder.rglob("*.py")
        if not {"_base_", "sweeps"} & set(path.relative_to(folder).parts)
    ]
    assert sorted(recipe_names().values()) == sorted(files)


def test_a_file_a_path_below_configs_and_a_name_are_found(repo, tmp_path, monkeypatch):
    expected = repo / "configs/sce/sce_r3d18_folder.py"
    own = tmp_path / "sce_r3d18_folder.py"
    own.write_text("a = 1\n")
    monkeypatch.chdir(tmp_path)
    assert find_recipe("configs/sce/sce_r3d18_folder.py") == expected
    assert find_recipe("sce_r3d18_folder") == expected
    assert find_recipe(own) == own
    assert find_recipe("sce_r3d18_folder.py") == Path("sce_r3d18_folder.py")  # the file wins
    assert load_config("sce_r3d18_folder").model.type == "SCE"


@pytest.mark.parametrize("name", ["sce_r3d18_foldr", "configs/sce/sce_r3d18_foldr.py"])
def test_unknown_names_are_refused_with_similar_ones(name):
    with pytest.raises(FileNotFoundError, match=r"neither a config file .*sce_r3d18_folder"):
        find_recipe(name)


def test_sweeps_are_found_by_path_and_name(repo, tmp_path, monkeypatch):
    expected = repo / "configs/sweeps/video_lambda.py"
    monkeypatch.chdir(tmp_path)
    for name in (expected, "configs/sweeps/video_lambda.py", "video_lambda", "video_lambda.py"):
        assert find_sweep(name) == expected
    with pytest.raises(
        FileNotFoundError, match=r"there is no sweep video_lamda; similar.*video_lambda"
    ):
        find_sweep("video_lamda")
    with pytest.raises(FileNotFoundError, match="no sweep elsewhere/video_lambda.py"):
        find_sweep("elsewhere/video_lambda.py")
