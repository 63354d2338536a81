"""The printed recipe: the config of a training, and the file or option that sets each value."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.training import REPO, make_videos

import sce_video
from sce_video.commands.train import main
from sce_video.engine.config.load import load_config
from sce_video.runs import configs, launch, page
from sce_video.runs.resolved import COMMAND, resolved

PIPELINE = "train_dataloader.dataset.pipeline"
SMALL = [
    "train_dataloader.batch_size=4",
    "train_dataloader.num_workers=0",
    "train_dataloader.persistent_workers=False",
    "train_dataloader.sampler.min_samples=0",
    f"{PIPELINE}.RandomClips.clip_duration=0.4",
    f"{PIPELINE}.RandomClips.num_frames=2",
    f"{PIPELINE}.RandomResizedCropClips.size=32",
    "model.projector.hidden_channels=16",
    "model.projector.out_channels=8",
    "model.predictor.hidden_channels=16",
    "visualizer=None",
    "train_cfg.max_epochs=1",
]


@pytest.fixture
def child(tmp_path: Path, monkeypatch) -> Path:
    """A recipe over a recipe over configs/sce/sce_r3d18_folder.py, in the current folder."""
    (tmp_path / "parent.py").write_text(
        f"""_base_ = {str(REPO / "configs/sce/sce_r3d18_folder.py")!r}
model = dict(queue_size=1201, projector=dict(hidden_channels=1202, out_channels=1203))
train_dataloader = dict(
    batch_size=1204,
    dataset=dict(pipeline=dict(RandomClips=dict(num_frames=1205, num_views=1206))),
)
custom_hooks = dict(ScheduleHook=dict(lr=dict(warmup_epochs=1207)))
test_evaluator = [dict(type="KNN", k=1208)]
clips = [dict(type="OpenVideo"), dict(type="UniformClips", num_frames=1209)]
"""
    )
    (tmp_path / "child.py").write_text(
        """_base_ = "parent.py"
