"""Config options: which are accepted, which are refused, and the error messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from mmengine.config import Config
from torch import nn

from sce_video.engine.config.load import check_config, load_config, parse_options, set_backend
from sce_video.registry import FUNCTIONS, MODELS, TRANSFORMS


@MODELS.register_module(name="ConfigTestAlgorithm")
class _Algorithm(nn.Module):
    def __init__(self, backbone, lambda_=0.5, tau=0.1, tau_m=0.05, predictor=None):
        super().__init__()


@MODELS.register_module(name="ConfigTestBackbone")
class _Backbone(nn.Module):
    def __init__(self, depth, base_channels=64, frozen_stages=-1, init_cfg=None, norm_cfg=None):
        super().__init__()


@MODELS.register_module(name="ConfigTestWideBackbone")
class _WideBackbone(_Backbone):
    def __init__(self, width=1, **kwargs):
        super().__init__(**kwargs)


@TRANSFORMS.register_module(name="ConfigTestDecode")
class _Decode:
    def __init__(self, num_threads=1, backend="av"):
        pass


@FUNCTIONS.register_module(name="config_test_collate")
def _collate(batch, pad=False):
    return batch


CONFIG = """
default_scope = "sce_video"
model = dict(
    type="ConfigTestAlgorithm",
    backbone=dict(type="ConfigTestBackbone", depth=18),
    lambda_=0.5,
    tau=0.1,
)
train_dataloader = dict(
    batch_size=64,
    persistent_workers=True,
    collate_fn=dict(type="config_test_collate"),
    dataset=dict(
        pipeline=[dict(type="ConfigTestDecode", num_threads=1), dict(type="ConfigTestDecode")],
        sizes=(1, dict(height=2)),
    ),
)
optim_wrapper = dict(
    type="OptimWrapper",
    clip_grad=None,
    optimizer=dict(type="SGD", lr=2.4, momentum=0.9),
)
default_hooks = dict(logger=dict(type="LoggerHook", interval=20))
randomness = dict(seed=0)
env_cfg = dict(mp_cfg=dict(mp_start_method="fork"))
compile = False
data_root = "data"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "config.py"
    file.write_text(CONFIG)
    return file


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
def test_a_malformed_option_is_named(path, option):
    with pytest.raises(ValueError, match="option") as error:
        load_config(path, [option])
    assert option in str(error.value)


