"""Addresses of stores in files of others, which are not opened unasked."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.tiny_encoder import CONFIG, moving_frames, save_tiny, write_lossless

from sce_video.commands.main import main
from sce_video.find.index import read_index
from sce_video.runs.pretrain import planned_config

STORE = "s3://evil/v.lance"


def test_an_index_of_a_store(tmp_path, monkeypatch):
    write_lossless(tmp_path / "videos/0.mp4", moving_frames(14))
    save_tiny(tmp_path / "a.pth", text=CONFIG)
    out = tmp_path / "index"
    words = ["--checkpoint", str(tmp_path / "a.pth"), "--out", str(out), "--workers", "0"]
    assert main(["index", str(tmp_path / "videos"), *words, "--clips", "1"]) == 0
    arrays = dict(np.load(out / "features.npz"))
    stored = json.loads(str(arrays["protocol"]))
    stored["index"]["root"] = STORE
    np.savez(out / "features.npz", **{**arrays, "protocol": np.array(json.dumps(stored))})
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
