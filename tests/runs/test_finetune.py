"""A finetuning that chooses its settings, from a network and labelled videos to the classes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.hf_models import save_model
from helpers.tiny_encoder import CONFIG, save_tiny
from helpers.training import make_videos

import sce_video
from sce_video.commands.main import main
from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.config.load import load_config
from sce_video.evaluation.functional.linear_probe import fit_linear_probe
from sce_video.evaluation.functional.statistics import top_k_accuracy
from sce_video.evaluation.scores import load_scores
from sce_video.models.backbones import VisionTransformer3d
from sce_video.options.training import FinetuneOptions
from sce_video.pages.run_record import read_scalars
from sce_video.runs import plan_finetuning as plan_finetuning_module
from sce_video.runs.after_training import guessing_alarm
from sce_video.runs.finetune_subject import data_settings, examine_labelled, labelled_parts
from sce_video.runs.folder import read_run
from sce_video.runs.plan_finetuning import plan_finetuning
from sce_video.runs.planned_config import planned_config
from sce_video.utils.errors import Alarm
from sce_video.utils.run_files import PROBE, RESULTS, SCORES

SMALL = dict(batch=4, workers=0)
WORDS = ["--epochs", "2", "--batch", "4", "--workers", "0"]


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """Eight videos to train and six to test, of two classes, and a network."""
    root = tmp_path_factory.mktemp("videos")
    make_videos(root / "train", 8)
    make_videos(root / "test", 6)
    save_tiny(root / "source.pth")
    return root


@pytest.fixture(autouse=True)
def _own_argv(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sce-video"])


def finetuning(videos, run, *words):
    sets = ["--train", str(videos / "train"), "--test", str(videos / "test")]
    return ["finetune", str(videos / "source.pth"), *sets, "--out", str(run), *WORDS, *words]


@pytest.fixture(scope="module")
def trained(videos, tmp_path_factory):
    """A run of one command, and the words that it printed; not to be changed."""
    run = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["sce-video"])
        assert main(finetuning(videos, run)) == 0
    return run


def test_without_mmaction2_every_weight_is_the_same(trained, videos, tmp_path):
    run = tmp_path / "run"
    hidden = "import sys; sys.modules['mmaction'] = sys.modules['mmcv'] = None"  # not to be found
    started = f"{hidden}; from sce_video.commands.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", started, *finetuning(videos, run)]
    subprocess.run(command, check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    ours, theirs = (load_checkpoint_file(folder / "epoch_2.pth") for folder in (run, trained))
    for name, value in theirs["state_dict"].items():
        assert torch.equal(ours["state_dict"][name], value), name
    np.testing.assert_array_equal(
        load_scores(run / SCORES)[0].values, load_scores(trained / SCORES)[0].values
    )


def test_the_results_are_those_of_predict_and_of_the_frozen_network(trained, videos):
    record = read_run(trained)
    scores, _ = load_scores(trained / SCORES)
    assert len(scores) == 6 and record.data["classes"] == ["class0", "class1"]
    classifier = sce_video.load_classifier(trained)
    probabilities = sce_video.class_probabilities(classifier, scores.paths)
    np.testing.assert_allclose(probabilities, scores.values.numpy(), atol=1e-5)
    accuracy = (probabilities.argmax(axis=1) == scores.labels.numpy()).mean()
    assert record.results[RESULTS].metrics["top1"] == pytest.approx(accuracy)
    # The probe: features of the source's network, of as many clips, fitted on the training videos.
    network = sce_video.load_model(videos / "source.pth")
    clips = sce_video.ViewOptions(num_clips=min(4, classifier.options.num_clips))
    sets = [sorted((videos / part).rglob("*.mp4")) for part in ("train", "test")]
    features = [torch.tensor(sce_video.embed_videos(network, paths, clips)) for paths in sets]
    labels = [torch.tensor([int(p.parent.name[-1]) for p in paths]) for paths in sets]
    probe = fit_linear_probe(features[0], labels[0])
    expected = top_k_accuracy(probe.scores(features[1]), labels[1], (1,))[1]
    assert record.results[PROBE].metrics["linear_top1"] == pytest.approx(expected)


def test_a_class_without_a_readable_training_video_costs_only_the_probe(videos, tmp_path):
    """The classifier is tested and the page is written."""
    train = make_videos(tmp_path / "train", count=14)
    test = shutil.copytree(videos / "test", tmp_path / "test")
    for folder in (train, test):
        (folder / "class2").mkdir()
    (train / "class2" / "broken.mp4").write_bytes(b"no video")
    shutil.copy(next(train.rglob("*.mp4")), test / "class2" / "v.mp4")
    words = ["finetune", str(videos / "source.pth"), "--train", str(train), "--test", str(test)]
    run = tmp_path / "run"
    assert main([*words, "--out", str(run), "--route", "finetune", *WORDS]) == 0
    assert (run / RESULTS).exists() and (run / "run.html").exists()
    assert not (run / PROBE).exists()
    (log,) = run.glob("2*/2*.log")
    assert "The linear probe could not be computed: classes [2] occur among" in log.read_text()


def test_the_page_opens_with_the_test(trained):
    page = (trained / "run.html").read_text()
    titles = ["Test of the classifier", "Confusion matrix", "confident mistakes", 'id="curves"']
    places = [page.index(f">{title}<" if title[0] in "TC" else title) for title in titles]
    assert places[0] < places[1] and page.index('id="classifier"') < page.index('id="curves"')
    assert "linear probe of the frozen network before finetuning" in page
    assert "4 videos per class" in page  # the plan, with its reasons
    assert "video" in page and "no such" not in page


def test_the_written_config_is_the_same_training(trained, videos, tmp_path):
    """``sce-video finetune`` against ``tools/train.py`` with the config that it plans."""
    assert main(finetuning(videos, tmp_path, "--plan")) == 0
    assert main(["train", str(tmp_path / "config.py"), "--cfg-options", "run_page.videos=0"]) == 0
    losses = [[row["loss"] for row in read_scalars(run)] for run in (trained, tmp_path)]
    assert losses[0] == losses[1] and losses[0]
    values = [load_scores(run / SCORES)[0].values for run in (trained, tmp_path)]
    assert torch.equal(*values)  # its test, too


def test_resuming_takes_everything_from_the_run(trained, videos, capsys):
    before = load_scores(trained / SCORES)[0].values
    assert main(["finetune", "--out", str(trained), "--resume"]) == 0  # has nothing left to do
    assert torch.equal(load_scores(trained / SCORES)[0].values, before)
    capsys.readouterr()
    assert main(finetuning(videos, trained, "--few", "1")) == 2
    assert "contains an earlier training run" in capsys.readouterr().err
    assert not (trained / "train.txt").exists()  # refused before lists are written


def test_a_restarted_finetuning_is_not_planned_again(trained, videos, tmp_path, monkeypatch):
    """It resumes, whatever its options say, as a job that Slurm has requeued."""

    def planned(*_):
        raise AssertionError("planned again")

    given, run = [], shutil.copytree(trained, tmp_path / "run")
    runner = SimpleNamespace(train_loop=None)
    monkeypatch.setattr("sce_video.runs.planned_training.is_restart", lambda folder: True)
    monkeypatch.setattr(plan_finetuning_module, "plan_finetuning", planned)
    monkeypatch.setattr(
        "sce_video.runs.page.train_with_page", lambda cfg, _: given.append(cfg) or runner
    )
    sets = {"train": videos / "train", "test": videos / "test"}
    result = sce_video.finetune(videos / "source.pth", out=run, overwrite=True, epochs=9, **sets)
    (cfg,) = given
    assert cfg.resume is True and cfg.train_cfg.max_epochs == 2
    assert result.status == 0 and "top1" in result.metrics and (run / "epoch_2.pth").is_file()


def test_a_config_of_somebody_else_names_no_other_network(videos, tmp_path):
    assert main(finetuning(videos, tmp_path, "--plan")) == 0
    file = tmp_path / "run.json"
    text = file.read_text()
    source = str(videos / "source.pth")
    assert planned_config(tmp_path).pretrained == source
    for before, after, message in (
        (source, "hf:evil/model", "names 'hf:evil/model'"),
        (source, "s3://evil/x.pth", "names 's3://evil/x.pth'"),
        ('"ResNet3dSlowPath"', '"evil.Network"', r"evil\.Network"),
        ('"I3DHead"', '"evil.Head"', r"evil\.Head"),
    ):
        assert before in text
        file.write_text(text.replace(before, after))
        with pytest.raises(ValueError, match=message):
            planned_config(tmp_path)


def divided(train, **options):
    """The training and test videos of a finetuning, and their rows in the plan."""
    return labelled_parts(FinetuneOptions(source="none", train=str(train), out="o", **options))


def test_without_a_test_set_a_quarter_is_held_out(videos):
    root = str(videos / "train")
    train, test, (_, row) = divided(root, seed=1)
    assert len(train) == 6 and sorted(test.videos.labels.tolist()) == [0, 1]
    assert not {*train.paths()} & {*test.paths()} and "held out" in row.reason
    assert divided(root, seed=1)[1].paths() == test.paths()
    held = {tuple(divided(root, seed=seed)[1].paths()) for seed in range(5)}
    assert len(held) > 1
    # Whole groups: v00 and v01 are 0, v02 and v03 are 1, ...
    train, test, _ = divided(root, group_pattern=r"v0[0-7]*?([0-7])\.", few=1)
    groups = [{path[-5] for path in part.paths()} for part in (train, test)]
    assert not groups[0] & groups[1] and len(train) == 2


def test_groups_or_a_fold_of_a_column_are_held_out(tmp_path):
    """The names of the files need not say who is shown."""
    rows = [(f"v{i}.mp4", "xy"[i % 2], f"p{i // 2 % 4}", str(i % 3)) for i in range(24)]
    for row in rows:
        (tmp_path / row[0]).touch()
    file = tmp_path / "clips.csv"
    file.write_text("\n".join(["path,label,group,fold", *map(",".join, rows)]))
    group, fold = {r[0]: r[2] for r in rows}, {r[0]: r[3] for r in rows}
    train, test, (_, row) = divided(file, group_column="group")
    sides = [{group[path] for path in part.paths()} for part in (train, test)]
    assert not sides[0] & sides[1] and len(sides[1]) == 1 and len(train) + len(test) == 24
    assert "a quarter of the groups of group" in row.reason
    for given, held in (("fold", "0"), ("fold=2", "2")):
        train, test, (_, row) = divided(file, group_column="group", fold_column=given)
        assert {fold[path] for path in test.paths()} == {held} and len(train) == 16
        assert f"the fold {held} of fold is held out" in row.reason


def test_classes_that_only_the_held_out_videos_have_are_reported_before_the_first_step(tmp_path):
    """Such videos would count as errors, and the probe after the training would fail."""
    rows = [(f"v{i}.mp4", "xy"[i % 2], f"p{i % 2}", str(i % 3)) for i in range(12)]
    rows += [("v12.mp4", "only", "p1", "2"), ("v13.mp4", "only", "p1", "2")]
    for row in rows:
        (tmp_path / row[0]).touch()
    file = tmp_path / "clips.csv"
    file.write_text("\n".join(["path,label,group,fold", *map(",".join, rows)]))
    assert len(divided(file, fold_column="fold=1")[1]) == 4
    match = r"the fold 2 of fold is held out, but it contains all videos of 1 class \('only'\)"
    with pytest.raises(ValueError, match=match):
        divided(file, fold_column="fold=2")
    # each class is in one group
    with pytest.raises(ValueError, match="each group of .* contains all videos of a class"):
        divided(file, group_column="group")


def test_a_part_of_the_videos_has_the_classes_of_all(videos, tmp_path):
    """The trial of a route trains on a part, in which the last class of a list may be missing."""
    names = sorted(str(path.relative_to(videos)) for path in (videos / "train").rglob("*.mp4"))
    labels = [0, 1] * 3 + [0, 2]
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"{n} {label}\n" for n, label in zip(names, labels, strict=True)))
    options = FinetuneOptions(
        source="none", train=str(listed), test=str(listed), out="o", data_root=str(videos)
    )
    subject = examine_labelled(options)
    part = subject.part(np.arange(6))
    assert part.videos.num_classes == 2
    changes = data_settings(part, str(tmp_path))
    assert changes["model.cls_head.num_classes"] == 3


def segment_rows(folder, rows):
    """A CSV file of segments (recording, start, end, label) of empty files."""
    for name in {row[0] for row in rows}:
        (folder / f"{name}.mp4").touch()
    lines = [f"{name}.mp4,{start},{end},{label}" for name, start, end, label in rows]
    file = folder / "segments.csv"
    file.write_text("\n".join(["path,start,end,label", *lines]))
    return str(file)


def test_segments_of_a_recording_are_on_one_side(tmp_path):
    names = "abcdefgh"
    rows = [(name, 10 * i, 10 * i + 5, "xy"[i % 2]) for name in names for i in range(6)]
    file = segment_rows(tmp_path, rows)
    held = set()
    for seed in range(5):
        parts = divided(file, seed=seed)
        sides = [{path[0] for path in part.paths()} for part in parts[:2]]
        assert not sides[0] & sides[1] and sorted(sides[0] | sides[1]) == list(names)
        assert [len(part) for part in parts[:2]] == [36, 12]
        held.add(tuple(sorted(sides[1])))
    assert len(held) > 1
    assert parts[2][1].value == "12 segments of 2 recordings" and "recordings" in parts[2][1].reason
    # The pattern stays in charge: the time in the path, here.
    train, test, _ = divided(file, group_pattern=r"@(\d+)-")
    assert not {p[5:] for p in train.paths()} & {p[5:] for p in test.paths()}


def test_segments_of_one_recording_are_cut_in_time(tmp_path):
    rows = [("a", 10 * i, 10 * i + 5, "xy"[i % 2]) for i in range(7)]
    file = segment_rows(tmp_path, [*rows, ("a", 48, 53, "x")])
    train, test, (_, row) = divided(file)
    assert [p.split("@")[1] for p in test.paths()] == ["50-55", "60-65"]
    assert "a.mp4@48-53" not in train.paths() and len(train) == 5
    assert row.value == "2 segments of 1 recording" and "last quarter" in row.reason
    assert "1 segments reach across" in row.reason
    file = segment_rows(tmp_path, [*rows, ("a", 90, 95, "only at the end")])
    with pytest.raises(
        ValueError, match=r"no 'only at the end'\. Label it in another recording, or"
    ):
        divided(file)


def planned(videos, source, out, **settings):
    """The plan of a finetuning on the small sets."""
    sets = {"train": str(videos / "train"), "test": str(videos / "test")}
    options = FinetuneOptions(source=source, out=str(out), epochs=1, **sets, **SMALL, **settings)
    return plan_finetuning(options, time.monotonic())


def test_networks_of_all_kinds_are_planned_and_measured(videos, tmp_path):
    """The plan has timed forward and backward passes with the network, its clips and its head."""

    def config(source, frozen=None):
        return planned(videos, source, tmp_path / "run", frozen=frozen).config

    cfg = config("none")
    assert cfg.pretrained == "random" and cfg.model.backbone.base_channels == 8
    network = VisionTransformer3d(2, 16, 2, patch_size=8, tubelet_size=2, grid_size=(2, 4, 4))
    backbone = "depth=2, embed_dims=16, num_heads=2, patch_size=8, tubelet_size=2, "
    backbone += "grid_size=(2, 4, 4), type='VisionTransformer3d'"
    begin, end = CONFIG.index("type='ResNet3dSlowPath'"), CONFIG.index("init_cfg")
    text = CONFIG[:begin] + backbone + ", " + CONFIG[end:]
    source = save_tiny(tmp_path / "vit.pth", network, text)
    cfg = config(source)
    assert cfg.model.backbone.frozen_stages == 4  # four videos of a class are few
    groups = config(source, frozen=-1).optim_wrapper.paramwise_cfg
    assert groups.layer_decay == 0.75 and "position_time" in groups.no_decay
    assert cfg.model.cls_head.in_channels == 16
    assert cfg.test_dataloader.dataset.pipeline[-2].size == 40  # the test crop of the source


def test_an_attentive_head_is_trained_tested_and_predicts(videos, tmp_path):
    words = ("--frozen", "4", "--head", "attentive")
    assert main(finetuning(videos, tmp_path / "run", *words)) == 0
    scores, _ = load_scores(tmp_path / "run" / SCORES)
    classifier = sce_video.load_classifier(tmp_path / "run")
    assert type(classifier.recognizer.cls_head).__name__ == "AttentiveProbeHead"
    probabilities = sce_video.class_probabilities(classifier, scores.paths)
    np.testing.assert_allclose(probabilities, scores.values.numpy(), atol=1e-5)


@pytest.mark.parametrize("family", ["dinov2", "videomae"])
def test_encoders_of_transformers_see_frames_as_their_processors_make_them(
    family, videos, tmp_path, monkeypatch
):
    pytest.importorskip("transformers")
    monkeypatch.setenv("SCE_VIDEO_CACHE", str(tmp_path / "cache"))
    save_model(family, tmp_path / "model")
    plan = planned(videos, f"hf:{tmp_path / 'model'}", tmp_path / "run", frozen=-1)
    steps = {step.type: step for step in plan.config.test_dataloader.dataset.pipeline}
    resize, pack = steps["ResizeAsProcessor"], steps["PackVideo"]
    assert pack.crop_size <= (resize.size if isinstance(resize.size, int) else resize.size[0])
    clip = plan.config.train_dataloader.dataset.pipeline[1]
    assert clip.num_frames == steps["UniformClips"].num_frames > 1
    assert plan.config.data_preprocessor.mean is not None
    reloaded = load_config(plan.config)
    assert reloaded.optim_wrapper.paramwise_cfg.layer_decay == 0.75


def test_errors(videos, tmp_path):
    def refused(message, source="none", **changes):
        with pytest.raises(ValueError, match=message):
            sce_video.finetune(source, train=videos / "train", out=tmp_path / "run", **changes)

    refused("precision must be one of", precision="int8")
    refused("hours cannot be combined with epochs", hours=1, epochs=3)
    refused("--few 9 is too many", few=9)
    short = make_videos(tmp_path / "short", 4, frames=3)
    with pytest.raises(ValueError, match="needs clips of 4 frames, but the videos in .* have 3"):
        sce_video.finetune(videos / "source.pth", train=short, out=tmp_path / "run")


def test_a_classifier_that_guesses_raises_the_alarm_and_recommends_no_predictions(
    trained, tmp_path
):
    """48 % of two classes, for example, whatever the interval."""

    def written(top1, ends, most=0.5):
        content = {"metrics": {"top1": top1}, "chance": {"top1": 0.5, "majority_class": most}}
        (tmp_path / RESULTS).write_text(json.dumps({**content, "intervals": {"top1": ends}}))
        return guessing_alarm(tmp_path)

    assert "48.0 % (95 % interval 38.0 to 58.0), guessing reaches 50.0 %" in str(
        written(0.48, [0.38, 0.58])
    )
    assert written(0.7, [0.6, 0.8]) is None
    assert written(0.7, [0.6, 0.8], most=0.65).threshold == 0.65  # of one class in the test
    assert written(0.5, None) is not None and written(0.51, None) is None
    (tmp_path / RESULTS).unlink()
    assert guessing_alarm(tmp_path) is None
    content = json.loads((trained / RESULTS).read_text())
    assert content["chance"] == {"top1": 0.5, "majority_class": 0.5}


def test_the_end_of_a_finetuning_that_guesses(videos, tmp_path, monkeypatch, capsys):
    alarm = Alarm("the classifier is no better than guessing", "no_better", 0.48, 0.5)
    monkeypatch.setattr("sce_video.runs.after_training.guessing_alarm", lambda folder: alarm)
    run = tmp_path / "run"
    assert main(finetuning(videos, run)) == 0
    shown = capsys.readouterr().out
    assert "alarm no_better: the classifier is no better" in shown and "next:" not in shown
    assert "no better than guessing" in (run / "run.html").read_text()
    (row,) = [r for r in read_run(run).alarms if r.alarm == "no_better"]
    assert (row.value, row.threshold) == (0.48, 0.5)