@pytest.mark.parametrize(
    ("option", "suggestion"),
    [
        ("model.lamda_=0.1", "model.lambda_"),
        ("model.tau_n=0.1", "model.tau_m"),  # not in the config, only in the signature
        ("modle.tau=0.1", "model.tau"),
        ("lr=0.1", "optim_wrapper.optimizer.lr"),  # the same name elsewhere
        ("train_dataloader.batchsize=8", "train_dataloader.batch_size"),
        ("train_dataloader.dataset.pipeline.0.num_thread=8", "dataset.pipeline.0.num_threads"),
        ("compile.mod=x", "compile.mode"),
        ("default_hooks.loger.interval=5", "default_hooks.logger.interval"),
        ("lod_from=x", "load_from"),
    ],
)
def test_a_mistyped_key_is_refused_with_a_suggestion(path, option, suggestion):
    with pytest.raises(ValueError, match=suggestion) as error:
        load_config(path, [option])
    assert repr(option.split("=")[0]) in str(error.value)
    assert "did you mean" in str(error.value) or "there are" in str(error.value)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("model.backbone=resnet", "is a dict with the keys type, depth"),
        ("train_dataloader.dataset.pipeline=3", "is a list of 2 dicts"),
        ("model.tau=O.1", "give a number, got 'O.1'"),
        ("train_dataloader.persistent_workers=Flase", "give true or false, got 'Flase'"),
        ("model.tau.start=1", "model.tau is 0.1, it has no keys"),
        ("custom_hooks.0.type=LoggerHook", "cannot begin the list custom_hooks"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(path, option, message):
    with pytest.raises(ValueError, match=message) as error:
        load_config(path, [option])
    assert option.split("=")[0] in str(error.value)


def test_a_class_with_kwargs_takes_other_keys_but_no_near_ones(path):
    wide = "model.backbone.type=ConfigTestWideBackbone"
    assert load_config(path, [wide, "model.backbone.stem=7"]).model.backbone.stem == 7
    with pytest.raises(ValueError, match=r"did you mean model\.backbone\.base_channels"):
        load_config(path, [wide, "model.backbone.base_channel=32"])


def _checked(text: str, tmp_path: Path) -> None:
    file = tmp_path / "checked.py"
    file.write_text(CONFIG + text)
    check_config(load_config(file))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "model['backbone']['norm_cfg'] = dict(type='NobodyRegisteredThis', any_key=1)",
        "model['backbone'] = dict(type='ConfigTestWideBackbone', any_key=1)",
        "model['backbone'] = dict(type='sce_video.ConfigTestBackbone', depth=18)",
        "model['backbone']['norm_cfg'] = dict(type='BN3d', requires_grad=True)",
        "model['backbone']['init_cfg'] = dict(type='Pretrained', checkpoint='x', prefix='y.')",
        "optim_wrapper['paramwise_cfg'] = dict(norm_decay_mult=0)",
        "custom_hooks = [dict(type='EMAHook', priority='LOW')]",
        "param_scheduler = [dict(type='MultiStepLR', milestones=[1], convert_to_iter_based=True)]",
        "visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')])",
    ],
)
def test_a_correct_config_passes(tmp_path, text):
    _checked(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "path", "suggestion"),
    [
        (
            "train_dataloader['dataset']['pipeline'][1]['num_thread'] = 1",
            "train_dataloader.dataset.pipeline.1.num_thread",
            "train_dataloader.dataset.pipeline.1.num_threads",
        ),
        (
            "train_dataloader['collate_fn'] = dict(type='sce_video.config_test_collate', padd=1)",
            "collate_fn.padd",
            "collate_fn.pad",
        ),
        ("optim_wrapper['optimizer']['momentom'] = 1", "optimizer.momentom", "optimizer.momentum"),
        ("env_cfg['cudnn_benchmrk'] = True", "env_cfg.cudnn_benchmrk", "env_cfg.cudnn_benchmark"),
    ],
)
def test_a_mistyped_key_of_the_file_is_named(tmp_path, text, path, suggestion):
    with pytest.raises(ValueError, match="unknown keys in the config") as error:
        _checked(text, tmp_path)
    assert f"{path}: " in str(error.value)
    assert suggestion in str(error.value).split("did you mean")[1]


def test_all_faults_of_a_file_are_listed_at_once(tmp_path):
    with pytest.raises(ValueError) as error:
        _checked("model['lamda_'] = 1\noptim_wrapper['optimizer']['xyz'] = 2", tmp_path)
    _, first, second = str(error.value).splitlines()
    assert first.strip().startswith("model.lamda_: ConfigTestAlgorithm has no 'lamda_'; did you")
    # No key is near, and the key itself is not suggested.
    assert second.strip().startswith("optim_wrapper.optimizer.xyz: SGD has no 'xyz'; there are ")


# -- the decoding backend ---------------------------------------------------------------------

CONFIGS = Path(__file__).parents[3] / "configs"


def openers(node):
    """Backends of all OpenVideo below a node, "av" by default."""
    if isinstance(node, dict):
        own = [node.get("backend", "av")] if node.get("type") == "OpenVideo" else []
        return own + [found for child in node.values() for found in openers(child)]
    children = node if isinstance(node, list | tuple) else ()
    return [found for child in children for found in openers(child)]


def test_the_backend_of_all_pipelines():
    cfg = load_config(CONFIGS / "downstream/retrieval/r3d18_8x224_ucf101.py")
    before = openers(cfg._cfg_dict)
    assert set(before) == {"av"} and len(before) >= 2
    set_backend(cfg, "decord")
    assert openers(cfg._cfg_dict) == ["decord"] * len(before)
    check_config(cfg)


def test_a_backend_that_is_unknown_not_installed_or_not_used_is_refused(monkeypatch):
    cfg = load_config(CONFIGS / "sce/sce_r3d18_folder.py")
    with pytest.raises(ValueError, match="unknown backend 'ffmpeg': choose av"):
        set_backend(cfg, "ffmpeg")
    with pytest.raises(ValueError, match="opens no video files"):
        set_backend(Config({"model": {"type": "SCE"}}), "av")
    monkeypatch.setattr("sce_video.datasets.readers.backend_importable", lambda name: False)
    with pytest.raises(ValueError, match="'torchcodec' cannot be imported here"):
        set_backend(cfg, "torchcodec")
