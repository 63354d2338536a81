"""A pretraining that starts from a network: what it is planned with, its first step, resuming."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace

import pytest
import torch
from helpers.hf_models import save_model
from helpers.published_weights import (
    authors_names,
    randomised,
    slowfast_shapes,
    torchvision_file,
    torchvision_names,
)
from helpers.training import make_videos, planned_pretraining, write_planned
from mmengine.hooks import Hook
from safetensors.torch import save_file
from transformers import VideoMAEModel

import sce_video
from sce_video.commands.main import main
from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.config.load import load_config
from sce_video.engine.recipes import methods
from sce_video.engine.run_json import Choice
from sce_video.interop.weights.video_networks import to_video_layout
from sce_video.pages.run_record import different_settings
from sce_video.registry import HOOKS, MODELS
from sce_video.runs import plan_pretraining
from sce_video.runs.choices import Machine
from sce_video.runs.configs import training_config
from sce_video.runs.continued import (
    TRANSFORMERS,
    Start,
    continue_from,
    own_choices,
)
from sce_video.runs.folder_facts import FolderFacts
from sce_video.runs.keep_best import kept_message
from sce_video.runs.launch import run_training
from sce_video.runs.plan_distillation import plan_teacher
from sce_video.runs.planned_config import planned_config
from sce_video.runs.start_weights import find_source

TINY = dict(hidden=16, embedding=8, batch=4, epoch_samples=8, workers=0, epochs=1)
FACTS = FolderFacts("videos", 100, 2, 48, (), 4.0, 240, 320, 25.0, 12.0, "h264")


def network(**backbone):
    torch.manual_seed(1)
    return MODELS.build(backbone).state_dict()


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Networks by name: encoders of transformers, files of other code bases, a run of ours."""
    root = tmp_path_factory.mktemp("sources")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCE_VIDEO_CACHE", str(root / "cache"))
        for family in ("videomae", "videomae_classifier", "dinov2"):
            save_model(family, root / family)
        r2plus1d = network(type="R2Plus1d", base_channels=4)
        torch.save({**r2plus1d, "fc.weight": torch.zeros(4, 32)}, root / "r2plus1d.pth")
        slow = network(type="ResNet3dSlowPath", depth=18, base_channels=4)
        torch.save(slow, root / "ours.pth")
        for layout in ("pytorchvideo", "mmaction2"):
            weights = to_video_layout(slow, layout).state_dict
            torch.save({"state_dict": weights}, root / f"{layout}.pth")
        torch.save(network(type="ResNet2d", depth=18, base_channels=4), root / "resnet.pth")
        grey = network(type="ResNet2d", depth=18, base_channels=4, in_channels=1)
        torch.save(grey, root / "grey.pth")
        torch.save(torchvision_file("s3d"), root / "s3d.pth")
        torch.save({"state_dict": {"cls_head.fc.weight": torch.zeros(2, 3)}}, root / "head.pth")
        torch.save({"state_dict": {"anything": torch.zeros(2)}}, root / "other.pth")
        yield root


def plan(videos, out, source, method="sce", given=None, **how):
    settings = {**TINY, **(given or {}), **how}
    return planned_pretraining(videos, out, method=method, start=str(source), **settings)


@pytest.mark.parametrize("layout", ["ours", "pytorchvideo", "mmaction2"])
def test_a_converted_file_has_the_weights_of_the_original(sources, layout):
    found = find_source(sources / f"{layout}.pth")
    weights = load_checkpoint_file(found.checkpoint)["state_dict"]
    original = torch.load(sources / "ours.pth", weights_only=True)
    assert weights.keys() == {f"backbone.{name}" for name in original}
    assert all(torch.equal(weights[f"backbone.{k}"], value) for k, value in original.items())
    assert found.family == "convolution" and not found.per_frame and not found.is_classifier
    mean = (0.485, 0.456, 0.406) if layout == "mmaction2" else 0.45
    assert found.settings.mean == mean and found.settings.num_frames == 8
    assert found.parameters == sum(value.numel() for value in original.values())
    assert find_source(sources / f"{layout}.pth").checkpoint == found.checkpoint  # once


