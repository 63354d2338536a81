"""Folders in timm's layout: features as timm computes them, and files that are refused."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.timm_folders import INPUT, save_timm
from safetensors.torch import load_file, save_file

from sce_video import embed_videos, load_model
from sce_video.commands.main import main
from sce_video.inference.encoders import encoder_folder
from sce_video.inference.encoders.encoder_folder import import_encoder, run_of_model
from sce_video.inference.encoders.transformers_files import EncoderError
from sce_video.inference.network_input import ViewOptions
from sce_video.runs.start_weights import find_source
from sce_video.utils.errors import MissingPackageError

needs_timm = pytest.mark.skipif(find_spec("timm") is None, reason="no timm")


@pytest.fixture
def folder(tmp_path):
    """Folder of a small convolutional network."""
    if find_spec("timm") is None:
        pytest.skip("no timm")
    save_timm(tmp_path / "model", "test_efficientnet")
    return tmp_path / "model"


def change(folder: Path, **entries) -> None:
    """Change entries of a folder's config."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def noise(seed: int = 0) -> np.ndarray:
    """Return a clip of 4 frames of 160 x 160 pixels, which differ."""
    return np.random.default_rng(seed).integers(0, 256, (4, 160, 160, 3), dtype=np.uint8)


@needs_timm
@pytest.mark.parametrize("name", ["resnet18", "test_efficientnet", "test_vit", "test_convnext"])
def test_features_of_a_folder_are_those_of_timm(name, tmp_path):
    """A ResNet becomes a network of this package, and others stay networks of timm."""
    network = save_timm(tmp_path / "model", name)
    clip = noise()
    (found,) = embed_videos(load_model(f"{tmp_path / 'model'}:mean+absdiff"), clip)
    mean, std = (torch.tensor(INPUT[key])[:, None, None] for key in ("mean", "std"))
    frames = (torch.from_numpy(clip).permute(0, 3, 1, 2) / 255 - mean) / std
    with torch.no_grad():
        features = network(frames).numpy()
    expected = np.concatenate([features.mean(0), np.abs(np.diff(features, axis=0)).mean(0)])
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())


def test_the_input_of_a_folder_is_the_one_of_its_config(folder):
    change(folder, pretrained_cfg={**INPUT, "crop_pct": 0.8})
    settings = load_model(folder).settings
    assert (settings.crop_size, settings.short_side) == (160, 200)
    assert settings.mean == tuple(INPUT["mean"]) and settings.std == tuple(INPUT["std"])
    assert (settings.num_frames, settings.clip_duration) == (4, 0.5)
    change(folder, pretrained_cfg={**INPUT, "crop_mode": "squash"})
    written = import_encoder(str(folder), folder.parent / "run", frames=8, fps=4, pool="concat")
    assert written.settings.square and written.settings.interpolation == "bicubic"
    assert (written.settings.num_frames, written.settings.clip_duration) == (8, 2.0)
    assert load_model(folder.parent / "run").feature_size == 4 * 256


def test_the_folder_its_weights_and_its_name_with_prefix_are_one_network(folder):
    runs = {run_of_model(name) for name in (folder, f"hf:{folder}", folder / "model.safetensors")}
    assert len(runs) == 1
    for name in (folder, f"hf:{folder}", folder / "model.safetensors"):
        source = find_source(name)
        assert source.per_frame and source.is_classifier and source.kind == "test_efficientnet"
        assert source.family == "convolution" and source.channels == 3 * 256 + 343


def test_a_new_file_makes_a_new_run(folder):
    before = run_of_model(folder)
    weights = load_file(folder / "model.safetensors")
    weights["conv_stem.weight"] += 1
    save_file(weights, folder / "model.safetensors")
    after = run_of_model(folder)
    assert after != before
    (old, new) = (load_model(run).encoder.state_dict() for run in (before, after))
    name = "backbone.network.conv_stem.weight"
    torch.testing.assert_close(new[name], old[name] + 1)


def test_a_command_embeds_videos_in_worker_processes(folder, hf_videos, tmp_path, capsys):
    words = ["embed", hf_videos, "--checkpoint", folder, "--out", tmp_path / "f.npz"]
    assert main([str(word) for word in words]) == 0
    stored = np.load(tmp_path / "f.npz")
    assert stored["features"].shape == (6, 3 * 256 + 343) and stored["features"].std() > 0
    model = load_model(folder)
    for path, feature in zip(stored["paths"], stored["features"], strict=True):
        (expected,) = embed_videos(model, hf_videos / str(path), ViewOptions(num_clips=4))
        np.testing.assert_allclose(feature, expected, atol=1e-4 * np.abs(expected).max())


@needs_timm
def test_weights_of_an_older_layout_are_renamed_as_timm_does(tmp_path):
    """The names of facebookresearch/ConvNeXt, models/convnext.py."""
    save_timm(tmp_path / "new", "test_convnext")
    renamed = {}
    for name, value in load_file(tmp_path / "new/model.safetensors").items():
        old = re.sub(r"^stem\.", "downsample_layers.0.", name)
        old = re.sub(r"^stages\.(\d)\.downsample\.", r"downsample_layers.\1.", old)
        old = re.sub(r"^stages\.(\d)\.blocks\.", r"stages.\1.", old)
        old = old.replace("conv_dw.", "dwconv.").replace("mlp.fc", "pwconv")
        renamed[old.replace("head.norm.", "norm.").replace("head.fc.", "head.")] = value
    (tmp_path / "old").mkdir()
    save_file(renamed, tmp_path / "old/model.safetensors")
    (tmp_path / "old/config.json").write_bytes((tmp_path / "new/config.json").read_bytes())
    old, new = (load_model(tmp_path / name).encoder.state_dict() for name in ("old", "new"))
    assert old.keys() == new.keys() and not renamed.keys() & new.keys()
    assert all(torch.equal(old[name], new[name]) for name in new)


