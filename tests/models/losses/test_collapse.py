"""Collapse metrics of matrices with known spread and effective rank."""

import numpy as np
import pytest
import torch

from sce_video.models.losses import collapse, effective_rank, feature_std
from sce_video.utils.tensors import DeferredNumber


def test_random_directions_have_spread_one():
    h = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0))
    assert feature_std(h) == pytest.approx(1.0, abs=0.02)
    # The norms have no effect.
    assert feature_std(h * torch.rand(4000, 1)) == pytest.approx(1.0, abs=0.02)


def test_collapse_has_spread_zero_and_rank_zero():
    h = torch.randn(1, 64, generator=torch.Generator().manual_seed(0)).repeat(50, 1)
    assert feature_std(h) < 1e-6
    assert effective_rank(h) == 0
    assert (
        effective_rank(h + 1e-8 * torch.randn(50, 64)) == 0
    )  # rounding noise does not raise the rank
    assert effective_rank(torch.zeros(5, 3)) == 0
    assert feature_std(torch.zeros(5, 3)) == 0


@pytest.mark.parametrize("shape", [(40, 20), (20, 40)])
@pytest.mark.parametrize("rank", [1, 7])
def test_a_flat_spectrum_of_rank_r_gives_r(shape, rank):
    rng = np.random.default_rng(0)
    # Orthonormal columns that are orthogonal to ones, so centring does not change them.
    left = np.linalg.qr(np.c_[np.ones(shape[0]), rng.normal(size=(shape[0], rank))])[0][:, 1:]
    right = np.linalg.qr(rng.normal(size=(shape[1], rank)))[0]
    h = torch.tensor(left @ right.T * 3.0 + 5.0)
    assert effective_rank(h) == pytest.approx(rank, rel=1e-5)


def test_an_uneven_spectrum_equals_the_entropy_of_numpys_singular_values():
    rng = np.random.default_rng(1)
    h = rng.normal(size=(30, 12)) * np.geomspace(1, 0.01, 12) + 1.0
    s = np.linalg.svd(h - h.mean(0), compute_uv=False)
    p = s / s.sum()
    expected = np.exp(-(p * np.log(p)).sum())
    assert effective_rank(torch.tensor(h)) == pytest.approx(expected, rel=1e-5)
    assert effective_rank(torch.tensor(h, dtype=torch.float32)) == pytest.approx(expected, rel=1e-4)


def test_bad_input():
    assert torch.isnan(effective_rank(torch.tensor([[1.0, float("nan")], [0.0, 1.0]])))
    for bad in (torch.ones(3), torch.ones(0, 4)):
        for metric in (feature_std, effective_rank):
            with pytest.raises(ValueError, match="must be"):
                metric(bad)


@pytest.mark.parametrize("shape", [(40, 20), (20, 40)])
def test_a_rank_that_is_read_later_is_the_same(monkeypatch, shape):
    h = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = collapse.effective_rank(h).item()
    monkeypatch.setattr(collapse, "_is_on_host", lambda h: False)
    later = collapse.logged_rank(h)
    assert isinstance(later, DeferredNumber) and not isinstance(later, torch.Tensor)
    assert later.read() == expected
