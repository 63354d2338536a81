"""Addresses of stores in files of others, which are not opened unasked."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.small_index import HEADER

from sce_video.find.index import read_index
from sce_video.find.store import FileRecord, FileStore
from sce_video.runs.pretrain import planned_config

STORE = "s3://evil/v.lance"


def test_an_index_of_a_store(tmp_path, monkeypatch):
    record, out = FileRecord(1, 2, np.ones(4, np.float32)), tmp_path
    FileStore(out / "features.npz").write({**HEADER, "root": STORE}, {"a.mp4": record})
    for root in (None, "s3://mine/v.lance"):
        with pytest.raises(ValueError, match="SCE_VIDEO_STORES=s3://evil"):
            read_index(out, root=root)
    assert read_index(out, root=STORE).root == STORE
    monkeypatch.setenv("SCE_VIDEO_STORES", f"s3://mine/v.lance {STORE}")
    assert read_index(out).root == STORE


@pytest.mark.parametrize("key", ["data_root", "ann_file", "work_dir"])
def test_a_run_of_a_store_is_not_resumed(key, tmp_path, monkeypatch):
    file = tmp_path / "config.py"
    plan = "plan = ['  recipe  sce_r3d18_folder_small  x']\n"
    file.write_text(f"{plan}train_dataloader = dict(dataset=dict({key}={STORE!r}))\n")
    with pytest.raises(ValueError, match="SCE_VIDEO_STORES"):
        planned_config(file)
    assert planned_config(file, videos=STORE).train_dataloader.dataset[key] == STORE
    monkeypatch.setenv("SCE_VIDEO_STORES", STORE)
    assert planned_config(file).train_dataloader.dataset[key] == STORE
