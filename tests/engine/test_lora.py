"""A training with LoRA and layer decay: its steps, how it resumes, all readers of its files."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from helpers.recipes import VIT, small_recipe
from helpers.run_tool import load
from helpers.tiny_encoder import moving_frames
from helpers.training import Recorder, make_videos, train

import sce_video
from sce_video.commands import export as export_command
from sce_video.engine.checkpoint import describe_checkpoint_file, load_checkpoint_file
from sce_video.engine.config.snapshot import SNAPSHOT
from sce_video.evaluation.feature_files import load_features
from sce_video.inference.embed import embed_videos
from sce_video.inference.model import load_model
from sce_video.interop.pretrained import from_pretrained
from sce_video.runs import configs, launch

LORA = dict(rank=4, alpha=8)
RATE, END, DECAY = 0.05, 0.01, 0.75


class Rates(Recorder):
    """Records the learning rates, and the weights before the first step."""

    def before_train(self, runner) -> None:
        self.first = {n: v.clone() for n, v in runner.model.state_dict().items()}
        self.rates: list[dict[str, float]] = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        groups = runner.optim_wrapper.optimizer.param_groups
        found = {p: group["lr"] for group in groups for p in group["params"]}
        named = runner.model.named_parameters()
        self.rates.append({name: found[p] for name, p in named if p in found})


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    return make_videos(tmp_path_factory.mktemp("videos"), frames=30)


@pytest.fixture(scope="module")
def source(videos, tmp_path_factory):
    """Checkpoint of a pretrained vision transformer."""
    cfg = small_recipe(VIT, videos, tmp_path_factory.mktemp("source"), train_cfg__max_epochs=1)
    train(cfg)
    return f"{cfg.work_dir}/iter_3.pth"


def adapting(videos, source, folder, **changes):
    cfg = small_recipe(VIT, videos, folder, pretrained=source, lora=LORA, **changes)
    cfg.optim_wrapper.constructor = "NoNormDecayConstructor"
    cfg.optim_wrapper.paramwise_cfg = dict(layer_decay=DECAY, no_decay=["bias"])
    cfg.optim_wrapper.optimizer = dict(type="AdamW", lr=RATE, weight_decay=0.1)
    cfg.custom_hooks[0].lr = dict(name="cosine", end=END)
    return cfg


@pytest.fixture(scope="module")
def adapted(videos, source, tmp_path_factory):
    """Folder, runner and records of six steps."""
    folder = tmp_path_factory.mktemp("adapted")
    return folder, *train(adapting(videos, source, folder), recorder=Rates())


def test_it_starts_from_the_source_and_leaves_its_weights(source, adapted):
    weights, (_, runner, records) = load_checkpoint_file(source)["state_dict"], adapted
    for branch in ("backbone.", "target.backbone."):
        names = [name for name in weights if name.startswith("backbone.")]
        for name in names:
            for state in (records.first, runner.model.state_dict()):
                assert torch.equal(state[branch + name.removeprefix("backbone.")], weights[name])
    assert runner.model.backbone.blocks[0].attn.qkv.lora_B.any()


def test_rates_are_those_of_their_depth_in_every_step(adapted):
    rates = adapted[2].rates
    assert len(rates) == 6
    for step, found in enumerate(rates):
        whole = END + (RATE - END) * 0.5 * (1 + math.cos(math.pi * step / 6))
        for name, rate in found.items():
            depth = int(name.split(".")[2]) + 1 if name.startswith("backbone.blocks.") else 19
            assert rate == pytest.approx(whole * DECAY ** (19 - depth), rel=1e-9), name
    assert {name.split(".")[-1] for name in rates[0] if "backbone" in name} == {"lora_A", "lora_B"}


def test_a_resumed_training_equals_the_uninterrupted_one(videos, source, adapted, tmp_path):
    folder, whole, records = adapted
    cfg = adapting(videos, source, tmp_path)
    cfg.resume, cfg.load_from = True, str(folder / "iter_4.pth")
    resumed, after = train(cfg, recorder=Rates())
    assert after.rows == records.rows[4:] and after.rates == records.rates[4:]
    ours, theirs = resumed.model.state_dict(), whole.model.state_dict()
    assert set(ours) == set(theirs) and all(torch.equal(ours[n], theirs[n]) for n in ours)
    cfg.lora = None
    with pytest.raises(ValueError, match="too many, for example .*lora_A"):
        train(cfg)


def test_every_reader_has_the_adapted_network(videos, source, adapted, tmp_path):
    """load_model, an exported folder, an evaluation and a finetuning."""
    folder, runner, _ = adapted
    view = torch.rand(2, 3, 4, 64, 64)
    with torch.no_grad():
        expected = runner.model.eval().represent(view)
    assert "other_weights" not in describe_checkpoint_file(folder)  # whose adapters are merged
    model = load_model(folder, device="cpu")
    assert not [name for name in model.encoder.state_dict() if "lora" in name]
    torch.testing.assert_close(model.encoder.represent(view), expected, rtol=1e-4, atol=1e-5)
    before = load_model(source, device="cpu")
    assert not torch.allclose(before.encoder.represent(view), expected, rtol=1e-2, atol=1e-2)

    out = tmp_path / "exported"
    assert export_command.main([str(folder), "--to", "pretrained", "--out", str(out)]) == 0
    video = moving_frames(20)
    assert "other_weights" not in describe_checkpoint_file(out / "model.safetensors")
    features = embed_videos(model, video)
    assert np.array_equal(embed_videos(from_pretrained(out, device="cpu"), video), features)
    assert not np.allclose(embed_videos(before, video), features, rtol=1e-2)

    results = tmp_path / "results.json"
    given = {"test": videos, "gallery": videos}
    found = sce_video.evaluate(folder, **given, protocols=["knn"], out=results).metrics
    assert "knn_top1" in found and json.loads(results.read_text())["metrics"] == found

    loaders = ("train_dataloader", "val_dataloader", "test_dataloader")
    changes = {f"{loader}.dataset.data_root": str(videos) for loader in loaders}
    changes |= {f"{loader}.num_workers": 0 for loader in loaders}
    changes |= {"train_dataloader.persistent_workers": False, "train_cfg.max_epochs": 1}
    changes |= {"run_page": None, "visualizer": None, "train_dataloader.batch_size": 4}
    changes["model.backbone"] = {**runner.cfg.model.backbone, "_delete_": True}
    cfg = configs.training_config(
        "r3d18_folder", work_dir=tmp_path / "tuned", pretrained=str(folder), cfg_options=changes
    )
    cfg.optim_wrapper.optimizer.lr = 0.0
    launch.run_training(cfg)
    finetuned = load_model(tmp_path / "tuned", device="cpu")
    weights = model.encoder.state_dict()
    for name, value in finetuned.encoder.state_dict().items():
        assert torch.equal(value, weights[name]), name


def test_mixed_precision_trains_them_and_tests_see_the_merged_network(videos, source, tmp_path):
    """``sce-video test`` and ``evaluate`` of the run against those of a plain file of the sums."""
    folder = tmp_path / "run"
    cfg = adapting(videos, source, folder, train_cfg__max_epochs=1)
    cfg.optim_wrapper.dtype = "bfloat16"
    state = train(cfg, recorder=Rates())[0].model.state_dict()
    assert all(value.dtype == torch.float32 for name, value in state.items() if "lora_" in name)
    before = load_checkpoint_file(source)["state_dict"]
    content = load_checkpoint_file(folder)
    for name, value in content["state_dict"].items():
        if name.startswith("backbone."):
            A, B = (state.get(f"{name.removesuffix('weight')}lora_{x}") for x in "AB")
            expected = before[name] if A is None else before[name] + 2 * B @ A
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
    assert all(value.any() for name, value in state.items() if name.endswith("lora_B"))

    config = json.loads(content["meta"][SNAPSHOT])
    assert config.pop("lora") == LORA
    plain = {"meta": {SNAPSHOT: json.dumps(config)}, "state_dict": content["state_dict"]}
    torch.save(plain, tmp_path / "plain.pth")
    found = {}
    for name, run in (("run", folder), ("plain", tmp_path / "plain.pth")):
        out, dump = tmp_path / f"{name}.json", tmp_path / f"{name}.npz"
        gallery = f"test_cfg.gallery_dataloader.dataset.data_root={videos}"
        data = ["--data-root", str(videos), "--cfg-options", gallery]
        words = ["sce_vit_folder_small", str(run), "--out", str(out), "--dump", str(dump)]
        assert load("test").main([*words, "--work-dir", str(tmp_path / "test"), *data]) == 0
        protocols = ["knn", "linear"]
        of_run = sce_video.evaluate(run, test=videos, gallery=videos, protocols=protocols, out=out)
        found[name] = (of_run.metrics, load_features(dump)[0])
    (metrics, rows), (plain_metrics, plain_rows) = found.values()
    assert metrics == plain_metrics and len(metrics) > 2
    assert torch.equal(rows.values, plain_rows.values) and rows.paths == plain_rows.paths
