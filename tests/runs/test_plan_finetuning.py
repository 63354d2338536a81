"""The routes of a finetuning: the rules, the trial, and the run that frozen features leave."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.hf_models import save_model
from helpers.tiny_encoder import CONFIG, S3D_CONFIG, save_tiny
from helpers.training import make_videos, write_planned

import sce_video
from sce_video.commands.main import main
from sce_video.datasets.video_dataset import VideoDataset
from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.config.snapshot import plain
from sce_video.engine.run_json import Choice, read_run_json
from sce_video.engine.runner import VideoRunner
from sce_video.evaluation.functional.linear_probe import fit_linear_probe
from sce_video.evaluation.linear_fit_loop import read_known, write_known
from sce_video.evaluation.linear_start_hook import LinearStartHook
from sce_video.evaluation.scores import load_scores
from sce_video.models import S3D, EfficientNetLite
from sce_video.options.connect import DEFAULT_FRAME_POOL, FRAME_POOLS
from sce_video.options.training import FinetuneOptions
from sce_video.runs import plan_finetuning as plan_finetuning_module
from sce_video.runs import plan_frozen as plan_frozen_module
from sce_video.runs.configs import training_config
from sce_video.runs.launch import run_training
from sce_video.runs.plan_finetuning import (
    Trial,
    better_route,
    known_route,
    plan_finetuning,
    trial_seconds,
)
from sce_video.runs.plan_frozen import check_hours
from sce_video.utils.run_files import KNOWN_FEATURES, PROBE, RESULTS, SCORES

SMALL = {"workers": 0, "batch": 4}
VIDEO = "type='ResNet3dSlowPath', depth=18, base_channels=4, zero_init_residual=False"


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Ten videos to train and six to test, of two classes, a video and an image network."""
    root = tmp_path_factory.mktemp("videos")
    make_videos(root / "train", 10)
    make_videos(root / "test", 6)
    save_tiny(root / "source.pth")
    save_tiny(root / "s3d.pth", S3D(base_channels=4), S3D_CONFIG)
    assert VIDEO in CONFIG.replace("\n            ", " ").replace("(\n", "(")
    text = CONFIG.replace("type='ResNet3dSlowPath', depth=18, base_channels=4,", "")
    text = text.replace("zero_init_residual=False,", "type='EfficientNetLite',")
    torch.manual_seed(0)
    save_tiny(root / "image.pth", EfficientNetLite().eval(), text)
    return root


def options(videos, out, source="source.pth", **changes):
    sets = {"train": str(videos / "train"), "test": str(videos / "test"), **SMALL}
    return FinetuneOptions(source=str(videos / source), out=str(out), **{**sets, **changes})


def choices(planned):
    return {choice.setting: choice for choice in planned.choices}


@pytest.fixture(scope="module")
def frozen(videos, tmp_path_factory):
    """A run of the image network, frozen; not to be changed."""
    run = tmp_path_factory.mktemp("frozen") / "run"
    sets = ["--train", str(videos / "train"), "--test", str(videos / "test"), "--workers", "0"]
    words = ["finetune", str(videos / "image.pth"), *sets, "--out", str(run), "--route", "frozen"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sce-video"])
        assert main(words) == 0
    return run


def test_the_head_is_the_probe_of_the_chosen_features(frozen, videos):
    """The features of ``sce_video.embed_videos`` and a fit of their own give the same classes."""
    plan = {choice.setting: choice.value for choice in read_run_json(frozen).plan.choices}
    assert plan["route"] == "frozen" and plan["frame_pool"] in FRAME_POOLS
    classifier = sce_video.load_classifier(frozen)
    network = sce_video.load_model(frozen)
    clips = sce_video.ViewOptions(num_clips=plan["clips"], num_crops=plan["crops"])
    sets = [sorted((videos / part).rglob("*.mp4")) for part in ("train", "test")]
    features, tested = (torch.tensor(sce_video.embed_videos(network, s, clips)) for s in sets)
    labels = torch.tensor([int(path.parent.name[-1]) for path in sets[0]])
    expected = fit_linear_probe(features, labels, l2_grid=(plan["l2"],)).scores(tested).softmax(1)
    assert plan["clips"] == 1  # else the fit would see clips, and the features above are means
    found = sce_video.class_probabilities(classifier, sets[1])
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)
    assert found.std() > 0.05
    scores, _ = load_scores(frozen / SCORES)
    order = [scores.paths.index(str(path)) for path in sets[1]]
    np.testing.assert_allclose(scores.values.numpy()[order], found, atol=1e-5)


