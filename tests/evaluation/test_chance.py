"""Chance levels against simulated guessing, and what stands next to the numbers of a result."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.evaluation_fakes import ColourVideos, data, loader, runner_of_fakes

from sce_video.evaluation import (
    KNN,
    LinearProbe,
    RankMe,
    Retrieval,
    Rows,
    compute_metrics,
    extract_features,
)
from sce_video.evaluation.chance import MAJORITY, chance_levels
from sce_video.evaluation.metrics.base import format_metrics

NAMES = ("knn_top1", "knn_top5", "linear_mean_class", "retrieval_r1", "retrieval_plain_r10")


def noise(labels, seed=0, groups=None):
    labels = torch.as_tensor(labels)
    values = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(seed))
    return Rows(values, labels, torch.arange(len(labels)), [""] * len(labels), groups=groups)


def test_levels_are_those_of_random_draws_from_the_gallery():
    random = np.random.default_rng(0)
    queries = noise(random.choice(3, size=200, p=[0.6, 0.3, 0.1]))
    gallery = noise(random.choice(3, size=60, p=[0.5, 0.4, 0.1]), 1)
    found = chance_levels([*NAMES, "feature_std", "rankme"], queries, gallery)
    assert set(found) == {*NAMES, MAJORITY}
    assert found["knn_top1"] == found["linear_mean_class"] == pytest.approx(1 / 3)
    assert found["knn_top5"] == 1
    for name, k in (("retrieval_r1", 1), ("retrieval_plain_r10", 10)):
        drawn = random.permuted(np.tile(gallery.labels.numpy(), (20_000, 1)), axis=1)[:, :k]
        hits = [(drawn == label).any(axis=1).mean() for label in range(3)]
        expected = np.mean([hits[label] for label in queries.labels.tolist()])
        assert found[name] == pytest.approx(expected, abs=0.02)
    most = gallery.labels.bincount().argmax()
    assert found[MAJORITY] == pytest.approx(float((queries.labels == most).double().mean()))


def test_levels_of_folds_are_those_of_the_other_folds():
    labels, folds = torch.tensor([0, 0, 1, 0, 1, 1]), torch.tensor([5, 5, 5, 9, 9, 9])
    rows = replace(noise(labels, groups=torch.arange(6)), folds=folds)
    found = chance_levels(["retrieval_r1"], rows, None)
    # Fold 5 sees one 0 and two 1s, fold 9 two 0s and one 1.
    own = [1 / 3, 1 / 3, 2 / 3, 2 / 3, 1 / 3, 1 / 3]
    assert found["retrieval_r1"] == pytest.approx(np.mean(own))
    assert found[MAJORITY] == pytest.approx(2 / 6)


def test_metrics_of_noise_are_at_these_levels():
    rows = noise(np.arange(600) % 4, groups=torch.arange(600) // 60)
    metrics = compute_metrics([KNN(), Retrieval(ks=(1, 5)), LinearProbe(l2_grid=(1.0,))], rows)
    for name, level in chance_levels(metrics, rows, None).items():
        if name != MAJORITY:
            assert metrics[name] == pytest.approx(level, abs=0.05), name


def test_a_result_stands_next_to_chance_and_to_random_weights_of_the_same_pass(tmp_path):
    run = runner_of_fakes(
        tmp_path,
        test_dataloader=data(18),
        test_cfg={"type": "MultiViewTestLoop", "gallery_dataloader": data(21)},
        test_evaluator=[
            {"type": "KNN", "k": 3},
            {"type": "Retrieval", "ks": [1]},
            {"type": "RankMe"},
        ],
    )
    run.test_loop.compare_with_random()
    metrics = run.test()
    other = run.test_loop.random
    parts = [extract_features(other, loader(ColourVideos(n)), clips=True) for n in (18, 21)]
    expected = compute_metrics([KNN(k=3), Retrieval(ks=[1]), RankMe()], *parts)
    assert expected != pytest.approx(metrics)
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["metrics"] == pytest.approx(metrics)
    assert written["random_weights"] == pytest.approx(expected)
    assert written["chance"]["knn_top1"] == pytest.approx(1 / 3)
    baselines = {"chance": written["chance"], "random weights": written["random_weights"]}
    shown = format_metrics(metrics, written["protocol"], None, baselines)
    assert "(chance 33.33 %, random weights " in shown
