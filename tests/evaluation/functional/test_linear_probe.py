"""The probe against scipy with an independent loss, and its independence of test features."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from sce_video.evaluation import LinearProbe, Rows, fit_linear_probe, top_k_accuracy
from sce_video.evaluation.functional import linear_probe
from sce_video.evaluation.functional.folds import divide
from sce_video.evaluation.functional.linear_probe import (
    Samples,
    fit_logistic,
    fit_path,
    held_out,
)
from sce_video.evaluation.metrics import feature_metrics as metrics_module


def clusters(count, classes=4, size=6, spread=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, size, generator=torch.Generator().manual_seed(99)) * 2
    labels = torch.arange(count) % classes
    noise = torch.randn(count, size, generator=generator)
    return centres[labels] + spread * noise, labels


def scipy_fit(x, y, classes, l2):
    """One-hot numpy loss with its own gradient, minimised by scipy."""
    n, size = x.shape
    onehot = np.eye(classes)[y]

    def loss(flat):
        w, b = flat[: size * classes].reshape(size, classes), flat[size * classes :]
        logits = x @ w + b
        logits = logits - logits.max(1, keepdims=True)
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        value = -np.log(p[np.arange(n), y]).mean() + l2 / 2 * (w**2).sum()
        gw = x.T @ (p - onehot) / n + l2 * w
        return value, np.concatenate([gw.ravel(), (p - onehot).mean(0)])

    zeros = np.zeros((size + 1) * classes)
    found = minimize(loss, zeros, jac=True, method="BFGS", options={"gtol": 1e-9})
    return found.x[: size * classes].reshape(size, classes), found.x[size * classes :]


@pytest.mark.parametrize("l2", [1e-3, 1.0])
def test_equals_scipy(l2):
    x, y = clusters(80, spread=3.0)
    weight, bias = fit_logistic(x.double(), y, 4, l2)
    expected, expected_bias = scipy_fit(x.double().numpy(), y.numpy(), 4, l2)
    np.testing.assert_allclose(weight.numpy(), expected, atol=2e-4)
    np.testing.assert_allclose(bias.numpy(), expected_bias, atol=2e-4)


def plain_fit(x, y, classes, l2, start):
    """L-BFGS on the weights themselves, and how often it evaluates the objective."""
    weight, bias = (tensor.clone().requires_grad_() for tensor in start)
    options = {"tolerance_grad": 1e-6, "tolerance_change": 1e-10, "max_iter": 1000}
    optimizer = torch.optim.LBFGS(
        [weight, bias], history_size=20, line_search_fn="strong_wolfe", **options
    )
    count = 0

    def closure():
        nonlocal count
        count += 1
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(x @ weight + bias, y)
        loss = loss + 0.5 * l2 * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weight.detach(), bias.detach(), count


def activations(count, size, classes, seed=0):
    """Standardised, correlated features as those of a pooled network, and labels."""
    random = torch.Generator().manual_seed(seed)
    scales = torch.arange(1, size + 1, dtype=torch.float64) ** -1.5
    mixing = torch.linalg.qr(torch.randn(size, size, generator=random, dtype=torch.float64))[0]
    centres = torch.randn(classes, size, generator=random, dtype=torch.float64)
    y = torch.arange(count) % classes
    noise = torch.randn(count, size, generator=random, dtype=torch.float64)
    x = torch.relu(((noise + 0.3 * centres[y]) * scales) @ mixing + 0.5)
    return (x - x.mean(0)) / x.std(0, correction=0), y


@pytest.mark.parametrize(("count", "size"), [(300, 40), (30, 40)])
def test_the_fits_of_a_path_equal_single_plain_fits_in_a_third_of_the_work(
    count, size, monkeypatch
):
    """The objective is equal to 1e-7, logits to 0.02, and the predictions are the same."""
    x, y = activations(count, size, 5)
    evaluate, calls = linear_probe._Scaled.evaluate, []
    monkeypatch.setattr(
        linear_probe._Scaled, "evaluate", lambda *a: calls.append(1) or evaluate(*a)
    )
    work, decays = 0, (10.0, 1.0, 0.1, 1e-2, 1e-3, 1e-4)
    start = (x.new_zeros(size, 5), x.new_zeros(5))
    for l2, (weight, bias) in zip(decays, fit_path(Samples(x, y), 5, decays), strict=True):
        *start, evaluations = plain_fit(x, y, 5, l2, start)
        work += evaluations
        found, expected = x @ weight + bias, x @ start[0] + start[1]
        objectives = [
            float(torch.nn.functional.cross_entropy(logits, y) + l2 / 2 * w.square().sum())
            for logits, w in ((found, weight), (expected, start[0]))
        ]
        assert objectives[0] <= objectives[1] + 1e-7 and abs(np.subtract(*objectives)) < 1e-6
        assert (found - expected).abs().max() < 0.02
        assert torch.equal(found.argmax(1), expected.argmax(1))
    if count > size:
        assert len(calls) < work / 3


def test_many_groups_take_ten_folds_of_fits():
    x, y = activations(120, 8, 3)
    groups = torch.arange(120) // 3
    rows = Rows(x.float(), y, torch.arange(120), [""] * 120, groups=groups)
    rows = dataclasses.replace(rows, folds=divide(y, groups).numbers)
    metric, seen = LinearProbe(l2_grid=(0.01, 1)), []
    fit = metrics_module.fit_linear_probe

    def counted(features, labels, **options):
        assert len(options["groups"].unique()) == 36  # validation splits are of groups, not folds
        return seen.append(len(features)) or fit(features, labels, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics_module, "fit_linear_probe", counted)
        metric.compute(rows)
    assert seen == [108] * 10


def test_the_probe_is_the_fit_on_standardised_features():
    x, y = clusters(80, spread=3.0)
    x = x * torch.tensor([1.0, 10.0, 0.1, 1.0, 1.0, 1.0]) + 5
    probe = fit_linear_probe(x, y, l2_grid=(0.03,))
    z = x.double().numpy()
    z = (z - z.mean(0)) / z.std(0)
    weight, bias = scipy_fit(z, y.numpy(), 4, 0.03)
    np.testing.assert_allclose(probe.scores(x).numpy(), z @ weight + bias, atol=1e-3)
    assert probe.l2 == 0.03
    assert probe.validation == {}


def validated(x, y, held, grid):
    """Accuracy on the samples of a mask by weight decay, fitted on the others."""
    z = (x.double() - x.double().mean(0)) / x.double().std(0, correction=0)
    fits = {l2: fit_logistic(z[~held], y[~held], 4, l2) for l2 in grid}
    hits = {l2: (z[held] @ w + b).argmax(1) == y[held] for l2, (w, b) in fits.items()}
    return {l2: float(one.double().mean()) for l2, one in hits.items()}


def test_the_weight_decay_is_the_best_on_the_validation_split():
    x, y = clusters(120, size=40, spread=6.0)
    grid = (1e-4, 1e-2, 1.0)
    probe = fit_linear_probe(x, y, l2_grid=grid, val_fraction=0.25, seed=3)
    held, found = held_out(y, None, 0.25, 3), probe.validation
    assert held.sum() == 4 * 8 and found == pytest.approx(validated(x, y, held, grid))
    assert len(set(found.values())) > 1 and found[probe.l2] == max(found.values())


def test_with_groups_the_weight_decay_is_the_best_for_groups_not_seen():
    """Features tell the persons apart better than the classes, as those of a few people do."""
    generator = torch.Generator().manual_seed(0)
    y, persons = torch.arange(120) % 4, torch.arange(120) // 12
    x = torch.randn(120, 40, generator=generator) + 0.5 * torch.randn(4, 40, generator=generator)[y]
    # Every person has a way of their own to do each action.
    x = x + 3 * torch.randn(10, 4, 40, generator=generator)[persons, y]
    grid = (1e-4, 1e-2, 10.0)
    probe = fit_linear_probe(x, y, groups=persons, l2_grid=grid, val_fraction=0.3, seed=1)
    held = held_out(y, persons, 0.3, 1)
    assert len(persons[held].unique()) == 3
    assert not set(persons[held].tolist()) & set(persons[~held].tolist())
    assert probe.validation == pytest.approx(validated(x, y, held, grid))
    assert max(fit_linear_probe(x, y, l2_grid=grid).validation.values()) > 0.9
    assert max(probe.validation.values()) < 0.7  # the split by samples promised what no one gets
    rows = Rows(x, y, torch.arange(120), [f"{p}" for p in persons], groups=persons)
    alone = rows.subset(persons != 0)
    probe = fit_linear_probe(alone.values, alone.labels, groups=alone.groups, l2_grid=grid[1:])
    hits = probe.scores(x[persons == 0], 4).argmax(1) == y[persons == 0]
    metric = LinearProbe(l2_grid=grid[1:])
    metric.compute(rows)
    assert torch.equal(metric.outcomes["linear_top1"][persons == 0].bool(), hits)


def test_a_group_with_all_samples_of_a_class_stays_in_training():
    labels, groups = torch.tensor([0, 1, 0, 1, 2]), torch.tensor([0, 0, 1, 1, 2])
    masks = [held_out(labels, groups, 0.9, seed) for seed in range(20)]
    assert {tuple(mask.nonzero().flatten().tolist()) for mask in masks} == {(0, 1), (2, 3)}
    assert not held_out(labels[:2], groups[:2], 0.2, 0).any()
    probe = fit_linear_probe(torch.eye(2), labels[:2], groups=groups[:2], l2_grid=(0.1, 1, 2))
    assert (probe.l2, probe.validation) == (1, {})


def test_constant_and_collapsed_features():
    x, y = clusters(40, spread=0.1)
    x = torch.cat([x, torch.full((40, 1), 3.0)], dim=1)
    assert top_k_accuracy(fit_linear_probe(x, y).scores(x), y, (1,))[1] == 1.0
    # Only rounding noise is left: it must not be blown up into information.
    noise = torch.ones(40, 4) + 1e-7 * torch.randn(40, 4, generator=torch.Generator())
    scores = fit_linear_probe(noise, y).scores(noise)
    assert (scores.max(dim=0).values - scores.min(dim=0).values).max() < 1e-3


def test_invalid_input_raises():
    x, y = clusters(8)
    with pytest.raises(ValueError, match=r"all labels are \[2\]"):
        fit_linear_probe(x, torch.full((8,), 2))
    with pytest.raises(ValueError, match="labels must be 8 integers"):
        fit_linear_probe(x, y[:5])
    with pytest.raises(ValueError, match="must be positive"):
        fit_linear_probe(x, y, l2_grid=(0.0, 1.0))
    with pytest.raises(ValueError, match="between 0 and 1, got 1"):
        fit_linear_probe(x, y, val_fraction=1.0)
    with pytest.raises(ValueError, match="features of 6 dimensions, got 3"):
        fit_linear_probe(x, y, l2_grid=(1.0,)).scores(torch.eye(3))


def test_a_probe_is_one_linear_layer():
    """On features that are not standardised, and with a class that had no sample."""
    x, y = clusters(60, spread=2.0)
    x = x.double() * torch.tensor([1, 10, 0.1, 1, 100, 1]) + 3
    probe = fit_linear_probe(x, y * 2, l2_grid=(0.1,))  # classes 0, 2, 4 and 6
    weight, bias = probe.as_layer(8)
    layer = torch.nn.functional.linear(x, weight, bias)
    known = [0, 2, 4, 6]
    torch.testing.assert_close(layer[:, known], probe.scores(x)[:, known], rtol=0, atol=1e-9)
    others = layer[:, [1, 3, 5, 7]].half()  # finite in half precision, and never the answer
    assert others.isfinite().all() and (others < layer[:, known].amin() - 100).all()
