"""Test of a classifier: mean of softmax vectors, every video once, provenance, invalid input."""

import json

import numpy as np
import pytest
import torch
from helpers.recognition import FINETUNE, small_options
from torch import nn

from sce_video.datasets import VideoDataset
from sce_video.datasets.labelled import check_dataset_labels
from sce_video.datasets.transforms import cut_views
from sce_video.engine.checkpoint import load_checkpoint_file, save_checkpoint_file, weights_sha256
from sce_video.engine.runner import VideoRunner
from sce_video.evaluation.metrics.base import format_metrics
from sce_video.evaluation.scores import load_scores
from sce_video.inference.multi_view import class_scores
from sce_video.models.data_preprocessors import VideoDataPreprocessor
from sce_video.registry import DATASETS
from sce_video.reporting.comparability import compare_with_paper
from sce_video.reporting.result_files import collect_results
from sce_video.runs import configs, launch
from sce_video.version import __version__


@pytest.fixture(scope="module")
def videos(split_videos):
    return split_videos


@pytest.fixture(scope="module")
def finetuned(videos, tmp_path_factory):
    """A finetuned checkpoint and its work dir."""
    folder = tmp_path_factory.mktemp("finetuned")
    cfg = configs.training_config(
        FINETUNE, work_dir=folder, pretrained="random", amp="float32",
        cfg_options=small_options(videos),
    )  # fmt: skip
    launch.run_training(cfg)
    return folder / "epoch_2.pth"


def run_test(videos, checkpoint, folder, dump=None, **changes):
    """Test a checkpoint; returns the content of results.json."""
    cfg = configs.testing_config(
        FINETUNE, str(checkpoint), work_dir=folder, dump=dump,
        cfg_options=small_options(videos, **changes),
    )  # fmt: skip
    launch.run_test(cfg)
    return json.loads((folder / "results.json").read_text())


