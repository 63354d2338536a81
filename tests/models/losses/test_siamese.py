"""Gradients and errors of BYOL, MoCo v3 and NT-Xent. test_other_libraries.py tests values."""

from __future__ import annotations

import math

import pytest
import torch

from sce_video.models.losses import byol_loss, moco_v3_loss, nt_xent_loss

X, OWN = torch.ones(3, 4), torch.arange(3)


@pytest.mark.parametrize(
    ("loss", "given", "message"),
    [
        (byol_loss, (X, X[:, :2]), r"query and key must be .* \(3, 4\) and \(3, 2\)"),
        (byol_loss, (X[:0], X[:0]), r"at least 1, got \(0, 4\)"),
        (moco_v3_loss, (X, X[:, :2], OWN), r"got \(3, 4\) and \(3, 2\)"),
        (
            moco_v3_loss,
            (X, X[:0], OWN),
            r"query and keys must not be empty, got \(3, 4\) and \(0, 4\)",
        ),
        (moco_v3_loss, (X, X, OWN[:2]), r"positives must be \(3,\) of int64, got \(2,\)"),
        (moco_v3_loss, (X, X, OWN + 1), "rows of the 3 keys, counted from 0, got 3"),
        # torch's cross_entropy would ignore it.
        (moco_v3_loss, (X, X, OWN - 100), "rows of the 3 keys, counted from 0, got -100"),
        (nt_xent_loss, (X, X[:2]), r"first and second must be .* \(3, 4\) and \(2, 4\)"),
    ],
)
def test_errors(loss, given, message):
    options = {} if loss is byol_loss else {"tau": 0.2}
    with pytest.raises(ValueError, match=message):
        loss(*given, **options)
    for tau in (0.0, math.nan) if options else ():
        with pytest.raises(ValueError, match="tau must be a finite number above 0"):
            loss(X, X, *([OWN] if loss is moco_v3_loss else []), tau=tau)


def test_gradient_reaches_both_views_and_is_correct():
    generator = torch.Generator().manual_seed(0)
    views = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: nt_xent_loss(*torch.nn.functional.normalize(x, dim=2), tau=0.3), views
    )
