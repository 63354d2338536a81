"""Extraction of features into a file: against a loop, with resume, from any kind of config."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.crashing_reads import crash_in_workers
from helpers.recognition import RETRIEVAL
from mmengine.config import Config

from sce_video.evaluation import load_features
from sce_video.inference import embed_file
from sce_video.inference.embed_job import EmbedJob, process_device
from sce_video.jobs import RunError
from sce_video.options.features import EmbedOptions
from sce_video.registry import DATASETS, MODELS
from sce_video.runs import launch
from sce_video.runs.embed_run import extraction_config


@pytest.fixture(scope="module")
def videos(split_videos):
    return split_videos


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("weights") / "encoder.pth")


@pytest.fixture(scope="module")
def whole(videos, checkpoint, tmp_path_factory):
    """Config of an uninterrupted run, and its file."""
    path = tmp_path_factory.mktemp("whole") / "f.npz"
    cfg = configure(videos, checkpoint, path)
    assert launch.run_test(cfg) == {"videos": 5.0, "failures": 0.0}
    return cfg, path


def test_features_equal_a_loop_over_views(whole, checkpoint):
    cfg, path = whole
    with np.load(path, allow_pickle=False) as stored:
        assert stored["features"].dtype == np.float32 and stored["features"].shape == (5, 32)
        protocol = json.loads(str(stored["protocol"]))
        labels = stored["labels"].tolist()
    assert (protocol["clips"], protocol["crops"], protocol["videos"]) == (3, 3, 5)
    assert protocol["checkpoint"]["path"] == str(checkpoint) and protocol["benchmark"] is None
    features, _ = load_features(path)
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


def test_an_interrupted_run_resumes(videos, checkpoint, whole, tmp_path, monkeypatch):
    embedded, stops = [], [3]
    process = EmbedJob.process

    def noted(job, item):
        if len(embedded) in stops:
            raise KeyboardInterrupt
        embedded.extend(item.argument)
        return process(job, item)

    cfg = configure(videos, checkpoint, tmp_path / "f.npz")
    monkeypatch.setattr(EmbedJob, "process", noted)
    with pytest.raises(KeyboardInterrupt):
        launch.run_test(cfg)
    assert not (tmp_path / "f.npz").exists() and len(embedded) == 3
    stops.clear()
    parts = tmp_path / "f.npz.parts"  # a run of several ranks has a file of each
    (parts / "records.sqlite").rename(parts / "rank-1.sqlite")
    cfg.experiment_name = "again"
    launch.run_test(cfg)
    assert sorted(embedded) == [0, 1, 2, 3, 4], "every video once"
    assert not (tmp_path / "f.npz.parts").exists()
    check_equal(whole[1], tmp_path / "f.npz")


def test_records_of_another_job_and_finished_files_are_refused(
    videos, checkpoint, tmp_path, monkeypatch
):
    out = tmp_path / "f.npz"

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(embed_file, "write_features", fail)
    with pytest.raises(OSError, match="disk full"):
        launch.run_test(configure(videos, checkpoint, out))
    monkeypatch.undo()
    other = configure(videos, checkpoint, out, ann_file="test_split2.txt")
    with pytest.raises(ValueError, match=r"belongs to another checkpoint, dataset or pipeline"):
        launch.run_test(other)
    launch.run_test(configure(videos, checkpoint, out))
    with pytest.raises(ValueError, match=r"f\.npz exists"):
        launch.run_test(configure(videos, checkpoint, out))


def test_unreadable_files_are_listed(videos, checkpoint, tmp_path):
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    lines = f"{tmp_path / 'broken.mp4'} 0\n" + (videos / "test_split1.txt").read_text()
    (tmp_path / "list.txt").write_text(lines)
    out = tmp_path / "f.npz"
    cfg = configure(videos, checkpoint, out, ann_file=str(tmp_path / "list.txt"))
    assert launch.run_test(cfg) == {"videos": 5.0, "failures": 1.0}
    features, _ = load_features(out)
    assert features.indices.tolist() == [1, 2, 3, 4, 5]
    assert features.failures[0][0].endswith("broken.mp4")


@pytest.mark.parametrize("workers", [0, 1])
def test_features_that_are_not_finite_end_the_run(videos, checkpoint, tmp_path, workers):
    """A diverged network gives no file; with exit status 0 it was found days later."""
    saved = torch.load(checkpoint, weights_only=True)
    next(iter(saved["state_dict"].values())).fill_(float("nan"))
    torch.save(saved, tmp_path / "diverged.pth")
    cfg = configure(videos, tmp_path / "diverged.pth", tmp_path / "f.npz")
    cfg.test_dataloader.num_workers = workers
    with pytest.raises(RunError, match=r"the output for .*\.mp4 is not finite: the network of"):
        launch.run_test(cfg)
    assert not (tmp_path / "f.npz").exists()


def test_views_cut_by_the_loader_share_a_batch(videos, checkpoint, tmp_path, monkeypatch):
    """As images do; of a batch that ends its process the samples are embedded one by one."""
    crash_in_workers(monkeypatch)
    lines = (videos / "test_split1.txt").read_text().splitlines()
    bad = tmp_path / "segfault.mp4"
    shutil.copy(videos / lines[2].split()[0], bad)
    (tmp_path / "list.txt").write_text("\n".join([*lines[:4], f"{bad} 0", lines[4]]))
    for name, workers, ann_file in (
        ("one.npz", 0, "test_split1.txt"),
        ("f.npz", 2, str(tmp_path / "list.txt")),
    ):
        cfg = configure(videos, checkpoint, tmp_path / name, ann_file=ann_file, workers=workers)
        opening, clips, _, resizing, _ = cfg.test_dataloader.dataset.pipeline
        cropping = {"type": "CenterCropClips", "size": 36}
        steps = [opening, clips, {"type": "DecodeClips"}, resizing, cropping, {"type": "PackClips"}]
        cfg.test_dataloader.dataset.pipeline = steps
        cfg.test_dataloader.batch_size = 2
        launch.run_test(cfg)
    one, found = (load_features(tmp_path / name)[0] for name in ("one.npz", "f.npz"))
    assert found.indices.tolist() == [0, 1, 2, 3, 5] and len(found.failures) == 1
    assert found.values[:4].equal(one.values[:4])  # the same batches
    torch.testing.assert_close(found.values, one.values, atol=1e-6, rtol=1e-6)


def test_processes_are_spread_over_the_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    process, found = multiprocessing.current_process(), []
    for number in (1, 2, 3):
        monkeypatch.setattr(process, "_identity", (number,))
        found.append(str(process_device("cuda")))
    found.append(str(process_device("cuda:1")))  # of a rank
    assert found == ["cuda:1", "cuda:0", "cuda:1", "cuda:1"]


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


def save_encoder(path: Path) -> Path:
    """Write the weights of a tiny encoder."""
    torch.manual_seed(4)
    backbone = {"type": "ResNet3dSlowPath", "depth": 18, "base_channels": 4}
    model = MODELS.build({"type": "Encoder", "backbone": backbone})
    torch.save({"state_dict": model.state_dict(), "meta": {}}, path)
    return path


def configure(
    videos: Path,
    checkpoint: Path,
    out: Path,
    ann_file: str = "test_split1.txt",
    config: Path = RETRIEVAL,
    backend: str | None = None,
    **changes: object,
) -> Config:
    """The config of an extraction; ``changes`` are other options."""
    options = EmbedOptions(
        videos=str(videos), checkpoint=str(checkpoint), out=str(out), ann_file=ann_file,
        config=str(config), backend=backend, **changes,
        cfg_options=tuple(f"{key}={value}" for key, value in OPTIONS.items()),
    )  # fmt: skip
    cfg = extraction_config(options, str(config), str(checkpoint), out)
    cfg.experiment_name = out.stem
    return cfg


def check_equal(*files: Path) -> None:
    """Two files of features are equal bit for bit, in the order of the list."""
    (one, first), (two, second) = map(load_features, files)
    assert one.values.equal(two.values) and one.labels.equal(two.labels)
    assert one.paths == two.paths and one.failures == two.failures
    assert one.indices.equal(two.indices) and first["views"] == second["views"]
