"""The map of features: projections, names, clips within a budget."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from helpers.pages import make_rows

from sce_video.pages import feature_map as projection
from sce_video.pages.feature_map import feature_map_part, relative_names
from sce_video.pages.parts import Part

PLANES = {"given": np.zeros((12, 2))}  # where the projection is not looked at


def read_data(part: Part) -> dict:
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', part.html, re.DOTALL)
    return json.loads(text)


def test_points_are_the_projections(videos):
    rows = make_rows(videos, [i % 2 for i in range(12)])
    part = feature_map_part(rows, ["even", "odd"], max_clips=0)
    data = read_data(part)
    assert next(iter(data["projections"])) == "PCA"
    x = rows.features.double().numpy()
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    x = x - x.mean(axis=0)
    values, vectors = np.linalg.eigh(x.T @ x)  # another way than that of the package
    for column, axis in (("x", -1), ("y", -2)):
        want, shown = x @ vectors[:, axis], np.array(data["projections"]["PCA"][column])
        sign = np.sign(want @ shown)
        np.testing.assert_allclose(shown, sign * want, atol=1e-3)
    share = values[-2:].sum() / values.sum()
    assert f"PCA shows {100 * share:.0f} % of the variance" in part.html
    assert data["name"] == [f"c{i % 3}/{i}.mp4" for i in range(12)]
    assert data["label"] == ["even", "odd"] * 6
    assert data["group"] == [f"c{i % 3}" for i in range(12)]
    assert "clip" not in data


def test_clips_stay_within_their_budget(videos, reader):
    rows = make_rows(videos[:6])
    sizes = {}
    for budget in (100_000, 20_000):
        part = feature_map_part(rows, planes=PLANES, max_bytes=budget, reader=reader)
        clips = [clip for clip in read_data(part)["clip"] if clip]
        sizes[budget] = len(clips), sum(map(len, clips))
        assert sizes[budget][1] <= budget
    assert sizes[100_000][0] == 6 > sizes[20_000][0] > 0


def test_gone_equal_and_diverged(videos, tmp_path):
    rows = make_rows([*videos[:3], str(tmp_path / "gone.mp4")])
    part = feature_map_part(rows)
    assert "1 clip cannot be shown" in part.html and "the file is missing" in part.html
    assert [bool(clip) for clip in read_data(part)["clip"]] == [True] * 3 + [False]
    rows.values[:] = 1.0
    part = feature_map_part(rows, max_clips=0)
    planes = read_data(part)["projections"]
    assert "variance" not in part.html and set(planes["PCA"]["x"]) == {0.0}
    rows.values[3] = float("nan")
    assert "diverged" in feature_map_part(rows).html


@pytest.mark.parametrize(
    ("paths", "names", "groups"),
    [
        (["/v/a/1.mp4", "/v/b/2.mp4"], ["a/1.mp4", "b/2.mp4"], ["a", "b"]),
        (["/v/a/1.mp4", "/v/a/2.mp4"], ["1.mp4", "2.mp4"], [None, None]),
        (["/v/1.mp4", "/v/b/c/2.mp4"], ["1.mp4", "b/c/2.mp4"], [None, "b"]),
        (["/v/a.mp4"] * 2, ["a.mp4"] * 2, [None, None]),
    ],
)
def test_names_are_relative_to_the_folder_of_all(paths, names, groups):
    assert relative_names(paths) == (names, groups)


def test_hostile_names_are_text(tmp_path):
    evil = "</script><script>alert(1)</script>"
    part = feature_map_part(make_rows([f"/v/{evil}/{i}.mp4" for i in "ab"], [0, 1]), [evil, "<b>"])
    assert part.html.count("<script") == 1 and "<b>" not in part.html
    assert read_data(part)["label"] == [evil, "<b>"]


def blobs(n: int = 20) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = 5 * torch.eye(16)[:2]
    return torch.cat([c + 0.1 * torch.randn(n, 16, generator=generator) for c in centres])


def test_the_maps_separate_two_clusters():
    """PCA, and UMAP or t-SNE where one of them is installed."""
    for points in projection.projections(blobs()).values():
        assert points.shape == (40, 2) and points.dtype == np.float32
        centres = points.reshape(2, 20, 2).mean(axis=1)
        spread = np.abs(points.reshape(2, 20, 2) - centres[:, None]).max()
        assert np.linalg.norm(centres[0] - centres[1]) > 2 * spread


def test_equal_features_have_no_map_of_neighbours():
    """A collapsed network: scikit-learn's t-SNE crashes on features without any spread."""
    features = torch.ones(40, 8) + 1e-7 * torch.randn(40, 8)
    assert list(projection.projections(features)) == ["PCA"]
