"""Strips of frames and their maps: scale, chosen frames, colours, page and image."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
from helpers.browser import browser_page
from helpers.tiny_encoder import moving_frames, write_lossless

from sce_video.inference.cell_maps import cell_similarity, class_activation
from sce_video.inference.classifier import load_classifier
from sce_video.pages.cell_map_strip import (
    MapStrip,
    Scale,
    activation_strips,
    chosen_frames,
    common_scale,
    render_maps,
    similarity_strips,
    write_maps,
)

EVIL = '<script>alert("x")</script>$\x1b.mp4'


def strips():
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (4, 32, 32, 3), dtype=np.uint8)
    times = np.array([0.0, 0.25, 0.5, 0.75])
    query = MapStrip("query", "cell 0,1", frames, times, marked=2, cell=(0, 1), grid=(2, 2))
    key = MapStrip(EVIL, "note & <b>", frames, times, rng.normal(size=(4, 2, 2)))
    image = MapStrip("image.png", "", frames[:1], None, rng.normal(size=(1, 2, 2)))
    return [query, key, image]


def scale():
    return common_scale([s.maps for s in strips() if s.maps is not None], "cosine similarity")


def test_one_scale_for_all_maps():
    found = common_scale([np.array([1.0, 2.0]), np.array([-3.0, 0.0])], "score")
    assert (found.low, found.high) == (-3.0, 2.0)
    np.testing.assert_allclose(found.fraction(np.array([-9, -3, -0.5, 2, 9])), [0, 0, 0.5, 1, 1])
    equal = common_scale([np.full(3, 0.7)], "score")
    assert equal.fraction(np.array([0.7]))[0] == 0
    with pytest.raises(ValueError, match="low must be below high, got 1 and 1"):
        Scale(1, 1, "score")
    with pytest.raises(ValueError, match="low must be below high"):
        common_scale([np.array([np.nan])], "score")


def test_chosen_frames_keep_first_last_and_the_marked_one():
    assert chosen_frames(4, 8).tolist() == [0, 1, 2, 3]
    assert chosen_frames(16, 4).tolist() == [0, 5, 10, 15]
    assert chosen_frames(16, 4, marked=9).tolist() == [0, 5, 9, 15]


def test_the_page_in_a_browser(tmp_path):
    html = render_maps(strips(), scale(), f"title {EVIL}", "4 x 2 x 2 cells")
    assert "<script" not in html and "note &amp; &lt;b&gt;" in html
    assert all(text in html for text in ("0.25 s", "cosine similarity", "4 x 2 x 2 cells"))
    for name in ("look.html", "look.png"):
        write_maps(tmp_path / name, strips(), scale(), EVIL, "note")
    assert cv2.imread(str(tmp_path / "look.png")).std() > 10
    with browser_page(width=390, touch=True) as page:
        page.goto((tmp_path / "look.html").as_uri())
        sizes = page.evaluate("[...document.images].map(i => i.naturalWidth)")
        assert sizes == [224] * 14
        # Rows of frames scroll inside their card; the page itself does not.
        assert page.evaluate("document.documentElement.scrollWidth") == 390


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
    assert f", most probable class {classifier.classes[best.label]}, 0." in strip.note
