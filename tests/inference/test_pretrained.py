"""Networks as folders of safetensors and JSON: round trips, where they are accepted, bad ones."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny_encoder import moving_frames, save_tiny

from sce_video.commands import evaluate
from sce_video.commands import export as export_command
from sce_video.data_tools.generated import CLASSES, render_toy_action
from sce_video.engine.checkpoint import load_checkpoint_file
from sce_video.engine.weights import read_exported_config
from sce_video.inference.classifier import load_classifier
from sce_video.inference.embed import embed_videos
from sce_video.inference.model import load_model
from sce_video.interop.pretrained import (
    absolute_paths,
    from_pretrained,
    load_network,
    model_card,
    network_weights,
    save_pretrained,
)
from sce_video.runs.start_weights import find_source
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.run_files import PACKAGED, packaged_network


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny") / "tiny.pth")


@pytest.fixture(scope="module")
def encoder(checkpoint) -> Path:
    """The folder of a pretrained encoder, written by the command; not to be changed."""
    out = checkpoint.with_name("encoder")
    assert export_command.main([str(checkpoint), "--to", "pretrained", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def classifier(folder_classifier, tmp_path_factory) -> Path:
    """The folder of a pretrained classifier; not to be changed."""
    out = tmp_path_factory.mktemp("pretrained") / "classifier"
    return save_pretrained(load_network(folder_classifier, device="cpu"), out)


def test_an_encoder_comes_back_bit_for_bit(checkpoint, encoder, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # a local folder needs none
    before, after = load_model(checkpoint, device="cpu"), from_pretrained(encoder, device="cpu")
    assert after.settings == before.settings and after.feature_size == 32
    weights = before.encoder.state_dict()
    assert all(torch.equal(weights[n], v) for n, v in after.encoder.state_dict().items())
    video = moving_frames(20)
    assert np.array_equal(embed_videos(before, video), embed_videos(after, video))
    files = sorted(path.name for path in encoder.iterdir())
    assert files == ["README.md", "config.json", "model.safetensors"]
    provenance = json.loads((encoder / "config.json").read_text())["provenance"]
    assert provenance["epoch"] == 1 and provenance["checkpoint"] == "tiny.pth"
    # A copy of a copy keeps where the weights come from.
    assert load_checkpoint_file(encoder)["meta"]["epoch"] == 1


def test_the_card_has_the_metrics_of_this_very_file(checkpoint, tmp_path):
    copy = tmp_path / "tiny.pth"
    shutil.copy(checkpoint, copy)
    digest = hashlib.sha256(copy.read_bytes()).hexdigest()
    results = {"metrics": {"knn_top1": 0.625, "feature_std": 0.1}}
    results["intervals"] = {"knn_top1": [0.5, 0.75]}
    for sha256, measured in ((digest, True), ("0" * 64, False)):
        results["protocol"] = {"checkpoint": {"sha256": sha256}}
        (tmp_path / "results.json").write_text(json.dumps(results))
        card = model_card(load_network(copy, device="cpu"))
        assert ("| knn_top1 | 62.5 % | 50.0 to 75.0 |" in card) == measured
        assert ("This file was not evaluated" in card) != measured
        assert digest in card and "license: other" in card and "feature_std" not in card


def test_a_classifier_comes_back_with_classes_and_views(folder_classifier, classifier):
    before = load_classifier(folder_classifier, device="cpu")
    after = from_pretrained(classifier, device="cpu")
    assert after.classes == before.classes and after.named and after.options == before.options
    weights = before.recognizer.state_dict()
    assert all(torch.equal(weights[n], v) for n, v in after.recognizer.state_dict().items())


def test_a_folder_is_accepted_like_a_run(encoder, split_videos, tmp_path):
    encoder = shutil.copytree(encoder, tmp_path / "encoder")  # its logs are written beside it
    folder, results = str(split_videos), tmp_path / "results.json"
    words = [str(encoder), "--test", folder, "--group-pattern", r"v(\d+)", "--out", str(results)]
    assert evaluate.main(words) == 0
    found = json.loads(results.read_text())
    assert "knn_top1" in found["metrics"]
    assert found["protocol"]["checkpoint"]["path"] == str(encoder / "model.safetensors")


def test_bad_folders_are_one_sentence(encoder, tmp_path, monkeypatch):
    def changed(name: str, **changes) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        config = json.loads((encoder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        (folder / "model.safetensors").write_bytes((encoder / "model.safetensors").read_bytes())
        return folder

    other = changed("other", format="vivit")  # taken for a model of transformers
    with pytest.raises(ValueError, match=r"other/config\.json: models of type None are not supp"):
        from_pretrained(other)
    with pytest.raises(ValueError, match="does not describe a network of this package"):
        read_exported_config(other / "config.json")
    with pytest.raises(ValueError, match="has version 9, but this package reads only version 1"):
        from_pretrained(changed("later", version=9))
    settings = json.loads((encoder / "config.json").read_text())["model"]
    with pytest.raises(ValueError, match="LFBInferHead"):
        backbone = {"type": "mmaction.LFBInferHead"}
        from_pretrained(changed("foreign", model={**settings, "backbone": backbone}))
    with pytest.raises(ValueError, match="crop of 64 pixels from frames whose short side is 40"):
        from_pretrained(changed("crop", model={**settings, "crop_size": 64}))
    cut = changed("cut")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a readable safetensors file"):
        from_pretrained(cut)
    with pytest.raises(FileNotFoundError, match=r"lacks model\.safetensors or config\.json"):
        from_pretrained(tmp_path)
    with pytest.raises(FileExistsError, match="already exists. Remove it"):
        save_pretrained(from_pretrained(encoder, device="cpu"), cut)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    with pytest.raises(
        ValueError, match="no local folder nobody/nothing, and it cannot be downloaded"
    ):
        from_pretrained("nobody/nothing")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingPackageError, match=r"pip install sce-video\[hf\]"):
        from_pretrained("nobody/nothing")


def test_the_hub_gets_and_gives_a_network(checkpoint, encoder, tmp_path, monkeypatch):
    """The mixin's own code, with a folder in place of the hub's server."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    from sce_video.interop import hub

    server = tmp_path / "server"

    def create_repo(api, repo_id, private, exist_ok):
        assert private is True and exist_ok
        return huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}")

    def upload_folder(api, *, repo_id, repo_type, folder_path, commit_message, **others):
        assert (repo_id, commit_message) == ("user/tiny", "first")
        shutil.copytree(folder_path, server / repo_id)
        return "done"

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    network = hub.HubNetwork(load_network(checkpoint, device="cpu"))
    pushed = network.push_to_hub("user/tiny", private=True, commit_message="first")
    assert pushed == "done"
    stored = server / "user" / "tiny"
    assert len(list(stored.iterdir())) == 3
    for name in ("config.json", "model.safetensors", "README.md"):
        assert (stored / name).read_bytes() == (encoder / name).read_bytes()
    card = (stored / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: sce_video\n") and "- checkpoint: tiny.pth" in card
    assert "This file was not evaluated" in card

    def snapshot(name, **options):
        assert name == "user/tiny" and options["revision"] == "main"
        assert options["token"] == "secret" and options["force_download"] is False
        return str(stored)

    def download(**options):
        return str(stored / options["filename"])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", download)
    for back in (
        hub.HubNetwork.from_pretrained("user/tiny", revision="main", token="secret", device="cpu"),
        hub.HubNetwork.from_pretrained(stored, device="cpu"),
        from_pretrained(stored, device="cpu"),
    ):
        found = getattr(back, "network", back)
        weights = network.network.encoder.state_dict()
        assert all(torch.equal(weights[n], v) for n, v in found.encoder.state_dict().items())
    with pytest.raises(TypeError, match="colour"):
        hub.HubNetwork.from_pretrained(stored, colour="red")


def test_the_card_states_the_origin_of_public_weights(checkpoint, tmp_path):
    """They are found in the folder from which a training started, although the card hides it."""
    assert "## Origin" not in model_card(load_network(checkpoint, device="cpu"))
    content = load_checkpoint_file(checkpoint)
    start = "/home/me/.cache/encoders/0a1b/efficientnet-lite1/epoch_0.pth"
    content["meta"]["pretrained"] = {"path": start, "sha256": "00"}
    torch.save(content, tmp_path / "student.pth")
    card = model_card(load_network(tmp_path / "student.pth", device="cpu"))
    assert "The weights of efficientnet-lite1, from which this network was trained" in card
    assert "tensorflow/tpu" in card and "/home/me" not in card


def test_an_export_names_no_folder_of_the_machine(tmp_path):
    """Of the paths in the stored config the last name is left, in sentences too."""
    stored = load_checkpoint_file(save_tiny(tmp_path / "tiny.pth"))
    private = {"data_root": "/home/me/my videos/train/", "work_dir": "/home/me/run", "lr": 0.1}
    lines = ["12 videos in /home/me/my videos/train/; 4 s", "a 3/4 b"]
    stored["meta"]["training"] = {"config": {**private, "plan": lines}}
    torch.save(stored, tmp_path / "private.pth")
    folder = save_pretrained(load_model(tmp_path / "private.pth", device="cpu"), tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())["provenance"]["training"]["config"]
    assert config == {
        "data_root": "train", "work_dir": "run", "lr": 0.1,
        "plan": ["12 videos in train; 4 s", "a 3/4 b"],
    }  # fmt: skip
    assert "/home/me" not in (folder / "README.md").read_text()


# -- the networks that come with the package -----------------------------------------------------


@pytest.mark.parametrize("name", ["demo", "demo-sce"])
def test_a_network_of_the_package(name, tmp_path, monkeypatch):
    """By its name, from anywhere: weights as the checksum, small, with a card that is filled in."""
    monkeypatch.chdir(tmp_path)
    folder = PACKAGED / name
    sums = dict(line.split()[::-1] for line in (PACKAGED / "SHA256SUMS").read_text().splitlines())
    content = (folder / "model.safetensors").read_bytes()
    assert hashlib.sha256(content).hexdigest() == sums[f"{name}/model.safetensors"]
    assert len(content) < 3_000_000
    card = (folder / "README.md").read_text()
    config = json.loads((folder / "config.json").read_text())
    assert not absolute_paths(config) and " in train; " in card
    assert "license: apache-2.0" in card and "| linear_top1 |" in card
    model = load_model(name, device="cpu")
    assert model.checkpoint == str(folder / "model.safetensors")
    assert find_source(name).parameters == sum(v.numel() for v in network_weights(model).values())
    # Twelve classes, eight videos of each: the nearest other video is of the same class far more
    # often than by chance, 7 of 95.
    names = [CLASSES[i % 12].split("_") for i in range(96)]
    videos = [render_toy_action(*name, np.random.default_rng(i)) for i, name in enumerate(names)]
    features = embed_videos(model, videos, fps=15)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    nearest = (features @ features.T - 2 * np.eye(96)).argmax(axis=1)
    assert (nearest % 12 == np.arange(96) % 12).mean() > 0.3


def test_other_names_are_no_networks_of_the_package(tmp_path, monkeypatch):
    """A file or folder of the name comes first; a path leads nowhere else."""
    monkeypatch.chdir(tmp_path)
    for name in ("", ".", "..", "/", "demo2", "../networks/demo", str(PACKAGED / "demo"), "demo/x"):
        assert packaged_network(name) is None, name
    assert packaged_network("demo") == str(PACKAGED / "demo")
    (tmp_path / "demo").mkdir()
    assert packaged_network("demo") is None
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        load_model("demo")
