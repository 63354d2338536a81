"""Runs copied to an object store while they train, and restored; boto3 looks at the copy."""

from __future__ import annotations

import json
import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from helpers.training import make_videos, small_config, train

from sce_video.engine import MirrorHook
from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.hooks import checkpoint_hook as hook_module
from sce_video.engine.hooks.checkpoint_hook import add_mirror, claim_mirror, mirror_of, restore_run
from sce_video.utils.storage import ObjectStoreError

EPOCHS = {"type": "CheckpointHook", "interval": 1, "by_epoch": True, "max_keep_ckpts": 1}


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"), 8)  # 2 iterations an epoch


def config(videos, work_dir, bucket, **changes):
    changes = {"train_cfg__max_epochs": 2, "default_hooks__checkpoint": EPOCHS, **changes}
    cfg = small_config(videos, work_dir, **changes)
    add_mirror(cfg, bucket.url("run/"))
    return cfg


def warnings(work_dir) -> list[str]:
    (log,) = work_dir.glob("*/*.log")
    return [line for line in log.read_text().splitlines() if "WARNING - the copy" in line]


def iterations(path) -> list[int]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["iter"] for row in rows if row.get("kind") == "train"]


def test_a_run_continues_on_a_machine_without_its_folder(videos, tmp_path, bucket):
    whole, all_rows = train(config(videos, tmp_path / "whole", bucket))
    names = {key.removeprefix("run/") for key in bucket.keys()}
    assert {name for name in names if name.endswith(".pth")} == {"epoch_2.pth"}
    for name in names:
        assert bucket.get(f"run/{name}") == (tmp_path / "whole" / name).read_bytes()
    assert not warnings(tmp_path / "whole") and bucket.unfinished_uploads() == []
    for key in bucket.keys():
        bucket.client.delete_object(Bucket=bucket.name, Key=key)

    first = tmp_path / "first"
    _, before = train(config(videos, first, bucket), stop_after=3)  # in the second epoch
    shutil.rmtree(first)
    second = tmp_path / "second"
    restore_run(bucket.url("run"), second)
    cfg = config(videos, second, bucket)
    cfg.resume = True
    resumed, after = train(cfg)

    assert before.rows[:2] + after.rows == all_rows.rows  # iteration 3 is computed again
    ours, theirs = resumed.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert iterations(second / "metrics.jsonl") == [1, 2, 3, 4]
    assert bucket.get("run/metrics.jsonl") == (second / "metrics.jsonl").read_bytes()
    assert len((second / "history.jsonl").read_text().splitlines()) == 4  # both starts and ends


def test_an_interrupt_of_the_last_upload_ends_it(tmp_path, monkeypatch):
    cancelled = []
    hook = MirrorHook("s3://b/run")
    hook._thread = thread = ThreadPoolExecutor(1)
    runner = SimpleNamespace(work_dir=str(tmp_path), logger=logging.getLogger("test"))

    def shutdown(wait=True, cancel_futures=False):
        if wait:
            raise KeyboardInterrupt
        cancelled.append(cancel_futures)

    monkeypatch.setattr(thread, "shutdown", shutdown)
    monkeypatch.setattr(hook_module, "cancel_uploads", lambda: cancelled.append("uploads"))
    with pytest.raises(KeyboardInterrupt):
        hook.after_stop(runner)
    assert cancelled == [True, "uploads"]
    monkeypatch.undo()
    thread.shutdown()


def test_outdated_copies_stay_and_a_failed_upload_is_repeated(tmp_path, monkeypatch):
    """A store that fails once for the second checkpoint; the first one goes after its arrival."""
    store: dict[str, str] = {}
    failing = ["epoch_2.pth"]

    def put(path, url):
        if path.name in failing:
            failing.remove(path.name)
            raise ObjectStoreError("the network is busy")
        store[url] = path.name

    monkeypatch.setattr(hook_module, "put_file", put)
    monkeypatch.setattr(hook_module, "remove", store.pop)
    monkeypatch.setattr(hook_module, "list_files", lambda url: [])
    said = []
    logger = SimpleNamespace(warning=said.append, info=said.append)
    runner = SimpleNamespace(work_dir=str(tmp_path), logger=logger, resumed_from=None)
    hook = MirrorHook("s3://b/run")
    hook.before_train(runner)
    for name, removed in (("epoch_1.pth", []), ("epoch_2.pth", ["epoch_1.pth"])):
        (tmp_path / name).touch()
        hook.after_checkpoint(runner, tmp_path / name)
        hook.after_removal(runner, removed)
        hook._thread.submit(lambda: None).result()  # all uploads so far
    assert list(store) == ["s3://b/run/epoch_1.pth"]
    assert "(1 so far): the network is busy. The training continues" in said[-1]
    hook.after_stop(runner)
    assert list(store) == ["s3://b/run/epoch_2.pth"]
    assert said[-1] == "copied 2 checkpoints and the logs to s3://b/run, 1 failed attempt"
    hook = MirrorHook("s3://b/run")
    hook.before_train(runner)
    failing[:] = ["epoch_2.pth"] * 2
    hook.after_checkpoint(runner, tmp_path / "epoch_2.pth")
    hook.after_stop(runner)
    assert "is incomplete, 2 failed attempts. 1 checkpoint (epoch_2.pth) could" in said[-1]
    assert str(tmp_path) in said[-1]


# -- restoring ------------------------------------------------------------------------------


def stored(bucket, tmp_path, *names) -> None:
    for number, name in enumerate(names):
        path = tmp_path / "source.pth"
        torch.save({"meta": {"name": name}, "state_dict": {"w": torch.full((9,), number)}}, path)
        bucket.put(f"run/{name}", path.read_bytes())


def test_the_newest_readable_checkpoint_is_restored(bucket, tmp_path):
    stored(bucket, tmp_path, "epoch_9.pth", "epoch_10.pth", "epoch_11.pth")
    with pytest.raises(ValueError, match=r"contains an earlier training run .*: epoch_11.pth"):
        claim_mirror(bucket.url("run"), new=True)
    claim_mirror(bucket.url("run"), new=False)
    assert json.loads(bucket.get("run/mirror.json"))["pid"] == os.getpid()
    whole = bucket.get("run/epoch_11.pth")
    bucket.put("run/epoch_11.pth", whole[: len(whole) // 2])  # damaged by somebody
    bucket.put("run/metrics.jsonl", b'{"iter": 1}\n')
    bucket.put("run/deeper/x.json", b"{}")
    restore_run(bucket.url("run"), tmp_path / "run")
    kept = {name for name in os.listdir(tmp_path / "run") if not name.endswith(".lock")}
    assert kept == {"epoch_10.pth", "metrics.jsonl"}
    assert load_checkpoint_file(tmp_path / "run/epoch_10.pth")["meta"]["name"] == "epoch_10.pth"


def test_settings_of_a_mirror(tmp_path, videos):
    cfg = small_config(videos, tmp_path)
    hooks = len(cfg.custom_hooks)
    assert mirror_of(cfg) is None
    for url in ("s3://b/run", "s3://b/other/"):
        add_mirror(cfg, url)
    assert mirror_of(cfg) == "s3://b/other" and len(cfg.custom_hooks) == hooks + 1
    for wrong in (lambda: add_mirror(cfg, "backup/run"), lambda: MirrorHook("backup/run")):
        with pytest.raises(ValueError, match="backup/run"):
            wrong()
