"""One step of SCE against the pseudo-code of appendix A."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sce_video.models import SCE
from sce_video.models.losses import sce_loss
from sce_video.registry import MODELS


def build(**changes):
    torch.manual_seed(0)
    options = dict(
        backbone=dict(type="ResNet3dSlowPath", depth=18, base_channels=4),
        projector=dict(
            type="MLP", hidden_channels=16, out_channels=8, num_layers=3, norm_output=True
        ),
        predictor=dict(type="MLP", hidden_channels=16, num_layers=2, norm_output=False),
        queue_size=32,
    )
    model = SCE(**{**options, **changes})
    model.init_weights()
    # The target starts as a copy; change it so that confusing the branches shows.
    for p in model.target.parameters():
        p.mul_(1.1).add_(0.01)
    return model


def views(count=2, n=6, size=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(n, 3, 2, size, size, generator=generator) for _ in range(count)]


def pseudo_code(model, x1, x2, symmetric=True):
    """Appendix A with a queue: online branch with gradient, target without."""
    pool = lambda x: x.mean((2, 3, 4))  # noqa: E731

    def online(x):
        return F.normalize(model.predictor(model.projector(pool(model.backbone(x)))), dim=1)

    def target(x):
        with torch.no_grad():
            return F.normalize(model.target.projector(pool(model.target.backbone(x))), dim=1)

    def loss(z1, z2):
        n, k = len(z1), len(model.queue.keys)
        s2 = torch.softmax(z2 @ model.queue.keys.T / model.tau_m, dim=1)
        one_hot = torch.cat([torch.ones(n, 1), torch.zeros(n, k)], dim=1)
        w2 = model.lambda_ * one_hot + (1 - model.lambda_) * F.pad(s2, (1, 0))
        sim1 = torch.cat([(z1 * z2).sum(1, keepdim=True), z1 @ model.queue.keys.T], dim=1)
        return F.cross_entropy(sim1 / model.tau, w2)

    if not symmetric:
        return loss(online(x1), target(x2))
    return (loss(online(x1), target(x2)) + loss(online(x2), target(x1))) / 2


@pytest.mark.parametrize("symmetric", [True, False])
def test_loss_and_gradients_equal_the_pseudo_code(symmetric):
    """Not symmetric: the first view (strong) is the query, the last (weak) the key."""
    x1, x2 = views()
    model, reference = build(symmetric=symmetric), build()
    out = model([x1, x2], mode="loss")
    expected = pseudo_code(reference, x1, x2, symmetric)
    assert out["loss"].item() == pytest.approx(expected.item(), abs=1e-5)
    out["loss"].backward()
    expected.backward()
    for (name, p), (_, q) in zip(
        model.named_parameters(), reference.named_parameters(), strict=True
    ):
        if name.startswith("target."):
            assert p.grad is None
        else:
            assert p.grad is not None, name
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize(("count", "num_local"), [(3, 0), (2, 2), (4, 1)])
def test_many_views_average_the_ordered_pairs(count, num_local):
    """Mean over the G*(V-1) pairs of V views; only the G global ones reach target and queue."""
    x = views(count) + views(num_local, size=16, seed=1)
    model, reference = build(), build()
    out = model(x, mode="loss")
    queries = [
        F.normalize(reference.predictor(reference.projector(h)), dim=1)
        for h in reference(x, mode="tensor")
    ]
    with torch.no_grad():
        target = reference.target
        keys = [
            F.normalize(target.projector(target.backbone(v).mean((2, 3, 4))), dim=1)
            for v in x[:count]
        ]
    losses = [
        sce_loss(queries[j], keys[i], reference.queue.keys)
        for i in range(count)
        for j in range(count + num_local)
        if j != i
    ]
    assert len(losses) == count * (count + num_local - 1)
    assert out["loss"].item() == pytest.approx(torch.stack(losses).mean().item(), abs=1e-5)
    model.after_optimizer_step()
    assert int(model.queue.pointer) == (6 * count) % 32


def test_what_is_logged_obeys_proposition_1_and_does_not_enter_the_loss():
    model = build(lambda_=0.3)
    out = model(views(), mode="loss")
    parts = 0.3 * out["infonce"] + 0.7 * (out["ressl"] + out["ceil"])
    assert out["loss"].item() == pytest.approx(parts.item(), abs=1e-5)
    total, logged = model.parse_losses(out)
    assert total.item() == out["loss"].item()
    assert {
        "loss",
        "infonce",
        "ressl",
        "ceil",
        "target_entropy",
        "positive_similarity",
        "h_std",
        "h_rank",
        "z_std",
    } == set(logged)
    assert all(not out[name].requires_grad for name in out if name != "loss")


def test_free_coefficients_weight_the_logged_parts():
    model = build(lambda_=(0.5, 0.75, 0.25))
    out = model(views(), mode="loss")
    parts = 0.5 * out["infonce"] + 0.75 * out["ressl"] + 0.25 * out["ceil"]
    assert out["loss"].item() == pytest.approx(parts.item(), abs=1e-5)
    assert all(not out[name].requires_grad for name in out if name != "loss")
    model.eta = 0.0  # plain numbers, for schedules
    lower = model(views(), mode="loss")["loss"]
    assert out["loss"].item() - lower.item() == pytest.approx(0.25 * out["ceil"].item(), abs=1e-2)


def test_free_coefficients_have_a_chance_level_of_their_own():
    model = build(lambda_=(0.0, 1.0, 0.0), tau=1e6)
    loss = model(views(), mode="loss")["loss"]
    assert loss.item() == pytest.approx(model.chance_level(), abs=1e-4)
    assert model.chance_level() < build().chance_level()
    even = build(lambda_=(0.3, 0.7, 0.7))
    assert even.chance_level() == pytest.approx(build().chance_level())


def test_odd_coefficients_and_queues_are_warned_of():
    def warnings(batch=16, **options):
        return build(**options).check_training(1000, batch, 2)

    assert warnings() == warnings(lambda_=(0.5, 0.5, 0.0)) == []
    assert warnings(lambda_=0.0, tau_m=0.2) == []  # Ceil keeps it from collapsing
    (warning,) = warnings(lambda_=(0.5, 1.0, 0.5))
    assert "add up to 1.5, not 1" in warning
    (warning,) = warnings(lambda_=(0.0, 1.0, 0.0), tau_m=0.1)
    assert "collapses" in warning
    (warning,) = warnings(batch=12)
    assert "a step makes 24 keys" not in warning and "no multiple of the 12 keys" in warning


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (dict(lambda_=(0.5, 0.5)), r"three \(lambda, mu, eta\) of eq. 10, got \(0.5, 0.5\)"),
        (dict(lambda_=(0.0, 0.0, 1.0)), "nothing that brings query and key together"),
        (dict(lambda_=(0.5, -0.5, 0.5)), "coefficient mu must be .* got -0.5"),
        (dict(lambda_=(0.5, 0.5, 0.0), mask_positive=False), "need mask_positive=True"),
        (dict(lambda_=(0.5, 0.5, 0.0), tau=0), "temperatures must be above 0"),
    ],
)
def test_wrong_coefficients_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        build(**options)


def test_errors():
    with pytest.raises(ValueError, match="two views, got 1"):
        build()(views(1), mode="loss")
    with pytest.raises(ValueError, match="predict"):
        build()(views(), mode="predict")
    with pytest.raises(ValueError, match=r"\[2\] must be below the number of views, 2"):
        build(target_views=(2,))(views(), mode="loss")
    with pytest.raises(TypeError, match="lamda_"):
        MODELS.build(dict(type="SCE", backbone={}, projector={}, lamda_=0.1))
