"""Steps of a list by the name of their type: in options, in child configs, in messages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.config.config import ConfigDict

from sce_video.engine.config.changes import available_settings
from sce_video.engine.config.check import known_keys
from sce_video.engine.config.load import load_config, options_of_settings
from sce_video.engine.recipes import methods
from sce_video.registry import HOOKS, TRANSFORMS


@TRANSFORMS.register_module(name="StepTestOpen")
class _Open:
    def __init__(self, backend="av", num_threads=1):
        pass


@TRANSFORMS.register_module(name="StepTestClips")
class _Clips:
    def __init__(self, num_frames=8, views=None):
        pass


@HOOKS.register_module(name="StepTestHook")
class _Hook:
    def __init__(self, lr=None, inner=None):
        pass


BASE = """
default_scope = "sce_video"
train_dataloader = dict(
    batch_size=64,
    num_workers=2,
    dataset=dict(
        type="VideoDataset",
        pipeline=[
            dict(type="StepTestOpen", backend="av"),
            dict(type="sce_video.StepTestClips", num_frames=8, views=[dict(type="StepTestOpen")]),
            dict(type="Flip", prob=0.5),
            dict(type="Flip", prob=0.1),
        ],
    ),
)
custom_hooks = [
    dict(type="StepTestHook", lr=dict(warmup_epochs=5, base=1.0), priority="LOW"),
    dict(type="EMAHook"),
]
data_root = ["a", "b"]
"""

PIPELINE = "train_dataloader.dataset.pipeline"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    file = tmp_path / "base.py"
    file.write_text(BASE)
    return file


@pytest.fixture
def child_of(tmp_path: Path, base: Path):
    """Writes a child config and returns its path."""

    def write(text: str, parent: str = "base.py", name: str = "child.py") -> Path:
        file = tmp_path / name
        file.write_text(f"_base_ = [{parent!r}]\n{text}\n")
        return file

    return write


def pipeline(cfg: Config) -> list:
    return cfg.train_dataloader.dataset.pipeline


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part", ["StepTestClips", "sce_video.StepTestClips", "1"], ids=["name", "scope", "number"]
)
def test_an_option_finds_a_step_by_name_or_number(base, part):
    cfg = load_config(base, [f"{PIPELINE}.{part}.num_frames=16"])
    assert pipeline(cfg)[1].num_frames == 16
    pipeline(cfg)[1].num_frames = 8
    assert cfg.to_dict() == load_config(base).to_dict()


@pytest.mark.parametrize(
    ("option", "messages"),
    [
        (
            f"{PIPELINE}.StepTestClip.num_frames=16",
            [
                "list of 4 entries (0: StepTestOpen, 1: StepTestClips, 2: Flip, 3: Flip)",
                "'StepTestClip' is not the index of an entry and not the type of one",
                "Did you mean StepTestClips",
            ],
        ),
        (
            f"{PIPELINE}.Flip.prob=1",
            ["'Flip' is ambiguous", "the entries 2 and 3", f"Use a number, {PIPELINE}.2"],
        ),
        (
            f"{PIPELINE}.StepTestClips.num_frmes=16",
            [
                f"unknown key '{PIPELINE}.StepTestClips.num_frmes'",
                f"did you mean {PIPELINE}.StepTestClips.num_frames?",
            ],
        ),
        ("val_evaluator.AccMetric.k=1", ["has no list val_evaluator"]),
    ],
)
def test_an_option_that_fits_no_step_is_refused(base, option, messages):
    base.write_text(BASE.replace('"b"]', '"b"]\nval_evaluator = None'))
    with pytest.raises(ValueError) as error:
        load_config(base, [option])
    for message in messages:
        assert message in str(error.value)
    assert option.split("=")[0] in str(error.value)


# -- child configs -------------------------------------------------------------------------------

CHILD = """
train_dataloader = dict(
    batch_size=32, dataset=dict(pipeline=dict(StepTestClips=dict(num_frames=16)))
)
custom_hooks = dict(StepTestHook=dict(lr=dict(warmup_epochs=35)))
"""


def test_a_child_config_changes_steps_by_name(base, child_of):
    cfg, parent = load_config(child_of(CHILD)), load_config(base)
    assert pipeline(cfg)[1] == {**pipeline(parent)[1], "num_frames": 16}
    assert cfg.custom_hooks[0].lr == dict(warmup_epochs=35, base=1.0)
    # Everything else is the parent's.
    pipeline(cfg)[1].num_frames = 8
    cfg.custom_hooks[0].lr.warmup_epochs = 5
    cfg.train_dataloader.batch_size = 64
    assert cfg.to_dict() == parent.to_dict()
    assert type(pipeline(cfg)[1]) is type(pipeline(parent)[1]) is ConfigDict


def test_two_levels_and_options_on_top(child_of):
    child_of(CHILD)
    grandchild = child_of(
        "train_dataloader = dict(dataset=dict(pipeline={\n"
        "    'sce_video.StepTestClips': dict(views={'0': dict(backend='decord')}),\n"
        "    'StepTestOpen': dict(num_threads=4), '3': dict(prob=0.9)}))\n"
        "custom_hooks = dict(StepTestHook=dict(lr=dict(base=3.0), inner=1))",
        parent="child.py",
        name="grandchild.py",
    )
    in_views = f"{PIPELINE}.StepTestClips.views.StepTestOpen.num_threads=2"
    cfg = load_config(grandchild, ["custom_hooks.StepTestHook.inner=2", in_views])
    assert pipeline(cfg) == [
        dict(type="StepTestOpen", backend="av", num_threads=4),
        dict(
            type="sce_video.StepTestClips",
            num_frames=16,
            views=[dict(type="StepTestOpen", backend="decord", num_threads=2)],
        ),
        dict(type="Flip", prob=0.5),
        dict(type="Flip", prob=0.9),
    ]
    assert cfg.custom_hooks[0] == dict(
        type="StepTestHook", lr=dict(warmup_epochs=35, base=3.0), inner=2, priority="LOW"
    )
    assert cfg.train_dataloader.batch_size == 32


def test_a_list_still_replaces_a_list_and_a_tuple_stays_one(tmp_path, child_of):
    cfg = load_config(child_of("custom_hooks = [dict(type='EMAHook')]\ndata_root = ['c']"))
    assert cfg.custom_hooks == [dict(type="EMAHook")] and cfg.data_root == ["c"]
    (tmp_path / "tuple.py").write_text("views = (dict(type='A', x=1), dict(type='B'))")
    cfg = load_config(child_of("views = dict(A=dict(x=2))", parent="tuple.py"))
    assert cfg.views == (dict(type="A", x=2), dict(type="B"))


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            "custom_hooks = dict(StepTestHok=dict(inner=1))",
            [
                "custom_hooks is a list of 2 entries (0: StepTestHook, 1: EMAHook)",
                "'StepTestHok' is not the index of an entry and not the type of one",
                "Did you mean StepTestHook?",
                "To add or remove steps, give custom_hooks as a list",
            ],
        ),
        ("custom_hooks = dict(EMAHook=3)", ["custom_hooks.EMAHook is a dict", "got 3"]),
    ],
)
def test_a_child_that_fits_no_step_is_refused_with_its_file(child_of, text, messages):
    faulty = child_of(text, name="faulty.py")
    grandchild = child_of("x = 1", parent="faulty.py", name="grandchild.py")
    for path in (faulty, grandchild):
        with pytest.raises(ValueError) as error:
            load_config(path)
        for message in messages:
            assert message in str(error.value)
        # The file at fault, not the one that was asked for.
        assert str(faulty) in str(error.value) and str(grandchild) not in str(error.value)


def test_without_steps_by_name_a_file_is_read_as_by_mmengine(tmp_path, monkeypatch):
    """Every syntax of mmengine's config files: the values, their types, the text, the variables."""
    monkeypatch.setenv("SCE_VIDEO_TEST_CLASSES", "12")
    (tmp_path / "a.yaml").write_text("frames: 16\nhead: {type: Head, classes: 3, drop: 0.5}\n")
    (tmp_path / "b.json").write_text('{"names": ["a", "b"], "folder": "{{ fileDirname }}/data"}')
    middle = """
_base_ = ["a.yaml", "b.json"]
import os.path
def double(number):
    return 2 * number
head = dict(classes='{{$SCE_VIDEO_TEST_CLASSES:4}}', scale='{{ $SCE_VIDEO_TEST_SCALE:1.5 }}')
clips = [dict(type="A", frames=_base_.frames), dict(type="B", frames={{ _base_.frames }})]
frames = double(_base_.frames)
__hidden__ = 1
"""
    (tmp_path / "middle.py").write_text(middle)
    child = tmp_path / "child.py"
    child.write_text("""
_base_ = "middle.py"
clips = ({{_base_.clips}}, "{{fileBasenameNoExtension}}{{ fileExtname }}")
head = dict(_delete_=True, type="Other", inner=dict(names=_base_.names))
custom_imports = dict(imports=["json"])
""")
    own, theirs = load_config(child), Config.fromfile(str(child))
    assert own._cfg_dict == theirs._cfg_dict and own.head.inner.names == ["a", "b"]
    assert [type(clip) for clip in own.clips[0]] == [type(clip) for clip in theirs.clips[0]]
    assert (own.text, own.filename) == (theirs.text, theirs.filename)
    assert own.env_variables == theirs.env_variables == {"SCE_VIDEO_TEST_CLASSES": "12"}
    assert own.folder == f"{tmp_path}/data" and own.frames == 32


