"""Building an index: what is embedded, kept and dropped, and how an interrupted run resumes."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from helpers.crashing_reads import crash_in_workers
from helpers.small_index import HEADER, NAMES, OPTIONS
from helpers.stores import count_records
from helpers.tiny_encoder import save_tiny, tiny_backbone
from helpers.videos import damaged_h264

from sce_video.datasets.clip_sampling import Windows
from sce_video.datasets.labelled import read_labelled
from sce_video.datasets.readers import base
from sce_video.engine.run_json import Plan, RunDescription, write_run_json
from sce_video.evaluation import load_features
from sce_video.find.index import build_index, read_index
from sce_video.find.store import FileRecord, FileStore, IndexHeader
from sce_video.inference.embed import ViewOptions, embed_videos
from sce_video.inference.model import load_model
from sce_video.jobs import RecordStore, RunError
from sce_video.runs.planned_config import planned_config


def numbers(report):
    return report.videos, report.new, report.changed, report.kept, report.dropped


def feature_of(index, name):
    return index.features[index.paths.index(name)]


def test_a_new_index(model, root, tmp_path, checkpoint):
    report = build_index(model, root, tmp_path / "index", OPTIONS)
    assert numbers(report) == (5, 6, 0, 0, 0)
    assert [path for path, _ in report.failures] == ["broken.mp4"]
    index = read_index(tmp_path / "index")
    assert index.paths == sorted(NAMES)
    expected = embed_videos(model, [root / name for name in index.paths], ViewOptions(num_clips=2))
    np.testing.assert_array_equal(index.features, expected)
    assert index.failures == report.failures

    # features.npz is also a feature file, and index.json describes it.
    features, protocol = load_features(tmp_path / "index" / "features.npz")
    np.testing.assert_array_equal(features.features.numpy(), expected)
    assert (features.paths, features.num_views) == (index.paths, 2)
    assert features.labels.tolist() == [-1] * 5
    assert (protocol["clips"], protocol["crops"]) == (2, 1)
    described = json.loads((tmp_path / "index" / "index.json").read_text())
    assert described["checkpoint"]["path"] == str(checkpoint)
    assert described["checkpoint"]["sha256"] == model.checkpoint_sha256
    assert described["root"] == str(root)
    assert (described["settings"]["num_clips"], described["settings"]["num_crops"]) == (2, 1)
    status = (root / "a.mp4").stat()
    state = {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
    assert described["files"][0] == {"path": "a.mp4", **state}
    assert [f["path"] for f in described["failures"]] == ["broken.mp4"]
    files = {"features.npz", "index.json", "records.sqlite"}
    assert {p.name for p in (tmp_path / "index").iterdir()} == files


def test_damaged_files_are_named(model, tmp_path, monkeypatch):
    """Above a share of damaged frames a file has no feature, below it has one and is listed."""
    (tmp_path / "videos").mkdir()
    damaged_h264(tmp_path, 40)
    shutil.copy(tmp_path / "damaged40.mp4", tmp_path / "videos" / "a.mp4")
    shutil.copy(tmp_path / "whole40.mp4", tmp_path / "videos" / "b.mp4")
    for windows in (None, Windows(1.0)):
        out = tmp_path / f"index{windows is None}"
        report = build_index(model, tmp_path / "videos", out, OPTIONS, windows=windows)
        ((path, reason),) = report.failures
        assert path == "a.mp4" and "frames that were read are damaged" in reason
        assert not report.incomplete
        with monkeypatch.context() as patch:
            patch.setattr(base, "MAX_DAMAGED_SHARE", 1.0)
            report = build_index(
                model, tmp_path / "videos", out, OPTIONS, windows=windows, retry_failed=True
            )
        ((path, reason),) = report.incomplete
        assert path == "a.mp4" and "frames" in reason and "are damaged" in reason
        assert not report.failures and report.videos == 2
        index = read_index(out)
        assert not index.failures and set(index.paths) == {"a.mp4", "b.mp4"}


def test_only_new_and_changed_files_are_opened(model, root, originals, tmp_path, opened):
    build_index(model, root, tmp_path / "index", OPTIONS)
    assert sorted(opened) == sorted([os.path.basename(n) for n in NAMES] + ["broken.mp4"])
    before = read_index(tmp_path / "index")
    kept = {name: feature_of(before, name).copy() for name in before.paths}
    opened.clear()
    assert numbers(build_index(model, root, tmp_path / "index", OPTIONS)) == (5, 0, 0, 6, 0)
    assert opened == []

    shutil.copy(originals / "more.mp4", root / "c" / "new.mp4")
    shutil.copy(originals / "more.mp4", root / "b.mp4")
    (root / "f.mp4").unlink()
    report = build_index(model, root, tmp_path / "index", OPTIONS)
    assert sorted(opened) == ["b.mp4", "new.mp4"]
    assert numbers(report) == (5, 1, 1, 4, 1)
    index = read_index(tmp_path / "index")
    assert index.paths == ["a.mp4", "b.mp4", "c/d.mp4", "c/e e.mp4", "c/new.mp4"]
    for name in ("a.mp4", "c/d.mp4", "c/e e.mp4"):
        np.testing.assert_array_equal(feature_of(index, name), kept[name])
    more = embed_videos(model, originals / "more.mp4", ViewOptions(num_clips=2))[0]
    np.testing.assert_array_equal(feature_of(index, "b.mp4"), more)
    np.testing.assert_array_equal(feature_of(index, "c/new.mp4"), more)

    # The same as an index that was built in one run.
    build_index(model, root, tmp_path / "scratch", OPTIONS)
    for file in ("features.npz", "index.json"):
        old, new = (tmp_path / folder / file for folder in ("index", "scratch"))
        assert old.read_bytes() == new.read_bytes()


def test_a_repaired_file_is_tried_again(model, root, originals, tmp_path, opened):
    build_index(model, root, tmp_path / "index", OPTIONS)
    opened.clear()
    report = build_index(model, root, tmp_path / "index", OPTIONS, retry_failed=True)
    assert opened == ["broken.mp4"]
    assert numbers(report) == (5, 0, 1, 5, 0)
    shutil.copy(originals / "more.mp4", root / "broken.mp4")
    os.utime(root / "a.mp4", ns=(1, 1))  # of the same size: changed, too
    report = build_index(model, root, tmp_path / "index", OPTIONS)
    assert numbers(report) == (6, 0, 2, 4, 0)
    assert report.failures == []


def test_an_interrupted_run_resumes(model, root, tmp_path, opened):
    def stop(done, total, reason):
        if done == 4:
            raise KeyboardInterrupt

    index = tmp_path / "index"
    with pytest.raises(KeyboardInterrupt):
        build_index(model, root, index, OPTIONS, on_video=stop)
    assert count_records(index / "records.sqlite", "embed") == 4
    assert not (index / "features.npz").exists()
    with pytest.raises(FileNotFoundError, match="Run the same command again to resume"):
        read_index(index)
    first = list(opened)
    opened.clear()
    report = build_index(model, root, index, OPTIONS)
    assert (report.kept, report.new) == (4, 2)
    assert len(opened) == 2
    assert not set(opened) & set(first)
    assert count_records(index / "records.sqlite", "embed") == 0
    build_index(model, root, tmp_path / "scratch", OPTIONS)
    assert (index / "features.npz").read_bytes() == (tmp_path / "scratch/features.npz").read_bytes()


def test_a_crash_between_the_two_files(model, root, originals, tmp_path, monkeypatch, opened):
    """Only features.npz is read; the next run writes index.json without decoding anything."""
    index = tmp_path / "index"
    build_index(model, root, index, OPTIONS)
    shutil.copy(originals / "more.mp4", root / "more.mp4")

    def crash(*args):
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "describe", crash)
        with pytest.raises(RuntimeError, match="power cut"):
            build_index(model, root, index, OPTIONS)
    assert len(read_index(index)) == 6
    opened.clear()
    build_index(model, root, index, OPTIONS)
    assert opened == []
    assert json.loads((index / "index.json").read_text())["videos"] == 6
    assert count_records(index / "records.sqlite", "embed") == 0


def test_another_checkpoint_or_other_settings_are_refused(model, root, tmp_path):
    index = tmp_path / "index"
    build_index(model, root, index, OPTIONS)
    before = (index / "features.npz").read_bytes()
    other = load_model(save_tiny(tmp_path / "other.pth", tiny_backbone(seed=1)))
    with pytest.raises(ValueError, match=r"tiny\.pth \(sha256 \w{12}\), not with .*other\.pth"):
        build_index(other, root, index, OPTIONS)
    with pytest.raises(ValueError, match=r"num_clips is 2 in the index, now 3.*--rebuild"):
        build_index(model, root, index, ViewOptions(num_clips=3))
    with pytest.raises(ValueError, match="num_crops is 1 in the index, now 3"):
        build_index(model, root, index, ViewOptions(num_clips=2, num_crops=3))
    with pytest.raises(ValueError, match=r"contains the folder .*videos, not .*/c"):
        build_index(model, root / "c", index, OPTIONS)
    assert (index / "features.npz").read_bytes() == before

    report = build_index(other, root, index, OPTIONS, rebuild=True)
    assert numbers(report) == (5, 6, 0, 0, 0)
    assert read_index(index).header.sha256 == other.checkpoint_sha256


def test_files_that_are_not_an_index_are_not_overwritten(model, root, tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    np.savez(folder / "features.npz", features=np.ones((2, 3)), paths=["a", "b"])
    before = (folder / "features.npz").read_bytes()
    for rebuild in (False, True):
        with pytest.raises(ValueError, match=r"features\.npz is not the file of an index"):
            build_index(model, root, folder, OPTIONS, rebuild=rebuild)
    assert (folder / "features.npz").read_bytes() == before


def test_an_empty_folder_does_not_change_the_index(model, root, tmp_path):
    """A disk that is not mounted must not empty the index."""
    build_index(model, root, tmp_path / "index", OPTIONS)
    shutil.rmtree(root)
    with pytest.raises(ValueError, match="no folder"):
        build_index(model, root, tmp_path / "index", OPTIONS)
    root.mkdir()
    with pytest.raises(ValueError, match="no video in"):
        build_index(model, root, tmp_path / "index", OPTIONS)
    assert len(read_index(tmp_path / "index")) == 5


def test_a_list_of_absolute_and_of_relative_paths(model, root, tmp_path, opened):
    """Other tools write absolute paths; a list may mix both, and each row has its feature."""
    whole = build_index(model, root, tmp_path / "whole", OPTIONS)
    assert whole.videos == 5
    lines = [f"{root / NAMES[0]},x", f"{NAMES[1]},y", f"{root / NAMES[2]}@0-0.2,y"]
    (root / "list.csv").write_text("\n".join(["path,label", *lines, ""]))
    listed = read_labelled(str(root / "list.csv"), fewest=1)
    report = build_index(model, listed, tmp_path / "index", OPTIONS)
    assert numbers(report) == (3, 3, 0, 0, 0) and report.failures == []
    found, expected = read_index(tmp_path / "index"), read_index(tmp_path / "whole")
    # Below the root a path is relative to it, however it is written.
    assert found.paths == sorted([NAMES[0], NAMES[1], f"{NAMES[2]}@0-0.2"])
    for name in NAMES[:2]:
        np.testing.assert_array_equal(feature_of(found, name), feature_of(expected, name))
    opened.clear()
    assert numbers(build_index(model, listed, tmp_path / "index", OPTIONS)) == (3, 0, 0, 3, 0)
    assert opened == []


def test_no_index_of_no_videos(model, root, tmp_path):
    """Where nothing can be read nothing is written, and an index that exists keeps its rows."""
    build_index(model, root, tmp_path / "index", OPTIONS)
    for name in NAMES:
        (root / name).write_bytes(b"nothing of a video")
    for folder in ("index", "new"):
        with pytest.raises(ValueError, match=r"none of 6 videos in .* could be read"):
            build_index(model, root, tmp_path / folder, OPTIONS)
    assert len(read_index(tmp_path / "index")) == 5
    assert not (tmp_path / "new" / "features.npz").exists()


def test_one_run_at_a_time(model, root, tmp_path, monkeypatch):
    impatient = partial(RecordStore, wait=0.05)
    monkeypatch.setattr("sce_video.find.index.RecordStore", impatient)

    def nested(done, total, reason):
        if done == 1:
            with pytest.raises(ValueError, match="another run"):
                build_index(model, root, tmp_path / "index", OPTIONS)

    assert build_index(model, root, tmp_path / "index", OPTIONS, on_video=nested).videos == 5


def test_unusual_file_names(model, originals, tmp_path):
    not_text = b"not\xffutf8.mp4".decode("utf-8", "surrogateescape")
    names = ["ünï ☃.mp4", "line\nbreak.mp4", "ends with 3/a 7.mp4", not_text]
    for name in names:
        path = tmp_path / "videos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(originals / "a.mp4", path)
    report = build_index(model, tmp_path / "videos", tmp_path / "index", OPTIONS)
    assert numbers(report) == (4, 4, 0, 0, 0)
    index = read_index(tmp_path / "index")
    assert index.paths == sorted(names)
    assert all(os.path.exists(index.file(path)) for path in index.paths)
    assert numbers(build_index(model, tmp_path / "videos", tmp_path / "index", OPTIONS))[3] == 4


def test_a_file_that_crashes_a_worker_is_a_failure(checkpoint, root, tmp_path, monkeypatch):
    """A crash inside a decoder costs its file; no later run stops at it."""
    model = load_model(checkpoint, device="cpu")
    crash_in_workers(monkeypatch)
    (root / "b.mp4").rename(root / "segfault.mp4")
    options = ViewOptions(num_clips=2, num_workers=1)
    report = build_index(model, root, tmp_path / "index", options)
    assert numbers(report) == (4, 6, 0, 0, 0)
    reasons = dict(report.failures)
    assert list(reasons) == ["broken.mp4", "segfault.mp4"] and "SIGSEGV" in reasons["segfault.mp4"]
    assert "crashed the process that was reading it" in reasons["segfault.mp4"]
    index = read_index(tmp_path / "index")
    expected = embed_videos(model, [root / name for name in index.paths], ViewOptions(num_clips=2))
    np.testing.assert_array_equal(index.features, expected)
    assert numbers(build_index(model, root, tmp_path / "index", OPTIONS)) == (4, 0, 0, 6, 0)


def test_a_network_that_fails_ends_the_run(checkpoint, root, tmp_path):
    """No file is recorded as unreadable because of it."""
    model = load_model(checkpoint, device="cpu")
    for weight in model.encoder.parameters():
        weight.data.fill_(float("nan"))
    with pytest.raises(RunError, match=r"a\.mp4 is not finite: the network of .* has diverged"):
        build_index(model, root, tmp_path / "index", OPTIONS)
    assert count_records(tmp_path / "index/records.sqlite", "embed") == 0


@pytest.mark.parametrize(
    "wrong", [{"num_clips": 10**9}, {"num_crops": 2}, {"model": []}, {"dataset": ["A"]}]
)
def test_settings_of_an_untrusted_index_are_checked(tmp_path, wrong):
    record = FileRecord(1, 2, np.ones(4, np.float32))
    FileStore(tmp_path / "features.npz").write(HEADER, {"a.mp4": record})
    assert read_index(tmp_path).header == HEADER
    file = dict(np.load(tmp_path / "features.npz"))
    protocol = json.loads(str(file["protocol"]))
    protocol["index"]["settings"] |= wrong
    np.savez(tmp_path / "features.npz", **{**file, "protocol": np.array(json.dumps(protocol))})
    with pytest.raises(ValueError, match=r"features\.npz is not the file of an index"):
        read_index(tmp_path)


def test_an_index_records_own_modules_and_the_dataset_that_lists_its_videos():
    header = replace(HEADER, dataset="Mine", imports=("my_parts", "others.more"))
    entry = json.loads(json.dumps(header.to_dict()))
    assert IndexHeader.from_dict(entry) == header
    # Other videos would be listed, so a different dataset is refused; a module may be renamed.
    assert header.settings != HEADER.settings
    assert replace(header, imports=()).settings == header.settings
    assert not {"dataset", "imports"} & {*HEADER.to_dict(), *HEADER.settings}
    for wrong in ("my_parts", [1]):
        with pytest.raises(ValueError, match="imports must be names of modules, got"):
            IndexHeader.from_dict({**entry, "imports": wrong})


STORE = "s3://evil/v.lance"


def test_an_index_of_a_store(tmp_path, monkeypatch):
    record, out = FileRecord(1, 2, np.ones(4, np.float32)), tmp_path
    FileStore(out / "features.npz").write(replace(HEADER, root=STORE), {"a.mp4": record})
    for root in (None, "s3://mine/v.lance"):
        with pytest.raises(ValueError, match="SCE_VIDEO_STORES=s3://evil"):
            read_index(out, root=root)
    assert read_index(out, root=STORE).root == STORE
    monkeypatch.setenv("SCE_VIDEO_STORES", f"s3://mine/v.lance {STORE}")
    assert read_index(out).root == STORE


@pytest.mark.parametrize("key", ["data_root", "ann_file", "work_dir"])
def test_a_run_of_a_store_is_not_resumed(key, tmp_path, monkeypatch):
    plan = Plan("sce_r3d18_folder_small", (), (), "")
    config = {"train_dataloader": {"dataset": {key: STORE}}, "default_hooks": {}}
    write_run_json(tmp_path, RunDescription("pretrain", {}, plan, config, {}))
    with pytest.raises(ValueError, match="SCE_VIDEO_STORES"):
        planned_config(tmp_path)
    assert planned_config(tmp_path, videos=STORE).train_dataloader.dataset[key] == STORE
    monkeypatch.setenv("SCE_VIDEO_STORES", STORE)
    assert planned_config(tmp_path).train_dataloader.dataset[key] == STORE
