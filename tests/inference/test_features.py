"""Features in memory and in files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sce_video.inference.features import (
    Features,
    join_features,
    read_features,
    rows_not_finite,
    write_features,
)
from sce_video.inference.npz_files import RowStream, read_npz


def windows(path: str, count: int, first: float = 0.0) -> Features:
    """Some windows of a video."""
    starts = first + np.arange(count, dtype=np.float64)
    return Features(
        values=np.full((count, 3), first, np.float32),
        paths=[path] * count,
        spans=np.stack([starts, starts + 2], axis=1),
        provenance={"num_views": count},
    )


def test_joined_features_have_the_rows_and_failures_of_all_parts(tmp_path):
    failed = Features(np.empty((0, 0), np.float32), [], failures=[("c.mp4", "broken")])
    cut = replace(windows("b.mp4", 1, 5.0), incomplete=[("b.mp4", "it was cut off")])
    found = join_features([windows("a.mp4", 2), failed, cut], 3, {"made": "here"})
    assert found.paths == ["a.mp4", "a.mp4", "b.mp4"] and found.values[:, 0].tolist() == [0, 0, 5]
    assert found.starts.tolist() == [0, 1, 5] and found.ends.tolist() == [2, 3, 7]
    assert found.provenance == {"made": "here", "num_views": 2}
    assert found.reason == "broken; it was cut off"
    nothing = join_features([failed], 3, {})
    assert nothing.values.shape == (0, 3) and nothing.spans is None

    write_features(tmp_path / "f.npz", found)
    read = read_features(tmp_path / "f.npz")
    np.testing.assert_array_equal(read.values, found.values)
    np.testing.assert_array_equal(read.spans, found.spans)
    assert (read.paths, read.labels, read.num_views) == (found.paths, None, 2)
    assert read.failures == [("c.mp4", "broken")]
    assert read.incomplete == [("b.mp4", "it was cut off")]


def test_columns_of_a_file_are_optional(tmp_path):
    whole = Features(np.eye(3, dtype=np.float32), ["a", "b", "c"], labels=np.array([0, -1, 2]))
    rows = RowStream((3, 3), np.dtype(np.float32), np.eye(3) * 2)
    write_features(tmp_path / "f.npz", replace(whole, others={"mean": np.ones(3)}), stream=rows)
    arrays, _ = read_npz(tmp_path / "f.npz", "a file")
    assert sorted(arrays) == ["features", "labels", "mean", "paths"]
    read = read_features(tmp_path / "f.npz", others=["features_shuffled"])
    assert read.labels.tolist() == [0, -1, 2] and read.others == {} and read.values[1, 1] == 2
    np.savez(tmp_path / "times.npz", features=np.eye(2), paths=["a", "b"], starts=[1], ends=[2])
    with pytest.raises(ValueError, match=r"times\.npz: 2 rows do not match its 'starts' and"):
        read_features(tmp_path / "times.npz")


def test_rows_that_are_not_finite_are_counted(monkeypatch):
    monkeypatch.setattr("sce_video.inference.features._CHECKED_BYTES", 64)
    values = np.ones((100, 4), np.float32)
    assert rows_not_finite(values) == (0, -1)
    values[[17, 60], [1, 3]] = np.nan, np.inf
    assert rows_not_finite(values) == (2, 17)
