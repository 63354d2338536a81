"""The teacher of a distillation: features that are computed once, and plans."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.hf_models import save_model
from helpers.recipes import small_recipe
from helpers.run_tool import run_gloo
from helpers.timm_folders import save_timm
from helpers.tiny_encoder import CONFIG, NUM_FRAMES, save_tiny, tiny_backbone, write_lossless
from helpers.training import Recorder, make_videos, needs_teacher, planned_pretraining, train

from sce_video.commands.main import main
from sce_video.datasets.transforms.decoding import cut_views
from sce_video.inference.embed import ViewOptions, embed_videos
from sce_video.inference.encoders.encoder_folder import import_encoder
from sce_video.inference.features import read_features, write_features
from sce_video.inference.model import checkpoint_of, load_model
from sce_video.inference.network_input import pack_array, view_steps
from sce_video.interop.pretrained import save_pretrained
from sce_video.models.backbones import ResNet2d, ResNet3dSlowPath
from sce_video.pages.run_record import read_scalars
from sce_video.runs import launch, plan_distillation, plan_pretraining, teacher
from sce_video.runs.planned_config import planned_config
from sce_video.runs.teacher import StoredFeatures, TeacherHook, prepare_teacher, student_clip

K = 4


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"), write=write_lossless)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A teacher with clips of 0.48 s, 4 frames of 32x32 cut from 40."""
    return save_tiny(tmp_path_factory.mktemp("teacher") / "epoch_1.pth")


