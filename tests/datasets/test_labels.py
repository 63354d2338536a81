"""Labels against a classifier, and classes of two data sets against each other."""

from __future__ import annotations

import numpy as np
import pytest

from sce_video.datasets import VideoDataset
from sce_video.datasets.image_datasets import LabelTable, read_label_table
from sce_video.datasets.labelled import check_dataset_labels, check_same_classes, classes_of


class Labelled:
    def __init__(self, *labels, classes=()):
        self.labels = np.array(labels)
        self.metainfo = {"classes": classes}


def test_labels_of_a_list_name_the_line(tmp_path):
    (tmp_path / "a.mp4").touch()
    (tmp_path / "list.txt").write_text("a.mp4 0\n\na.mp4 3\na.mp4 5\n")
    dataset = VideoDataset(str(tmp_path), str(tmp_path / "list.txt"))
    check_dataset_labels(dataset, 6)
    message = r"list\.txt, line 3: 'a\.mp4' has label 3, .* 3 classes, 0 to 2 \(2 of 3 labels"
    with pytest.raises(ValueError, match=message):
        check_dataset_labels(dataset, 3)


def test_any_data_set_with_labels_is_checked():
    check_dataset_labels(object(), 1)
    check_dataset_labels(Labelled(0, 1), 2)
    with pytest.raises(ValueError, match="sample 1 has label 2, but the classifier has 2 classes"):
        check_dataset_labels(Labelled(0, 2), 2)
    with pytest.raises(ValueError, match=r"has no label \(1 of 2 samples .*sub-folder"):
        check_dataset_labels(Labelled(0, -1), 2)


def test_class_folders_must_be_the_same():
    same, other = classes_of(Labelled(classes=["a", "b"])), ("a", "c")
    check_same_classes(same, same)
    check_same_classes(same, classes_of(Labelled()))  # a list has no class names
    check_same_classes(classes_of(object()), same)
    with pytest.raises(ValueError, match=r"the queries have \['b'\], only the gallery has \['c'"):
        check_same_classes(same, other)
    with pytest.raises(ValueError, match=r"only x has \['b'\], only y has \['c'\]"):
        check_same_classes(same, other, ("x has", "y has"))


# -- Tables of several labels: round trip, joining with paths, malformed files

TABLE = LabelTable(
    ("VOC/a b.jpg", "VOC/c.jpg", "c.jpg"), np.array([[1, -1], [0, 1], [-1, -1]], dtype=np.int8)
)


def test_round_trip(tmp_path):
    (tmp_path / "labels.txt").write_text(TABLE.to_text())
    read = read_label_table(tmp_path / "labels.txt")
    assert read.paths == TABLE.paths and read.to_text() == TABLE.to_text()
    np.testing.assert_array_equal(read.labels, TABLE.labels)
    with pytest.raises(ValueError, match=r"1 of 2 images are not in .*labels.txt.*/x/d\.jpg"):
        read.rows_of(["/x/VOC/c.jpg", "/x/d.jpg"])


@pytest.mark.parametrize("root", ["", "/data/VOC2007/"])
def test_rows_are_joined_by_path(root):
    rows = TABLE.rows_of([f"{root}VOC/c.jpg", f"{root}VOC/a b.jpg"])
    assert rows.tolist() == [[0, 1], [1, -1]]


def test_malformed_files(tmp_path):
    for text, message in (
        ("", "is empty"),
        ("a.jpg 1 -1\n", "line 1: 'a.jpg 1 -1' must be 'path<TAB>labels'"),
        ("a.jpg\t1 -1\nb.jpg\t1\n", "line 2: .* as many labels as on the other lines"),
        ("a.jpg\t1 2\n", "line 1"),
        ("a.jpg\t1\na.jpg\t1\n", "'a.jpg' is listed twice"),
    ):
        (tmp_path / "labels.txt").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_label_table(tmp_path / "labels.txt")
