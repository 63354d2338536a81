"""Parts of a page in headless Chromium, and the library that they need."""

from __future__ import annotations

import base64
import gzip
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.browser import browser_page
from helpers.pages import write_parts
from helpers.videos import numbered_frames, write_video

from sce_video.datasets.clip_sampling import make_clip
from sce_video.datasets.video_dataset import SampleOrigin
from sce_video.evaluation import Rows
from sce_video.pages import parts as module
from sce_video.pages.feature_map import feature_map_part, neighbour_rows
from sce_video.pages.frames import ClipReader
from sce_video.pages.parts import Part
from sce_video.pages.view_sheets import TrainingView, TrainingViews, draw_views

COUNT = 6


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> list[Part]:
    """Twelve points on a circle, of which four have clips."""
    root = tmp_path_factory.mktemp("videos")
    paths = [
        str(write_video(root / f"{i % 2}" / f"video{i}.mp4", numbered_frames(30)))
        for i in range(COUNT)
    ]
    angles = torch.arange(COUNT) * 2 * np.pi / COUNT
    features = torch.stack([angles.cos(), angles.sin()], dim=1)
    numbers = torch.arange(COUNT)
    rows = Rows(features, numbers % 3, numbers, paths)
    timestamps = np.arange(30) / 25
    clips = [
        make_clip(timestamps, start=s, clip_duration=0.4, num_frames=4, reverse=bool(s))
        for s in (0.0, 0.6)
    ]
    rng = np.random.default_rng(0)
    views = [TrainingView(rng.random((4, 32, 32, 3)), ["flip"]) for _ in range(2)]
    origin = SampleOrigin(clips, timestamps, 1.2, [])
    reader = ClipReader(600)
    planes = {"PCA": features.numpy(), "other": -features.numpy()}
    return [
        draw_views([TrainingViews("0/video0.mp4", 0, "video", origin, views)]),
        neighbour_rows(rows, ["a", "b", "c"], num_queries=2, k=2, reader=reader),
        feature_map_part(rows, ["a", "b", "c"], planes=planes, max_clips=4, reader=reader),
    ]


@pytest.fixture
def address(parts, tmp_path: Path) -> str:
    return write_parts(tmp_path / "page.html", parts)


PIXEL = """(i) => {
  const plot = document.querySelector(".map-plot"), { xaxis, yaxis } = plot._fullLayout;
  for (const trace of plot.data) {
    const k = trace.customdata.indexOf(i);
    const box = plot.getBoundingClientRect();
    if (k >= 0) return [box.x + xaxis._offset + xaxis.l2p(trace.x[k]),
                        box.y + yaxis._offset + yaxis.l2p(trace.y[k])];
  }
}"""


def open_map(page, address: str) -> list:
    """Opens the page, scrolls to its map; which points have a clip."""
    page.goto(address)
    page.wait_for_selector("[data-drawn]", state="attached")
    page.locator(".map-frame").scroll_into_view_if_needed()
    page.evaluate("document.querySelector('.map-frame').scrollIntoView({block: 'center'})")
    return page.evaluate(
        "document.querySelector('.map-plot').data.flatMap(t => t.customdata.filter("
        "(_, k) => t.marker.line.width[k] > 0))"
    )


def wait_for_clip(page) -> None:
    page.wait_for_function(
        "() => { const box = document.querySelector('.map-card .map-clip')"
        "?.getBoundingClientRect(); return box && Math.min(box.width, box.height) > 20; }"
    )


#: Which frame a player shows.
SHOWN = "e => getComputedStyle(e).backgroundPositionX"


def test_strips_play_and_the_map_shows_clips(address):
    with browser_page(dark=True) as page:
        with_clips = open_map(page, address)
        assert len(with_clips) == 4
        for part in ("views", "neighbours"):
            strip = page.locator(f"#{part} .strip").first
            player = strip.locator(".player")
            assert not player.is_visible()
            strip.hover()
            assert player.is_visible()
            for _ in range(2):  # it moves through the frames
                before = player.evaluate(SHOWN)
                page.wait_for_function(
                    f"([e, x]) => ({SHOWN})(e) !== x", arg=[player.element_handle(), before]
                )
            page.mouse.move(1, 1)
            assert not player.is_visible()
            strip.focus()
            assert player.is_visible()

        page.locator(".map-frame").scroll_into_view_if_needed()
        without = next(i for i in range(COUNT) if i not in with_clips)
        for point in (with_clips[0], without):
            x, y = page.evaluate(PIXEL, point)
            page.mouse.move(x - 40, y - 40)
            page.mouse.move(x, y, steps=3)
            page.wait_for_selector(f".map-card:not([hidden]) >> text=video{point}.mp4")
            if point in with_clips:
                wait_for_clip(page)
            else:
                assert page.locator(".map-clip").count() == 0


def test_keys_switches_and_the_legend(address):
    with browser_page() as page:
        open_map(page, address)
        page.locator(".map-frame").focus()
        page.keyboard.press("ArrowRight")
        name = page.locator(".map-card .map-name")
        before = name.inner_text()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowDown")
        assert name.inner_text() != before
        page.keyboard.press("Escape")
        assert page.locator(".map-card").is_hidden()

        x = "document.querySelector('.map-plot').data[0].x[0]"
        first = page.evaluate(x)
        page.get_by_role("button", name="other").click()
        page.wait_for_function(f"{x} === {-first}")
        entries = page.locator(".map-legend button")
        assert entries.count() == 3
        entries.first.click()
        page.wait_for_function("document.querySelector('.map-plot').data.length === 2")
        assert entries.first.get_attribute("aria-pressed") == "false"
        page.get_by_role("button", name="folder").click()
        page.wait_for_function("document.querySelector('.map-plot').data.length === 2")
        assert page.locator(".map-legend button").all_inner_texts()[0].split() == [
            "●",
            "0",
            str(COUNT // 2),
        ]


def test_a_phone_has_no_sideways_scrolling_and_taps_play(address):
    with browser_page(width=390, height=800, touch=True) as page:
        with_clips = open_map(page, address)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        strip = page.locator("#views .strip").first
        strip.tap()
        assert strip.locator(".player").is_visible()
        page.evaluate("document.querySelector('.map-frame').scrollIntoView({block: 'center'})")
        x, y = page.evaluate(PIXEL, with_clips[1])
        page.touchscreen.tap(x, y)
        page.wait_for_selector(f".map-card:not([hidden]) >> text=video{with_clips[1]}.mp4")
        wait_for_clip(page)


def test_the_script_holds_the_library_unchanged():
    plotly = pytest.importorskip("plotly.offline")
    script = module.plotly_script()
    (packed,) = re.findall(r'<script id="plotly-gzip" type="text/plain">([^<]+)<', script)
    assert gzip.decompress(base64.b64decode(packed)).decode() == plotly.get_plotlyjs()
    assert len(script) < 2_500_000 and "http" not in script.replace(packed, "")
