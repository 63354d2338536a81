"""Tables of several labels: round trip, joining with paths, malformed files."""

from __future__ import annotations

import numpy as np
import pytest

from sce_video.datasets.labels import LabelTable, read_label_table

TABLE = LabelTable(
    ("VOC/a b.jpg", "VOC/c.jpg", "c.jpg"), np.array([[1, -1], [0, 1], [-1, -1]], dtype=np.int8)
)


def test_round_trip(tmp_path):
    (tmp_path / "labels.txt").write_text(TABLE.to_text())
    read = read_label_table(tmp_path / "labels.txt")
    assert read.paths == TABLE.paths
    np.testing.assert_array_equal(read.labels, TABLE.labels)
    assert read.to_text() == TABLE.to_text()


@pytest.mark.parametrize("root", ["", "/data/VOC2007/", "data/"])
def test_rows_are_joined_by_path(root):
    rows = TABLE.rows_of([f"{root}VOC/c.jpg", f"{root}VOC/a b.jpg"])
    assert rows.tolist() == [[0, 1], [1, -1]]


def test_images_that_are_not_listed(tmp_path):
    (tmp_path / "labels.txt").write_text(TABLE.to_text())
    with pytest.raises(ValueError, match=r"1 of 2 images are not in .*labels.txt.*/x/d\.jpg"):
        read_label_table(tmp_path / "labels.txt").rows_of(["/x/VOC/c.jpg", "/x/d.jpg"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a.jpg 1 -1\n", "line 1: 'a.jpg 1 -1' must be 'path<TAB>labels'"),
        ("a.jpg\t1 -1\nb.jpg\t1\n", "line 2: .* as many as on the other lines"),
        ("a.jpg\t1 2\n", "line 1"),
        ("a.jpg\t1\na.jpg\t1\n", "'a.jpg' is listed twice"),
    ],
)
def test_malformed_files(tmp_path, text, message):
    (tmp_path / "labels.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_label_table(tmp_path / "labels.txt")
