"""Class-activation maps and cell similarities against loops; the clips they are of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.tiny_encoder import moving_frames, write_lossless

from sce_video.datasets import VideoDecodeError
from sce_video.inference.cell_maps import (
    SeenClip,
    cell_similarity,
    class_activation,
    class_activation_map,
    class_number,
    features_of_clip,
    read_clips,
)
from sce_video.inference.classifier import class_probabilities, load_classifier
from sce_video.inference.embed import ViewOptions
from sce_video.registry import MODELS

BACKBONES = {
    "slow path": (dict(type="ResNet3dSlowPath", depth=18, base_channels=4), (4, 2, 2)),
    "2-D": (dict(type="ResNet2d", depth=18, base_channels=4), (4, 2, 2)),
    "ViT": (
        dict(type="VisionTransformer3d", depth=1, embed_dims=16, num_heads=2, grid_size=(2, 4, 4)),
        (2, 4, 4),
    ),
}


@pytest.fixture(scope="module")
def classifier(folder_classifier):
    return load_classifier(folder_classifier, device="cpu")


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return write_lossless(tmp_path_factory.mktemp("look") / "a.mp4", moving_frames(40))


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5


def test_the_map_of_a_class_is_weights_times_features():
    rng = np.random.default_rng(0)
    features, weight = rng.normal(size=(3, 2, 2, 4)), rng.normal(size=3)
    found = class_activation_map(torch.tensor(features), torch.tensor(weight)).numpy()
    assert found.shape == (2, 2, 4)
    for t, y, x in np.ndindex(2, 2, 4):
        expected = sum(weight[c] * features[c, t, y, x] for c in range(3))
        assert found[t, y, x] == pytest.approx(expected)


@pytest.mark.parametrize("name", BACKBONES)
def test_the_mean_of_the_cells_plus_bias_is_the_score_of_every_backbone(classifier, video, name):
    """The score of mmaction2's own head on the same view."""
    config, grid = BACKBONES[name]
    torch.manual_seed(0)
    backbone = MODELS.build(config).eval()
    recognizer = classifier.recognizer
    layer = torch.nn.Linear(backbone.out_channels, 2)
    head, old = recognizer.cls_head, (recognizer.backbone, recognizer.cls_head.fc_cls)
    recognizer.backbone, head.fc_cls = backbone, layer
    settings = replace(classifier.settings, num_frames=4, short_side=64, crop_size=64)
    try:
        for label in ("class0", "class1"):
            found = class_activation(replace(classifier, settings=settings), video, label)
            assert found.maps[0].shape == grid
            (clip,) = found.clips
            batch = {"inputs": [torch.from_numpy(clip.frames[None])], "label": torch.zeros(1)}
            view = recognizer.data_preprocessor(batch, False)["inputs"]
            with torch.no_grad():
                logits = recognizer(inputs=view, mode="tensor", stage="head")[0].numpy()
            score = found.maps[0].mean() + found.bias
            assert score == pytest.approx(logits[found.label], abs=1e-4)
            assert found.scores[0] == pytest.approx(logits[found.label], abs=1e-4)
            softmax = np.exp(logits) / np.exp(logits).sum()
            np.testing.assert_allclose(found.probabilities, softmax, atol=1e-4)
    finally:
        recognizer.backbone, head.fc_cls = old


def test_the_clips_are_those_of_predict(classifier, video):
    """Three clips, one crop: the same probabilities, so the same frames and normalisation."""
    options = ViewOptions(num_clips=3, num_crops=1)
    expected = class_probabilities(classifier, video, options)[0]
    found = class_activation(classifier, video, num_clips=3)
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-5)
    assert found.label == expected.argmax()
    # 40 frames at 25 per second; clips of 0.4 s start at 0, 0.6 and 1.2 s; 2 frames of each.
    times = np.stack([clip.times for clip in found.clips])
    np.testing.assert_allclose(times, [[0.0, 0.36], [0.6, 0.96], [1.2, 1.56]], atol=1e-6)


def test_similarity_to_a_key(model, video, tmp_path):
    """Mean, one cell and the best of all, against a loop in numpy over the features."""
    key = write_lossless(tmp_path / "key.mp4", moving_frames(40, seed=3))

    def features(path):
        (clip,) = read_clips(replace(model.settings, short_side=64, crop_size=64), path)
        return features_of_clip(model.encoder, clip, "x").numpy()

    q, k = features(video), features(key)
    assert q.shape == (32, 4, 2, 2)
    for cell in ("mean", "best", (1, 0)):
        found = cell_similarity(model, video, key, 1, cell, size=64)
        (values,) = found.maps
        for t, y, x in np.ndindex(values.shape):
            own = {
                "mean": [q[:, 1].mean(axis=(1, 2))],
                "best": [q[:, 1, i, j] for i, j in np.ndindex(2, 2)],
                (1, 0): [q[:, 1, 1, 0]],
            }[cell]
            expected = max(cosine(vector, k[:, t, y, x]) for vector in own)
            assert values[t, y, x] == pytest.approx(expected, abs=1e-5)
    same = cell_similarity(model, video, video, 2, (0, 1), size=64).maps[0]
    assert same[2, 0, 1] == pytest.approx(1.0, abs=1e-5)


def test_a_clip_around_a_second(model, video):
    (clip,) = read_clips(model.settings, video, at=1.0)  # 0.48 s: from 0.76 s
    np.testing.assert_allclose(clip.times, [0.76, 0.88, 1.0, 1.2], atol=0.05)
    (first,) = read_clips(model.settings, video, at=0.0)
    assert first.times[0] == 0.0
    with pytest.raises(ValueError, match=r"a\.mp4 lasts 1\.60 s, so there is no clip at second 9"):
        read_clips(model.settings, video, at=9)


def test_mistakes(classifier, model, video, tmp_path):
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(FileNotFoundError, match="no video or image at nowhere"):
        class_activation(classifier, "nowhere")
    with pytest.raises(VideoDecodeError, match=r"broken\.mp4: cannot be opened"):
        class_activation(classifier, tmp_path / "broken.mp4")
    with pytest.raises(ValueError, match="no class 'clas1'. Did you mean 'class1'.*class0, class1"):
        class_activation(classifier, video, "clas1")
    assert class_number(["run", "walk"], "walk") == 1
    with pytest.raises(ValueError, match="frame 4 is not in the clip, which has the frames 0 to 3"):
        cell_similarity(model, video, video, 4)
    with pytest.raises(ValueError, match="cell 0,1 is outside the grid, which has the rows 0 to 0"):
        cell_similarity(model, video, video, 0, (0, 1))
    with pytest.raises(ValueError, match="clips must be at least 1, got 0"):
        cell_similarity(model, video, video, num_clips=0)
    whole = replace(model.settings, clip_duration=None)
    assert len(read_clips(whole, video)) == 1
    with pytest.raises(ValueError, match="sees a video as a single clip"):
        read_clips(whole, video, num_clips=2)
    head = classifier.recognizer.cls_head
    head.spatial_type = "max"
    try:
        with pytest.raises(
            ValueError, match="maps need a linear layer on the mean of the features"
        ):
            class_activation(classifier, video)
    finally:
        head.spatial_type = "avg"


def test_features_without_cells_are_refused(model):
    class Flat:
        data_preprocessor = model.encoder.data_preprocessor

        def backbone(self, view):
            return view.mean(dim=(2, 3, 4))

    clip = SeenClip("a.mp4", np.zeros((2, 8, 8, 3), np.uint8), None)
    with pytest.raises(ValueError, match=r"net\.pth returns \(1, 3\) instead of features"):
        features_of_clip(Flat(), clip, "net.pth")