@pytest.mark.parametrize(
    ("option", "value", "drawn"),
    [("--group-column", "take", "3 groups"), ("--group-pattern", r"class(\d)", "2 groups")],
)
def test_the_intervals_of_the_test_draw_whole_groups(
    option, value, drawn, videos, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "argv", ["sce-video"])
    sets = {part: str(videos / part) for part in ("train", "test")}
    if option == "--group-column":  # two takes after each other are one group
        for part in sets:
            paths = sorted((videos / part).rglob("*.mp4"))
            lines = [f"{path},{path.parent.name},{int(path.stem[1:]) // 2}" for path in paths]
            sets[part] = str(tmp_path / f"{part}.csv")
            Path(sets[part]).write_text("\n".join(["path,label,take", *lines]))
    run = tmp_path / "run"
    words = ["finetune", str(videos / "source.pth"), "--out", str(run), option, value]
    words += ["--train", sets["train"], "--test", sets["test"], "--workers", "0"]
    assert main([*words, "--route", "frozen"]) == 0
    assert json.loads((run / RESULTS).read_text())["intervals_over"] == drawn


def test_the_network_is_that_of_the_source(frozen, videos):
    ours, theirs = (
        load_checkpoint_file(path)["state_dict"]
        for path in (frozen / "epoch_1.pth", videos / "image.pth")
    )
    for name, value in theirs.items():
        if name.startswith("backbone."):
            assert torch.equal(ours[name], value), name