def test_configs_of_mmaction2_are_inherited_without_pkg_resources(tmp_path, monkeypatch):
    """setuptools 81 removed it; mmengine's reader needs it."""
    mmaction = pytest.importorskip("mmaction")
    model = "recognition/slowonly/slowonly_r50_8xb16-8x8x1-256e_kinetics400-rgb.py"
    child = tmp_path / "child.py"
    child.write_text(f"_base_ = 'mmaction::{model}'\nmodel = dict(cls_head=dict(num_classes=7))")
    lazy = tmp_path / "lazy.py"
    lazy.write_text(
        "from mmengine.config import read_base\n"
        "with read_base():\n    from mmaction.configs._base_.default_runtime import *\n"
    )
    monkeypatch.setitem(sys.modules, "pkg_resources", None)
    own = load_config(child)
    with pytest.raises(ValueError, match=r"needs pkg_resources. Run pip install 'setuptools<81'"):
        load_config(lazy)
    theirs = Config.fromfile(Path(mmaction.__path__[0], ".mim", "configs", model))
    assert own.model.backbone == theirs.model.backbone and own.keys() == theirs.keys()
    assert own.model._scope_ == "mmaction" and own.model.cls_head.num_classes == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("custom_imports = dict(imports=['no_such_package'])", "Add the folder of the module to"),
        ("_base_ = ['base.py', 'same.py']", "Duplicate keys: {'custom_hooks'}"),
        ("_base_ = 'nowhere::a/b.py'", "inherits from nowhere, which is not installed"),
        (
            "_base_ = 'lazy.py'",
            "lazy.py, which contains imports. Inherit from it with read_base()",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(base, text, message):
    (base.parent / "same.py").write_text("custom_hooks = []")
    (base.parent / "lazy.py").write_text("from torch.optim import SGD")
    child = base.parent / "child.py"
    child.write_text(text)
    with pytest.raises(ValueError, match="cannot read the config") as error:
        load_config(child)
    assert message in str(error.value)


def test_a_deprecated_file_warns(base, child_of):
    child = child_of("_deprecation_ = dict(expected='new.py')")
    with pytest.warns(DeprecationWarning, match="child.py is deprecated.*new.py"):
        assert "_deprecation_" not in load_config(child)


# Settings by one name that stand at several places of a recipe.


FOLDER = "sce_r3d18_folder"


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
    simclr = load_config(methods()["simclr"])
    missing = set(load_config(FOLDER).settings) - set(available_settings(simclr, known_keys))
    assert missing == {"queue", "momentum"}
    for name, text in (
        ("queue", "'queue' here. The settings are"),
        ("frame", "'frame' here. Did you mean frames"),
    ):
        with pytest.raises(ValueError, match=f"no setting {text}"):
            options_of_settings(simclr, {name: 32})
    assert options_of_settings(simclr, {"hidden": 7}) == {"model.projector.hidden_channels": 7}
