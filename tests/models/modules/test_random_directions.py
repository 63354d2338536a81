"""Directions are unit vectors, a function of the optimiser step alone."""

from __future__ import annotations

import copy

import pytest
import torch

from sce_video.models.algorithms.sigreg import RandomDirections


def test_directions_are_unit_vectors_that_change_with_the_step_only():
    directions = RandomDirections(5000, 3)
    first = directions()
    torch.testing.assert_close(first.norm(dim=1), torch.ones(5000))
    torch.testing.assert_close(first.T @ first / 5000, torch.eye(3) / 3, atol=0.02, rtol=0)
    assert first.mean(dim=0).abs().max() < 0.03
    assert torch.equal(directions(), first)
    directions.advance()
    assert not torch.equal(directions(), first)
    assert int(directions.step) == 1


def test_directions_are_restored_and_leave_the_global_generator_alone():
    state = torch.get_rng_state()
    directions = RandomDirections(4, 3)
    for _ in range(3):
        directions.advance()
    restored = RandomDirections(4, 3)
    restored.load_state_dict(directions.state_dict())
    assert torch.equal(restored(), directions())
    assert torch.equal(copy.deepcopy(directions)(), directions())
    restored.advance()
    directions.advance()
    assert torch.equal(restored(), directions())
    assert torch.equal(torch.get_rng_state(), state)


def test_errors():
    with pytest.raises(ValueError, match="at least 1, got 0 and 8"):
        RandomDirections(0, 8)
    with pytest.raises(ValueError, match="at least 1, got 8 and 0"):
        RandomDirections(8, 0)
