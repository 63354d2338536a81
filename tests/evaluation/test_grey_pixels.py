"""Grey pixels against a loop in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sce_video.evaluation.grey_pixels import GreyPixels


def test_the_parts_equal_a_loop_over_cells():
    view = torch.rand(2, 3, 5, 48, 96, generator=torch.manual_seed(0), dtype=torch.float64)
    network = GreyPixels()
    features = network(view)
    assert features.shape == (2, network.out_channels, 1, 1, 1)
    grey = np.tensordot(view.numpy(), [0.299, 0.587, 0.114], axes=(1, 0))  # (N, T, H, W)
    cells = np.empty((2, 5, 24, 32))
    for y in range(24):
        for x in range(32):
            cells[:, :, y, x] = grey[:, :, 2 * y : 2 * y + 2, 3 * x : 3 * x + 3].mean((2, 3))
    pixels = cells.reshape(2, 5, -1)
    change = np.abs(pixels[:, 1:] - pixels[:, :-1]).mean(1)
    expected = np.concatenate([pixels.mean(1), pixels.std(1), change], axis=1)
    np.testing.assert_allclose(network.pool(features).numpy(), expected, rtol=1e-12, atol=1e-12)


def test_pixels_in_time_order_are_those_of_the_quarters():
    view = torch.rand(2, 3, 8, 24, 32, generator=torch.manual_seed(0), dtype=torch.float64)
    network = GreyPixels("concat")
    found = network.pool(network(view)).unflatten(1, (4, 768))
    assert network.out_channels == 4 * 768
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
    grey = torch.einsum("ncthw,c->nthw", view, weights).flatten(2)
    torch.testing.assert_close(found, grey.unflatten(1, (4, 2)).mean(2))
    backwards = network.pool(network(view.flip(2))).unflatten(1, (4, 768))
    torch.testing.assert_close(backwards, found.flip(1))


def test_a_single_frame_does_not_move():
    found = GreyPixels()(torch.rand(1, 3, 1, 24, 32)).flatten()
    assert (found[768:] == 0).all() and (found[:768] > 0).all()


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match="expected a view"):
        GreyPixels()(torch.rand(3, 24, 32))
