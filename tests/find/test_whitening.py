"""Whitened search of windows, against an inverse covariance and loops."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.small_index import HEADER

from sce_video.datasets.clip_sampling import Windows
from sce_video.find import query as search
from sce_video.find.index import read_index
from sce_video.find.query import query_index
from sce_video.find.store import FileRecord, FileStore, fit_whitening


def correlated(count, size=6):
    """Features around (10, 0, ...) that vary by far most along the second axis."""
    rng = np.random.default_rng(0)
    features = rng.normal(0, 0.3, (count, size)) + 10 * np.eye(size)[0]
    features[:, 1] = np.linspace(-15, 15, count)
    return features.astype(np.float32)


@pytest.fixture
def windows(tmp_path):
    """Writes an index of one video with windows of 5 s, a second of its own each."""

    def write(features):
        starts = 10.0 * np.arange(len(features))
        layout = {"seconds": 5.0, "stride": 10.0, "shots": False}
        header = replace(HEADER, windows=Windows.from_dict(layout))
        spans = np.stack([starts, starts + 5], axis=1)
        record = FileRecord(1, 1, features, spans=spans)
        FileStore(tmp_path / "features.npz").write(header, {"long.mp4": record})
        return read_index(tmp_path)

    return write


def test_cosines_are_those_of_the_inverse_covariance():
    features = correlated(300).astype(np.float64)
    whitening = fit_whitening(features)
    mean = sum(features) / 300
    covariance = sum(np.outer(row - mean, row - mean) for row in features) / 300
    inverse = np.linalg.inv(covariance + np.trace(covariance) / 6 * np.eye(6))
    first, second = features[3] - mean, features[8] - mean
    expected = first @ inverse @ second
    assert whitening(features[3]) @ whitening(features[8]) == pytest.approx(expected)
    assert whitening(features).shape == (300, 6)


def test_candidates_are_those_of_whitened_features(windows, monkeypatch):
    """Of an index that is larger than the list of candidates, whose spectrum decays by far."""
    rng = np.random.default_rng(1)
    features = 3 + rng.normal(size=(3000, 32)) / np.arange(1, 33)
    index = windows(features.astype(np.float32))
    monkeypatch.setattr(search, "_POOL", 60)
    whitened = index.whitening(index.features)
    whitened /= np.linalg.norm(whitened, axis=1, keepdims=True)
    found = []
    for row in range(0, 300, 30):
        best = set(np.argsort(-whitened @ whitened[row])[:10].tolist())
        matches = query_index(index, index.features[row], 10)
        found.append(len(best & {match.row for match in matches}) / 10)
    assert np.mean(found) > 0.9  # 0.58 of candidates by the plain cosine
    with pytest.raises(ValueError, match="5 dimensions, but the index has 32"):
        query_index(index, np.ones(5, dtype=np.float32), 10)


def test_windows_are_found_by_what_is_unusual_about_them(windows):
    """The query is a window whose usual part has changed more than windows differ otherwise."""
    features = correlated(200)
    features[50, 1:3] = 0, 6
    query = features[50].copy()
    query[1] = 8
    index = windows(features)
    assert index.whitens

    def cosine(row):
        one, other = index.whitening(query), index.whitening(features[row])
        return one @ other / np.linalg.norm(one) / np.linalg.norm(other)

    expected = sorted(range(200), key=cosine, reverse=True)[:5]
    matches = query_index(index, query, 5)
    assert [match.row for match in matches] == expected and expected[0] == 50
    assert matches[0].similarity == pytest.approx(cosine(50), abs=1e-6)
    assert query_index(index, query, 5, whitened=True) == matches
    assert query_index(index, query, 5, whitened=False)[0].row != 50
    assert 50 not in [match.row for match in query_index(index, query, 5, leave_out=[50])]
    with pytest.raises(ValueError, match="either whitened or centred"):
        query_index(index, query, 5, centred=True, whitened=True)