@pytest.fixture(autouse=True)
def _own_argv(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sce-video"])


def config(videos, network, work_dir, clips=K, **changes):
    """The recipe without augmentation, on the crops and with the normalisation of the teacher."""
    central = [
        dict(type="OpenVideo"),
        dict(type="OneOfClips", clip_duration=0.48, num_frames=NUM_FRAMES, num_clips=clips),
        dict(type="DecodeClips"),
        dict(type="ResizeShortSide", size=40),
        dict(type="CenterCropClips", size=32),
        dict(type="PackClips"),
    ]
    options = dict(
        train_dataloader__dataset__pipeline=central,
        data_preprocessor__views=[{}],
        data_preprocessor__mean=(0.4, 0.45, 0.5),
        data_preprocessor__std=0.2,
        model__teacher=None,
        teacher_checkpoint=str(network),
    )
    return small_recipe("Distill", videos, work_dir, **{**options, **changes})


class Taught(Recorder):
    """Gives the teacher before the first step."""

    def __init__(self, hook: TeacherHook) -> None:
        super().__init__()
        self.hook = hook

    def before_train(self, runner) -> None:
        self.hook.before_train(runner)


def test_features_of_the_clips_are_those_of_the_one_path(videos, network, tmp_path):
    """Their mean is the feature of ``embed_videos``, and clips of a video differ."""
    cfg = config(videos, network, tmp_path)
    hook = prepare_teacher(cfg)
    model = load_model(network)
    assert cfg.model.teacher_channels == model.feature_size == 32
    stored, listed = hook._features, StoredFeatures(cfg, student_clip(cfg)).paths
    assert stored.shape == (12, K, 32) and len(listed) == 12
    wanted = embed_videos(model, listed, ViewOptions(num_clips=K))
    np.testing.assert_allclose(stored.mean(dim=1).numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert (stored[:, 0] - stored[:, -1]).abs().max() > 1e-3
    content = torch.load(network, weights_only=True)
    content["state_dict"]["cls_head.fc_cls.weight"] = torch.zeros(2, 32)
    torch.save(content, tmp_path / "classifier.pth")  # teaches by its backbone
    planned = plan(videos, tmp_path / "plan", teacher=tmp_path / "classifier.pth")
    assert "a classifier: its backbone teaches, its classes are not" in "\n".join(
        planned.plan.lines()
    )
    again = prepare_teacher(config(videos, tmp_path / "classifier.pth", tmp_path))
    assert torch.equal(again._features, stored)


@pytest.mark.skipif(find_spec("timm") is None, reason="no timm")
def test_a_third_party_model_teaches_by_its_name(videos, tmp_path, monkeypatch):
    """A config may name what every command accepts, and its features are stored, too."""
    monkeypatch.setenv("SCE_VIDEO_CACHE", str(tmp_path / "cache"))
    save_timm(tmp_path / "model", "resnet18")
    name = f"hf:{tmp_path / 'model'}"
    cfg = config(videos, name, tmp_path / "run", clips=1)
    named = prepare_teacher(cfg)._features
    checkpoint = checkpoint_of(name)
    assert cfg.model.teacher_channels == load_model(checkpoint).feature_size
    imported = prepare_teacher(config(videos, checkpoint, tmp_path / "other", clips=1))._features
    assert torch.equal(named, imported) and named.abs().max() > 0


def test_an_image_encoder_pools_frames_as_its_student_and_a_video_encoder_stays(tmp_path):
    """The model of transformers encodes the frames of the clip one by one."""
    pytest.importorskip("transformers", reason="no transformers: pip install 'sce-video[hf]'")
    models = {}
    for family in ("dinov2", "videomae"):
        save_model(family, tmp_path / family)
        imported = import_encoder(str(tmp_path / family), tmp_path / f"{family}_run")
        models[family] = load_model(imported.checkpoint, device="cpu")
    assert teacher.with_frame_pool(models["videomae"], "mean+std") is models["videomae"]
    clip = teacher.StudentClip(0.5, 4, 1, "cosine", frame_pool="mean+std")
    taught = teacher.with_clip(models["dinov2"], clip)
    view = torch.rand(1, 3, 4, 32, 32)
    with torch.no_grad():
        found = taught.encoder.backbone(view).mean((2, 3, 4))[0]
        images = view[0].transpose(0, 1)
        frames = models["dinov2"].encoder.backbone.network(images).last_hidden_state[:, 0]
    expected = torch.cat([frames.mean(0), frames.std(0, correction=0)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert (taught.feature_size, taught.settings.num_frames) == (64, 4)
    network = teacher.network_of_clips(models["dinov2"], replace(clip, objective="frames"))
    assert (network.positions, network.feature_size) == (4, 32)
    rows = network.rows({"inputs": [torch.zeros(1, 4, 32, 32, 3, dtype=torch.uint8)]}, 1)
    assert rows.values.shape == (1, 4 * 32)


def test_features_of_frames_have_the_features_of_clips_as_their_mean(videos, network, tmp_path):
    """Each temporal position of the teacher has a feature of its own, and a student learns them."""
    pooled = prepare_teacher(config(videos, network, tmp_path / "clips"))
    cfg = config(videos, network, tmp_path / "frames", model__objective="frames")
    hook = prepare_teacher(cfg)
    videos_clips = pooled._features.shape[:2]
    assert hook._features.shape[:2] == videos_clips and hook._features.shape[3] == 32
    positions = hook._features.shape[2]
    assert positions > 1 and cfg.model.teacher_channels == 32
    assert hook._features.dtype == torch.float16
    means = hook._features.float().mean(dim=2)
    torch.testing.assert_close(means, pooled._features, rtol=1e-3, atol=1e-3)
    again = prepare_teacher(cfg)  # from the file
    assert torch.equal(again._features, hook._features)
    _, recorder = train(cfg, recorder=Taught(hook))
    assert np.isfinite(np.array(recorder.rows)).all()
    with pytest.raises(ValueError, match="Give --teacher-clips 1 or more, not 0"):
        prepare_teacher(config(videos, network, tmp_path, clips=0, model__objective="frames"))


@pytest.mark.parametrize("objective", ["cosine", "relations"])
def test_stored_features_train_as_the_network_in_every_step(objective, videos, network, tmp_path):
    """On the same clips, where both see the same view."""
    cfg = config(videos, network, tmp_path, model__objective=objective)
    stored = prepare_teacher(cfg)
    assert stored._model is None
    _, once = train(cfg, recorder=Taught(stored))
    each_step = Taught(TeacherHook(load_model(network)))
    cfg.work_dir = str(tmp_path / "other")
    train(cfg, recorder=each_step)
    np.testing.assert_allclose(np.array(once.rows)[:, 1], np.array(each_step.rows)[:, 1], rtol=1e-3)
    assert once.indices == each_step.indices


def test_a_resumed_run_equals_the_uninterrupted_one_and_loads_no_network(
    videos, network, tmp_path, monkeypatch
):
    """The student is augmented, and one video cannot be read by the teacher."""
    clips = shutil.copytree(videos, tmp_path / "videos")
    (clips / "class0/bad.mp4").write_bytes(b"no video")
    augmented = dict(
        data_preprocessor__views=[dict(name="strong-alpha", strength=0.5)],
        model__objective="relations",
    )
    cfg = config(clips, network, tmp_path / "whole", **augmented)
    runner = launch.run_training(cfg.copy())
    assert list(runner.train_dataloader.dataset._known_bad) == [str(clips / "class0/bad.mp4")]
    half = tmp_path / "half"
    half.mkdir()
    for name in ("iter_3.pth", "teacher.npz"):
        shutil.copy(tmp_path / "whole" / name, half)

    def never(*_, **__):
        raise AssertionError("the teacher's network was asked for")

    monkeypatch.setattr(teacher, "load_model", never)
    cfg.work_dir, cfg.resume, cfg.load_from = str(half), True, str(half / "iter_3.pth")
    resumed = launch.run_training(cfg)
    rows = [row["loss"] for row in read_scalars(tmp_path / "whole")]
    assert [row["loss"] for row in read_scalars(half)] == rows[3:] and len(rows) == 6
    weights = [dict(one.model.state_dict()) for one in (runner, resumed)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


ONE_LAYER = dict(type="MLP", hidden_channels=1, num_layers=1, norm_output=True, affine_output=True)


def test_a_linear_projector_of_a_trained_student_starts_from_a_regression(
    videos, network, tmp_path, capsys
):
    """The teacher is the student's own network, so the regression explains nearly everything."""

    def run(pretrained, resume=False, stop_after=None):
        cfg = config(
            videos,
            network,
            tmp_path / str(Path(pretrained).stem),
            clips=1,
            model__objective="frames",
            model__projector=ONE_LAYER,
            model__backbone__norm_eval=True,  # as for the student of an image network
        )
        cfg.pretrained, cfg.resume = str(pretrained), resume
        recorder = Taught(prepare_teacher(cfg))
        recorder.stop_after = stop_after
        rows = train(cfg, stop_after, recorder)[1].rows
        return rows, "starts from a linear regression on 12 clips" in capsys.readouterr().out

    random, started = run("random")
    assert not started
    rows, started = run(network, stop_after=2)
    assert started and rows[0][1] < 0.5 * random[0][1]
    rows, started = run(network, resume=True)
    assert not started and rows[0][0] == 2  # a resumed projector has learned already


def test_a_teacher_that_has_gone_is_named_unless_its_features_are_stored(videos, network, tmp_path):
    """The folder of cached networks may be emptied, for example with a container."""
    file = shutil.copy(network, tmp_path / "gone.pth")
    other = shutil.copy(network, tmp_path / "other.pth")
    make = partial(config, videos)
    stored = prepare_teacher(make(file, tmp_path / "run"))._features
    for path in (file, other):
        Path(path).unlink()
    assert torch.equal(prepare_teacher(make(file, tmp_path / "run"))._features, stored)
    for network_, run, clips in ((file, "new", K), (other, "run", K), (file, "run", 2)):
        cfg = make(network_, tmp_path / run, clips=clips)
        with pytest.raises(
            FileNotFoundError, match=r"the teacher .*\.pth does not exist\. Restore"
        ):
            prepare_teacher(cfg)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        prepare_teacher(make(file, tmp_path / "run", clips=0))


def test_videos_that_could_not_be_read_are_tried_again_by_a_new_run(
    videos, network, tmp_path, monkeypatch
):
    """A disk that is away for a minute must not leave its videos out for good."""
    make = partial(config, videos, network)
    wanted = prepare_teacher(make(tmp_path / "whole"))._features
    embedded: list[str] = []
    whole = teacher.iterate_features

    def without(lost, network_, paths, options):
        for path, found in zip(paths, whole(network_, paths, options), strict=True):
            embedded.append(path)
            if path in lost:
                nothing = replace(found, values=found.values[:0], paths=[])
                yield replace(nothing, failures=[(path, "Input/output error")])
            else:
                yield found

    paths = StoredFeatures(make(tmp_path), student_clip(make(tmp_path))).paths
    lost = [paths[3], paths[8]]
    monkeypatch.setattr(teacher, "iterate_features", partial(without, lost))
    first = prepare_teacher(make(tmp_path / "run"))
    assert [path for path, _ in first._failures] == lost
    assert not first._features[[3, 8]].any() and embedded == paths
    # Another seed learns from the same samples.
    seed = prepare_teacher(make(tmp_path / "runs/seed0"))
    assert seed._failures == first._failures
    monkeypatch.setattr(teacher, "iterate_features", None)  # nothing may be computed
    assert prepare_teacher(make(tmp_path / "runs/seed1"))._failures == first._failures
    embedded.clear()
    # A run that goes on keeps its samples.
    (tmp_path / "run/iter_3.pth").touch()
    assert len(prepare_teacher(make(tmp_path / "run", resume=True))._failures) == 2
    monkeypatch.setattr(teacher, "iterate_features", partial(without, lost[1:]))
    second = prepare_teacher(make(tmp_path / "run"))
    assert embedded == lost and [path for path, _ in second._failures] == lost[1:]
    embedded.clear()
    monkeypatch.setattr(teacher, "iterate_features", partial(without, []))
    third = prepare_teacher(make(tmp_path / "run"))
    assert embedded == lost[1:] and not third._failures
    assert torch.equal(third._features, wanted)
    embedded.clear()
    assert torch.equal(prepare_teacher(make(tmp_path / "run"))._features, wanted) and not embedded


def test_the_settings_of_an_exported_teacher_belong_to_its_features(videos, network, tmp_path):
    """Clips, crops and normalisation are in a file beside the weights."""
    exported = tmp_path / "exported"
    save_pretrained(load_model(network), exported)
    make = partial(config, videos, exported, tmp_path / "run")
    before = prepare_teacher(make())._features
    text = (exported / "config.json").read_text()
    assert '"std": 0.2' in text
    (exported / "config.json").write_text(text.replace('"std": 0.2', '"std": 0.3'))
    again = prepare_teacher(make())._features
    assert not torch.equal(before, again)


@pytest.mark.parametrize("resize", ["square", "square_bicubic", "network"])
def test_a_teacher_of_squashed_frames_gets_the_central_square_of_its_student(network, resize):
    """Each target of a frame belongs to the area that the student sees."""
    model = load_model(network)
    model = replace(model, settings=replace(model.settings, resize=resize, short_side=32))
    clip = teacher.StudentClip(0.48, NUM_FRAMES, 1, "frames", central_share=1.0)
    settings = teacher.with_clip(model, clip).settings
    frames = np.zeros((NUM_FRAMES, 32, 96, 3), np.uint8)
    changed = frames.copy()
    changed[:, :, :32], changed[:, :, 64:] = 255, 255
    steps = view_steps(settings, 1, 1, one_clip=True)
    views = [cut_views(pack_array(made, 10, steps)) for made in (frames, changed)]
    # Filters reach a pixel beyond the edge.
    assert views[0].shape[-2] == 32
    assert torch.equal(views[0][..., 2:-2, :], views[1][..., 2:-2, :])


def test_the_time_for_the_features_counts_once(videos, network, tmp_path, monkeypatch):
    """The plan chooses the epochs with an estimate, which the measured time then replaces."""
    monkeypatch.setattr(plan_distillation.PlannedTeacher, "seconds", lambda *_: 1e5)
    options = dict(teacher=network, hours=100, epochs=None)
    planned = plan(videos, tmp_path / "run", **options)
    spent = planned.config.default_hooks.budget.spent
    assert spent < 1e5 <= planned.other_seconds
    prepare_teacher(planned.config)
    assert spent < planned.config.default_hooks.budget.spent < spent + 1e5


def test_a_teacher_is_planned_with_the_pool_of_the_network_that_goes_on(videos, tmp_path):
    """Its features have the size that training compares."""
    text = CONFIG.replace("ResNet3dSlowPath", "ResNet2d").replace("num_frames=4", "num_frames=1")
    torch.manual_seed(0)
    images = save_tiny(tmp_path / "images.pth", ResNet2d(18, 4), text)
    pooled = text.replace("type='ResNet2d'", "frame_pool='mean+std', type='ResNet2d'")
    assert pooled != text
    start = save_tiny(tmp_path / "start.pth", ResNet2d(18, 4, frame_pool="mean+std"), pooled)
    for objective in ("cosine", "relations"):
        planned = plan(
            videos,
            tmp_path / objective,
            teacher=images,
            start=start,
            objective=objective,
            width=None,
        )
        assert planned.config.model.teacher_channels == 64
        assert prepare_teacher(planned.config)._features.shape[-1] == 64


def test_features_are_computed_again_for_another_teacher_list_or_clips(
    videos, network, tmp_path, monkeypatch
):
    computed = []
    compute = StoredFeatures.compute

    def counted(self):
        computed.append(self.key)
        return compute(self)

    monkeypatch.setattr(StoredFeatures, "compute", counted)
    other = save_tiny(tmp_path / "other.pth", tiny_backbone(1))
    fewer = shutil.copytree(videos, tmp_path / "fewer")
    next(fewer.rglob("*.mp4")).unlink()
    run = tmp_path / "run"
    cases = [(videos, network, {}), (videos, other, {}), (fewer, other, {})]
    cases += [(fewer, other, dict(clips=2))]
    for number, (root, source, changes) in enumerate(cases, start=1):
        values = [prepare_teacher(config(root, source, run, **changes))._features for _ in range(2)]
        assert len(computed) == number and torch.equal(*values)
    # Seeds of a plan share what the first of them has computed.
    for seed in (0, 1):
        prepare_teacher(config(videos, network, tmp_path / f"runs/seed{seed}"))
    assert len(computed) == 5 and not (tmp_path / "runs/seed1/teacher.npz").exists()
    file = run / "teacher.npz"
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b"x" * 100, b""):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"run/teacher\.npz is not .*\. Remove the file"):
            prepare_teacher(config(videos, network, run))
    cfg = config(videos, network, run)
    features = StoredFeatures(cfg, student_clip(cfg))
    file.write_bytes(whole)
    found = read_features(file)
    found.provenance["teacher"] = features.key
    for changes, message in (
        (dict(values=found.values[:, :-1]), "has no features of 4 clips"),
        (dict(indices=found.indices + 5), "has features of video .* of 12"),
    ):
        write_features(file, replace(found, **changes))
        with pytest.raises(ValueError, match=message):
            prepare_teacher(config(videos, network, run))


def test_one_warning_states_what_differs_from_the_stored_features(
    videos, network, tmp_path, monkeypatch
):
    said: list[str] = []
    monkeypatch.setattr(teacher, "print_log", lambda text, **_: said.append(text))
    run = tmp_path / "runs/seed0"
    other = save_tiny(tmp_path / "other.pth", tiny_backbone(1))
    whole, fewer = (shutil.copytree(videos, tmp_path / name) for name in ("whole", "fewer"))
    next(fewer.rglob("*.mp4")).unlink()
    prepare_teacher(config(whole, network, run))
    assert not said  # there was nothing before
    frames = dict(clips=2, model__objective="frames")
    cases = [
        ((whole, other, {}), "another teacher"),
        ((fewer, other, {}), "another list of videos"),
        ((fewer, other, dict(clips=2)), "other clips"),
        ((fewer, other, frames), "another pooling of the frames"),
        ((whole, network, frames), "another teacher and another list of videos"),
    ]
    for (root, source, changes), origin in cases:
        make = partial(config, root, source, **changes)
        prepare_teacher(make(run))
        (warning,) = said
        features = f"the features in {run / 'teacher.npz'}"
        assert warning == f"{features} come from {origin}, so they are computed again"
        said.clear()
        prepare_teacher(make(run))
        prepare_teacher(make(tmp_path / "runs/seed1"))  # another seed uses the same file
        assert not said and not (tmp_path / "runs/seed1/teacher.npz").exists()
    with next(whole.rglob("*.mp4")).open("ab") as video:
        video.write(b"\0")
    prepare_teacher(config(whole, network, run, **frames))
    assert ["come from earlier versions of the videos, so" in text for text in said] == [True]


def test_features_of_replaced_videos_are_computed_again(videos, network, tmp_path):
    """A video of the same size, modification time and path, as archives restore them."""
    clips = shutil.copytree(videos, tmp_path / "videos")
    one, other = sorted(clips.rglob("*.mp4"))[:2]
    size = max(one.stat().st_size, other.stat().st_size)
    for file in (one, other):
        file.write_bytes(file.read_bytes().ljust(size, b"\0"))
        os.utime(file, (0, 0))
    make = partial(config, clips, network, tmp_path / "run")
    before = prepare_teacher(make())._features
    one.rename(tmp_path / "kept")
    other.rename(one)
    (tmp_path / "kept").rename(other)
    again = prepare_teacher(make())._features
    assert torch.equal(again, prepare_teacher(config(clips, network, tmp_path / "new"))._features)
    assert not torch.equal(before, again)


def test_features_of_copied_videos_are_reused(videos, network, tmp_path, monkeypatch):
    """A dataset that was restored has other inodes and times, but the same content."""
    clips = shutil.copytree(videos, tmp_path / "videos")
    make = partial(config, clips, network, tmp_path / "run")
    before = prepare_teacher(make())._features
    shutil.rmtree(clips)
    shutil.copytree(videos, clips)
    for file in clips.rglob("*.mp4"):
        os.utime(file, (1, 1))
    monkeypatch.setattr(StoredFeatures, "compute", None)  # nothing may be computed
    assert torch.equal(before, prepare_teacher(make())._features)


def prepared(make, rank: int, world: int):
    hook = prepare_teacher(make())
    return hook._features.clone()


@pytest.mark.distributed
def test_one_of_two_processes_computes_for_both(videos, network, tmp_path):
    make = partial(config, videos, network, tmp_path / "run")
    first, second = run_gloo(partial(prepared, make), tmp_path)
    alone = prepared(partial(config, videos, network, tmp_path / "alone"), 0, 1)
    assert torch.equal(first, second) and torch.equal(first, alone)
    assert len(list(tmp_path.rglob("teacher.npz"))) == 2


TINY = dict(width=4, frames=2, size=32, hidden=16, batch=4, epoch_samples=8, workers=0, epochs=1)


def plan(videos, out, **settings):
    return planned_pretraining(videos, out, method="distill", **{**TINY, **settings})


def test_a_distillation_of_one_command(videos, network, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sce_video.runs.page.write_run_page", lambda folder, *_, **__: folder)
    run, given = tmp_path / "run", {**TINY, "teacher": network, "objective": "relations"}
    words = [w for k, v in given.items() for w in (f"--{k.replace('_', '-')}", str(v))]
    command = ["pretrain", str(videos), "--out", str(run), "--method", "distill", *words]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert f"{network}  ResNet3dSlowPath, 32 numbers per clip" in shown
    assert "seen once: 6 KiB in teacher.npz" in shown and "as the teacher's clips" in shown
    cfg = planned_config(run)
    assert cfg.teacher_checkpoint == str(network) and cfg.model.teacher_channels == 32
    assert cfg.train_dataloader.dataset.pipeline[1].clip_duration == 0.48
    assert main(["pretrain", "--out", str(run), "--resume"]) == 0
    assert load_model(run).settings.clip_duration == 0.48  # evaluated with the student's clip
    # The file may be a stranger's: no request, no other class.
    text = (run / "run.json").read_text()
    for change in (f'"{network}"', '"hf:some/model"'), ('"type": "Distill"', '"type": "Other"'):
        assert change[0] in text
        (run / "run.json").write_text(text.replace(*change))
        with pytest.raises(ValueError, match="run.json names '(hf:some/model|Other)'"):
            planned_config(run)


def test_what_the_teacher_decides(videos, network, tmp_path):
    tokens = plan(videos, tmp_path, teacher=network, objective="tokens")
    shown = "\n".join(tokens.plan.lines())
    assert "teacher_clips  0" in shown and "in every step, on the student's views" in shown
    assert tokens.config.train_dataloader.dataset.pipeline[1].num_clips == 0
    text = CONFIG.replace("ResNet3dSlowPath", "ResNet2d").replace("num_frames=4", "num_frames=1")
    torch.manual_seed(0)
    images = save_tiny(tmp_path / "images.pth", ResNet2d(18, 4), text)
    planned = plan(videos, tmp_path, teacher=images)
    assert "an image network: per frame" in "\n".join(planned.plan.lines())
    own = planned_pretraining(videos, tmp_path, **TINY, embedding=8)
    durations = [
        p.config.train_dataloader.dataset.pipeline[1].clip_duration for p in (planned, own)
    ]
    assert durations[0] == durations[1]  # frames have no clip: the student's
    hook = prepare_teacher(planned.config)
    assert hook._features.shape == (12, K, 32)
    shorter = plan(videos, tmp_path, teacher=network, clip_duration=0.3)
    assert shorter.config.train_dataloader.dataset.pipeline[1].clip_duration == 0.3


@pytest.mark.parametrize("is_installed", [False, pytest.param(True, marks=needs_teacher)])
def test_a_video_teacher_is_planned_alike_with_and_without_the_public_network(
    is_installed, tmp_path, monkeypatch
):
    """Its clips of 0.48 s do not cover a video of 1.3 s, so it sees four of them."""
    monkeypatch.setattr(plan_pretraining, "has_public_teacher", lambda: is_installed)
    videos = make_videos(tmp_path / "videos", count=8, frames=32)
    network = save_tiny(tmp_path / "net.pth")
    planned = plan(videos, tmp_path / "run", teacher=network, width=None)
    found = {choice.setting: choice for choice in planned.choices}
    clips = planned.config.train_dataloader.dataset.pipeline[1]
    assert found["teacher_clips"].value == clips.num_clips == 4
    assert found["teacher_clips"].reason.startswith("of each video, seen once: 4 KiB")
    assert found["clip_duration"].value == clips.clip_duration == 0.48
    assert found["objective"].value == planned.config.model.objective == "relations"
    assert "starts from" not in found


def test_a_teacher_for_larger_frames_is_refused_or_remarked(tmp_path, monkeypatch):
    """As for ``--from``: a network of one size is refused if frames double, others are not."""
    monkeypatch.setattr(plan_pretraining, "has_public_teacher", lambda: False)
    videos = make_videos(tmp_path / "videos", count=4)  # of 40 pixels

    def of(size):
        text = CONFIG.replace("size=40", "size=100").replace("size=32", f"size={size}")
        return save_tiny(tmp_path / f"{size}.pth", text=text)

    large = of(80)
    shown = plan(videos, tmp_path / "run", teacher=large).plan.remarks
    text = f"the teacher's frames are enlarged from 40 to 80 pixels, the input size of {large}"
    assert text in shown
    views = plan(videos, tmp_path / "run", teacher=large, objective="tokens").plan.remarks
    assert text.replace("40", "32") in views  # the teacher receives the student's views
    fitting = plan(videos, tmp_path / "run", teacher=of(40)).plan.remarks
    assert not any("enlarged" in remark for remark in fitting)
    monkeypatch.setattr(ResNet3dSlowPath, "takes_one_size", True, raising=False)
    with pytest.raises(ValueError, match="needs frames of 80x80 pixels, but the short side .* 40"):
        plan(videos, tmp_path / "run", teacher=large)
    assert plan(videos, tmp_path / "run", teacher=of(79))


def test_few_videos_are_remarked_on_both_roads(network, tmp_path):
    """With 32 videos, too."""
    videos = make_videos(tmp_path / "videos", count=32, frames=14)
    taught = plan(videos, tmp_path / "run", teacher=network, clip_duration=0.3).plan.remarks
    assert any("32 videos are few. A student learns the" in remark for remark in taught)
    scratch = planned_pretraining(videos, tmp_path / "run", method="simclr", **TINY, embedding=8)
    found = scratch.plan.remarks
    assert any("32 videos are few. A network learns from the differ" in remark for remark in found)


def test_one_sentence_before_the_first_step(videos, network, tmp_path, capsys, monkeypatch):
    long = save_tiny(tmp_path / "long.pth", text=CONFIG.replace("0.48", "2.0"))
    for settings, message in (
        (dict(teacher=long), r"clips last 2 s, but the videos 0\.8 s\. Set --clip-duration 0\.6 "),
        (dict(teacher=network, objective="l2"), "objective must be one of cosine, tokens, rel"),
        (dict(teacher=network, teacher_clips=2.5), "teacher_clips must be a whole number, got 2.5"),
        (
            dict(teacher=network, objective="tokens", teacher_clips=3),
            "Set --teacher-clips to 0 instead",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            plan(videos, tmp_path, **settings)
    with pytest.raises(FileNotFoundError, match=r"there is no .*none\.pth"):
        plan(videos, tmp_path, teacher=tmp_path / "none.pth")
    with pytest.raises(
        ValueError, match="needs a teacher. Run sce-video pretrain --teacher SOURCE"
    ):
        prepare_teacher(config(videos, network, tmp_path, teacher_checkpoint=None))
    out = ["--out", str(tmp_path / "run")]
    command = ["pretrain", str(videos), *out, "--method", "sce", "--teacher", str(network)]
    assert main(command) == 2
    assert "--teacher belongs to --method distill" in capsys.readouterr().err
    monkeypatch.setattr("sce_video.utils.run_files.find_spec", lambda package: None)
    assert main(["pretrain", str(videos), *out, "--method", "distill"]) == 2
    assert "pip install 'sce-video[teacher]'" in capsys.readouterr().err
