"""Directions are unit vectors, a function of the optimiser step alone."""

from __future__ import annotations

import copy

import pytest
import torch

from sce_video.models.algorithms import LeJEPA
from sce_video.models.algorithms.sigreg import RandomDirections
from sce_video.models.losses import sigreg_loss


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


# One step of LeJEPA against its equations, and the collapse that SIGReg prevents.


def build(**changes) -> LeJEPA:
    torch.manual_seed(0)
    options = dict(
        backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=4, zero_init_residual=False),
        projector=dict(
            type="MLP",
            hidden_channels=16,
            out_channels=8,
            num_layers=2,
            norm_output=False,
            bias_output=True,
        ),
        num_directions=32,
    )
    model = LeJEPA(**{**options, **changes})
    model.init_weights()
    return model


def make_views(sizes=(32, 32), n=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(n, 3, 2, size, size, generator=generator) for size in sizes]


def expected_loss(model, views, global_views, lambda_):
    """The loss of the paper, with loops over views and samples."""
    z = [model.projector(model.backbone(view).mean((2, 3, 4))) for view in views]
    centre = sum(z[i] for i in global_views) / len(global_views)
    prediction = 0.0
    for view in z:
        for sample, goal in zip(view, centre, strict=True):
            prediction = prediction + (sample - goal).square().sum()
    prediction = prediction / (len(z) * z[0].numel())
    sigreg = sum(sigreg_loss(view, model.directions()) for view in z) / len(z)
    return (1 - lambda_) * prediction + lambda_ * sigreg


@pytest.mark.parametrize(
    ("sizes", "options", "global_views"),
    [
        ((32, 32), {}, [0, 1]),
        ((32, 32, 16), {}, [0, 1]),  # a local view
        ((32, 32, 32), dict(global_views=(2,), lambda_=0.3), [2]),
        ((32, 32), dict(lambda_=0.0), [0, 1]),
    ],
)
def test_loss_and_gradients_are_those_of_the_paper(sizes, options, global_views):
    views = make_views(sizes)
    model, reference = build(**options), build(**options)
    out = model(views, mode="loss")
    expected = expected_loss(reference, views, global_views, options.get("lambda_", 0.05))
    assert out["loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    out["loss"].backward()
    expected.backward()
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4, msg=name)


def test_a_skipped_step_keeps_the_directions():
    model = build()
    before = model.directions()
    model(make_views(), mode="loss")
    model.discard_step()
    assert torch.equal(model.directions(), before)
    model.after_optimizer_step()
    assert not torch.equal(model.directions(), before)


def test_errors_of_sigreg():
    with pytest.raises(ValueError, match="at least two views, got 1"):
        build()(make_views((32,)), mode="loss")
    with pytest.raises(ValueError, match="at least two views, got 1"):
        build().check_training(10, 4, 1)
    with pytest.raises(ValueError, match="global_views must be one or more different indices"):
        build(global_views=(1, 1))
    with pytest.raises(ValueError, match=r"global_views \[2\] must be below the number of views"):
        build(global_views=(2,)).check_training(10, 4, 2)
    with pytest.raises(ValueError, match="lambda_ must be from 0 to 1, got 1.5"):
        build(lambda_=1.5)
    with pytest.raises(ValueError, match="at least 1, got 0 and 8"):
        build(num_directions=0)
    assert build().check_training(10, 4, None) == []
