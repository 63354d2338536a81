"""Cell maps as strips: which frames, times and maps belong together, what is marked and said."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
from helpers.tiny_encoder import moving_frames, write_lossless

from sce_video.inference.cell_maps import cell_similarity, class_activation
from sce_video.inference.classifier import load_classifier
from sce_video.pages.cell_maps import activation_strips, similarity_strips


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return write_lossless(tmp_path_factory.mktemp("strips") / "a.mp4", moving_frames(40))


def test_the_marked_frame_is_among_those_shown(model, video):
    found = cell_similarity(model, video, video, 2, (0, 0))
    query, key = similarity_strips(found, 2)
    assert query.maps is None and (query.marked, query.cell, query.grid) == (1, (0, 0), (1, 1))
    assert query.times[1] == found.query.times[2]
    assert query.note == f"cell 0,0 of frame 2 at {found.query.times[2]:.2f} s"
    assert len(key.frames) == len(key.times) == len(key.maps) == 2  # the first and the last
    np.testing.assert_array_equal(key.maps, found.maps[0][[0, 3]])
    np.testing.assert_array_equal(key.frames, found.keys[0].frames[[0, 3]])


def test_clips_of_one_frame_are_one_strip_over_time(model, video):
    one = replace(model, settings=replace(model.settings, num_frames=1))
    found = cell_similarity(one, video, video, num_clips=3)
    _, key = similarity_strips(found, 8)
    assert key.frames.shape == (3, 32, 32, 3) and len(key.maps) == 3
    assert (np.diff(key.times) > 0).all()
    several = similarity_strips(cell_similarity(model, video, video, num_clips=3), 8)
    assert [strip.name for strip in several[1:]] == [
        f"key: {video}, clip {i} of 3" for i in (1, 2, 3)
    ]


def test_an_image_is_shown_once_with_the_mean_of_its_map(model, folder_classifier, tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), moving_frames(1)[0][..., ::-1])
    found = cell_similarity(model, tmp_path / "a.png", tmp_path / "a.png")
    query, key = similarity_strips(found, 8)
    assert len(query.frames) == len(key.frames) == 1
    assert query.times is None and query.marked == 0
    np.testing.assert_allclose(key.maps[0], found.maps[0].mean(axis=0), atol=1e-6)
    assert query.note == "the mean of all cells of frame 2"
    classifier = load_classifier(folder_classifier, device="cpu")
    explained = class_activation(classifier, tmp_path / "a.png")
    (strip,) = activation_strips(classifier, explained, 8)
    # The mean over the cells that are drawn is still the score without its bias.
    assert strip.maps.mean() + explained.bias == pytest.approx(explained.scores[0], abs=1e-4)


def test_a_class_that_is_not_the_most_probable_says_so(folder_classifier, video):
    classifier = load_classifier(folder_classifier, device="cpu")
    best = class_activation(classifier, video)
    other = classifier.classes[1 - best.label]
    (strip,) = activation_strips(classifier, class_activation(classifier, video, other), 8)
    assert strip.note.startswith(f"class {other}, probability 0.")
    assert f"; most probable: {classifier.classes[best.label]}, 0." in strip.note
