"""Nearest neighbours, kNN scores and retrieval against sorts and loops over all pairs."""

import math

import numpy as np
import pytest
import torch

from sce_video.evaluation import Rows, knn_scores, nearest_neighbours, rank_gallery
from sce_video.evaluation.functional.neighbours import ROW_BLOCK, check_features, feature_mean


def brute_force(queries, gallery, k):
    q, b = queries.double().numpy(), gallery.double().numpy()
    q = q / np.linalg.norm(q, axis=1, keepdims=True)
    b = b / np.linalg.norm(b, axis=1, keepdims=True)
    similar = q @ b.T
    order = np.argsort(-similar, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(similar, order, axis=1), order


@pytest.mark.parametrize(("block", "gallery_block"), [(1024, 65536), (4, 7), (1, 1)])
def test_block_sizes_do_not_change_the_result(block, gallery_block):
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(11, 6, generator=generator)
    gallery = torch.randn(50, 6, generator=generator)
    values, slots = nearest_neighbours(
        queries, gallery, 9, block=block, gallery_block=gallery_block
    )
    expected, order = brute_force(queries, gallery, 9)
    np.testing.assert_array_equal(slots.numpy(), order)
    np.testing.assert_allclose(values.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("gallery_block", [65536, 5, 2])
def test_ties_go_to_the_lower_index(gallery_block):
    # The gallery holds each of three orthogonal directions many times: exact ties everywhere.
    gallery = torch.eye(4)[torch.tensor([2, 0, 1, 0, 0, 2, 0, 1, 0, 0])]
    _, slots = nearest_neighbours(torch.eye(4)[:3], gallery, 4, gallery_block=gallery_block)
    assert slots.tolist() == [[1, 3, 4, 6], [2, 7, 0, 1], [0, 5, 1, 2]]


def test_invalid_input_raises():
    good = torch.ones(3, 4)
    with pytest.raises(ValueError, match="queries have 4 dimensions, but the gallery has 5"):
        nearest_neighbours(good, torch.ones(3, 5), 1)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        nearest_neighbours(good, good, 0)
    with pytest.raises(ValueError, match="need as many groups, got 3 and 2"):
        nearest_neighbours(good, good, 1, groups=(torch.zeros(3), torch.zeros(2)))
    bad = good.clone()
    bad[2, 1] = float("nan")
    with pytest.raises(ValueError, match=r"1 of 3 rows contain NaN.*row 2"):
        check_features(bad, "gallery")
    with pytest.raises(ValueError, match="N, C >= 1"):
        check_features(torch.ones(0, 4), "gallery")


def test_the_gallery_is_not_copied():
    """Memory allocated by a search in a gallery of 16 MB, in blocks of 1 MB."""
    gallery = torch.randn(65536, 64, generator=torch.Generator().manual_seed(10))
    queries = gallery[:16].clone()
    sizes = []

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            results = result if isinstance(result, tuple | list) else (result,)
            for tensor in results:
                if isinstance(tensor, torch.Tensor) and tensor._base is None:
                    sizes.append(tensor.nbytes)
            return result

    with Largest():
        mean = feature_mean(gallery)
        nearest_neighbours(queries, gallery, 5, means=(mean, mean), block=16, gallery_block=4096)
        check_features(gallery, "gallery")
    # Mean and check take blocks of their own size, the mean in float64.
    assert max(sizes) <= ROW_BLOCK * 64 * 8 == gallery.nbytes // 4


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (20, 0.5), (100, 0.1)])
def test_equals_a_loop(k, temperature):
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(7, 4, generator=generator)
    gallery = torch.randn(30, 4, generator=generator)
    labels = torch.randint(0, 4, (30,), generator=generator)
    scores = knn_scores(
        queries, gallery, labels, num_classes=6, k=k, temperature=temperature, block=3
    )
    expected = torch.zeros(7, 6, dtype=torch.float64)
    for row, similar, near in zip(expected, *brute_force(queries, gallery, k), strict=True):
        for cosine, neighbour in zip(similar, near, strict=True):
            row[labels[neighbour]] += math.exp(cosine / temperature)
    expected = torch.where(expected > 0, expected / expected.sum(dim=1, keepdim=True), -math.inf)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-4, atol=1e-6)


def test_invalid_input_of_knn_raises():
    x, y = torch.eye(3), torch.arange(3)
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        knn_scores(x, x, y, temperature=0)
    with pytest.raises(ValueError, match="-1 at row 1"):
        knn_scores(x, x, torch.tensor([0, -1, 2]))
    with pytest.raises(ValueError, match="below 2"):
        knn_scores(x, x, y, num_classes=2)
    same = torch.zeros(3, dtype=torch.long)
    with pytest.raises(ValueError, match="3 queries have no neighbour"):
        knn_scores(x, x, y, groups=(same, same))


# -- retrieval -----------------------------------------------------------------------------------


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


@pytest.mark.parametrize("start", [1000, 20, 0])  # paths apart, overlapping, all shared
def test_centred_and_plain_equal_a_loop_that_excludes_the_query(start):
    queries, gallery = feature_set(0, 30, shift=1.0), feature_set(1, 60, start=start, shift=-1.0)
    outcome = rank_gallery(queries, gallery, ks=(1, 4), block=4, gallery_block=7)
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
        rank_gallery(queries, gallery, ks=(0,))
    wide = Rows(torch.ones(5, 8), *[gallery.labels] * 2, gallery.paths, source="W.npz")
    with pytest.raises(ValueError, match=r"6 in Q\.npz, 8 in W\.npz"):
        rank_gallery(queries, wide)
    bare = Rows(
        gallery.features, gallery.labels * 0 - 1, gallery.indices, gallery.paths, source="N.npz"
    )
    for pair in ((queries, bare), (bare, gallery)):
        with pytest.raises(ValueError, match=r"N\.npz has no 'labels'"):
            rank_gallery(*pair)
    one = queries.subset(torch.tensor([3]))
    with pytest.raises(
        ValueError, match=r"Q\.npz contains no video except the query itself.*v3\.mp4"
    ):
        rank_gallery(one, one)