def test_another_network_of_the_same_size_and_time_is_converted(tmp_path, monkeypatch):
    monkeypatch.setenv("SCE_VIDEO_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "net.pth"
    found = []
    for seed in (0, 1):
        weights = {k: v + seed for k, v in randomised(torchvision_names(18)).items()}
        torch.save({"state_dict": weights}, file)
        os.utime(file, (0, 0))
        weights = load_checkpoint_file(find_source(file).checkpoint)["state_dict"]
        original = torch.load(file, weights_only=True)["state_dict"]["conv1.weight"]
        assert torch.equal(weights["backbone.conv1.weight"], original)
        found.append((file.stat().st_size, original))
    assert found[0][0] == found[1][0] and not torch.equal(found[0][1], found[1][1])


PUBLISHED = {
    "SLOW_4x4_R50.pyth": ("s", "ResNet3dSlowPath", True, 8, 0.45),  # with SlowFast's optimiser
    "eztorch.ckpt": ("trunk.", "ResNet2d", False, 1, (0.485, 0.456, 0.406)),  # of Lightning
    "timm.pth.tar": ("", "ResNet2d", True, 4, (0.485, 0.456, 0.406)),
    "s3d.pth": ("features.", "S3D", True, 32, (0.43216, 0.394666, 0.37645)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_checkpoints_as_other_code_bases_publish_them(name, tmp_path, monkeypatch):
    """Every tensor of the encoder, by the order of both definitions of the network."""
    monkeypatch.setenv("SCE_VIDEO_CACHE", str(tmp_path))
    shapes = {**torchvision_names(18), "fc.weight": (5, 64), "fc.bias": (5,)}
    if name.startswith("SLOW"):
        shapes = {**slowfast_shapes(4), "head.projection.weight": (5, 128)}
    elif name.startswith("eztorch"):
        shapes = authors_names(18)
    weights = torchvision_file("s3d") if name.startswith("s3d") else randomised(shapes)
    key = "model_state" if name.startswith("SLOW") else "state_dict"
    whole = weights if name.startswith("s3d") else {key: weights, "epoch": 9, "cfg": "TRAIN:"}
    torch.save(whole, tmp_path / name)
    prefix, kind, *facts = PUBLISHED[name]
    found = find_source(tmp_path / name)
    settings = found.settings
    assert settings.backbone["type"] == kind and found.family == "convolution"
    assert [found.is_classifier, settings.num_frames, settings.mean] == facts
    heads = ("fc.", "head.", "classifier.")
    theirs = [w for n, w in weights.items() if n.startswith(prefix) and not n.startswith(heads)]
    taken = load_checkpoint_file(found.checkpoint)["state_dict"]
    taken = [value for key, value in taken.items() if key.startswith("backbone.")]
    assert all(torch.equal(a, b) for a, b in zip(taken, theirs, strict=True))


def test_what_a_source_says(sources):
    facts = {
        name: (found.family, found.is_classifier, found.per_frame, found.settings.num_frames)
        for name in ("videomae", "videomae_classifier", "dinov2", "r2plus1d.pth", "resnet.pth")
        for found in [find_source(sources / name)]
    }
    assert facts == {
        "videomae": ("videomae", False, False, 4),
        "videomae_classifier": ("videomae", True, False, 4),
        "dinov2": ("dinov2", False, True, 1),
        "r2plus1d.pth": ("convolution", True, False, 16),
        "resnet.pth": ("convolution", False, True, 4),
    }
    by_name = find_source(f"hf:{sources / 'videomae'}")
    assert by_name.checkpoint == find_source(sources / "videomae").checkpoint


TIMM = dict(input_size=[3, 160, 160], mean=[0.5, 0.4, 0.3], std=[0.2] * 3, crop_pct=0.8)


def timm_folder(folder, architecture="resnet18", width=8, **changes):
    """What ``save_for_hf`` of timm writes: a file of weights and a config."""
    folder.mkdir()
    weights = randomised({**torchvision_names(18, width), "fc.weight": (5, 8 * width)})
    torch.save(weights, folder / "pytorch_model.bin")
    ends = {"in_chans": 3, "num_classes": 5, "global_pool": "avg"}
    config = dict(architecture=architecture, num_classes=5, pretrained_cfg=TIMM, model_args=ends)
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return weights


def test_a_folder_of_timm(tmp_path, monkeypatch):
    """Its weights with the input that its config states, whatever part of it is named."""
    monkeypatch.setenv("SCE_VIDEO_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    weights = timm_folder(folder)
    found = find_source(folder)
    settings = found.settings
    assert settings.backbone["type"] == "ResNet2d" and settings.backbone["depth"] == 18
    assert (settings.mean, settings.std) == ((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
    assert (settings.crop_size, settings.short_side, found.train_size) == (160, 200, 160)
    assert found.per_frame and found.is_classifier
    taken = load_checkpoint_file(found.checkpoint)["state_dict"]
    del weights["fc.weight"]
    assert all(torch.equal(taken[f"backbone.{k}"], v) for k, v in weights.items())
    save_file(weights, folder / "model.safetensors")  # comes first, and has no classes
    for name in (folder, folder / "model.safetensors", f"hf:{folder}"):
        assert not find_source(name).is_classifier
    (folder / "config.json").write_text((folder / "config.json").read_text().replace("160", "96"))
    assert find_source(folder).train_size == 96


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (dict(architecture="resnet34"), "lacks 80 weights of .* the first is layer1.2"),
        (dict(pretrained_cfg=None), "config.json does not state a supported input"),
        (dict(pretrained_cfg={**TIMM, "crop_pct": 0}), "a supported input .*division by zero"),
        (dict(pretrained_cfg={**TIMM, "mean": "abc"}), "a supported input .*could not convert"),
        (dict(pretrained_cfg={**TIMM, "input_size": [10**9]}), "a supported input .*expected 3"),
    ],
)
def test_what_of_timm_is_no_source(tmp_path, changes, match):
    timm_folder(tmp_path / "model", **changes)
    with pytest.raises(ValueError, match=match):
        find_source(tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("none", r"there is no .*none\. Give a run"),
        ("wide.pth", "a different backbone from the model.*of a different shape"),
        ("grey.pth", r"grey\.pth has in_channels=1, but videos have 3 channels"),
        (".", r"no checkpoint epoch_N\.pth"),
    ],
)
def test_what_is_no_source(sources, name, match):
    if name == "wide.pth":  # the config of one network, the weights of another
        stored = load_checkpoint_file(find_source(sources / "ours.pth").checkpoint)
        weights = network(type="ResNet3dSlowPath", depth=18, base_channels=8)
        stored["state_dict"] = {f"backbone.{key}": value for key, value in weights.items()}
        torch.save(stored, sources / name)
    with pytest.raises((ValueError, FileNotFoundError), match=match):
        find_source(sources / name)


@pytest.mark.parametrize(
    ("method", "source", "given"),
    [
        ("sce", "videomae", {}),
        ("moco", "dinov2", {}),
        ("byol", "videomae_classifier", {}),
        ("simclr", "r2plus1d.pth", {"frames": 4}),
        ("moco_v3", "videomae", {"size": 32}),
        ("ressl", "resnet.pth", {"lr": 0.5}),
        ("lejepa", "pytorchvideo.pth", {}),
        ("swav", "videomae", {}),
    ],
)
def test_any_method_is_planned_from_any_network(videos, sources, tmp_path, method, source, given):
    planned = plan(videos, tmp_path, sources / source, method, given)
    config, found = planned.config, find_source(sources / source)
    own = {k: v for k, v in found.settings.backbone.items() if k != "resize_to"}
    assert config.model.backbone.to_dict() == {**own, "frozen_stages": -1}
    assert config.pretrained == found.checkpoint
    assert config.data_preprocessor.mean == found.settings.mean
    clips = config.train_dataloader.dataset.pipeline[1]
    assert clips.num_frames == given.get("frames", found.settings.num_frames)
    chosen = {choice.setting: choice.value for choice in planned.choices}
    # The videos have 0.8 s and 40 pixels: patches divide that, of convolutions 32.
    assert chosen["size"] == 32 and 0 < chosen["clip_duration"] <= 0.8
    lr = 5e-5 if found.family != "convolution" else 2e-4
    assert config.optim_wrapper.optimizer.lr == given.get("lr", lr)
    assert ("layer_decay" in chosen) == (found.family != "convolution")
    assert chosen["keep"] == "best" and "width" not in chosen
    text = "\n".join(planned.plan.lines())
    assert f"starts from    {found.name}" in text
    assert ("is a classifier. Only its backbone is used" in text) == found.is_classifier
    assert ("encodes images" in text) == found.per_frame
    # Read as data, the file of the plan is the same training.
    stored = planned_config(write_planned(planned))
    assert stored.model.to_dict() == config.model.to_dict()


@pytest.mark.parametrize("is_installed", [False, True])
def test_an_image_network_shows_motion_by_its_pool_and_could_teach(
    videos, sources, tmp_path, monkeypatch, is_installed
):
    monkeypatch.setattr(plan_pretraining, "has_public_teacher", lambda: is_installed)
    dinov2, resnet = str(sources / "dinov2"), tmp_path / "resnet"
    timm_folder(resnet, pretrained_cfg={**TIMM, "input_size": [3, 64, 64]})

    def of(source, **given):
        given = {**TINY, "start": source, "workers": 0, **given}
        return planned_pretraining(videos, tmp_path / "run", **given).plan.remarks

    images = f"{dinov2} encodes images. It "
    assert f"{images}receives one frame of each clip, so it does not detect motion" in of(dinov2)
    averaged = f"{images}encodes the frames of a clip separately and averages their features, so it"
    assert f"{averaged} does not detect motion" in of(dinov2, frames=2)
    for pool, words in (
        ("", "pools their features by mean+absdiff+delta+energy, which shows how they change"),
        (":mean+std", "pools their features by mean+std, which shows how they change"),
        (":mean", "averages their features, so it does not detect motion"),
    ):
        found = "\n".join(of(f"{resnet}{pool}"))
        assert f"encodes images. It encodes the frames of a clip separately and {words}" in found
    free = {"embedding": None, "hidden": None}
    (other,) = (text for text in of(dinov2, **free) if "--teacher" in text)
    install = "" if is_installed else "run pip install 'sce-video[teacher]', and "
    assert other.startswith(
        f"to train a small video network in minutes, {install}give --teacher {dinov2} instead of "
        f"--from {dinov2}. "
    )
    for source, given in (
        (dinov2, {}),  # with settings of heads that the student does not have
        (dinov2, {**free, "method": "simclr"}),
        (dinov2, {**free, "freeze": 1}),
        (f"{resnet}:mean", free),  # the pool of a teacher is fixed
        (str(sources / "ours.pth"), free),  # a video network
    ):
        assert not any("--teacher" in text for text in of(source, **given))


def test_a_teacher_of_one_size_is_refused_as_a_start_is(sources, tmp_path):
    """A VideoMAE that was built for 32 pixels, and videos of 16 or 17."""
    for height in (16, 17):
        facts = replace(FACTS, height=height)
        calls = [
            lambda facts=facts: own(find_source(sources / "videomae"), facts),
            lambda facts=facts: plan_teacher(str(sources / "videomae"), facts, {}, False),
        ]
        for call in calls:
            if height == 17:
                assert call()
                continue
            with pytest.raises(ValueError, match="needs frames of 32x32 pixels, .* is 16. Give la"):
                call()
    (text,) = calls[1]().remarks(32)
    assert text.startswith("the teacher's frames are enlarged from 17 to 32 pixels, the input size")


def test_all_methods_are_in_the_test_above():
    marks = test_any_method_is_planned_from_any_network.pytestmark
    assert {row[0] for row in marks[0].args[1]} == {*methods()} - {"distill"}  # needs a teacher


def own(found, facts=FACTS, given=None, **how):
    return own_choices(Start(found, **how), facts, Machine(2), given or {}, 2e-3)


def test_the_rate_follows_from_the_size(sources):
    found = find_source(sources / "videomae")
    for parameters, row in zip((22e6, 86e6, 304e6), TRANSFORMERS, strict=True):
        sized = replace(found, parameters=int(parameters))
        assert own(sized)["lr"].value == row.lr
        assert own(sized, lora=4)["lr"].value == pytest.approx(10 * row.lr)
        assert own(sized).get("batch", Choice("batch", 16, "")).value == 16 * row.batch_share
    assert own(find_source(sources / "r2plus1d.pth"))["lr"].value == pytest.approx(2e-4)


def test_the_clip_keeps_its_rate_where_the_videos_last(sources):
    found = find_source(sources / "r2plus1d.pth")  # 16 frames, 15 per second, 112 pixels
    assert own(found)["clip_duration"].value == pytest.approx(16 / 15, abs=1e-3)
    assert own(found, given={"frames": 8})["clip_duration"].value == pytest.approx(8 / 15, abs=1e-3)
    short = replace(FACTS, duration=1.0, height=100)
    assert own(found, short)["clip_duration"].value == 0.8
    assert own(found, short)["size"].value == 96 and own(found)["size"].value == 112


@pytest.mark.parametrize(
    ("source", "facts", "given", "how", "match"),
    [
        ("videomae", dict(duration=0.1), {}, {}, "of 4 frames, but the videos in videos have 2. "),
        ("r2plus1d.pth", dict(duration=0.4), {}, {}, "have 10. Give --frames 10"),
        ("videomae", dict(height=16), {}, {}, "needs frames of 32x32 pixels, but the short side"),
        (
            "videomae",
            {},
            {"frames": 8},
            {},
            "^--frames 8: .*videomae accepts only clips of 4 frames",
        ),
        ("videomae", {}, {"size": 64}, {}, r"^--size 64: .* frames of 32x32 .*\. Remove --size$"),
        ("dinov2", {}, {"size": 36}, {}, "^--size 36: .* multiples of its patch size of 8 pixels"),
        ("r2plus1d.pth", {}, {}, dict(lora=4), "lora adapts attention and MLP"),
    ],
)
def test_what_does_not_fit_is_one_sentence(sources, source, facts, given, how, match):
    with pytest.raises(ValueError, match=match):
        own(
            find_source(sources / source), FACTS.__class__(**{**vars(FACTS), **facts}), given, **how
        )


def test_local_views_need_a_network_that_takes_them(sources):
    crops = {"size": 32, "local_size": 16}
    views = {"num_views": 4, "num_local_views": 2}
    for name, refused in (("videomae", True), ("dinov2", False)):
        config = load_config("sce_r3d18_folder_small")
        pipeline = config.train_dataloader.dataset.pipeline
        pipeline[1].update(views, num_frames=4)
        pipeline[3].update(crops)
        start = Start(find_source(sources / name))
        if refused:
            with pytest.raises(
                ValueError, match="SCE has local views of 4 frames of 16x16, but .*"
            ):
                continue_from(config, start)
        else:
            continue_from(config, start)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (
            ["{videos}", "--freeze", "2"],
            "--freeze needs a network to start from",
        ),
        (
            ["{videos}", "--from", "nothing"],
            "(hf:NAME) at nothing",
        ),
        (["{videos}", "--from", "hf:nothing"], "neither a folder nor a name on the hub"),
        (
            ["{videos}", "--from", "hf:a/b", "--width", "8"],
            "--from cannot be combined with --width",
        ),
        (
            ["--from", "hf:a/b", "--resume"],
            "--resume reads everything from RUN/run.json. Remove --from",
        ),
        (["{videos}", "--from", "{root}/s3d.pth"], "have 20. Give --frames 20"),
        (["{videos}", "--from", "{root}/videomae", "--frames", "8"], "--frames 8: "),
        (["{videos}", "--from", "{root}/head.pth"], "contains only a head. Give the checkpoint"),
        (["{videos}", "--from", "{root}/other.pth"], "do not have the layout of a known code base"),
    ],
)
def test_a_wrong_command_line(videos, sources, tmp_path, capsys, words, match):
    """One sentence, and nothing is written."""
    given = [word.format(videos=videos, root=sources) for word in words]
    assert main(["pretrain", "--out", str(tmp_path / "run"), *given]) == 2
    shown = capsys.readouterr()
    assert match in shown.err and shown.err.count("\n") == 1 and not shown.out
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (('"HFEncoder"', '"mmaction.LFBInferHead"'), "LFBInferHead"),
        (("{checkpoint}", "hf:owner/model"), "names 'hf:owner/model'"),
        (("{checkpoint}", "s3://bucket/epoch_1.pth"), "names 's3:"),
        (('"type": "AdamW"', '"type": "Other"'), "names 'Other'"),
    ],
)
def test_a_changed_plan_names_nothing_else(videos, sources, tmp_path, change, match):
    planned = plan(videos, tmp_path, sources / "videomae")
    path = write_planned(planned) / "run.json"
    before = change[0].format(checkpoint=planned.config.pretrained)
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, change[1]))
    with pytest.raises(ValueError, match=match):
        planned_config(path.parent)


