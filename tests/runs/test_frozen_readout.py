"""Pools of stored features against the network's, and honesty about unseen videos."""

from __future__ import annotations

import torch

from sce_video.evaluation.functional.linear_probe import L2_GRID
from sce_video.models.backbones.frame_pools import pool_frames
from sce_video.options.connect import FRAME_POOLS
from sce_video.runs.fold_probe import cross_validate
from sce_video.runs.frozen_readout import FrozenFeatures, make_folds, percent


def features_of(values, labels, units=None, pools=(None,)):
    """Features of videos that belong to no group."""
    indices = torch.arange(len(labels))
    return FrozenFeatures(values, labels, indices if units is None else units, pools, indices)


def clusters(count, classes=3, clips=2, frames=4, size=6, seed=0):
    """Frames (N, V, T, D) of noisy classes, which differ in their means and in their motion."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    means = torch.randn(classes, size, generator=random, dtype=torch.float64)
    noise = torch.randn(count, clips, frames, size, generator=random, dtype=torch.float64)
    return means[labels][:, None, None] + (1.0 + labels[:, None, None, None]) * noise, labels


def test_pooled_frames_are_those_of_the_network():
    values, labels = clusters(5)
    features = features_of(values, labels, pools=FRAME_POOLS)
    maps = values.flatten(0, 1).transpose(1, 2)[..., None, None].expand(-1, -1, -1, 2, 3)
    for pool in FRAME_POOLS:
        expected = pool_frames(maps, pool, torch.rand(len(maps), 3, 4, 2, 2)).mean((2, 3, 4))
        torch.testing.assert_close(features.pooled(pool).flatten(0, 1), expected)


def test_units_are_never_divided():
    """Copies of a video tell its class only if they are on both sides."""
    random = torch.Generator().manual_seed(0)
    units = torch.arange(30) // 3
    labels = units % 2
    values = torch.randn(10, 1, 1, 30, generator=random, dtype=torch.float64)[units]
    folds = make_folds(labels, units, seed=1)
    assert all(len(folds[units == unit].unique()) == 1 for unit in range(10))
    assert folds.unique().tolist() == [0, 1, 2, 3, 4]
    across = torch.arange(30) % 3

    def accuracy(folds):
        features = features_of(values, labels, units)
        return cross_validate((None,), features.pooled, labels, folds, L2_GRID).hits().mean()

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
    for name, units in (("video", None), ("ten", torch.arange(60) // 6)):
        text = percent(hits, units)
        assert text.startswith("50.0 % [")
        low, high = text[text.index("[") + 1 : -1].split(", ")
        ends[name] = float(high) - float(low)
    assert ends["ten"] > 1.5 * ends["video"]