@needs_timm
def test_the_size_of_a_transformer_is_the_one_of_its_config(tmp_path):
    small = {**INPUT, "input_size": [3, 96, 96], "fixed_input_size": True}
    args = {"img_size": 96}
    save_timm(tmp_path / "model", "test_vit", model_args=args, pretrained_cfg=small)
    assert load_model(tmp_path / "model").settings.crop_size == 96
    change(tmp_path / "model", model_args={})  # timm derives it from the size, too
    assert load_model(tmp_path / "model").settings.backbone["model_args"] == {"img_size": (96, 96)}


BAD_CONFIGS = [
    ({"architecture": "resnet18_of_mine"}, "config.json: timm 1.* has no architecture"),
    ({"architecture": "hf-hub:evil/model"}, "has no architecture 'hf-hub:evil/model'"),
    ({"architecture": ["resnet18"]}, "has no architecture"),
    ({"architecture": None}, "has no architecture None"),
    ({"model_args": {"pretrained": True}}, "model_args.pretrained = True is not allowed"),
    ({"model_args": {"checkpoint_path": "x.pth"}}, "model_args.checkpoint_path .* is not allowed"),
    ({"model_args": 3}, "model_args must be a dict, got 3"),
    ({"model_args": {"in_chans": 1}}, "in_chans is 1, but frames have 3 channels"),
    ({"architecture": "test_resnet"}, "lacks .* weights of timm's ResNet, the first"),
    ({"model_args": {"stem_size": 16}}, "timm cannot build test_efficientnet with"),
    ({"architecture": "vit_giant_patch14_224"}, "it is larger than the weights in the file"),
    ({"pretrained_cfg": None}, "pretrained_cfg in .* does not state a supported input"),
    ({"pretrained_cfg": {**INPUT, "crop_pct": 0}}, "a supported input .*division by zero"),
    ({"pretrained_cfg": {**INPUT, "mean": "abc"}}, "does not state a supported input"),
    ({"pretrained_cfg": {**INPUT, "std": [0.2, 0, 0.2]}}, "std must be above 0, got .*0.2, 0, 0.2"),
    ({"pretrained_cfg": {**INPUT, "input_size": [10**9]}}, "does not state a supported input"),
    ({"pretrained_cfg": {**INPUT, "input_size": [3, 10**9, 10**9]}}, "must be a whole number"),
    ({"pretrained_cfg": {**INPUT, "input_size": [3, 96, 128]}}, r"must be \(3, side, side\)"),
    ({"pretrained_cfg": {**INPUT, "interpolation": "lanczos"}}, "or bicubic, got 'lanczos'"),
    ({"pretrained_cfg": {**INPUT, "crop_mode": "border"}}, "crop_mode must be .*, got 'border'"),
]


@pytest.mark.parametrize(("changes", "match"), BAD_CONFIGS)
def test_configs_that_are_refused(folder, changes, match):
    change(folder, **changes)
    for find in (load_model, find_source):
        with pytest.raises(ValueError, match=match):
            find(folder)


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (lambda w: w.pop("conv_head.weight"), "lacks 1 weights .* first is conv_head.weight"),
        (lambda w: w.update(extra=torch.zeros(1)), "1 weights that .* the first is extra"),
        (
            lambda w: w.update({"bn1.weight": torch.zeros(3)}),
            r"bn1.weight has the shape \(3,\) instead of \(24,\)",
        ),
    ],
)
def test_weights_that_are_refused(folder, edit, match):
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(EncoderError, match=match):
        load_model(folder)


def test_missing_and_damaged_weights_are_named(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(EncoderError, match="the weights in .* are damaged"):
        load_model(folder)
    file.unlink()
    with pytest.raises(FileNotFoundError, match="no weights in .* Expected model.safetensors"):
        load_model(folder)


def test_pickled_code_in_weights_is_not_run(folder, tmp_path):
    class Attack:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    (folder / "model.safetensors").unlink()
    torch.save({"conv_stem.weight": Attack()}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="more than plain data. It is not loaded"):
        load_model(folder)
    assert not (tmp_path / "ran").exists()


def test_a_network_on_the_hub_without_timm_is_refused_before_it_is_fetched(monkeypatch):
    def missing():
        raise MissingPackageError("networks of timm need the package timm")

    monkeypatch.setattr(encoder_folder, "timm", missing)
    monkeypatch.setattr(encoder_folder, "find_model", lambda name: pytest.fail("fetched"))
    with pytest.raises(MissingPackageError, match="need the package timm"):
        run_of_model("hf:timm/vit_tiny_patch16_224.augreg_in21k")


def test_a_command_names_the_unknown_architecture(folder, hf_videos, tmp_path, capsys):
    change(folder, architecture="resnet18_of_mine")
    words = ["embed", hf_videos, "--checkpoint", folder, "--out", tmp_path / "f.npz"]
    assert main([str(word) for word in words]) == 2
    assert "has no architecture 'resnet18_of_mine'" in capsys.readouterr().err
    assert not (tmp_path / "f.npz").exists()
