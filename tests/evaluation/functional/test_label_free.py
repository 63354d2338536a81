"""RankMe, LiDAR and the retrieval of another clip against loops in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sce_video.evaluation.functional.label_free import clip_hits, lidar, rankme

EPSILON, DELTA = 1e-7, 1e-4


@pytest.fixture(scope="module")
def clips():
    """Features of 23 clips of 7 videos, 2 to 5 of each, in mixed order."""
    rng = np.random.default_rng(0)
    counts = np.array([2, 3, 5, 4, 2, 3, 4])
    videos = np.repeat(np.arange(7), counts)
    centres, scale = rng.normal(size=(7, 6)), np.array([3, 2, 1, 1, 0.2, 0.05])
    x = (centres[videos] + 0.6 * rng.normal(size=(23, 6))) * scale + 0.5
    order = rng.permutation(23)
    return torch.from_numpy(x[order]), torch.from_numpy(videos[order])


def entropy_rank(values):
    shares = [value / sum(values) + EPSILON for value in values]
    return float(np.exp(-sum(share * np.log(share) for share in shares)))


def test_rankme(clips):
    x = clips[0].numpy()
    expected = entropy_rank(np.sqrt(np.maximum(np.linalg.eigvalsh(x.T @ x), 0)))
    assert rankme(clips[0]) == pytest.approx(expected, rel=1e-9)
    assert rankme(torch.eye(5)) == pytest.approx(5, rel=1e-5)
    assert rankme(torch.ones(9, 4)) == pytest.approx(1, rel=1e-4)
    with pytest.raises(ValueError, match="NaN"):
        rankme(torch.tensor([[1.0, float("nan")]]))


def lidar_loop(x, videos):
    names = sorted(set(videos.tolist()))
    means = {v: np.mean([row for row, w in zip(x, videos, strict=True) if w == v], axis=0)
             for v in names}  # fmt: skip
    middle = np.mean(list(means.values()), axis=0)
    between = sum(np.outer(m - middle, m - middle) for m in means.values()) / len(names)
    within = sum(
        np.outer(r - means[v], r - means[v]) for r, v in zip(x, videos.tolist(), strict=True)
    )
    within = within / len(x) + DELTA * np.eye(x.shape[1])
    # The eigenvalues of W^-1/2 B W^-1/2 are those of W^-1 B.
    return entropy_rank(np.linalg.eigvals(np.linalg.solve(within, between)).real)


def test_lidar(clips):
    x, videos = clips
    assert lidar(x, videos) == pytest.approx(lidar_loop(x.numpy(), videos.numpy()), rel=1e-6)
    # Invariant to any linear map, as a linear probe is, but for delta; RankMe is not.
    mixed = 1e3 * x @ torch.from_numpy(np.random.default_rng(1).normal(size=(6, 6)))
    assert lidar(mixed, videos) == pytest.approx(lidar(1e3 * x, videos), rel=1e-3)
    assert 1 <= lidar(torch.ones_like(x), videos) < 1.001  # collapsed: no direction at all
    assert np.isfinite(lidar(1e8 * x, videos))  # where rounding is larger than delta
    with pytest.raises(ValueError, match="two clips each"):
        lidar(x, torch.arange(23))


def test_retrieval_of_another_clip(clips):
    x, videos = clips
    unit = (x - x.mean(dim=0)).numpy()
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    expected = []
    for i in range(23):
        others = [j for j in range(23) if j != i]
        nearest = max(others, key=lambda j: unit[i] @ unit[j])
        expected.append(bool(videos[nearest] == videos[i]))
    assert clip_hits(x, videos).tolist() == expected and 0 < sum(expected) < 23
    with pytest.raises(ValueError, match="have no other clip of their video"):
        clip_hits(x[:3], torch.tensor([0, 0, 1]))
