"""Prototypes: unit vectors, similarities in fp32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sce_video.models.algorithms.swav import Prototypes


def test_similarities_with_unit_vectors():
    prototypes = Prototypes(6, 4)
    norms = prototypes.weight.norm(dim=1)
    torch.testing.assert_close(norms, torch.ones(4))
    z = F.normalize(torch.randn(5, 6), dim=1)
    expected = z @ prototypes.weight.T
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = prototypes(z)
    assert scores.dtype == torch.float32 and torch.equal(scores, expected)
    prototypes.weight.data.mul_(3)
    prototypes.normalise()
    torch.testing.assert_close(prototypes.weight.norm(dim=1), norms)


def test_one_prototype_is_refused():
    with pytest.raises(ValueError, match="num_prototypes must be at least 2, got 1"):
        Prototypes(6, 1)
