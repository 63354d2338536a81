"""What is exported: names, labels and features of an index or a file; places in the plane."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
import torch

from sce_video.evaluation import Rows, save_features
from sce_video.find.reading import read_videos
from sce_video.interop.export.exported_videos import neighbours, plane, principal_plane_in_blocks
from sce_video.pages.feature_map import principal_plane


def test_an_index_has_its_folders_as_labels(index):
    found = read_videos(index.folder)
    assert found.paths == ["a.mp4", "b.mp4", "c/d.mp4", "c/e e.mp4", "f.mp4"]
    assert found.label_names == [None, None, "c", "c", None]
    assert found.classes == ["c"]
    assert found.files == [index.file(path) for path in found.paths]
    assert found.checkpoint == index.header.checkpoint
    np.testing.assert_array_equal(found.values, index.features)
    of_file = read_videos(index.folder / "features.npz")
    assert (of_file.paths, of_file.files) == (found.paths, found.files)
    shutil.copy(index.folder / "features.npz", index.folder / "copy.npz")
    with pytest.raises(
        ValueError, match=r"copy\.npz belongs to an index. Give the folder of the index"
    ):
        read_videos(index.folder / "copy.npz")


def test_a_feature_file_has_its_labels(feature_file, index):
    found = read_videos(feature_file)
    assert found.paths == index.paths  # relative to the folder of the videos
    assert found.label_names == ["run", "walk", "walk", None, "2"]
    assert all(os.path.isabs(file) for file in found.files)
    assert found.checkpoint == "net.pth"


def test_a_list_of_labels(index, tmp_path):
    lines = ["a.mp4 1", "c/e e.mp4 0", f"{index.file('f.mp4')} 1", "elsewhere.mp4 0"]
    (tmp_path / "labels.txt").write_text("\n".join(lines))
    (tmp_path / "names.txt").write_text("sit\nstand\n")
    found = read_videos(index.folder, tmp_path / "labels.txt", tmp_path / "names.txt")
    assert found.label_names == ["stand", None, None, "sit", "stand"]
    assert read_videos(index.folder, tmp_path / "labels.txt").label_names[0] == "1"
    (tmp_path / "other.txt").write_text("x.mp4 0\ny.mp4 1\n")
    with pytest.raises(ValueError, match=r"gives no label to any of the 5 videos.*x\.mp4, y\.mp4"):
        read_videos(index.folder, tmp_path / "other.txt")
    with pytest.raises(ValueError, match="--labels"):
        read_videos(index.folder, None, tmp_path / "names.txt")


def test_sources_that_hold_nothing(tmp_path, index):
    with pytest.raises(FileNotFoundError, match="there is no index in"):
        read_videos(tmp_path)
    with pytest.raises(ValueError, match="nowhere does not exist. Give the folder"):
        read_videos(tmp_path / "nowhere")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match=r"a\.txt is not the folder of an index"):
        read_videos(tmp_path / "a.txt")
    np.savez(tmp_path / "bare.npz", features=np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match="no 'paths' in it"):
        read_videos(tmp_path / "bare.npz")
    for count, paths, message in ((0, [], "nothing to export"), (1, [""], "without a path")):
        numbers = torch.arange(count)
        save_features(tmp_path / "e.npz", Rows(torch.zeros(count, 3), numbers, numbers, paths))
        with pytest.raises(ValueError, match=message):
            read_videos(tmp_path / "e.npz")


def test_the_plane_in_blocks_is_that_of_all_at_once(monkeypatch):
    rng = np.random.default_rng(0)
    features = (rng.normal(size=(50, 6)) @ np.diag([5, 3, 1, 1, 1, 1])).astype(np.float32)
    expected = principal_plane(torch.from_numpy(features))
    monkeypatch.setattr("sce_video.interop.export.exported_videos._ROWS", 7)
    found = principal_plane_in_blocks(features)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
    assert plane(features[:1])[1].tolist() == [[0, 0]]
    assert plane(features[:5])[0] == "PCA"
    assert principal_plane_in_blocks(features[:, :1]).shape == (50, 2)


def test_neighbours_against_a_loop():
    features = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32)
    rows, distances = neighbours(features, 3)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    for i in range(6):
        others = sorted((1 - float(unit[i] @ unit[j]), j) for j in range(6) if j != i)[:3]
        assert rows[i].tolist() == [j for _, j in others]
        np.testing.assert_allclose(distances[i], [d for d, _ in others], atol=1e-6)
    assert neighbours(features, 99)[0].shape == (6, 5)
    assert neighbours(features[:1], 3)[0].shape == (1, 0)
