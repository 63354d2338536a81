"""The commands with models of transformers: index, search by text, evaluate, recipes."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest
import torch
from helpers.hf_models import SIDE, tokenizer

from sce_video.commands.main import main
from sce_video.engine.config.load import load_config
from sce_video.find.index import read_index
from sce_video.find.index_network import IndexNetwork
from sce_video.find.label_list import LabelList
from sce_video.find.search_api import SearchRequest
from sce_video.find.search_state import SearchState
from sce_video.inference.encoders.encoder_folder import import_encoder, write_recipe
from sce_video.registry import MODELS
from sce_video.runs.configs import training_config

WORDS = "a man bends"


def test_search_by_text(hf_model, hf_videos, tmp_path, capsys):
    folder, model = hf_model("xclip")
    index = tmp_path / "index"
    command = ["index", str(hf_videos), "--checkpoint", f"hf:{folder}", "--workers", "0"]
    assert main([*command, "--out", str(index)]) == 0
    results = tmp_path / "r.json"
    search = ["search", "--index", str(index), "--text"]
    assert main([*search, WORDS, "--json", str(results)]) == 0
    assert WORDS in capsys.readouterr().out
    found = json.loads(results.read_text())
    assert (found["text"], found["pool"]) == (WORDS, "projection")
    with torch.no_grad():
        tokens = tokenizer()(WORDS, return_tensors="pt")
        query = model.get_text_features(**tokens).pooler_output[0].numpy()
    stored = read_index(index)
    features = np.array(stored.features)
    cosines = features @ query / np.linalg.norm(features, axis=1) / np.linalg.norm(query)
    expected = {stored.path(row): cosine for row, cosine in enumerate(cosines.tolist())}
    assert len(found["results"]) == 6 and np.ptp(cosines) > 1e-3
    assert [r["path"] for r in found["results"]] == sorted(expected, key=lambda p: -expected[p])
    for result in found["results"]:
        assert result["similarity"] == pytest.approx(expected[result["path"]], abs=1e-4)
    both = [*search, WORDS, str(hf_videos / "a" / "0.mp4"), "--weights", "0.8", "0", "1.5"]
    assert main([*both, "--json", str(results)]) == 0
    row = stored.row("a/0.mp4")
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    total = 1.5 * query / np.linalg.norm(query) + 0.8 * units[row]
    cosines = units @ total / np.linalg.norm(total)
    found = json.loads(results.read_text())["results"]
    assert len(found) == 5
    for result in found:
        assert result["similarity"] == pytest.approx(cosines[stored.row(result["path"])], abs=1e-4)
    state = SearchState(stored, IndexNetwork(device="cpu"), LabelList(tmp_path / "labels.txt"))
    try:  # the page, in its worker
        assert state.describe().texts
        row = stored.row("a/0.mp4")
        weights = {"like": 0.8, "text": 1.5}
        asked = SearchRequest(text=WORDS, like=[{"row": row}], weights=weights)
        shown = [(match.path, match.similarity) for match in state.search(asked)]
        assert shown == [(result["path"], result["similarity"]) for result in found]
    finally:
        state.close()
    assert main([*search, "long " * 10]) == 2
    assert "but the model accepts at most 16" in capsys.readouterr().err
    assert main([*search, " "]) == 2
    assert "empty" in capsys.readouterr().err


def test_recipes_by_name(hf_model, tmp_path, capsys):
    """The advised command names a file that is there and that trains."""
    model, out = str(hf_model("videomae")[0]), tmp_path / "my run"
    names = ["sce_r3d18_folder_small", "r3d18_folder"]
    assert main(["encoder", model, "--out", str(out), "--recipe", *names]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "sce-video train" in line]
    paths = [shlex.split(line.partition(": sce-video ")[2])[1] for line in lines]
    assert paths == [str(out / f"{name}.py") for name in names]
    for path in paths:
        assert load_config(path).model.backbone.type == "HFEncoder"


def test_evaluate_states_the_pool(hf_model, hf_videos, tmp_path):
    out = tmp_path / "results.json"
    videos, model = str(hf_videos), f"hf:{hf_model('videomae')[0]}"
    command = ["evaluate", model, "--test", videos, "--gallery", videos, "--out", str(out)]
    assert main(command) == 0
    results = json.loads(out.read_text())
    assert results["protocol"]["network"]["pool"] == "mean"
    assert {"knn_top1", "linear_top1", "retrieval_r1"} <= set(results["metrics"])


def test_a_pretraining_is_continued(hf_model, repo, tmp_path):
    imported = import_encoder(str(hf_model("videomae")[0]), tmp_path / "run")
    recipe = next((repo / "configs/sce").glob("sce_r*folder_small.py"))
    path = write_recipe(recipe, tmp_path, imported.backbone, imported.settings, imported.checkpoint)
    cfg = training_config(path, work_dir=tmp_path / "work")
    preprocessor = cfg.model.get("data_preprocessor") or cfg.data_preprocessor
    model = MODELS.build({**cfg.model, "data_preprocessor": preprocessor})
    model.init_weights()
    weights = torch.load(imported.checkpoint)["state_dict"]
    for key, value in model.backbone.state_dict().items():
        assert torch.equal(value, weights[f"backbone.{key}"]), key
    parts = (model.backbone.parameters(), model.target.backbone.parameters())
    assert all(torch.equal(ours, target) for ours, target in zip(*parts, strict=True))
    pipeline = {step["type"]: step for step in cfg.train_dataloader.dataset.pipeline}
    frames, size = pipeline["RandomClips"]["num_frames"], pipeline["RandomResizedCropClips"]["size"]
    assert (frames, size) == (4, SIDE)
    views = pipeline["RandomClips"].get("num_views", 2)
    losses = model.train().loss([torch.rand(4, 3, frames, size, size) for _ in range(views)])
    losses["loss"].backward()
    assert losses["loss"].isfinite()
    assert any(p.grad is not None and p.grad.any() for p in model.backbone.parameters())


def test_finetuning(hf_model, hf_videos, repo, tmp_path):
    imported = import_encoder(str(hf_model("dinov2")[0]), tmp_path / "run")
    recipe = repo / "configs/downstream/finetune/r3d18_folder.py"
    path = write_recipe(recipe, tmp_path, imported.backbone, imported.settings, imported.checkpoint)
    parts = ("train", "val", "test")
    options = [f"{part}_dataloader.dataset.data_root={hf_videos}" for part in parts]
    options += [f"{part}_dataloader.num_workers=0" for part in parts]
    options += ["train_cfg.max_epochs=1", "train_cfg.val_interval=1", "run_page=None"]
    options += ["train_dataloader.batch_size=3"]
    work = tmp_path / "work"
    command = ["train", str(path), "--work-dir", str(work), "--cfg-options", *options]
    assert main(command) == 0
    trained = torch.load(work / "epoch_1.pth")["state_dict"]
    before = torch.load(imported.checkpoint)["state_dict"]
    assert any(not torch.equal(before[key], trained[key]) for key in before)


def test_the_folder_of_a_training_is_left_alone(hf_model, tmp_path):
    (tmp_path / "history.jsonl").write_text('{"event": "start"}\n')
    with pytest.raises(ValueError, match=f"{tmp_path} is the folder of a training run"):
        import_encoder(f"hf:{hf_model('xclip')[0]}", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["history.jsonl"]