class SeesTheStart(Hook):
    """Keeps the weights before the first step."""

    states: list = []

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 0:
            state = runner.model.state_dict()
            self.states.append({name: value.clone() for name, value in state.items()})


def test_the_first_step_has_the_weights_of_the_source(videos, sources, tmp_path, monkeypatch):
    """Backbone and target equal transformers' own weights, bit for bit."""
    monkeypatch.setitem(HOOKS._module_dict, "SeesTheStart", SeesTheStart)
    planned = plan(videos, tmp_path / "run", sources / "videomae", "byol")
    planned.config.custom_hooks.append(dict(type="SeesTheStart"))
    runner = run_training(training_config(planned.config, work_dir=tmp_path / "run"))
    published = VideoMAEModel.from_pretrained(sources / "videomae").state_dict()
    [seen] = SeesTheStart.states
    assert len(published) > 20
    for name, value in published.items():
        for branch in ("backbone.network", "target.backbone.network"):
            assert torch.equal(seen[f"{branch}.{name}"], value), name
    for key, value in seen.items():
        if key.startswith("projector."):
            assert torch.equal(seen[f"target.{key}"], value)
    trained = runner.model.state_dict()
    changed = [
        n for n, v in published.items() if not torch.equal(trained[f"backbone.network.{n}"], v)
    ]
    assert len(changed) > 0.8 * len(published)
    rates = {round(g["lr_scale"], 4) for g in runner.optim_wrapper.optimizer.param_groups}
    assert rates == {1.0, 0.75, 0.5625, 0.4219}  # heads, two blocks, embeddings