class Logits(nn.Module):
    """A recogniser whose logits are the red values of a view's first row of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.data_preprocessor = VideoDataPreprocessor(mean=0.0, std=1 / 255)

    def forward(self, inputs, mode, stage):
        assert mode == "tensor" and stage == "head" and inputs.shape[1] == 1
        return inputs[:, 0, 0, 0, 0, :3]


def test_mean_of_the_softmax_vectors_not_of_the_logits():
    # Three views: two mildly for class 1, one strongly for class 0.
    logits = np.array([[0, 2, 0], [0, 2, 0], [9, 0, 0]], dtype=np.uint8)
    frames = np.zeros((3, 3, 3, 3), dtype=np.uint8)
    frames[:, 0, :, 0] = logits
    video = {
        "frames": torch.from_numpy(frames),
        "positions": torch.tensor([[0], [1], [2]]),
        "offsets": torch.tensor([[0, 0]]),
        "crop_size": (3, 3),
    }
    exponents = np.exp(logits.astype(np.float64))
    softmax = exponents / exponents.sum(1, keepdims=True)
    assert softmax.mean(0).argmax() == 1 and logits.mean(0).argmax() == 0, "the two rules differ"
    inputs = [view[None] for view in cut_views(video, 0, 3)]  # cut already: the middle one
    central = class_scores()(Logits(), {"inputs": inputs}).central[0]
    np.testing.assert_allclose(central, softmax[1], atol=1e-6)
    for max_views in (2, 30):
        rows = class_scores(max_views)(Logits(), {"videos": [video]})
        assert rows.num_views == 3 and rows.values.shape == rows.central.shape == (1, 3)
        np.testing.assert_allclose(rows.values[0], softmax.mean(0), atol=1e-6)
        np.testing.assert_allclose(rows.central[0], softmax[1], atol=1e-6)


def test_results_equal_a_loop_over_views_and_have_the_full_provenance(videos, finetuned, tmp_path):
    """One view per forward pass, from the data set to the accuracy."""
    results = run_test(videos, finetuned, tmp_path, dump=tmp_path / "scores.npz")
    scores, protocol = load_scores(tmp_path / "scores.npz")
    assert protocol["checkpoint"]["sha256"] == results["protocol"]["checkpoint"]["sha256"]
    cfg = configs.testing_config(FINETUNE, str(finetuned), cfg_options=small_options(videos))
    cfg.work_dir, cfg.experiment_name = str(tmp_path / "by_hand"), "by_hand"
    model = VideoRunner.from_cfg(cfg).model
    model.load_state_dict(load_checkpoint_file(finetuned)["state_dict"])
    model.eval()
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    for i in range(len(dataset)):
        sample, softmax = dataset[i], []
        for clip in sample["positions"]:
            for top, left in sample["offsets"].tolist():
                view = sample["frames"][clip][:, top : top + 36, left : left + 36]
                x = (view.permute(3, 0, 1, 2)[None].float() / 255 - 0.45) / 0.225
                with torch.no_grad():
                    pooled = model.backbone(x).mean((2, 3, 4))
                    softmax.append(model.cls_head.fc_cls(pooled).softmax(1)[0])
        torch.testing.assert_close(scores.scores[i], sum(softmax) / 30, atol=1e-5, rtol=0)
        central = softmax[5 * 3 + 1]  # the sixth of ten clips, the second of three crops
        torch.testing.assert_close(scores.central[i], central, atol=1e-5, rtol=0)
        assert scores.paths[i] == dataset.path(i)
    correct = (scores.scores.argmax(1) == torch.from_numpy(dataset.labels)).double().mean()
    assert results["metrics"]["top1"] == pytest.approx(float(correct))
    assert set(results["metrics"]) == {
        *("top1", "top5", "mean_class_accuracy"),
        *("one_view_top1", "one_view_top5", "one_view_mean_class_accuracy"),
    }
    protocol = results["protocol"]
    assert (protocol["clips"], protocol["crops"], protocol["crop_size"]) == (10, 3, 36)
    assert (protocol["videos"], protocol["failures"], protocol["views"]) == (5, 0, 30)
    assert protocol["decoder"] == "av" and protocol["decoder_version"].startswith("av ")
    assert len(protocol["checkpoint"]["sha256"]) == 64
    assert protocol["benchmark"]["dataset"] == "ucf101" and protocol["split"] == 1
    assert protocol["test"]["ann_file"].endswith("test_split1.txt")
    assert len(protocol["test"]["ann_sha256"]) == 64
    assert protocol["test"]["classes"] == ["class0", "class1"], "the folders of its list"
    assert (protocol["test"]["samples"], protocol["test"]["num_classes"]) == (5, 2)
    table = format_metrics(results["metrics"], protocol)
    assert "1 view" in table and "10 x 3 views" in table and "5 videos" in table


# -- invalid input -----------------------------------------------------------------------------


def test_labels_out_of_range_raise_with_file_and_line(videos, finetuned, tmp_path):
    (tmp_path / "list.txt").write_text("class0/v00.mp4 0\n\nclass1/v01.mp4 7\n")
    ann = tmp_path / "list.txt"
    with pytest.raises(ValueError, match=r"list\.txt, line 3: 'class1/v01\.mp4' has label 7"):
        run_test(videos, finetuned, tmp_path, test_dataloader__dataset__ann_file=ann)
    ann.write_text("class0/v00.mp4\nclass1/v01.mp4\n")
    with pytest.raises(ValueError, match=r"list\.txt, line 1: 'class0/v00\.mp4' has no label"):
        run_test(videos, finetuned, tmp_path, test_dataloader__dataset__ann_file=ann)
    folder = VideoDataset(str(videos))
    check_dataset_labels(folder, 2)
    with pytest.raises(
        ValueError, match=r"v01\.mp4' has label 1, but the classifier has 1 classes"
    ):
        check_dataset_labels(folder, 1)


def save(weights, path):
    torch.save({"state_dict": weights, "meta": {}}, path)
    return path


# -- starting from a pretrained backbone -------------------------------------------------------


def test_the_backbone_comes_from_the_checkpoint_or_the_run_does_not_start(
    videos, finetuned, tmp_path
):
    def start(pretrained, **changes):
        cfg = configs.training_config(
            FINETUNE, work_dir=tmp_path, pretrained=pretrained, amp="float32",
            cfg_options=small_options(videos, train_cfg__max_epochs=1, **changes),
        )  # fmt: skip
        return launch.run_training(cfg)

    with pytest.raises(ValueError, match="starts from a pretrained backbone. Give --pretrained"):
        start(None)
    head = {"cls_head.fc_cls.weight": torch.ones(2, 32)}
    with pytest.raises(ValueError, match="no backbone weight of the model"):
        start(str(save(head, tmp_path / "head.pth")))
    with pytest.raises(ValueError, match="from random weights, so --pretrained has no effect"):
        configs.training_config(
            FINETUNE.parents[2] / "sce/sce_r3d18_folder.py", pretrained=str(finetuned)
        )


def finetune_twice(videos, pretrained, folder):
    """Finetune for an epoch, resume for another, test; returns the provenance of the result."""
    for epochs, resume in ((1, None), (2, "auto")):
        cfg = configs.training_config(
            FINETUNE, work_dir=folder, pretrained=str(pretrained), amp="float32",
            resume=resume, cfg_options=small_options(videos, train_cfg__max_epochs=epochs),
        )  # fmt: skip
        launch.run_training(cfg)
    return run_test(videos, folder / "epoch_2.pth", folder)["protocol"]


def test_results_name_the_real_pretraining_of_the_backbone(videos, finetuned, tmp_path):
    """The recipe names SCE on Kinetics-400, the checkpoint another one; also after resuming."""
    weights = load_checkpoint_file(finetuned)
    meta = weights["meta"]
    real = {"protocol": "pretraining", "pretraining": "supervised", "dataset": "kinetics200"}
    meta = {**meta, "benchmark": real, "pretrained": None}
    torch.save({"state_dict": weights["state_dict"], "meta": meta}, tmp_path / "pre.pth")
    protocol = finetune_twice(videos, tmp_path / "pre.pth", tmp_path)
    # --pretrained initialises a new training, not a resumed one.
    files = (finetuned, tmp_path / "epoch_1.pth", tmp_path / "epoch_2.pth")
    start, first, second = (
        load_checkpoint_file(file)["state_dict"]["backbone.conv1.weight"] for file in files
    )
    assert not torch.equal(first, start)
    assert 0 < (second - first).abs().max() < (second - start).abs().max() * 1.5
    found = protocol["benchmark"]
    assert (found["pretrained_on"], found["pretraining"]) == ("kinetics200", "supervised")
    assert found["pretraining_epochs"] == 2 and protocol["benchmark_problems"] == {}
    assert found["protocol"] == "finetune" and protocol["epochs"] == 2
    assert protocol["pretrained"]["path"].endswith("pre.pth")
    assert len(protocol["pretrained"]["sha256"]) == 64
    trained = protocol["checkpoint"]["training"]
    assert protocol["pretrained"]["training"]["batch_size"] == 4
    assert trained["config"]["train_dataloader"]["batch_size"] == 4
    assert len(trained["data"]["ann_sha256"]) == 64
    assert protocol["resolved_config"]["test_cfg"]["type"] == "MultiViewTestLoop"

    scratch = run_test(videos, finetuned, tmp_path)["protocol"]
    assert scratch["pretrained"] == "random" and scratch["benchmark"]["pretrained_on"] is None


def test_a_classifier_for_another_network_is_refused(videos, tmp_path):
    cfg = configs.training_config(
        FINETUNE, work_dir=tmp_path, pretrained="random",
        cfg_options=small_options(videos, model__cls_head__in_channels=64),
    )  # fmt: skip
    with pytest.raises(ValueError, match="has 32 output channels.*cls_head.in_channels=32"):
        launch.run_training(cfg)


def test_folders_with_other_classes_are_refused(videos, tmp_path):
    """Class folders are numbered in sorted order: without class0, class1 would become 0."""
    part = tmp_path / "part"
    part.mkdir()
    (part / "class1").symlink_to(videos / "class1")
    folders = {f"{name}_dataloader__dataset__ann_file": None for name in ("train", "val", "test")}

    def start(**changes):
        options = small_options(videos, train_cfg__max_epochs=1, **folders, **changes)
        return configs.training_config(
            FINETUNE, work_dir=tmp_path / "run", pretrained="random", cfg_options=options
        )

    with pytest.raises(ValueError, match=r"only the training has \['class0'\]"):
        launch.run_training(start(val_dataloader__dataset__data_root=part))


def obstacles(folder):
    (result,) = collect_results([folder / "results.json"]).results
    return "\n".join(compare_with_paper(result).obstacles)


def test_weights_of_another_run_are_found_by_their_hash(videos, finetuned, tmp_path):
    content = load_checkpoint_file(finetuned)
    record = content["meta"]["training"]
    assert record["weights_sha256"] == weights_sha256(content["state_dict"])
    assert record["foreign_classes"] == [] and record["code"]["version"] == __version__
    assert len(record["code"]["sources_sha256"]) == 64
    own = run_test(videos, finetuned, tmp_path / "own")["protocol"]
    assert "other_weights" not in own["checkpoint"] and own["code"] == record["code"]
    assert "not those that its training wrote" not in obstacles(tmp_path / "own")

    name, value = next(iter(content["state_dict"].items()))
    content["state_dict"][name] = value + 1e-6  # as of a run with another seed
    save_checkpoint_file(content, tmp_path / "epoch_2.pth")
    other = run_test(videos, tmp_path / "epoch_2.pth", tmp_path / "other")["protocol"]
    assert other["checkpoint"]["other_weights"] is True
    text = obstacles(tmp_path / "other")
    assert "checkpoint: its weights are not those that its training wrote" in text

    cfg = configs.training_config(
        FINETUNE,
        work_dir=tmp_path,
        pretrained="random",
        amp="float32",
        cfg_options=[*small_options(videos), "train_cfg.max_epochs=3"],
        resume=str(tmp_path / "epoch_2.pth"),
    )
    launch.run_training(cfg)  # to go on with them does not make them those of the record
    changed = load_checkpoint_file(tmp_path / "epoch_3.pth")["meta"]["training"]["changed"]
    assert any("weights were replaced" in text for text in changed)


def test_a_report_recomputes_the_metrics_from_their_outcomes(videos, finetuned, tmp_path):
    content = run_test(videos, finetuned, tmp_path)
    assert "contradict" not in obstacles(tmp_path)
    for name in ("top1", "mean_class_accuracy"):
        edited = {**content, "metrics": {**content["metrics"], name: 0.99}, "intervals": {}}
        (tmp_path / "results.json").write_text(json.dumps(edited))
        assert f"contradict each other: {name} is 0.99, its outcomes give" in obstacles(tmp_path)
    edited = {**content, "protocol": {**content["protocol"], "videos": 19_881}}
    (tmp_path / "results.json").write_text(json.dumps(edited))
    assert "19,881 samples, but its outcomes are of 5" in obstacles(tmp_path)
    (tmp_path / "results_outcomes.npz").write_bytes(b"PK damaged")
    assert "its outcomes cannot be read" in obstacles(tmp_path)
    (tmp_path / "results_outcomes.npz").unlink()
    edited = {**content, "metrics": {"top1": 0.9}, "intervals": {"top1": [0.1, 0.8]}}
    (tmp_path / "results.json").write_text(json.dumps(edited))
    assert "top1 is 0.9, outside its interval 0.1 to 0.8" in obstacles(tmp_path)
