"""Recall against a numpy sort of all pairs, with and without centring."""

import numpy as np
import pytest
import torch

from sce_video.evaluation import Rows, retrieve
from sce_video.evaluation.functional.neighbours import feature_mean, retrieval_hits


def brute_force(queries, gallery, query_labels, gallery_labels, k, centred):
    q, b = queries.double().numpy(), gallery.double().numpy()
    if centred:
        q, b = q - q.mean(0), b - b.mean(0)
    hits = 0
    for row, label in zip(q, query_labels.numpy(), strict=True):
        similar = b @ row / np.linalg.norm(b, axis=1) / np.linalg.norm(row)
        order = np.argsort(-similar, kind="stable")[:k]
        hits += int(np.any(gallery_labels.numpy()[order] == label))
    return hits / len(q)


@pytest.mark.parametrize("centred", [True, False])
def test_equals_brute_force(centred):
    generator = torch.Generator().manual_seed(0)
    # Far from the origin, queries and gallery with different means: centring matters.
    queries = torch.randn(40, 8, generator=generator) + 2.0
    gallery = torch.randn(90, 8, generator=generator) - 1.0
    query_labels = torch.randint(0, 12, (40,), generator=generator)
    gallery_labels = torch.randint(0, 12, (90,), generator=generator)
    hits = retrieval_hits(
        queries, gallery, query_labels, gallery_labels, ks=(10, 1, 5), centred=centred, block=7
    )
    recall = {k: float(hits[:, i].double().mean()) for i, k in enumerate((10, 1, 5))}
    expected = {
        k: brute_force(queries, gallery, query_labels, gallery_labels, k, centred)
        for k in (10, 1, 5)
    }
    assert recall == pytest.approx(expected)
    assert 0 < recall[1] < recall[5] < recall[10] <= 1


def test_centring_removes_a_common_offset():
    # Gallery around (10, 0): class 0 above, class 1 below. Queries around (0, 10): class 0 above.
    gallery = torch.tensor([[10.0, 1.0], [10.0, -1.0]])
    queries = torch.tensor([[0.0, 11.0], [0.0, 9.0]])
    labels = torch.tensor([0, 1])
    assert retrieval_hits(queries, gallery, labels, labels, ks=(1,)).all()
    # Plain, both queries point up: the upper row of the gallery is nearest to both.
    plain = retrieval_hits(queries, gallery, labels, labels, ks=(1,), centred=False)
    assert plain[:, 0].tolist() == [True, False]


def test_the_mean_is_exact_far_from_zero():
    features = torch.full((1000, 2), 1000.0) + torch.randn(1000, 2) * 0.01
    centred = features - feature_mean(features).to(features.dtype)
    assert centred.double().mean(dim=0).abs().max() < 1e-4


def test_invalid_input_raises():
    x, y = torch.eye(3), torch.arange(3)
    with pytest.raises(ValueError, match=r"ranks of 1 or more, got \(0, 1\)"):
        retrieval_hits(x, x, y, y, ks=(0, 1))
    with pytest.raises(ValueError, match="query_labels"):
        retrieval_hits(x, x, y - 1, y)
    with pytest.raises(ValueError, match="gallery_labels must be 3 integers"):
        retrieval_hits(x, x, y, y[:2])


def feature_set(seed, count, classes=7, start=0, shift=0.0, source=""):
    generator = torch.Generator().manual_seed(seed)
    return Rows(
        torch.randn(count, 6, generator=generator) + shift,
        torch.randint(0, classes, (count,), generator=generator),
        torch.arange(count),
        [f"v{i}.mp4" for i in range(start, start + count)],
        source=source,
    )


def hits_of_a_loop(queries, gallery, k, centred):
    """Hits per query, without gallery videos of the query's path."""
    q, b = queries.features.double().numpy(), gallery.features.double().numpy()
    if centred:
        q, b = q - q.mean(0), b - b.mean(0)
    hits = []
    for row, label, path in zip(q, queries.labels.tolist(), queries.paths, strict=True):
        near = []
        for i, other in enumerate(b):
            if gallery.paths[i] != path:
                cosine = row @ other / np.linalg.norm(row) / np.linalg.norm(other)
                near.append((-cosine, i))
        hits.append(label in [int(gallery.labels[i]) for _, i in sorted(near)[:k]])
    return hits


@pytest.mark.parametrize("blocks", [{}, {"block": 4, "gallery_block": 7}, {"gallery_block": 1}])
@pytest.mark.parametrize("start", [1000, 20, 0])  # paths apart, overlapping, all shared
def test_centred_and_plain_equal_a_loop_that_excludes_the_query(start, blocks):
    queries, gallery = feature_set(0, 30, shift=1.0), feature_set(1, 60, start=start, shift=-1.0)
    outcome = retrieve(queries, gallery, ks=(1, 4), **blocks)
    assert outcome.shared == {1000: 0, 20: 10, 0: 30}[start]
    for name, centred in (("centred", True), ("plain", False)):
        expected = {k: np.mean(hits_of_a_loop(queries, gallery, k, centred)) for k in (1, 4)}
        assert getattr(outcome, name) == pytest.approx(expected)
        ranking = outcome.rankings[name]
        assert ranking.indices.shape == ranking.similarities.shape == (30, 4)
        for i, row in enumerate(ranking.indices.tolist()):
            assert queries.paths[i] not in [gallery.paths[j] for j in row]
    assert outcome.centred != outcome.plain


def test_invalid_sets_and_options_raise():
    queries, gallery = feature_set(0, 5, source="Q.npz"), feature_set(1, 5, 9, 50, source="B.npz")
    with pytest.raises(ValueError, match=r"ranks of 1 or more, got \(0,\)"):
        retrieve(queries, gallery, ks=(0,))
    wide = Rows(torch.ones(5, 8), *[gallery.labels] * 2, gallery.paths, source="W.npz")
    with pytest.raises(ValueError, match=r"6 in Q\.npz, 8 in W\.npz"):
        retrieve(queries, wide)
    bare = Rows(
        gallery.features, gallery.labels * 0 - 1, gallery.indices, gallery.paths, source="N.npz"
    )
    for pair in ((queries, bare), (bare, gallery)):
        with pytest.raises(ValueError, match=r"N\.npz has no 'labels'"):
            retrieve(*pair)
    one = queries.subset(torch.tensor([3]))
    with pytest.raises(ValueError, match=r"Q\.npz holds only the query itself.*v3\.mp4"):
        retrieve(one, one)
