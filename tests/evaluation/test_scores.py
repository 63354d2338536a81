"""Class scores: files, fusion against numpy, accuracies against known values."""

import dataclasses

import numpy as np
import pytest
import torch

from sce_video.evaluation import (
    MeanClassAccuracy,
    Rows,
    TopKAccuracy,
    compute_metrics,
    load_scores,
    save_scores,
    weighted_mean,
)


def softmax(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return (e / e.sum(axis=1, keepdims=True)).astype(np.float32)


def score_set(seed, count=9, classes=6, source="", one_view=True):
    generator = np.random.default_rng(seed)
    values, central = (
        torch.from_numpy(softmax(2 * generator.normal(size=(count, classes)))) for _ in range(2)
    )
    return Rows(
        values=values,
        central=central if one_view else None,
        labels=torch.arange(count) % classes,
        indices=torch.arange(count),
        paths=[f"v{i}.mp4" for i in range(count)],
        source=source,
    )


def shuffled(scores, order):
    return scores.subset(torch.tensor(order))


def test_saved_scores_are_loaded(tmp_path):
    scores = dataclasses.replace(score_set(0), failures=[("bad.mp4", "cannot be decoded")])
    path = tmp_path / "deep" / "s.npz"
    save_scores(path, scores, {"clips": 10})
    loaded, provenance = load_scores(path)
    for name in ("values", "central", "labels", "indices"):
        assert torch.equal(getattr(loaded, name), getattr(scores, name)), name
    assert loaded.paths == scores.paths
    assert loaded.failures == scores.failures
    assert loaded.source == str(path)
    failures = [["bad.mp4", "cannot be decoded"]]
    assert provenance == {"clips": 10, "num_views": 1, "failures": failures}
    with np.load(path, allow_pickle=False) as stored:
        kinds = [stored[name].dtype.kind for name in stored.files]
    assert kinds == ["f", "i", "i", "U", "f", "U"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "is not a file of scores.*no 'scores' in it"),
        ({"scores": np.ones(3)}, r": 'scores' must be a matrix of numbers, got shape \(3,\)"),
        (
            {"labels": np.array([0, 3, 1])},
            r"there are only 3 classes: 1 of 3.*row 1, b \(label 3\)",
        ),
        ({"labels": np.array([0, 1, -2])}, r"labels are out of range.*row 2, c \(label -2\)"),
        ({"scores": np.array([[1], [np.nan], [1]])}, "'scores' contains NaN.*row 1, b"),
        ({"one_view_scores": np.full((3, 3), np.inf)}, "'one_view_scores' contains NaN.*row 0, a"),
        ({"one_view_scores": np.ones((3, 2))}, r"central view with shape \(3, 2\)"),
        ({"scores": np.array([None])}, "is not a file of scores"),
    ],
)
def test_invalid_files_raise_with_their_name(tmp_path, changes, message):
    arrays = {"scores": np.eye(3), "labels": np.arange(3), "paths": np.array(["a", "b", "c"])}
    arrays |= changes
    path = tmp_path / "bad.npz"
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(ValueError, match=rf"bad\.npz.*{message}"):
        load_scores(path)
    with pytest.raises(FileNotFoundError):
        load_scores(tmp_path / "none.npz")


@pytest.mark.parametrize("weights", [None, [3, 0.5, 0]])
def test_fusion_equals_the_weighted_mean_of_videos_matched_by_path(weights):
    sets = [score_set(seed) for seed in range(3)]
    shares = np.array(weights or [1, 1, 1], dtype=float)
    shares /= shares.sum()
    for name in ("values", "central"):
        expected = sum(w * getattr(s, name).numpy() for w, s in zip(shares, sets, strict=True))
        mixed = [
            sets[0],
            shuffled(sets[1], [3, 0, 8, 1, 7, 2, 6, 4, 5]),
            shuffled(sets[2], [8, 7, 6, 5, 4, 3, 2, 1, 0]),
        ]
        fused = weighted_mean(mixed, weights)
        np.testing.assert_allclose(getattr(fused, name).numpy(), expected, atol=1e-6)
        assert getattr(fused, name).dtype == torch.float32
    assert fused.paths == sets[0].paths
    assert torch.equal(fused.labels, sets[0].labels)
    reverse = weighted_mean(mixed[::-1])  # the order of the first of them
    assert reverse.paths == sets[0].paths[::-1]
    assert reverse.indices.tolist() == list(range(9))[::-1]


def test_invalid_sets_raise():
    a, b = score_set(0, source="A.npz"), score_set(1, source="B.npz")
    with pytest.raises(ValueError, match="at least two sets of scores, got 1"):
        weighted_mean([a])
    for weights, message in (
        ([1], "1 weights .* 2 sets"),
        ([0, 0], "not all 0"),
        ([1, -1], "at least 0"),
    ):
        with pytest.raises(ValueError, match=message):
            weighted_mean([a, b], weights)
    with pytest.raises(ValueError, match=r"B\.npz lacks 2 videos of A\.npz, the first is v3\.mp4"):
        weighted_mean([a, shuffled(b, [0, 1, 2, 4, 6, 7, 8])])
    with pytest.raises(ValueError, match=r"A\.npz lacks 1 videos of B\.npz, the first is v8\.mp4"):
        weighted_mean([shuffled(a, range(8)), b])
    with pytest.raises(ValueError, match=r"B\.npz contains v4\.mp4 twice, in rows 4 and 9"):
        weighted_mean([a, shuffled(b, [*range(9), 4])])
    with pytest.raises(ValueError, match=r"B\.npz has 5 classes, A\.npz has 6"):
        weighted_mean([a, score_set(1, classes=5, source="B.npz")])
    other = b.labels.clone()
    other[7] = 0
    with pytest.raises(ValueError, match=r"1 labels differ.*v7\.mp4: 1 in A\.npz, 0 in B\.npz"):
        weighted_mean([a, dataclasses.replace(b, labels=other)])
    logits = dataclasses.replace(b, values=3 * b.scores)
    with pytest.raises(ValueError, match=r"B\.npz: .*probabilities.*9 of 9.*v0\.mp4"):
        weighted_mean([a, logits])
    weighted_mean([a, dataclasses.replace(b, values=1.005 * b.scores)])  # rounded to 16 bits
    negative = b.scores.clone()
    negative[2] = torch.tensor([-0.5, 1.5, 0, 0, 0, 0])
    with pytest.raises(ValueError, match=r"B\.npz: .*probabilities.*1 of 9.*row 2, v2\.mp4"):
        weighted_mean([a, dataclasses.replace(b, values=negative)])


def accuracies(rows):
    return compute_metrics([TopKAccuracy(), MeanClassAccuracy()], rows)


def test_accuracy_needs_labels():
    scores = score_set(0, source="A.npz")
    labels = scores.labels.clone()
    labels[4] = -1
    with pytest.raises(ValueError, match=r"A\.npz.*labels from 0 to 5: 1 of 9.*v4\.mp4"):
        accuracies(dataclasses.replace(scores, labels=labels))
    with pytest.raises(ValueError, match="no videos"):
        accuracies(score_set(0, count=0))
