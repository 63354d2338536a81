"""Cross-validated linear classifiers against single fits, and the time that they take."""

from __future__ import annotations

import pytest
import torch

from sce_video.evaluation.functional.linear_probe import fit_linear_probe
from sce_video.runs import fold_probe
from sce_video.runs.fold_probe import cross_validate, make_folds, percent, time_probes

DECAYS = (1e-3, 1e-2, 1e-1, 1.0)
KINDS = ("a", "b")


def clusters(count, classes=3, clips=2, size=6, seed=0):
    """Features (N, K, C) of two kinds, of which the first has more dimensions than videos."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    features = {}
    for kind, wide in zip(KINDS, (20 * size, size), strict=True):
        means = torch.randn(classes, wide, generator=random, dtype=torch.float64)
        noise = torch.randn(count, clips, wide, generator=random, dtype=torch.float64)
        features[kind] = means[labels][:, None] + (size / 2) * noise
    return features, labels


def test_every_number_equals_single_fits():
    """Hits, the best decay of the other folds and the best one of all, each fitted alone."""
    features, labels = clusters(24, seed=4)
    folds = torch.arange(24) // 3 % 4
    decays = sorted(DECAYS, reverse=True)
    hits = torch.zeros(2, len(decays), 24, dtype=torch.float64)
    losses = hits.clone()
    for row, kind in enumerate(KINDS):
        for column, l2 in enumerate(decays):
            for fold in range(4):
                held = folds == fold
                clips = features[kind][~held].flatten(0, 1)
                probe = fit_linear_probe(clips, labels[~held].repeat_interleave(2), l2_grid=(l2,))
                scores = probe.scores(features[kind][held].flatten(0, 1))
                mean = scores.softmax(1).unflatten(0, (-1, 2)).mean(1)
                hits[row, column, held] = (mean.argmax(1) == labels[held]).double()
                losses[row, column, held] = -mean[torch.arange(len(mean)), labels[held]].log()

    def best(rows, mask):
        keys = {
            (row, column): (
                -hits[row, column, mask].mean().item(),
                losses[row, column, mask].mean(),
            )
            for row in rows
            for column in range(len(decays))
        }
        return min(keys, key=keys.__getitem__)

    found = cross_validate(KINDS, features.__getitem__, labels, folds, DECAYS)
    assert 0.4 < hits.mean() < 1  # neither hopeless nor solved
    assert found.decays == decays and torch.equal(found.correct, hits)
    torch.testing.assert_close(found.losses, losses, rtol=1e-2, atol=1e-3)
    everything = torch.ones(24, dtype=torch.bool)
    kind, decay = best((0, 1), everything)
    assert found.best() == (KINDS[kind], decays[decay])
    for fold in range(4):
        held = folds == fold
        assert torch.equal(found.hits()[held], hits[best((0, 1), ~held)][held])
        for row, kind in enumerate(KINDS):
            assert torch.equal(found.hits([kind])[held], hits[best((row,), ~held)][held])


def test_a_class_without_other_videos_is_wrong():
    features, labels = clusters(12)
    labels[0] = 7
    found = cross_validate(KINDS, features.__getitem__, labels, torch.arange(12) % 3, DECAYS)
    assert (found.correct[..., 0] == 0).all() and found.losses.isfinite().all()


def test_whole_folds_are_tested_until_the_time_is_over(monkeypatch):
    features, labels = clusters(30)
    folds = torch.arange(30) // 3 % 5
    now = [0.0]
    monkeypatch.setattr(fold_probe.time, "monotonic", lambda: now[0])
    fit = fold_probe._probabilities

    def timed_fit(*arguments):
        now[0] += 1.0
        return fit(*arguments)

    monkeypatch.setattr(fold_probe, "_probabilities", timed_fit)

    def tested(stop):
        now[0] = 0.0
        return cross_validate(KINDS, features.__getitem__, labels, folds, DECAYS, stop)

    whole = tested(float("inf"))
    assert whole.tested.tolist() == list(range(30))
    for stop, count in ((0.0, 2), (5.9, 2), (6.0, 3), (9.9, 4), (10.0, 5)):
        found = tested(stop)
        assert found.folds.unique().tolist() == list(range(count)) and now[0] == 2.0 * count
        assert torch.equal(found.tested, torch.nonzero(folds < count).flatten())
        assert torch.equal(found.correct, whole.correct[..., found.tested])


def test_the_estimate_grows_with_videos_folds_and_candidates(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(fold_probe.time, "monotonic", lambda: now[0])

    def fit(train, labels, tested, decays):
        now[0] += train.shape[2] / 100
        assert len(labels.unique()) == 3 and decays[0] == 1.0
        return ()

    monkeypatch.setattr(fold_probe, "_probabilities", fit)
    found = time_probes([100, 1000, 1000], 3, 5, DECAYS)
    assert now[0] == pytest.approx(11.0)  # each size once
    assert found(200) == pytest.approx(5 * 21.0)
    # Twice the videos are twice the work with few dimensions, and at most four times with many.
    assert found(400) == pytest.approx(5 * (2 * 1.0 + 4 * 20.0))
    assert found(4000) == pytest.approx(5 * (20 * 1.0 + 20 * 5 * 20.0))
    assert time_probes([100], 3, 0, DECAYS)(1000) == 0


def test_units_are_never_divided():
    """Copies of a video tell its class only if they are on both sides."""
    random = torch.Generator().manual_seed(0)
    units = torch.arange(30) // 3
    labels = units % 2
    values = torch.randn(10, 1, 30, generator=random, dtype=torch.float64)[units]
    folds = make_folds(labels, units, seed=1)
    assert all(len(folds[units == unit].unique()) == 1 for unit in range(10))
    assert folds.unique().tolist() == [0, 1, 2, 3, 4]
    across = torch.arange(30) % 3

    def accuracy(folds):
        return cross_validate((None,), lambda _: values, labels, folds, DECAYS).hits().mean()

    assert accuracy(across) == 1 and accuracy(folds) < 0.8


def test_too_few_videos_are_not_compared():
    def folds(labels, units=None):
        labels = torch.tensor(labels)
        return make_folds(labels, torch.arange(len(labels)) if units is None else units, 0)

    assert folds([0, 1, 2, 3]) is None  # no class is known to the others
    assert folds([0, 0, 0, 0]) is None
    assert folds([0, 1, 0, 1], torch.zeros(4, dtype=torch.int64)) is None  # one recording
    assert folds([0, 0, 1, 1]) is not None
    assert folds([0, 0, 1, 1, 2]) is not None  # one video is the only one of its class


def test_an_accuracy_has_an_interval_of_units():
    hits = torch.tensor([1.0] * 30 + [0.0] * 30).double()
    ends = {}
    for name, units in (("video", torch.arange(60)), ("ten", torch.arange(60) // 6)):
        text = percent(hits, units)
        assert text.startswith("50.0 % [")
        low, high = text[text.index("[") + 1 : -1].split(", ")
        ends[name] = float(high) - float(low)
    assert ends["ten"] > 1.5 * ends["video"]
