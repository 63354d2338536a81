"""The page of segments: its curves against a loop, and a click that jumps."""

import numpy as np
import pytest
from helpers.browser import browser_page, low_contrast
from helpers.tiny_encoder import moving_frames, write_lossless

from sce_video.datasets.clip_sampling import Windows, window_spans
from sce_video.inference.class_timeline import ClassTimeline, SegmentRule
from sce_video.inference.features import Features
from sce_video.pages.clip_groups import ClipRow, ClipSection, ShownClip, write_clip_groups
from sce_video.pages.segments_page import SegmentReport, score_columns


@pytest.mark.parametrize(("cells", "columns"), [(7, 7), (7, 3), (1000, 60), (61, 60)])
def test_a_column_is_the_largest_score_of_its_stretch(cells, columns):
    rng = np.random.default_rng(cells)
    edges = np.concatenate([[0.0], np.cumsum(rng.uniform(0.4, 0.6, cells))])
    scores = rng.uniform(size=cells)
    found = score_columns(edges, scores, columns)
    assert len(found) <= columns
    borders = np.linspace(0, edges[-1], len(found) + 1)
    for i, value in enumerate(found):
        shown = (edges[:-1] < borders[i + 1] - 1e-9) & (edges[1:] > borders[i] + 1e-9)
        assert value == scores[shown].max()


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_of_a_page_of_groups_can_be_read(tmp_path, dark):
    write_lossless(tmp_path / "a.mp4", moving_frames(20, seed=3))
    clips = [
        ShownClip(f"{'long_' * 9}{name}", str(tmp_path / name), "similarity 0.9")
        for name in ("a.mp4", "gone.mp4")
    ]
    sections = [
        ClipSection("copies", "Copies", "a note", [ClipRow("Group 1", clips, "two videos")])
    ]
    write_clip_groups(
        tmp_path / "p.html", "Title", "lead", [("2", "videos")], sections, notes=["!"]
    )
    with browser_page(None, 390, 844, dark, touch=True) as page:
        page.goto((tmp_path / "p.html").as_uri())
        assert low_contrast(page) == [] and len(low_contrast(page, 22)) > 9, "text is looked at"
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for _ in range(2):  # a link, a clip
            page.keyboard.press("Tab")
        page.locator(".strip:focus").wait_for()


def test_times_do_not_overlap(tmp_path):
    name = str(tmp_path / "a.mp4")
    write_lossless(tmp_path / "a.mp4", moving_frames(20, seed=3))
    line = ClassTimeline(
        Features(np.full((2, 1), 0.9), [name] * 2, np.array([[0, 3600], [3600, 7200]]))
    )
    with SegmentReport(None, None, str(tmp_path / "p.html"), ("run",), Windows(3600.0)) as report:
        report.add(name, line, line.segments(name, ("run",), SegmentRule(), None))
    for width, least in ((390, 2), (1280, 8)):
        with browser_page(None, width, 844) as page:
            page.goto((tmp_path / "p.html").as_uri())
            shown = page.evaluate(
                """[...document.querySelectorAll(".ticks span")].filter((tick) =>
                getComputedStyle(tick).visibility === "visible").map((tick) =>
                [tick.getBoundingClientRect().left, tick.getBoundingClientRect().right])"""
            )
            assert len(shown) >= least
            assert all(a[1] < b[0] for a, b in zip(shown, shown[1:], strict=False))


def test_a_click_jumps_there(tmp_path):
    write_lossless(tmp_path / "<b>.mp4", moving_frames(100, seed=3))
    windows, classes = Windows(1.0, 0.5), ("run", "<i>walk", "never")
    spans = window_spans(4.0, windows)
    scores = np.full((len(spans), 3), 0.1, dtype=np.float32)
    scores[4:, 1] = scores[:2, 0] = 0.9
    line = ClassTimeline(Features(scores, ["v"] * len(spans), spans))
    page_file, name = tmp_path / "page.html", str(tmp_path / "<b>.mp4")
    with SegmentReport(None, None, str(page_file), classes, windows) as report:
        report.add(name, line, line.segments(name, classes, SegmentRule(), None))
    for width, dark in ((1280, False), (390, True)):
        with browser_page(width=width, dark=dark) as page:
            page.goto(page_file.as_uri())
            page.wait_for_function("() => document.querySelector('video')?.duration > 3.9")
            names = page.locator(".names span").all_text_contents()
            assert names == ["run", "<i>walk"] and page.locator(".mark").count() == 2
            page.locator(".mark").nth(1).click()
            page.wait_for_function("() => document.querySelector('video').currentTime >= 2")
            assert page.locator(".now").text_content().startswith("0:0")
            page.keyboard.press("Tab")
            assert low_contrast(page) == []
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, "nothing lies beside the page"
