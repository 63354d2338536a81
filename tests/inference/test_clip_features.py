"""Features of single clips: their mean is the video's feature, and costs are measured."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.tiny_encoder import FEATURE_SIZE, moving_frames, save_tiny, write_lossless

from sce_video.inference.clip_features import clip_network, embed_clips
from sce_video.inference.embed import ViewOptions, embed_videos
from sce_video.inference.model import load_model, untrained_model, with_random_weights


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load_model(save_tiny(tmp_path_factory.mktemp("run") / "epoch_1.pth"), device="cpu")


def test_clips_average_to_the_feature_of_the_video(model, tmp_path):
    good = [str(write_lossless(tmp_path / f"{i}.mp4", moving_frames(50, seed=i))) for i in (0, 1)]
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    network = clip_network(model, 3)
    first, bad, last = embed_clips(network, [good[0], str(broken), good[1]], workers=1)
    assert first.values.shape == (3, FEATURE_SIZE) and network.row_size == 3 * FEATURE_SIZE
    assert np.ptp(first.values, axis=0).max() > 1e-3  # the clips differ
    expected = embed_videos(model, good, ViewOptions(num_clips=3))
    means = np.stack([first.values.mean(0), last.values.mean(0)])
    np.testing.assert_allclose(means, expected, rtol=1e-5, atol=1e-6)
    assert bad.values is None and "cannot be opened" in bad.failure
    for video in (first, last):
        assert video.duration == pytest.approx(2.0, abs=0.05)  # 50 frames at 25 per second
        assert video.seconds > 0 and video.work > 0
        assert video.memory is None or video.memory > 1_000_000


def test_an_untrained_model_is_the_same_network_each_time(model, tmp_path):
    path = str(write_lossless(tmp_path / "a.mp4", moving_frames(50)))
    first = embed_videos(untrained_model(model.settings, "cpu"), path)
    assert np.array_equal(first, embed_videos(with_random_weights(model), path))
    assert first.shape == (1, FEATURE_SIZE)
    assert not np.allclose(first, embed_videos(model, path))