def test_every_command_takes_the_run(frozen, videos, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sce-video"])
    run, tested = str(frozen), str(videos / "test")
    before = load_checkpoint_file(frozen / "epoch_1.pth")["state_dict"]["cls_head.fc_cls.weight"]
    for words in (
        ["predict", run, tested, "--csv", str(tmp_path / "p.csv"), "--workers", "0"],
        ["test", str(frozen / "config.py"), run, "--out", str(tmp_path / "test.json")],
        ["index", tested, "--checkpoint", run, "--out", str(tmp_path / "index")],
        ["export", run, "--to", "pretrained", "--out", str(tmp_path / "export")],
        ["finetune", "--out", run, "--resume"],
    ):
        assert main(words) == 0, capsys.readouterr().err
    metrics = [
        json.loads(p.read_text())["metrics"] for p in (tmp_path / "test.json", frozen / RESULTS)
    ]
    assert metrics[0]["top1"] == metrics[1]["top1"]
    assert not (frozen / PROBE).exists()  # the classifier is the probe
    content = load_checkpoint_file(frozen / "epoch_1.pth")["state_dict"]
    assert torch.equal(content["cls_head.fc_cls.weight"], before)
    page = (frozen / "run.html").read_text()
    assert "held-out videos" in page and "Confusion matrix" in page


def test_a_network_that_keeps_no_frames_has_no_pool(videos, tmp_path):
    given = options(videos, tmp_path, source="s3d.pth", route="frozen")
    planned = plan_finetuning(given, time.monotonic())
    found = choices(planned)
    assert "frame_pool" not in found and "frame_pool" not in planned.config.model.backbone
    assert "on held-out videos" in found["l2"].reason and found["route"].reason == "given"
    assert planned.config.train_cfg.l2 == found["l2"].value


def test_the_pools_of_an_image_encoder_have_the_names_that_commands_accept(
    videos, tmp_path, monkeypatch
):
    """DINOv2 keeps its own pool unless the videos show that another one is better."""
    pytest.importorskip("transformers", reason="no transformers: pip install 'sce-video[hf]'")
    monkeypatch.setenv("SCE_VIDEO_CACHE", str(tmp_path / "cache"))
    save_model("dinov2", tmp_path / "dino")
    motion = [pool for pool in FRAME_POOLS if pool != "mean"]
    for name, changes, compared in (
        ("dino", {}, ["class", *motion]),
        ("dino:mean", {}, ["mean"]),
        ("dino:concat", {}, ["concat"]),
        ("dino", {"few": 1, "batch": 2}, []),
    ):
        given = options(videos, tmp_path, str(tmp_path / name), route="frozen", **changes)
        planned = plan_finetuning(given, time.monotonic())
        found, backbone = choices(planned)["frame_pool"], planned.config.model.backbone
        assert re.findall(r"(\S+) [\d.]+ %", found.reason) == compared
        assert found.value in (compared or ["class"])
        of_tokens, of_frames = ("mean", "mean") if name == "dino:mean" else ("class", found.value)
        of_frames = "mean" if of_frames == "class" else of_frames
        assert (backbone.pool, backbone.frame_pool) == (of_tokens, of_frames)
        assert choices(planned)["frames"].value > 1


def test_one_video_of_a_class_is_not_compared(videos, tmp_path):
    given = options(videos, tmp_path, source="image.pth", few=1, batch=2)
    found = choices(plan_finetuning(given, time.monotonic()))
    assert found["route"].value == "frozen"
    assert (found["frame_pool"].value, found["l2"].value) == (DEFAULT_FRAME_POOL, 0.1)
    assert "too few" in found["l2"].reason


def test_the_classifier_of_an_image_network_starts_from_a_probe(videos, tmp_path, monkeypatch):
    """Its scores are those of an own fit to the features of the training videos."""
    planned = plan_finetuning(
        options(videos, tmp_path, "image.pth", route="finetune", epochs=1), time.monotonic()
    )
    found = choices(planned)
    assert found["lr"].value == 1e-4
    write_planned(planned)
    runner = VideoRunner.from_cfg(training_config(planned.config))
    (hook,) = (hook for hook in runner.hooks if isinstance(hook, LinearStartHook))
    runner.load_or_resume()
    layer, before = runner.model.cls_head.fc_cls, torch.get_rng_state()
    hook.before_train(runner)
    assert torch.equal(torch.get_rng_state(), before)

    network = sce_video.load_model(videos / "image.pth")
    steps = {step["type"]: step for step in planned.config.val_dataloader.dataset.pipeline}
    settings = replace(
        network.settings,
        num_frames=found["frames"].value,
        clip_duration=found["clip_duration"].value,
        short_side=steps["ResizeShortSide"]["size"],
        crop_size=found["size"].value,
    )
    network = replace(network, settings=settings)
    paths = sorted((videos / "train").rglob("*.mp4"))
    view = sce_video.ViewOptions(num_clips=1)
    features = torch.tensor(sce_video.embed_videos(network, paths, view))
    labels = torch.tensor([int(path.parent.name[-1]) for path in paths])
    expected = fit_linear_probe(features, labels, seed=runner.seed)
    with torch.no_grad():
        scores = layer(features).double()
    torch.testing.assert_close(scores, expected.scores(features), rtol=1e-3, atol=1e-3)
    assert scores.std() > 0.05

    weight = layer.weight.detach().clone()
    layer.weight.data.zero_()
    monkeypatch.setattr(type(runner), "iter", 5)  # as after --resume
    hook.before_train(runner)
    assert not layer.weight.any() and weight.any()


@pytest.mark.parametrize("chosen", ["frozen", "finetune"])
def test_a_trial_leaves_nothing_behind(videos, tmp_path, monkeypatch, chosen):
    """After it, either route is planned as if it had been given."""
    monkeypatch.setattr(plan_finetuning_module, "LEAST_STEPS", 4)
    # However slow the machine is, the trial is not shortened.
    monkeypatch.setattr(plan_finetuning_module, "trial_seconds", lambda *_: 1e9)
    trials = []

    def decided(found, units, trial, planned):
        trials.append((trial, planned))
        return Choice("route", chosen, "as the test wants it")

    monkeypatch.setattr(plan_finetuning_module, "better_route", decided)
    plans = {
        route: plan_finetuning(options(videos, tmp_path, route=route), time.monotonic())
        for route in ("auto", chosen)
    }
    ((trial, planned),) = trials
    assert len(trial.held) == 2 and trial.epochs == planned == 20
    assert plain(plans["auto"].config) == plain(plans[chosen].config)
    assert not any(tmp_path.iterdir())


def test_rules_that_need_no_trial():
    def route(source=True, chosen_head="linear", frozen=-1, **given):
        asked = FinetuneOptions(source="S", train="T", out="R", **given)
        subject = SimpleNamespace(source=source or None, given=given)
        settings = {
            "head": Choice("head", chosen_head, ""),
            "frozen": Choice("frozen", frozen, "one video of a class"),
        }
        return known_route(asked, subject, settings)

    assert route() is None
    assert route(source=False).value == "finetune"
    assert route(route="finetune") == Choice("route", "finetune", "given")
    assert route(epochs=3).value == "finetune" and "epochs is given" in route(epochs=3).reason
    assert route(chosen_head="attentive").value == "finetune"
    assert route(frozen=4) == Choice("route", "frozen", "one video of a class")


def test_the_better_route_is_that_of_the_same_videos():
    """Frozen features are judged by the videos of the trial, not by all of them."""
    frozen_hits = torch.tensor([1, 1, 0, 0, 0, 0, 0, 0]).double()
    found, units = SimpleNamespace(hits=lambda: frozen_hits), torch.arange(8)

    def route(*hits, held=(0, 1, 2, 3), epochs=5):
        trial = Trial(torch.tensor(held), torch.tensor(hits).double(), epochs)
        return better_route(found, units, trial, 20)

    assert route(1, 0, 0, 0).value == "frozen"
    assert route(0, 0, 1, 1).value == "frozen"  # equal: the cheaper one
    assert route(1, 1, 1, 0).value == "finetune"
    assert route(0, 0, 0, 1, held=(4, 5, 6, 7)).value == "finetune"
    reason = route(1, 1, 1, 0).reason
    assert "frozen features reach 50.0 %" in reason and "finetuning for 5 of 20 epochs" in reason
    assert "75.0 %" in reason and "25.0 %" in reason
    assert "for all epochs" in route(1, 1, 1, 0, epochs=20).reason


def test_a_trial_takes_a_part_of_the_time():
    assert trial_seconds(2.0, 1e6) == 1800
    assert trial_seconds(None, 10.0) == 60
    assert trial_seconds(None, 600.0) == 300
    assert trial_seconds(None, 1e6) == 600


def test_a_budget_without_time_for_a_training_leads_to_frozen_features(
    videos, tmp_path, monkeypatch
):
    monkeypatch.setattr(plan_finetuning_module._Training, "fits", lambda *_: False)
    given = options(videos, tmp_path, source="image.pth", hours=2.0)
    found = choices(plan_finetuning(given, time.monotonic()))
    assert found["route"].value == "frozen"
    assert "2 hours do not suffice to try a finetuning" in found["route"].reason


@pytest.mark.parametrize(("batch", "clips"), [(4, 3), (100, 3)])
def test_a_budget_that_cannot_hold_the_features_is_refused(videos, tmp_path, batch, clips):
    """It is refused after two batches, or after the only one, and a sufficient one is named."""
    given = options(videos, tmp_path, route="frozen", hours=1e-4, clips=clips, batch=batch)
    with pytest.raises(ValueError, match="--hours 0.0001 does not suffice") as raised:
        plan_finetuning(given, time.monotonic())
    assert "features of 26 videos" in str(raised.value)  # 10 to fit, 6 to test, 10 on the page
    enough = float(re.search(r"Give --hours (\S+) or more", str(raised.value))[1])
    assert enough * 3600 > 20  # the page
    assert "fewer videos (--few)" in str(raised.value)
    given = replace(given, hours=10 * enough)
    planned = plan_finetuning(given, time.monotonic())
    assert 3600 * planned.hours > planned.frozen.features.seconds * 16 + 20


def test_fewer_clips_are_advised_if_they_suffice():
    given = {"hours": 1.0, "other": 20.0, "videos": 1000, "clips": 5}
    with pytest.raises(ValueError, match="Give --hours 1.5 or more, or --clips 3$"):
        check_hours(each=5.0, **given)
    check_hours(each=3.0, **given)


@pytest.fixture
def decoded(monkeypatch):
    """Names of the videos that datasets have decoded."""
    names, run_pipeline = [], VideoDataset._run_pipeline

    def counted(self, index, seed, given):
        names.append(Path(given["path"]).name)
        return run_pipeline(self, index, seed, given)

    monkeypatch.setattr(VideoDataset, "_run_pipeline", counted)
    return names


def test_each_clip_is_decoded_once(videos, tmp_path, decoded, monkeypatch):
    """The fit reads what the plan has stored, and equals a fit that computes the rest."""
    given = options(videos, tmp_path / "run", source="image.pth", route="frozen")
    planned = plan_finetuning(given, time.monotonic())
    planned.config.run_page = None
    names = sorted(path.name for path in (videos / "train").rglob("*.mp4"))
    assert sorted(decoded) == names
    weights = []
    for stored in (10, 4, 1):

        def write_some(folder, key, paths, views, stored=stored):
            write_known(folder, key, paths[:stored], views[:stored])

        monkeypatch.setattr(plan_frozen_module, "write_known", write_some)
        planned.config.work_dir = str(tmp_path / str(stored))
        planned.write_features()
        decoded.clear()
        run_training(training_config(planned.config, work_dir=planned.config.work_dir))
        assert len(decoded) == len({*decoded}) == 10 - stored
        path = tmp_path / str(stored) / "epoch_1.pth"
        weights.append(load_checkpoint_file(path)["state_dict"])
    for other in weights[1:]:
        for name in ("cls_head.fc_cls.weight", "cls_head.fc_cls.bias"):
            scale = float(other[name].abs().max())
            torch.testing.assert_close(weights[0][name], other[name], rtol=1e-3, atol=1e-4 * scale)


def test_features_of_other_weights_or_files_are_not_used(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.mp4", "b.mp4")]
    for path in paths:
        Path(path).write_bytes(b"video")
    views = torch.rand(2, 3, 5)
    write_known(tmp_path, {"weights": "a"}, paths, views)
    found = read_known(tmp_path, {"weights": "a"})
    assert [*found] == paths and torch.equal(torch.stack([*found.values()]), views)
    assert read_known(tmp_path, {"weights": "b"}) == {}
    Path(paths[0]).write_bytes(b"another video")
    assert [*read_known(tmp_path, {"weights": "a"})] == paths[1:]
    (tmp_path / KNOWN_FEATURES).write_bytes(b"damaged")
    with pytest.raises(ValueError, match="Remove the file to compute the features again"):
        read_known(tmp_path, {})


def test_options_of_a_training_are_refused(tmp_path):
    def refused(message, **changes):
        with pytest.raises(ValueError, match=message):
            sce_video.finetune(train="T", out=tmp_path, route="frozen", **changes)

    refused("needs a pretrained network", source="none")
    refused("lr has no effect, because route frozen trains no network", source="demo", lr=0.1)
    refused(
        "head has no effect, because route frozen trains no network", source="demo", head="linear"
    )
    with pytest.raises(ValueError, match="route must be one of auto, frozen, finetune"):
        sce_video.finetune("demo", train="T", out=tmp_path, route="both")
