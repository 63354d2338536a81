"""Extraction of features into a file: against a loop, with resume, from any kind of config."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from helpers.crashing import crash_at
from helpers.recognition import FINETUNE, RETRIEVAL

from sce_video.apis import launch
from sce_video.engine.runner import VideoRunner
from sce_video.evaluation import load_features
from sce_video.evaluation.extraction_loop import FeatureExtractionLoop
from sce_video.registry import DATASETS, MODELS, READERS

OPTIONS = {
    "model.backbone.base_channels": 4,
    "test_dataloader.dataset.pipeline.UniformClips.clip_duration": 0.4,
    "test_dataloader.dataset.pipeline.UniformClips.num_frames": 2,
    "test_dataloader.dataset.pipeline.UniformClips.num_clips": 3,
    "test_dataloader.dataset.pipeline.ResizeShortSide.size": 36,
    "test_dataloader.dataset.pipeline.PackVideo.crop_size": 36,
    "test_dataloader.num_workers": 0,
    "test_dataloader.pin_memory": False,
    "visualizer": None,
}


@pytest.fixture(scope="module")
def videos(split_videos):
    return split_videos


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(4)
    model = MODELS.build(
        {
            "type": "Encoder",
            "backbone": {"type": "ResNet3dSlowPath", "depth": 18, "base_channels": 4},
        }
    )
    path = tmp_path_factory.mktemp("weights") / "encoder.pth"
    torch.save({"state_dict": model.state_dict(), "meta": {}}, path)
    return path


def configure(
    videos, checkpoint, out, ann_file="test_split1.txt", config=RETRIEVAL, backend=None, **changes
):
    cfg = launch.extraction_config(
        config, str(checkpoint), out, data_root=str(videos), ann_file=ann_file, backend=backend,
        cfg_options=[f"{key}={value}" for key, value in OPTIONS.items()],
    )  # fmt: skip
    cfg.test_cfg.update(changes)
    cfg.experiment_name = out.stem
    return cfg


def test_features_equal_a_loop_over_views(videos, checkpoint, tmp_path):
    cfg = configure(videos, checkpoint, tmp_path / "f.npz")
    assert launch.test(cfg) == {"videos": 5.0, "failures": 0.0}
    with np.load(tmp_path / "f.npz", allow_pickle=False) as stored:
        assert stored["features"].dtype == np.float32 and stored["features"].shape == (5, 32)
        protocol = json.loads(str(stored["protocol"]))
        labels = stored["labels"].tolist()
    assert (protocol["clips"], protocol["crops"], protocol["videos"]) == (3, 3, 5)
    assert protocol["checkpoint"]["path"] == str(checkpoint) and protocol["benchmark"] is None
    features, _ = load_features(tmp_path / "f.npz")
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    assert labels == dataset.labels.tolist()
    model = MODELS.build(cfg.model).eval()
    model.load_state_dict(torch.load(checkpoint, weights_only=True)["state_dict"])
    for i in range(5):
        sample, rows = dataset[i], []
        for clip in sample["positions"]:
            for top, left in sample["offsets"].tolist():
                view = sample["frames"][clip][:, top : top + 36, left : left + 36]
                x = (view.permute(3, 0, 1, 2)[None].float() / 255 - 0.45) / 0.225
                with torch.no_grad():
                    rows.append(model.backbone(x).mean((2, 3, 4))[0])
        torch.testing.assert_close(
            features.features[i], torch.stack(rows).mean(0), atol=1e-5, rtol=1e-4
        )
        assert features.paths[i] == dataset.path(i)


def test_an_interrupted_run_resumes(videos, checkpoint, tmp_path, monkeypatch):
    launch.test(configure(videos, checkpoint, tmp_path / "uninterrupted.npz"))
    embedded = []
    write = FeatureExtractionLoop._write_part

    def write_and_interrupt(loop, rows, fingerprint):
        write(loop, rows, fingerprint)
        embedded.extend(rows.indices)
        raise KeyboardInterrupt

    cfg = configure(videos, checkpoint, tmp_path / "f.npz", save_every=3)
    monkeypatch.setattr(FeatureExtractionLoop, "_write_part", write_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        launch.test(cfg)
    assert not (tmp_path / "f.npz").exists() and len(embedded) >= 3
    first = set(embedded)

    def keep(loop, rows, fingerprint):
        write(loop, rows, fingerprint)
        embedded.extend(rows.indices)

    monkeypatch.setattr(FeatureExtractionLoop, "_write_part", keep)
    cfg.experiment_name = "again"
    launch.test(cfg)
    assert sorted(embedded) == [0, 1, 2, 3, 4], "every video once"
    assert first < set(embedded) and not (tmp_path / "f.npz.parts").exists()
    one, resumed = (load_features(tmp_path / name)[0] for name in ("uninterrupted.npz", "f.npz"))
    torch.testing.assert_close(one.features, resumed.features, atol=1e-6, rtol=0)
    assert one.paths == resumed.paths and one.labels.equal(resumed.labels)


def test_parts_of_another_job_and_finished_files_are_refused(
    videos, checkpoint, tmp_path, monkeypatch
):
    out = tmp_path / "f.npz"

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(FeatureExtractionLoop, "_join", fail)
    with pytest.raises(OSError, match="disk full"):
        launch.test(configure(videos, checkpoint, out))
    monkeypatch.undo()
    other = configure(videos, checkpoint, out, ann_file="test_split2.txt")
    with pytest.raises(ValueError, match=r"is of another checkpoint, data set or pipeline"):
        launch.test(other)
    launch.test(configure(videos, checkpoint, out))
    with pytest.raises(ValueError, match=r"f\.npz exists"):
        launch.test(configure(videos, checkpoint, out))


def test_unreadable_files_are_listed(videos, checkpoint, tmp_path):
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    lines = f"{tmp_path / 'broken.mp4'} 0\n" + (videos / "test_split1.txt").read_text()
    (tmp_path / "list.txt").write_text(lines)
    out = tmp_path / "f.npz"
    cfg = configure(videos, checkpoint, out, ann_file=str(tmp_path / "list.txt"), save_every=1)
    assert launch.test(cfg) == {"videos": 5.0, "failures": 1.0}
    features, _ = load_features(out)
    assert features.indices.tolist() == [1, 2, 3, 4, 5]
    assert features.failures[0][0].endswith("broken.mp4")


def test_parts_of_a_config(videos, checkpoint, tmp_path):
    def lists(part, config=RETRIEVAL):
        cfg = launch.extraction_config(config, str(checkpoint), tmp_path / "f.npz", part=part)
        assert cfg.model.type == "Encoder" and cfg.test_dataloader.dataset.on_error == "skip"
        assert cfg.test_dataloader.dataset.pipeline[-1].type == "PackVideo"
        return cfg.test_dataloader.dataset.ann_file

    assert lists("test") == "data/ucf101/test_split1.txt"
    assert lists("bank") == lists("train", FINETUNE) == "data/ucf101/train_split1.txt"
    with pytest.raises(ValueError, match="has no bank data"):
        lists("bank", FINETUNE)
    with pytest.raises(ValueError, match="part must be one of test, bank, train"):
        lists("val")
    kept = launch.extraction_config(RETRIEVAL, str(checkpoint), tmp_path / "f.npz")
    assert kept.benchmark.dataset == "ucf101"


def test_a_checkpoint_of_another_network_is_refused(videos, checkpoint, tmp_path):
    cfg = configure(videos, checkpoint, tmp_path / "f.npz")
    cfg.model.backbone.depth = 34
    with pytest.raises(ValueError, match=r"encoder\.pth is of another backbone"):
        launch.test(cfg)
    with pytest.raises(ValueError, match=r"saved as \.npz"):
        VideoRunner.from_cfg(configure(videos, checkpoint, tmp_path / "f.txt")).test()


@pytest.mark.parametrize("backend", ["decord", "auto"])
def test_the_backend_changes_no_feature(videos, checkpoint, tmp_path, backend):
    pytest.importorskip("decord")
    launch.test(configure(videos, checkpoint, tmp_path / "default.npz"))
    launch.test(configure(videos, checkpoint, tmp_path / "other.npz", backend=backend))
    default, default_provenance = load_features(tmp_path / "default.npz")
    other, provenance = load_features(tmp_path / "other.npz")
    np.testing.assert_array_equal(default.features, other.features)
    assert provenance["decoder"] == backend and default_provenance["decoder"] == "av"
    assert "decord" in provenance["decoder_version"]


def test_files_that_crash_a_worker_are_failures(videos, checkpoint, tmp_path, monkeypatch):
    """Under on_error="skip"; a class "crashing" is registered in place of the PyAV reader."""
    cfg = configure(videos, checkpoint, tmp_path / "f.npz", save_every=2)
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    bad = dataset.path(2)
    crashing = crash_at({os.path.basename(bad): signal.SIGSEGV})
    monkeypatch.setitem(READERS.module_dict, "av", crashing)
    cfg.test_dataloader.update(num_workers=1, batch_size=2)
    cfg.test_dataloader.dataset.on_error = "skip"
    assert launch.test(cfg) == {"videos": 4.0, "failures": 1.0}
    features, _ = load_features(tmp_path / "f.npz")
    assert features.paths == [dataset.path(i) for i in (0, 1, 3, 4)]
    ((path, reason),) = features.failures
    assert path == bad and "crashed the process that was reading it" in reason
