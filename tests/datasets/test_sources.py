"""Videos that are files, objects of a store or rows of a table are opened by the same functions."""

from __future__ import annotations

import os

import numpy as np
import pytest
from helpers.own_parts import registries_restored
from helpers.tables import write_repacked, write_table

from sce_video.datasets import (
    VideoDecodeError,
    dataset_settings,
    is_elsewhere,
    list_videos,
    open_video,
    scan_folder,
    video_exists,
)
from sce_video.datasets.sources import is_table, split_row_path
from sce_video.datasets.tables.table import TableError
from sce_video.registry import DATASETS
from sce_video.utils.storage import ObjectStoreError


def test_paths_of_rows():
    for path, row in (
        ("v.lance/a/0.mp4", ("v.lance", "a/0.mp4")),
        ("/d/v.lance//0.mp4", ("/d/v.lance", "0.mp4")),
        ("s3://b/d/v.lance/a b.mp4", ("s3://b/d/v.lance", "a b.mp4")),
        ("v.lance", None),
        ("v.lance/", None),
        ("a/v.lancet/0.mp4", None),
    ):
        assert split_row_path(path) == row
        assert is_elsewhere(path) == (row is not None)
        assert is_table(path) == (path in ("v.lance", "v.lance/"))


def test_a_table_is_listed_and_opened_as_the_folder_that_it_was_made_of(tmp_path):
    pytest.importorskip("lance", reason="needs Lance: pip install 'sce-video[lance]'")
    folder = tmp_path / "files"
    for number, name in enumerate(("b/0.mp4", "a/0.mp4")):
        write_repacked(folder / name, 10, seed=number)
    (folder / "a/text.mp4").write_text("no video " * 100)
    table = write_table(folder, tmp_path / "v.lance")
    (folder / "a/text.mp4").unlink()
    rows, files = list_videos(table), scan_folder(str(folder))
    names = [files.path(i) for i in range(len(files))]
    assert [rows.path(i) for i in range(len(rows))] == names == ["a/0.mp4", "b/0.mp4"]
    assert np.array_equal(rows.labels, files.labels) and rows.classes == files.classes
    for name in names:
        with open_video(f"{table}/{name}") as row, open_video(str(folder / name)) as file:
            assert np.array_equal(row.timestamps, file.timestamps)
            chosen = np.array([0, 3, 9])
            assert np.array_equal(row.read(chosen), file.read(chosen))
    assert video_exists(f"{table}/a/0.mp4") and not video_exists(f"{table}/a/9.mp4")
    for missing in ("a/9.mp4", "a/text.mp4"):
        with pytest.raises(VideoDecodeError, match="no such row, or its import failed"):
            open_video(f"{table}/{missing}")
    assert dataset_settings(table) == {"type": "LanceVideoDataset", "data_root": table}
    assert dataset_settings(folder) == {"data_root": str(folder)}


def test_what_is_no_table_is_one_sentence(tmp_path):
    pytest.importorskip("lance", reason="needs Lance: pip install 'sce-video[lance]'")
    with pytest.raises(TableError, match=r"there is no table '.*none\.lance'"):
        list_videos(str(tmp_path / "none.lance"))
    write_repacked(tmp_path / "files/v.mp4")
    write_table(tmp_path / "files", tmp_path / "unnamed")
    with pytest.raises(ValueError, match=r"is a Lance table, but files are needed"):
        list_videos(str(tmp_path / "unnamed"))
    with pytest.raises(ValueError, match=r"'s3://b/videos'. Import them into a table"):
        list_videos("s3://b/videos")


def test_an_object_is_downloaded_once(tmp_path, bucket, monkeypatch):
    file = write_repacked(tmp_path / "v.mp4")
    url = bucket.put("videos/v.mp4", file.read_bytes())
    assert video_exists(url) and not video_exists(f"{url}x")
    for _ in range(2):
        with open_video(url) as reader, open_video(str(file)) as same:
            assert np.array_equal(reader.read(np.arange(4)), same.read(np.arange(4)))
        bucket.client.delete_object(Bucket=bucket.name, Key="videos/v.mp4")
    with pytest.raises(VideoDecodeError, match="there is no s3://.*other.mp4"):
        open_video(bucket.url("videos/other.mp4"))
    with pytest.raises(VideoDecodeError, match="bucket does not exist"):
        open_video("s3://there-is-no-such-bucket/v.mp4")
    with pytest.raises(ObjectStoreError, match="bucket does not exist"):
        video_exists("s3://there-is-no-such-bucket/v.mp4")


class Listed:
    """A dataset without a parent class, of paths that are absolute or not below its folder."""

    def __init__(self, data_root, names=("b/x.dat", "a.dat")):
        self.paths = [os.path.join(data_root, name) for name in names]
        self.labels = [1, 0]
        self.metainfo = {"classes": ["first", "second"]}

    def __len__(self):
        return len(self.paths)

    def path(self, index):
        return self.paths[index]


def test_a_dataset_of_the_users_own_lists_a_folder(tmp_path):
    """In its order, relative to the folder, with its labels."""
    with registries_restored(tmp_path):
        DATASETS.register_module(name="Listed", module=Listed)
        for root in (str(tmp_path), f"{tmp_path}/"):
            videos = list_videos(root, dataset="Listed")
            assert [videos.path(i) for i in range(2)] == ["b/x.dat", "a.dat"]
            assert videos.labels.tolist() == [1, 0]
            assert [*videos.classes] == ["first", "second"]


def test_datasets_that_cannot_list_a_folder(tmp_path):
    with registries_restored(tmp_path):
        DATASETS.register_module(name="Listed", module=lambda data_root: Listed(data_root, ()))
        DATASETS.register_module(name="Needy", module=lambda data_root, depth: None)
        with pytest.raises(ValueError, match=f"dataset Listed found no videos in {tmp_path}"):
            list_videos(str(tmp_path), dataset="Listed")
        with pytest.raises(ValueError, match=r"Needy cannot be built .*'depth'.* default values"):
            list_videos(str(tmp_path), dataset="Needy")
