"""Strips of frames and their maps: scale, chosen frames, colours, page and image."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from helpers.browser import browser_page

from sce_video.pages.cell_maps import (
    MapStrip,
    Scale,
    chosen_frames,
    common_scale,
    heat_frame,
    render_maps,
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
    with pytest.raises(ValueError, match="low < high, got 1 and 1"):
        Scale(1, 1, "score")
    with pytest.raises(ValueError, match="low < high"):
        common_scale([np.array([np.nan])], "score")


def test_chosen_frames_keep_first_last_and_the_marked_one():
    assert chosen_frames(4, 8).tolist() == [0, 1, 2, 3]
    assert chosen_frames(16, 4).tolist() == [0, 5, 10, 15]
    assert chosen_frames(16, 4, marked=9).tolist() == [0, 5, 9, 15]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        chosen_frames(4, 0)


def test_a_higher_value_is_brighter_and_colours_say_values_only():
    values = np.array([[0.0, 0.3], [0.6, 1.0]])
    grey = np.full((64, 64, 3), 128, np.uint8)
    drawn = heat_frame(grey, values, Scale(0, 1, "x")).astype(float)
    corners = [drawn[y, x].mean() for y, x in ((2, 2), (2, 61), (61, 2), (61, 61))]
    assert corners == sorted(corners) and len(set(corners)) == 4
    # The colour of the frame itself has no influence, only its brightness.
    red, same = np.zeros((2, 64, 64, 3), np.uint8)
    red[..., 0], same[...] = 200, cv2.cvtColor(np.full((1, 1, 3), (200, 0, 0), np.uint8), 7)[0, 0]
    one = Scale(0, 1, "x")
    np.testing.assert_array_equal(heat_frame(red, values, one), heat_frame(same, values, one))


def test_the_page_is_escaped_and_shows_times_and_scale():
    page = render_maps(strips(), scale(), f"title {EVIL}", "4 x 2 x 2 cells")
    assert "<script" not in page and "note &amp; &lt;b&gt;" in page
    assert "0.25 s" in page and "cosine similarity" in page and "4 x 2 x 2 cells" in page
    assert page.count("<img") == 4 + 2 * 4 + 2 * 1


def test_the_page_in_a_browser(tmp_path):
    write_maps(tmp_path / "look.html", strips(), scale(), EVIL, "note")
    with browser_page(width=390, touch=True) as page:
        page.goto((tmp_path / "look.html").as_uri())
        sizes = page.evaluate("[...document.images].map(i => i.naturalWidth)")
        assert sizes == [224] * 14
        # Rows of frames scroll inside their card; the page itself does not.
        assert page.evaluate("document.documentElement.scrollWidth") == 390
