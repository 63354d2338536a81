"""Steps of a list by the name of their type: in options, in child configs, in messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.config.config import ConfigDict

from sce_video.engine.config.changes import named_path, numbered_path, step_index
from sce_video.engine.config.load import check_config, load_config
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


def test_a_scope_may_be_given_to_a_type_without_one(base):
    cfg = load_config(base, [f"{PIPELINE}.sce_video.StepTestOpen.backend=decord"])
    assert pipeline(cfg)[0].backend == "decord"
    with pytest.raises(ValueError, match="'mmaction' is not the index"):
        load_config(base, [f"{PIPELINE}.mmaction.StepTestClips.num_frames=16"])


def test_names_work_in_hooks_and_in_lists_within_lists(base):
    options = [
        "custom_hooks.StepTestHook.lr.warmup_epochs=35",
        "custom_hooks.EMAHook.priority=LOW",
        f"{PIPELINE}.StepTestClips.views.StepTestOpen.backend=pyav",
    ]
    cfg = load_config(base, options)
    assert cfg.custom_hooks[0].lr == dict(warmup_epochs=35, base=1.0)
    assert cfg.custom_hooks[1].priority == "LOW"
    assert pipeline(cfg)[1].views == [dict(type="StepTestOpen", backend="pyav")]


def test_names_in_nested_dicts_of_options(base):
    options = {
        PIPELINE: {"StepTestClips": {"num_frames": 4}, 0: {"num_threads": 3}},
        "custom_hooks": {"StepTestHook": {"lr": {"base": 2.0}}},
        f"{PIPELINE}.StepTestOpen": {"backend": "decord"},
    }
    cfg = load_config(base, options)
    assert pipeline(cfg)[1].num_frames == 4 and len(pipeline(cfg)[1].views) == 1
    assert pipeline(cfg)[0] == dict(type="StepTestOpen", backend="decord", num_threads=3)
    assert cfg.custom_hooks[0].lr == dict(warmup_epochs=5, base=2.0)
    replaced = load_config(base, {PIPELINE: {"StepTestOpen": {"_delete_": True, "type": "Flip"}}})
    assert pipeline(replaced)[0] == dict(type="Flip") and len(pipeline(replaced)) == 4


def test_a_name_is_that_of_the_file_or_the_new_type_whatever_the_order(base):
    retype = f"{PIPELINE}.StepTestOpen.type=StepTestClips"
    for options in (
        [retype, f"{PIPELINE}.0.num_frames=2"],
        [f"{PIPELINE}.StepTestOpen.num_frames=2", retype],
        [retype, f"{PIPELINE}.StepTestOpen.num_frames=2"],
    ):
        step = pipeline(load_config(base, options))[0]
        assert (step.type, step.num_frames) == ("StepTestClips", 2)
    renamed = [f"{PIPELINE}.2.type=StepTestHook", f"{PIPELINE}.StepTestHook.lr=1"]
    assert pipeline(load_config(base, renamed))[2].lr == 1


@pytest.mark.parametrize(
    ("option", "messages"),
    [
        (
            f"{PIPELINE}.StepTestClip.num_frames=16",
            [
                "list of 4 entries (0: StepTestOpen, 1: StepTestClips, 2: Flip, 3: Flip)",
                "'StepTestClip' is not the index of one, nor the name of its type",
                "did you mean StepTestClips",
            ],
        ),
        (
            f"{PIPELINE}.Flip.prob=1",
            ["'Flip' is ambiguous", "the entries 2 and 3", f"use a number, {PIPELINE}.2"],
        ),
        ("custom_hooks.5.lr=1", ["list of 2 entries", "'5' is not the index"]),
        (
            "custom_hooks.StepTestHook.lr=1",
            ["custom_hooks.StepTestHook.lr is a dict with the keys"],
        ),
        (f"{PIPELINE}.StepTestClips=3", [f"{PIPELINE}.StepTestClips is a dict with the keys"]),
        (
            f"{PIPELINE}.StepTestClips.num_frames=many",
            [f"{PIPELINE}.StepTestClips.num_frames is 8", "give a number, got 'many'"],
        ),
        (
            f"{PIPELINE}.StepTestClips.num_frmes=16",
            [
                f"unknown key '{PIPELINE}.StepTestClips.num_frmes'",
                f"did you mean {PIPELINE}.StepTestClips.num_frames?",
            ],
        ),
        (
            f"{PIPELINE}.1.num_frmes=16",
            [f"did you mean {PIPELINE}.StepTestClips.num_frames?"],
        ),
        (f"{PIPELINE}=3", [f"for example {PIPELINE}.StepTestOpen.type"]),
        ("data_root.StepTestOpen=x", ["list of 2 entries; 'StepTestOpen' is not the index of one"]),
        ("val_evaluator.AccMetric.k=1", ["options cannot begin the list val_evaluator"]),
        ("param_scheduler.LinearLR.begin=1", ["options cannot begin the list param_scheduler"]),
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
    cfg = load_config(grandchild, ["custom_hooks.StepTestHook.inner=2"])
    assert pipeline(cfg) == [
        dict(type="StepTestOpen", backend="av", num_threads=4),
        dict(
            type="sce_video.StepTestClips",
            num_frames=16,
            views=[dict(type="StepTestOpen", backend="decord")],
        ),
        dict(type="Flip", prob=0.5),
        dict(type="Flip", prob=0.9),
    ]
    assert cfg.custom_hooks[0] == dict(
        type="StepTestHook", lr=dict(warmup_epochs=35, base=3.0), inner=2, priority="LOW"
    )
    assert cfg.train_dataloader.batch_size == 32


def test_delete_replaces_a_step_at_its_position(child_of):
    cfg = load_config(
        child_of(
            "train_dataloader = dict(dataset=dict(pipeline=dict(\n"
            "    StepTestClips=dict(_delete_=True, type='Other', size=2))))\n"
            "custom_hooks = dict(StepTestHook=dict(lr=dict(_delete_=True, gamma=0.1)))"
        )
    )
    assert [step.type for step in pipeline(cfg)] == ["StepTestOpen", "Other", "Flip", "Flip"]
    assert pipeline(cfg)[1] == dict(type="Other", size=2)
    assert cfg.custom_hooks[0].lr == dict(gamma=0.1)


def test_a_list_still_replaces_a_list_and_a_tuple_stays_one(tmp_path, child_of):
    cfg = load_config(child_of("custom_hooks = [dict(type='EMAHook')]\ndata_root = ['c']"))
    assert cfg.custom_hooks == [dict(type="EMAHook")] and cfg.data_root == ["c"]
    (tmp_path / "tuple.py").write_text("views = (dict(type='A', x=1), dict(type='B'))")
    cfg = load_config(child_of("views = dict(A=dict(x=2))", parent="tuple.py"))
    assert cfg.views == (dict(type="A", x=2), dict(type="B"))


def test_json_and_yaml_children_may_use_names_too(tmp_path, base):
    changes = {"custom_hooks": {"EMAHook": {"momentum": 0.1}}}
    for name in ("child.json", "child.yaml"):
        (tmp_path / name).write_text(json.dumps({"_base_": "base.py", **changes}))
        assert load_config(tmp_path / name).custom_hooks[1] == dict(type="EMAHook", momentum=0.1)


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            "custom_hooks = dict(StepTestHok=dict(inner=1))",
            [
                "custom_hooks is a list of 2 entries (0: StepTestHook, 1: EMAHook)",
                "'StepTestHok' is not the index of one, nor the name of its type",
                "did you mean StepTestHook?",
                "To add or remove steps, give custom_hooks as a list",
            ],
        ),
        (
            "train_dataloader = dict(dataset=dict(pipeline=dict(Flip=dict(prob=1))))",
            [f"{PIPELINE}: 'Flip' is ambiguous", "the entries 2 and 3"],
        ),
        ("custom_hooks = dict(EMAHook=3)", ["custom_hooks.EMAHook is a dict", "got 3"]),
        ("custom_hooks = dict(EMAHook=None)", ["custom_hooks.EMAHook is a dict", "got None"]),
        ("custom_hooks = dict(type='EMAHook')", ["'type' is not the index"]),
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


def test_a_dict_over_a_list_without_types_is_mmengines_error(child_of):
    with pytest.raises(ValueError, match=r"child\.py: TypeError: .*cannot inherit from base"):
        load_config(child_of("data_root = dict(a=1)"))


def test_nothing_stays_patched(child_of):
    good, bad = child_of(CHILD), child_of("custom_hooks = dict(No=dict())", name="bad.py")
    before = {name: vars(Config)[name] for name in ("_merge_a_into_b", "_file2dict")}
    load_config(good)
    with pytest.raises(ValueError):
        load_config(bad)
    for name, function in before.items():
        assert vars(Config)[name] is function
    with pytest.raises(TypeError, match="cannot inherit from base"):
        Config.fromfile(str(good))


def test_the_merged_config_can_be_written_and_read_by_mmengine_alone(child_of, tmp_path):
    cfg = load_config(child_of(CHILD))
    cfg.dump(str(tmp_path / "dumped.py"))
    assert Config.fromfile(str(tmp_path / "dumped.py")).to_dict() == cfg.to_dict()


# -- messages of check_config, and the functions -------------------------------------------------


def test_faults_of_the_file_name_the_step(child_of):
    file = child_of(
        "train_dataloader = dict(dataset=dict(pipeline=dict(StepTestClips=dict(num_frmes=16))))\n"
        "custom_hooks = dict(StepTestHook=dict(inne=1, priority='HIGH'))"
    )
    with pytest.raises(ValueError) as error:
        check_config(load_config(file))
    lines = [line.strip() for line in str(error.value).splitlines()]
    clips = f"{PIPELINE}.StepTestClips"
    assert (
        f"{clips}.num_frmes: sce_video.StepTestClips has no 'num_frmes'; "
        f"did you mean {clips}.num_frames?"
    ) in lines
    assert (
        "custom_hooks.StepTestHook.inne: StepTestHook has no 'inne'; "
        "did you mean custom_hooks.StepTestHook.inner?"
    ) in lines
    # Two steps share the type Flip: their numbers are the path.
    assert any(line.startswith(f"{PIPELINE}.2.prob: Flip has no 'prob'") for line in lines)


def test_changes_to_steps_without_a_list_to_change_are_a_fault(child_of):
    file = child_of("val_dataloader = dict(dataset=dict(pipeline=dict(StepTestOpen=dict(x=1))))")
    message = r"val_dataloader\.dataset\.pipeline: a dict of changes to steps \(StepTestOpen\)"
    with pytest.raises(ValueError, match=message):
        check_config(load_config(file))


def test_types_given_as_classes_have_their_names():
    steps = [dict(type=_Open), dict(type="a.b.Crop"), {"no": "type"}, 3]
    assert step_index(steps, "_Open", "p") == 0
    assert step_index(steps, "Crop", "p") == step_index(steps, "a.b.Crop", "p") == 1
    with pytest.raises(ValueError, match=r"p is a list of 4 entries \(0: _Open, 1: Crop\)"):
        step_index(steps, "x.Crop", "p")
    with pytest.raises(ValueError, match="'' is not the index"):
        step_index(steps, "", "p")


def test_paths_with_numbers_and_with_names():
    root = {"a": [dict(type="s.X", b=[dict(type="Y"), dict(type="Y")]), dict(type="Z")]}
    assert numbered_path(root, ["a", "X", "b", "1", "k"]) == ("a", "0", "b", "1", "k")
    assert numbered_path(root, ["a", "s", "X", "b"]) == ("a", "0", "b")
    assert numbered_path(root, ["a", "X", "b", "Y"]) == ("a", "0", "b", "Y")  # ambiguous: left
    assert numbered_path(root, ["none", "X"]) == ("none", "X")
    assert named_path(root, ("a", "0", "b", "1", "k")) == "a.X.b.1.k"
    assert named_path(root, ("a", "1")) == "a.Z"
    assert named_path(root, ("a", "7", "none")) == "a.7.none"


def test_a_recipe_takes_names(repo):
    recipe = repo / "configs/sce/sce_r3d18_8xb64-8x224-200e_k400.py"
    by_name = load_config(recipe, [f"{PIPELINE}.RandomClips.num_frames=16"])
    by_number = load_config(recipe, [f"{PIPELINE}.1.num_frames=16"])
    assert by_name.to_dict() == by_number.to_dict() != load_config(recipe).to_dict()
    check_config(by_name)