model = dict(queue_size=1301, projector=dict(out_channels=1203))
train_dataloader = dict(dataset=dict(pipeline=dict(RandomClips=dict(num_views=1302))))
custom_hooks = dict(ScheduleHook=dict(model=dict(_delete_=True, momentum=1303)))
test_dataloader = dict(dataset=dict(pipeline=_base_.clips))
"""
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path / "child.py"


def sources_of(recipe) -> dict[str, tuple]:
    """Value and source by key."""
    return {setting.key: (setting.value, setting.source) for setting in recipe.settings}


def test_files_and_options_of_two_levels_of_inheritance(child):
    before = sorted(child.parent.rglob("*"))
    options = [f"{PIPELINE}.RandomClips.num_frames=16", "model.tau_m=0.07"]
    recipe = sce_video.resolved("child.py", cfg_options=options, seed=5)
    found = sources_of(recipe)
    folder, base = "configs/sce/sce_r3d18_folder.py", "configs/_base_"
    assert {key: found[key] for key in found if key in EXPECTED} == EXPECTED
    assert found["model.type"] == ("SCE", f"{base}/models/sce_r3d18.py")
    assert found["fit_queue"] == (True, folder)
    # A list replaces that of the base; a variable of the parent stands in the parent.
    assert found["test_evaluator.KNN.k"] == (1208, "parent.py")
    assert "test_evaluator.LinearProbe.type" not in found
    steps = "test_dataloader.dataset.pipeline"
    assert found[f"{steps}.UniformClips.num_frames"] == (1209, "parent.py")
    # A variable of a base file that the recipe hands on stands where it is written.
    assert found[f"{PIPELINE}.RandomClips.diff_prob"] == (
        0.2,
        f"{base}/pipelines/pretrain_8x224.py",
    )
    assert not {"clips", "train_pipeline", "settings.width"} & found.keys()  # no training reads it
    assert sorted(child.parent.rglob("*")) == before  # nothing was written
    text = str(recipe)
    assert f"\n{PIPELINE}.RandomClips.num_frames = 16 " in text and "  # --cfg-options\n" in text


EXPECTED = {
    "model.queue_size": (1301, "child.py"),
    "model.projector.hidden_channels": (1202, "parent.py"),
    "model.projector.out_channels": (1203, "child.py"),  # which says the same as its parent
    "model.tau_m": (0.07, "--cfg-options"),
    "train_dataloader.batch_size": (1204, "parent.py"),
    f"{PIPELINE}.RandomClips.num_frames": (16, "--cfg-options"),
    f"{PIPELINE}.RandomClips.num_views": (1302, "child.py"),
    "custom_hooks.ScheduleHook.lr.warmup_epochs": (1207, "parent.py"),
    "custom_hooks.ScheduleHook.model.momentum": (1303, "child.py"),
    "randomness.seed": (5, "--seed"),
    "work_dir": ("work_dirs/child", COMMAND),
    "launcher": ("none", COMMAND),
}


def test_a_change_in_the_named_file_changes_the_value(child):
    """The oracle of what a source means, for each number of the two files."""
    found = sources_of(resolved("child.py"))
    numbers = {key: pair for key, pair in found.items() if type(pair[0]) is int and pair[0] > 1200}
    assert len(numbers) == 10
    for key, (value, source) in numbers.items():
        text = Path(source).read_text()
        Path(source).write_text(text.replace(str(value), str(value + 700)))
        assert sources_of(resolved("child.py"))[key] == (value + 700, source)
        Path(source).write_text(text)


RECIPES = (
    "sce_r3d18_folder_small",
    "lejepa_vit_folder_small",
    "sce_r18_digits_small",
    "moco_r3d18_8xb64-8x224-200e_k200",
    "sce_toy_actions",
)


@pytest.mark.parametrize("name", RECIPES)
def test_the_file_of_a_recipe_contains_the_key_and_the_value(name):
    for setting in resolved(name).settings:
        if setting.source == COMMAND:
            continue
        text = (REPO / setting.source).read_text()
        last = setting.key.rpartition(".")[2]
        value = setting.value
        assert last in text or last.isdecimal(), setting
        numbers = type(value) in (int, float) and value not in (0, 1)
        assert not numbers or f"{value:g}" in text or str(value) in text or "e-" in text, setting
        assert not isinstance(value, str) or value.rpartition(".")[2] in text, setting


def test_the_command_prints_the_config_that_it_would_train_with(child, capsys, monkeypatch):
    words = ["child.py", "--seed", "4", "--deterministic", "--work-dir", "runs/one"]
    words += ["--data-root", "videos", "--cfg-options", f"{PIPELINE}.RandomClips.num_frames=16"]
    make_videos(child.parent / "videos", count=2)
    assert main([*words, "--print"]) == 0
    shown = capsys.readouterr().out
    assert not (child.parent / "runs").exists()

    def stop(cfg, overwrite):
        trained.append(cfg)
        raise KeyboardInterrupt

    trained: list = []
    monkeypatch.setattr(page, "train_with_page", stop)
    assert main(words) == 130
    options = {
        "randomness.deterministic": True,
        "train_dataloader.dataset.data_root": "videos",
        "train_dataloader.dataset.ann_file": None,
        f"{PIPELINE}.RandomClips.num_frames": 16,
    }
    recipe = resolved("child.py", options, seed=4, work_dir="runs/one")
    assert recipe.config.to_dict() == trained[0].to_dict()
    lines = dict(line.split("  # ") for line in shown.splitlines() if "  # " in line)
    lines = {line.rstrip(): source for line, source in lines.items()}
    assert len(lines) == len(recipe.settings)
    assert lines["randomness.seed = 4"] == "--seed"
    assert lines["randomness.deterministic = True"] == "--deterministic"
    assert lines["work_dir = runs/one"] == "--work-dir"
    assert lines["train_dataloader.dataset.data_root = videos"] == "--data-root"
    assert lines[f"{PIPELINE}.RandomClips.num_frames = 16"] == "--cfg-options"
    assert lines["model.queue_size = 1301"] == "child.py"


def test_what_a_resumed_training_takes_from_its_checkpoint(tmp_path):
    videos = make_videos(tmp_path / "videos", count=4)
    recipe, data = "sce_r3d18_folder", [f"train_dataloader.dataset.data_root={videos}"]
    width = "model.backbone.base_channels"
    given = [*SMALL, *data, f"{width}=4", "model.queue_size=3"]
    launch.run_training(
        configs.training_config(recipe, work_dir=tmp_path / "run", cfg_options=given)
    )
    found = sources_of(resolved(recipe, data, resume=str(tmp_path / "run")))
    assert found[width] == (4, "--resume") and found["model.queue_size"] == (3, "--resume")
    assert found["resume"] == (True, "--resume")
    assert found["model.tau"][1] == "configs/_base_/models/sce_r3d18.py"


def test_a_recipe_that_needs_an_option():
    recipe, options = "r3d18_8xb64-8x224-60e_k200", ["model.cls_head.num_classes=5"]
    found = sources_of(resolved(recipe, options, pretrained="random"))
    assert found["pretrained"] == ("random", "--pretrained")
    assert found["model.cls_head.num_classes"] == (5, "--cfg-options")


def test_configs_without_named_bases(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = load_config("sce_r3d18_folder")
    found = sources_of(resolved(cfg, ["model.tau=0.2"]))
    assert found["model.tau"][1] == "--cfg-options"
    assert found["model.tau_m"][1] == "the given config"
    cfg.dump("part.py")
    Path("lazy.py").write_text(
        "from mmengine.config import read_base\nwith read_base():\n    from .part import *\n"
        "model.update(dict(tau=0.3))\n"
    )
    found = sources_of(resolved("lazy.py", ["model.tau_m=0.2"]))
    assert found["model.tau"] == (0.3, "lazy.py, or a config that it imports")
    assert found["model.tau_m"] == (0.2, "--cfg-options")


def test_a_mirror_is_not_restored(tmp_path):
    with pytest.raises(ValueError, match="cannot print the recipe with --resume and a mirror"):
        resolved("sce_r3d18_folder", resume="auto", mirror="s3://bucket/run")
