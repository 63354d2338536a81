"""A training, its evaluation and features with everything but the videos in an object store."""

from __future__ import annotations

import io
import json
import shutil
from hashlib import sha256

import numpy as np
import pytest
from helpers.training import make_videos, small_config

from sce_video.commands import embed, evaluate
from sce_video.datasets import VideoDataset
from sce_video.datasets.video_list import read_annotation_list
from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.inference.model import load_model
from sce_video.runs import configs, launch
from sce_video.utils.command import explain


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"), 8)


@pytest.fixture
def recipe(videos, bucket, tmp_path):
    """A config file whose training list is in the bucket."""
    lines = [f"class{i % 2}/v{i:02d}.mp4 {i % 2}\n" for i in range(8)]
    cfg = small_config(videos, tmp_path / "unused")
    cfg.train_dataloader.dataset.ann_file = bucket.put("lists/train.txt", "".join(lines).encode())
    cfg.train_cfg.max_epochs = 2
    cfg.default_hooks.checkpoint = dict(type="CheckpointHook", interval=1, max_keep_ckpts=1)
    cfg.run_page = None
    for name in ("work_dir", "launcher"):
        cfg.pop(name)
    cfg.dump(tmp_path / "recipe.py")
    return tmp_path / "recipe.py"


def start(recipe, work_dir, **options):
    return launch.run_training(configs.training_config(recipe, work_dir=work_dir, **options))


def test_from_a_list_to_results_in_a_store(recipe, bucket, videos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = bucket.url("runs/a")
    start(recipe, tmp_path / "first", mirror=run, cfg_options=["train_cfg.max_epochs=1"])
    shutil.rmtree(tmp_path / "first")
    runner = start(recipe, tmp_path / "second", mirror=run, resume="auto")
    assert runner.resumed_from == str(tmp_path / "second/epoch_1.pth") and runner.epoch == 2
    weights = bucket.get("runs/a/epoch_2.pth")
    assert "runs/a/epoch_1.pth" not in bucket.keys()
    with pytest.raises(ValueError, match="contains an earlier training run"):
        start(recipe, tmp_path / "third", mirror=run)

    assert evaluate.main([run, "--test", str(videos), "--group-pattern", r"v\d(\d)"]) == 0
    results = json.loads(bucket.get("runs/a/results.json"))
    assert results["protocol"]["checkpoint"]["path"] == f"{run}/epoch_2.pth"
    assert results["protocol"]["checkpoint"]["sha256"] == sha256(weights).hexdigest()

    out = bucket.url("features/a.npz")
    assert embed.main([str(videos), "--checkpoint", run, "--out", out, "--workers", "0"]) == 0
    with np.load(io.BytesIO(bucket.get("features/a.npz")), allow_pickle=False) as stored:
        assert len(stored["features"]) == 8 and np.isfinite(stored["features"]).all()
        provenance = json.loads(str(stored["protocol"]))
    assert provenance["checkpoint"]["sha256"] == sha256(weights).hexdigest()


def test_a_list_in_a_store_is_the_same_list(recipe, bucket, videos, tmp_path):
    content = bucket.get("lists/train.txt")
    (tmp_path / "list.txt").write_bytes(content)
    url = bucket.url("lists/train.txt")
    local, remote = (read_annotation_list(str(p)) for p in (tmp_path / "list.txt", url))
    assert [remote.path(i) for i in range(8)] == [local.path(i) for i in range(8)]
    assert (remote.labels == local.labels).all()
    bucket.put("names.txt", b"walk\nrun\n")
    dataset = VideoDataset(str(videos), url, class_file=bucket.url("names.txt"))
    assert dataset.metainfo["classes"] == ("walk", "run")
    with pytest.raises(ValueError, match="videos must be in a local folder"):
        VideoDataset(bucket.url("videos"), url)
    bad = bucket.put("lists/bad.txt", b"a.mp4 0\nb.mp4 -3\n")
    with pytest.raises(ValueError, match=f"{bad}, line 2: label -3 is negative"):
        read_annotation_list(bad)
    with pytest.raises(ValueError, match=f"there is no annotation file '{bad}x'"):
        read_annotation_list(f"{bad}x")


def test_a_checkpoint_in_a_store(checkpoint, bucket):
    url = bucket.put("models/tiny.pth", checkpoint.read_bytes())
    model = load_model(url, device="cpu")
    assert model.checkpoint == url
    assert model.checkpoint_sha256 == sha256(checkpoint.read_bytes()).hexdigest()
    bucket.put("models/half.pth", checkpoint.read_bytes()[:2000])
    with pytest.raises(ValueError, match="half.pth is not a readable checkpoint: it is truncated"):
        load_checkpoint_file(bucket.url("models/half.pth"))
    with pytest.raises(FileNotFoundError, match=f"there is no {url}x"):
        load_checkpoint_file(f"{url}x")


def test_a_bucket_that_does_not_exist_is_told_before_the_work(recipe, bucket, tmp_path):
    missing = "s3://there-is-no-such-bucket"
    annotated = [f"train_dataloader.dataset.ann_file={missing}/list.txt"]
    for begin in (
        lambda: configs.testing_config(recipe, "random", out=f"{missing}/results.json"),
        lambda: start(recipe, tmp_path / "run", mirror=f"{missing}/run"),
        lambda: start(recipe, tmp_path / "run", cfg_options=annotated),
    ):
        with pytest.raises(OSError, match="bucket does not exist") as caught:
            begin()
        assert missing in explain(caught.value)
    assert not list(tmp_path.glob("run/*.pth"))
