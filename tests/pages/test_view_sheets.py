"""Sheets of augmented views: rows, time lines, images."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from helpers.pages import data_uris, strip_frames
from helpers.videos import numbered_frames, read_numbers, write_video
from mmengine.config import Config

from sce_video.datasets import SampleRequest, mix_seed
from sce_video.datasets.video_dataset import SampleOrigin
from sce_video.models.augmentation import draw_parameters, named_view
from sce_video.pages.view_sheets import (
    TrainingView,
    TrainingViews,
    axis_ticks,
    describe_parameters,
    draw_views,
    view_sheet,
)
from sce_video.registry import DATASETS


def test_the_description_lists_the_transforms_in_order() -> None:
    parameters = draw_parameters(named_view("strong-gamma", 1.0), range(50), view=0)
    names = ("brightness", "contrast", "saturation", "hue")
    for i in range(50):
        words = [part.split()[0] for part in describe_parameters(parameters, i)]
        want = [names[part] for part in parameters.order[i]] if parameters.jitter[i] else []
        want += [n for n in ("grey", "blur", "solarise", "flip") if getattr(parameters, n)[i]]
        assert words == want


FPS = 25


def make_config(root: Path, clips: dict | None = None, views: list | None = None) -> Config:
    """A training on the videos of a folder; crops show all of a square frame."""
    pipeline = [
        dict(type="OpenVideo"),
        dict(type="RandomClips", **{"clip_duration": 0.8, "num_frames": 4, **(clips or {})}),
        dict(type="DecodeClips"),
        dict(type="RandomResizedCropClips", size=80, area=(1.0, 1.0), aspect=(1.0, 1.0)),
        dict(type="PackClips"),
    ]
    if (clips or {}).get("num_local_views"):
        pipeline[3]["local_size"] = 40
    dataset = dict(type="VideoDataset", data_root=str(root), timeout=None, pipeline=pipeline)
    return Config(
        dict(
            data_preprocessor=dict(type="VideoDataPreprocessor", views=views or []),
            train_dataloader=dict(dataset=dataset),
        )
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("videos")
    for name, count in (("jump/a", 50), ("jump/b", 100), ("run/c", 200)):
        write_video(root / f"{name}.mp4", numbered_frames(count, 80, 80), FPS)
    return root


def spans(html: str) -> list[tuple[float, float, list[float], bool]]:
    """Start, end, times of the frames and whether it plays backwards, of every span."""
    found = re.findall(
        r'class="span( backwards)?".*?data-start="(.*?)" data-end="(.*?)" data-frames="(.*?)"',
        html,
        re.DOTALL,
    )
    return [(float(a), float(b), [float(t) for t in f.split()], bool(r)) for r, a, b, f in found]


SETTINGS = [
    {},
    dict(reverse_prob=0.5, duration_jitter=0.4),
    dict(num_views=4, num_local_views=2, local_clip_duration=0.4, local_num_frames=2),
]


@pytest.mark.parametrize("clips", SETTINGS)
def test_spans_are_those_that_are_sampled_and_frames_lie_in_them(folder, clips):
    cfg = make_config(folder, clips)
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    for seed in range(2):
        part = view_sheet(cfg, num=3, seed=seed)
        drawn, uris = spans(part.html), data_uris(part.html)
        requests = [SampleRequest(i, mix_seed(seed, i)) for i in range(3)]
        want = [clip for request in requests for clip in dataset.origin(request).clips]
        assert len(drawn) == len(uris) == len(want)
        for (start, end, times, backwards), uri, clip in zip(drawn, uris, want, strict=True):
            assert start == pytest.approx(clip.start, abs=1e-6)
            assert end == pytest.approx(clip.start + clip.clip_duration, abs=1e-6)
            assert backwards is clip.reversed
            # The frames of the strip show their own numbers.
            numbers = read_numbers(strip_frames(uri, len(times)))
            assert [number / FPS for number in numbers] == pytest.approx(times, abs=1e-3)
            assert all(start - 1e-6 <= time < end for time in times)


def test_differences_and_augmentation_are_named(folder):
    views = [dict(name="strong", strength=1.0)] * 2
    html = view_sheet(make_config(folder, dict(diff_prob=1.0), views), num=3).html
    assert html.count("RGB differences") >= 6 and "brightness x" in html
    plain = view_sheet(make_config(folder, dict(clip_duration=5.0)), num=1).html
    assert plain.count("unchanged") >= 2 and "differences" not in plain
    assert [(start, end) for start, end, *_ in spans(plain)] == [(0.0, 2.0)] * 2
    assert plain.count("the clip is longer than the video") == 2


def test_bad_files_are_counted(folder, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.mp4").write_bytes((folder / "jump/a.mp4").read_bytes())
    (tmp_path / "c.mp4").write_bytes(b"no video")
    html = view_sheet(make_config(tmp_path), num=3).html
    assert "1 file could not be read" in html and "c.mp4: cannot be opened" in html
    assert html.count("<article") == 3


def test_what_cannot_be_shown_is_a_sentence(tmp_path, folder):
    sentence = view_sheet(make_config(tmp_path / "gone")).html
    assert "There are no views to show" in sentence and "gone" in sentence
    (tmp_path / "c.mp4").write_bytes(b"no video")
    assert "cannot be opened" in view_sheet(make_config(tmp_path)).html
    assert "has no train_dataloader" in view_sheet(Config({})).html


def noise(count: int, views: int = 2, size: int = 96) -> list[TrainingViews]:
    rng = np.random.default_rng(0)
    rows = [TrainingView(rng.random((8, size, size, 3)), []) for _ in range(views)]
    return [
        TrainingViews(f"<b>{i}</b>.mp4", -1, "video", SampleOrigin(), rows) for i in range(count)
    ]


def test_images_stay_within_their_budget():
    for budget, left_out in ((150_000, 0), (20_000, 1)):
        part = draw_views(noise(3), max_bytes=budget)
        sizes = [len(uri) for uri in data_uris(part.html)]
        assert sum(sizes) <= budget
        assert (len(sizes) < 6) == ("left out" in part.html) == bool(left_out)
    html = draw_views(noise(1, size=16), [("<script>x</script>", "a & b")]).html
    assert "<b>0" not in html and "&lt;b&gt;0" in html
    assert "<script" not in html and "a &amp; b" in html


@pytest.mark.parametrize("duration", [0.04, 1.0, 7.3, 3599.0])
def test_the_axis_has_a_few_round_seconds(duration):
    ticks = axis_ticks(duration)
    assert 3 <= len(ticks) <= 6 and ticks[0] == ("0 s", 0.0)
    for label, place in ticks:
        assert float(label.removesuffix(" s")) == pytest.approx(duration * place / 100, rel=1e-4)
        assert place <= 100
    assert axis_ticks(0.0) == []


def test_the_tool_writes_a_sheet_of_videos_at_equal_steps(folder, repo, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(repo / "tools/analysis")
    tool = importlib.import_module("show_views")
    make_config(folder, views=[dict(name="strong", strength=1.0)] * 2).dump(tmp_path / "a.py")
    out = tmp_path / "images" / "views.png"
    tool.main([str(tmp_path / "a.py"), "--out", str(out), "--num", "2"])
    assert cv2.imread(str(out)).std() > 10
    cfg = tool.load_config(str(tmp_path / "a.py"), [])
    rows = tool.load_rows(cfg, 2, 0, frames=4)
    assert [row.heading for row in rows] == ["jump/a.mp4   jump", "", "run/c.mp4   run", ""]
    assert all(row.frames.shape == (4, 80, 80, 3) for row in rows)
    assert tool.load_rows(cfg, 99, 1, frames=4)[0].caption != rows[0].caption