def test_adapters_and_frozen_quarters(videos, sources, tmp_path):
    planned = plan(videos, tmp_path, sources / "videomae", lora=2, freeze=2)
    assert planned.config.lora == dict(rank=2)
    assert planned.config.model.backbone.frozen_stages == 2
    described = next(c for c in planned.choices if c.setting == "starts from").reason
    assert "the first 2 quarters frozen, adapters of rank 2 are trained" in described


def test_a_resumed_training_equals_the_whole(videos, sources, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sce-video"])
    monkeypatch.setattr("sce_video.runs.page.write_run_page", lambda folder, *_, **__: folder)
    given = {**TINY, "epochs": 2, "start": str(sources / "videomae"), "keep": "last"}
    planned = planned_pretraining(videos, tmp_path / "whole", **given)  # not ended early
    planned.config.default_hooks.checkpoint.interval = 1
    planned.config.default_hooks.checkpoint.max_keep_ckpts = -1
    run_training(
        training_config(planned_config(write_planned(planned)), work_dir=tmp_path / "whole")
    )
    run = shutil.copytree(tmp_path / "whole", tmp_path / "run")
    (run / "epoch_2.pth").unlink()
    for name in ("config.py", "run.json"):
        text = (run / name).read_text()
        (run / name).write_text(text.replace(str(tmp_path / "whole"), str(run)))
    assert main(["pretrain", "--out", str(run), "--resume"]) == 0
    ends = [load_checkpoint_file(tmp_path / n / "epoch_2.pth") for n in ("whole", "run")]
    assert ends[0]["state_dict"].keys() == ends[1]["state_dict"].keys()
    for key, value in ends[0]["state_dict"].items():
        assert torch.equal(value, ends[1]["state_dict"][key]), key
    states = [end["optimizer"]["state"] for end in ends]
    assert all(torch.equal(s["exp_avg"], states[1][k]["exp_avg"]) for k, s in states[0].items())


def test_seeds_start_from_one_network(videos, sources, tmp_path, monkeypatch):
    """Planned once: of the trained weights the heads differ, what is frozen is the source's."""
    monkeypatch.setattr(sys, "argv", ["sce-video"])
    monkeypatch.setattr("sce_video.runs.page.write_run_page", lambda folder, *_, **__: folder)
    source = str(sources / "videomae")
    given = {"method": "simclr", "start": source, "freeze": 2, **TINY}
    runs = sce_video.pretrain(videos, out=tmp_path, seeds=[3, 4], **given)
    configs = [planned_config(folder).to_dict() for folder in runs.folders]
    assert list(different_settings(configs)) == ["randomness.seed"]
    assert all(kept_message(folder) for folder in runs.folders)
    one, two = (load_checkpoint_file(f / "epoch_1.pth")["state_dict"] for f in runs.folders)
    published = load_checkpoint_file(find_source(source).checkpoint)["state_dict"]
    frozen = [key for key in published if "embeddings" in key or "layer.0" in key]
    assert frozen and all(torch.equal(s[k], published[k]) for k in frozen for s in (one, two))
    assert any(not torch.equal(one[k], published[k]) for k in published if "layer.1" in k)
    assert not torch.equal(*(state["projector.layers.0.weight"] for state in (one, two)))
    with pytest.raises(FileNotFoundError, match="at nothing"):
        sce_video.pretrain(videos, out=tmp_path / "no", seeds=[3], start="nothing")
    words = [w for name, v in TINY.items() for w in (f"--{name.replace('_', '-')}", str(v))]
    words += ["--from", source, "--freeze", "2", "--method", "simclr"]
    out = tmp_path / "command"
    assert main(["pretrain", str(videos), "--out", str(out), "--seeds", "3", "--plan", *words]) == 0
    by_command = planned_config(out / "seed3").to_dict()
    assert not {*different_settings([configs[0], by_command])} - {"work_dir"}


def test_a_run_is_a_source(videos, sources, tmp_path, monkeypatch):
    """Its training size counts, not that of its test, and its name is in the new plan."""
    config = plan(videos, tmp_path / "first", sources / "ours.pth").config
    run_training(training_config(config, work_dir=tmp_path / "first"))
    found = find_source(tmp_path / "first")
    assert found.train_size == 32 and found.settings.backbone["base_channels"] == 4
    again = plan(videos, tmp_path / "second", tmp_path / "first", "simclr", freeze=1).config
    assert again.model.backbone.frozen_stages == 1
    assert again.train_dataloader.dataset.pipeline[1].num_frames == 8
