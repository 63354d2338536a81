"""Nearest neighbours as rows of clips, their table, and the principal plane against numpy."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from helpers.pages import data_uris, make_rows, open_uri

from sce_video.evaluation import Rows
from sce_video.pages import frames as clip_reader
from sce_video.pages.clip_groups import ClipRow, ClipSection, ShownClip, write_clip_groups
from sce_video.pages.feature_map import feature_map_part
from sce_video.pages.frames import ClipReader
from sce_video.pages.gallery import GalleryEntry
from sce_video.pages.neighbour_rows import (
    neighbour_rows,
    neighbour_table,
    principal_plane,
    spread_out,
)


def test_queries_are_far_from_each_other():
    """Against a loop over all rows, with cosines of numpy."""
    x = np.random.default_rng(3).normal(size=(40, 5))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    want = [int((unit @ unit.mean(axis=0)).argmax())]
    while len(want) < 6:
        cosines = [max(float(unit[i] @ unit[j]) for j in want) for i in range(40)]
        want.append(int(np.argmin(cosines)))
    assert spread_out(torch.tensor(x), 6) == want
    assert sorted(spread_out(torch.tensor(x), 99)) == list(range(40))
    assert len(spread_out(torch.ones(9, 4), 5)) == 1  # all equal


def test_rows_show_the_nearest_with_their_cosines(videos, reader):
    rows = make_rows(videos)
    html = neighbour_rows(rows, num_queries=3, k=4, reader=reader).html
    unit = torch.nn.functional.normalize(rows.features, dim=1).numpy()
    blocks = html.split('class="neighbour-row"')[1:]
    for query, block in zip(spread_out(rows.features, 3), blocks, strict=True):
        cosines = unit @ unit[query]
        order = [i for i in np.argsort(-cosines) if i != query][:4]
        names = re.findall(r"<bdi>(.*?)</bdi>", block)
        assert names == ["/".join(Path(videos[i]).parts[-2:]) for i in [query, *order]]
        shown = [float(c) for c in re.findall(r"cosine <b>(.*?)</b>", block)]
        assert shown == pytest.approx([cosines[i] for i in order], abs=6e-4)


def test_labels_are_right_or_wrong_by_a_sign_too(videos, reader):
    labels = [i % 3 for i in range(12)]
    rows = make_rows(videos, labels)
    html = neighbour_rows(rows, ["bend", "jack"], num_queries=4, k=3, reader=reader).html
    unit = torch.nn.functional.normalize(rows.features, dim=1)
    right = 0
    for query in spread_out(rows.features, 4):
        order = (unit @ unit[query]).argsort(descending=True)[1:4].tolist()
        right += sum(labels[i] == labels[query] for i in order)
    assert html.count("✓") == right and html.count("✗") == 12 - right
    assert f"<b>{right} of 12</b>" in html
    assert "✓ bend" in html or "✗ bend" in html
    assert "class 2" in html  # a label without a name
    assert "✓" not in neighbour_rows(make_rows(videos), reader=reader).html


def test_gone_and_broken_files_have_placeholders(videos, tmp_path):
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    (tmp_path / "empty.mp4").touch()
    paths = [*videos[:3], *(str(tmp_path / f"{name}.mp4") for name in ("broken", "empty", "gone"))]
    html = neighbour_rows(make_rows(paths), num_queries=6).html
    assert "3 of 6 videos cannot be shown" in html
    for reason in ("the file is missing", "cannot be opened", "is empty"):
        assert reason in html
    assert len(data_uris(html)) == 3


def test_files_without_time_are_skipped_not_damaged(videos, tmp_path):
    rows, page = make_rows(videos[:3]), tmp_path / "page.html"
    clips = [ShownClip(path, path) for path in videos[:3]]
    section = ClipSection("a", "A", "", [ClipRow("", clips)])
    write_clip_groups(page, "title", "", [], [section], reader=ClipReader(0))
    neighbours = neighbour_rows(rows, reader=ClipReader(0)).html
    for html in (neighbours, feature_map_part(rows, reader=ClipReader(0)).html, page.read_text()):
        assert "3 of 3 videos were skipped: reading for this page ends after 0 s" in html
        assert "cannot be shown" not in html
    assert "skipped, time limit" in neighbours


def test_a_slow_file_at_the_end_of_the_time_is_skipped_too(monkeypatch):
    """A file has 10 s; the last one has what is left, which may be less than it needs."""
    now = [0.0]

    def slow(path, name, seconds, **options):
        now[0] += seconds
        return GalleryEntry(path, name, problem="timed out")

    monkeypatch.setattr(clip_reader, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(clip_reader, "read_entry", slow)
    found = ClipReader(15).read_all("abc")
    assert [entry.skipped for entry in found.values()] == [False, True, True]


@pytest.mark.parametrize(("count", "sentence"), [(0, "No video has"), (1, "Only one video has")])
def test_fewer_than_two_videos(videos, count, sentence):
    html = neighbour_rows(make_rows(videos).subset(torch.arange(count))).html
    assert sentence in html and "neighbours need two" in html


def test_diverged_and_collapsed_features(videos, reader):
    rows = make_rows(videos)
    rows.values[3] = float("nan")
    assert "diverged" in neighbour_rows(rows, reader=reader).html
    rows = make_rows(videos)
    rows.values[:] = torch.ones(8) + 1e-4 * rows.values
    assert "hardly tell these videos apart" in neighbour_rows(rows, reader=reader).html


def test_each_video_is_in_the_part_once_and_within_the_budget(videos, reader):
    rows = make_rows(videos)
    for budget in (1_000_000, 40_000, 4_000):
        part = neighbour_rows(rows, num_queries=12, max_bytes=budget, reader=reader)
        uris = data_uris(part.html)
        assert sum(map(len, uris)) <= budget
        assert len(uris) == len(set(uris)) == 12 or "left out" in part.html


def test_images_are_shown(tmp_path):
    paths = []
    for i in range(3):
        paths.append(str(tmp_path / f"{i}.png"))
        assert cv2.imwrite(paths[-1], np.full((30, 40, 3), 80 * i, np.uint8))
    html = neighbour_rows(make_rows(paths)).html
    means = sorted(np.asarray(open_uri(uri).convert("RGB")).mean() for uri in data_uris(html))
    assert means == pytest.approx([0, 80, 160], abs=4) and "cannot" not in html


def test_hostile_names_are_text(tmp_path):
    names = ["<script>alert(1)</script>.mp4", '"><img src=x onerror=alert(1)>.mp4', "a\udcff.mp4"]
    rows = make_rows([str(tmp_path / n.replace("/", "_")) for n in names], [0, 0, 1])
    html = neighbour_rows(rows, ["<i>0</i>", "}</style>"]).html
    assert "<script" not in html and "<img" not in html and "<i>0" not in html
    html.encode("utf-8")


def test_no_awkward_file_raises(shared_videos):
    folder = shared_videos / "formats"
    paths = [str(folder / name) for name in sorted(os.listdir(folder))]
    rows = make_rows(paths)
    html = neighbour_rows(rows, num_queries=99, max_bytes=10**8, reader=ClipReader(60)).html
    assert f"of {len(paths)} videos cannot be shown" in html


def test_the_plane_is_spanned_by_the_eigenvectors_of_the_covariance():
    features = torch.randn(30, 5, generator=torch.Generator().manual_seed(1))
    points, fraction = principal_plane(features)
    x = features.double().numpy()
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(np.cov(x.T))
    np.testing.assert_allclose(fraction.numpy(), values[::-1][:2] / values.sum(), rtol=1e-6)
    expected = (x - x.mean(0)) @ vectors[:, ::-1][:, :2]
    np.testing.assert_allclose(np.abs(points.numpy()), np.abs(expected), atol=1e-9)
    flipped, _ = principal_plane(features[torch.randperm(30)])
    np.testing.assert_allclose(flipped.abs().sum(0).numpy(), points.abs().sum(0).numpy())
    with pytest.raises(ValueError, match="N >= 2"):
        principal_plane(torch.ones(1, 4))
    assert torch.isfinite(principal_plane(torch.ones(4, 1))[0]).all()


def test_neighbours_by_hand():
    features = Rows(
        torch.tensor([[1.0, 0.0], [2.0, 0.2], [0.0, 1.0]]),
        torch.tensor([0, 0, 1]),
        torch.arange(3),
        ["a", "b", "c"],
    )
    rows = neighbour_table(features, k=1)
    assert [(r["query"], r["path"], r["label"]) for r in rows] == [
        ("a", "b", 0),
        ("b", "a", 0),
        ("c", "b", 0),
    ]
    assert rows[0]["similarity"] == pytest.approx(2 / np.hypot(2, 0.2))
    against = neighbour_table(features, features.subset(torch.tensor([2, 0])), k=2)
    assert [(r["query"], r["rank"], r["path"]) for r in against[:2]] == [
        ("a", 1, "a"),
        ("a", 2, "c"),
    ]
    assert len(neighbour_table(features, k=10)) == 6  # the video itself is never listed
