"""Few-shot classification against loops in numpy and scikit-learn's solver."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from sce_video.evaluation.functional.few_shot import draw_shots, few_shot_hits

CLASSES, SIZE, SHOTS, L2 = 4, 6, (1, 3, 5), 0.02


@pytest.fixture(scope="module")
def features():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, SIZE))

    def part(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = np.repeat(np.arange(CLASSES), count)
        x = centres[labels] + 1.2 * rng.normal(size=(len(labels), SIZE))
        return torch.from_numpy(x).float(), torch.from_numpy(labels) * 2  # labels 0, 2, 4, 6

    return (*part(30), *part(9))


@pytest.fixture(scope="module")
def hits(features):
    return few_shot_hits(*features, shots=SHOTS, draws=3, l2=L2, seed=5)


def test_each_draw_is_nested_and_of_its_seed():
    labels = torch.tensor([0] * 7 + [1] * 5 + [2] * 9)[torch.randperm(21)]
    first, again = draw_shots(labels, (2, 4), 1), draw_shots(labels, (2, 4), 1)
    for rows, same, shots in zip(first, again, (2, 4), strict=True):
        assert torch.equal(rows, same) and rows.tolist() == sorted(set(rows.tolist()))
        assert labels[rows].bincount().tolist() == [shots] * 3
    assert set(first[0].tolist()) < set(first[1].tolist())
    assert not torch.equal(first[1], draw_shots(labels, (2, 4), 2)[1])


def test_class_means_are_those_of_a_loop(features, hits):
    queries, wanted, gallery, labels = (t.double().numpy() for t in features)
    for draw in range(3):
        drawn = draw_shots(features[3] // 2, SHOTS, 5 + draw)
        for column, rows in enumerate(drawn):
            for n, query in enumerate(queries):
                best = {}
                for label in np.unique(labels):
                    unit = [
                        gallery[i] / np.linalg.norm(gallery[i]) for i in rows if labels[i] == label
                    ]
                    mean = np.mean(unit, axis=0)
                    best[label] = query @ mean / np.linalg.norm(mean)
                assert bool(hits[n, draw, column, 1]) == (max(best, key=best.get) == wanted[n])


def test_the_linear_classifier_is_that_of_scikit_learn(features, hits):
    queries, wanted, gallery, labels = (t.double().numpy() for t in features)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
    for draw in range(3):
        for column, rows in enumerate(draw_shots(features[3] // 2, SHOTS, 5 + draw)):
            x, y = gallery[rows], labels[rows]
            mean, scale = x.mean(axis=0), x.std(axis=0)
            solver = LogisticRegression(C=1 / (L2 * len(x)), tol=1e-8, max_iter=2000)
            solver.fit((x - mean) / scale, y)
            right = solver.predict((queries - mean) / scale) == wanted
            assert (hits[:, draw, column, 0].numpy() == right).mean() > 0.99
    assert hits[..., 0].double().mean(dim=(0, 1)).diff().gt(0).all()  # more labels, better


def test_what_cannot_be_drawn_is_said(features):
    with pytest.raises(
        ValueError, match=r"10 shots .* class 0 has only 9 labelled samples\. Give fewer"
    ):
        few_shot_hits(*features, shots=(10,))
    with pytest.raises(ValueError, match="two classes or more"):
        few_shot_hits(*features[:3], torch.zeros_like(features[3]), shots=SHOTS)
