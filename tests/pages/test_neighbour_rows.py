"""Nearest neighbours as rows of clips, their table, and the principal plane against numpy."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.pages import make_rows

from sce_video.evaluation.functional.clusters import k_centre_greedy, unit_rows
from sce_video.pages.clip_groups import ClipRow, ClipSection, ShownClip, write_clip_groups
from sce_video.pages.feature_map import feature_map_part, neighbour_rows
from sce_video.pages.frames import ClipReader


def spread_out(features, count):
    return k_centre_greedy(unit_rows(features), count)


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


def test_files_without_time_are_skipped_not_damaged(videos, tmp_path):
    rows, page = make_rows(videos[:3]), tmp_path / "page.html"
    clips = [ShownClip(path, path) for path in videos[:3]]
    section = ClipSection("a", "A", "", [ClipRow("", clips)])
    write_clip_groups(page, "title", "", [], [section], reader=ClipReader(0))
    neighbours = neighbour_rows(rows, reader=ClipReader(0)).html
    for html in (neighbours, feature_map_part(rows, reader=ClipReader(0)).html, page.read_text()):
        assert (
            "3 of 3 videos were skipped, because reading videos for this page ends after 0 s"
            in html
        )
        assert "cannot be shown" not in html
    assert "skipped because of the time limit" in neighbours


def test_diverged_and_collapsed_features(videos, reader):
    rows = make_rows(videos)
    rows.values[3] = float("nan")
    assert "diverged" in neighbour_rows(rows, reader=reader).html
    rows = make_rows(videos)
    rows.values[:] = torch.ones(8) + 1e-4 * rows.values
    assert "hardly distinguish these videos" in neighbour_rows(rows, reader=reader).html
