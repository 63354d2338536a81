"""Features as a column of a table of videos: written in one commit, searched as an index is."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.small_index import HEADER
from helpers.tables import write_folder, write_table

from sce_video.datasets.tables.row_columns import list_rows
from sce_video.datasets.tables.table import RemoteTable, TableError, read_table
from sce_video.find.columns import columns_of_index
from sce_video.find.feature_columns import (
    feature_columns,
    open_feature_column,
    write_feature_column,
)
from sce_video.find.index import read_index
from sce_video.find.index_network import IndexNetwork
from sce_video.find.label_list import LabelList
from sce_video.find.query import query_index
from sce_video.find.search_media import middle_frame, whole
from sce_video.find.search_state import SearchState
from sce_video.find.store import FEATURES, FileRecord, FileStore
from sce_video.find.table_store import FACTS

pytest.importorskip("lance", reason="needs Lance: pip install 'sce-video[lance]'")

PATHS = ["b/1.mp4", "a/0.mp4", "a/2.mp4", "b/0.mp4"]


@pytest.fixture
def table(tmp_path):
    return write_table(write_folder(tmp_path / "videos"), tmp_path / "videos.lance")


@pytest.fixture
def features():
    return np.random.default_rng(0).normal(1, 1, (6, 16)).astype(np.float32)


def stored(table, column="feature_net"):
    rows = read_table(table).call("read", ["path", column])
    return dict(zip(rows["path"].to_pylist(), rows[column].to_pylist(), strict=True))


def test_a_column_is_written_read_and_searched(table, features, tmp_path):
    streams = {p: p.stat().st_size for p in (tmp_path / "videos.lance/data").rglob("*.*")}
    rows = list_rows(table).rows.tolist()
    assert write_feature_column(table, "net", PATHS, features[:4], HEADER) == 4
    found = stored(table)
    assert sorted(path for path, value in found.items() if value is None) == ["a/1.mp4", "b/2.mp4"]
    for path, row in zip(PATHS, features, strict=False):
        np.testing.assert_array_equal(np.float32(found[path]), row)
    # Packets are not written again, and rows are where they were.
    new = set((tmp_path / "videos.lance/data").rglob("*.*")) - streams.keys()
    assert sum(p.stat().st_size for p in new) < 20_000
    assert list_rows(table).rows.tolist() == rows

    index = read_index(table)
    assert len(index) == 4
    assert index.header == HEADER
    assert dict(index.failures) == dict.fromkeys(["a/1.mp4", "b/2.mp4"], "it has no feature")
    cosines = features[:4] @ features[1] / np.linalg.norm(features[:4], axis=1)
    order = np.argsort(-cosines)
    for row in range(4):
        np.testing.assert_array_equal(index.features[row], np.float32(found[index.path(row)]))
        assert index.row(index.path(row)) == row
    assert index.row("a/1.mp4") is None
    assert [m.path for m in query_index(index, features[1], 9)] == [PATHS[i] for i in order]


def test_further_features_and_a_second_column(table, features):
    write_feature_column(table, "net", PATHS, features[:4], HEADER)
    write_feature_column(table, "other", PATHS[:1], features[:1, :5], HEADER)
    assert feature_columns(table) == ["feature_net", "feature_other"]
    more = ["a/1.mp4", "b/1.mp4"]
    assert write_feature_column(table, "net", more, features[4:], HEADER) == 5
    found = stored(table)
    np.testing.assert_array_equal(np.float32(found["b/1.mp4"]), features[5])
    np.testing.assert_array_equal(np.float32(found["a/0.mp4"]), features[1])
    assert found["b/2.mp4"] is None
    assert sorted(feature_columns(table)) == ["feature_net", "feature_other"]
    assert len(read_index(table, "other")) == len(read_index(table, "feature_other")) == 1
    with pytest.raises(ValueError, match="choose a feature column.*feature_net"):
        read_index(table)
    with pytest.raises(ValueError, match="there is no column feature_none"):
        open_feature_column(table, "none")


@pytest.mark.parametrize("rows", [2, 16384])
def test_a_column_of_a_table_with_removed_rows_and_several_files(
    table, features, monkeypatch, rows
):
    """Written some rows at a time, in the order of those that are left."""
    monkeypatch.setattr("sce_video.find.feature_columns.READ_ROWS", rows)
    lance = pytest.importorskip("lance")
    lance.dataset(str(table)).delete("path = 'a/2.mp4'")
    paths = ["b/2.mp4", "a/0.mp4", "a/1.mp4"]
    assert write_feature_column(table, "net", paths[:2], features[:2], HEADER) == 2
    assert write_feature_column(table, "net", paths[1:], features[1:3], HEADER) == 3
    found = read_table(table).call("read", ["path", "feature_net"]).to_pylist()
    assert len(found) == 5
    for row in found:
        if row["path"] not in paths:
            assert row["feature_net"] is None
        else:
            want = features[paths.index(row["path"])]
            np.testing.assert_array_equal(np.float32(row["feature_net"]), want)


@pytest.mark.parametrize("method", ["drop_column", "rename_column"])
def test_a_call_that_ends_between_two_commits_loses_nothing(table, features, monkeypatch, method):
    write_feature_column(table, "net", PATHS, features[:4], HEADER)
    real = RemoteTable.call

    def crash(self, called, *arguments):
        if called == method:
            raise KeyboardInterrupt
        return real(self, called, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RemoteTable, "call", crash)
        patch.setattr("sce_video.datasets.tables.table._may_import", lambda: False)
        write_feature_column(table, "net", ["a/1.mp4"], features[4:5], HEADER)
    assert write_feature_column(table, "net", ["b/2.mp4"], features[5:], HEADER) in (5, 6)
    found = stored(table)
    np.testing.assert_array_equal(np.float32(found["a/0.mp4"]), features[1])
    np.testing.assert_array_equal(np.float32(found["b/2.mp4"]), features[5])
    assert feature_columns(table) == ["feature_net"]


def test_other_networks_and_wrong_features_are_refused(table, features):
    write_feature_column(table, "net", PATHS, features[:4], HEADER)
    for wrong in (
        {"checkpoint": "d.pth", "sha256": "1" * 64},
        {"num_clips": 2},
    ):
        with pytest.raises(ValueError, match=r"another checkpoint .*c\.pth.* Choose another name"):
            write_feature_column(table, "net", PATHS, features[:4], replace(HEADER, **wrong))
    with pytest.raises(ValueError, match=r"1 of 4 paths are not in .*, for example c/3\.mp4"):
        write_feature_column(table, "new", [*PATHS[:3], "c/3.mp4"], features[:4], HEADER)
    with pytest.raises(ValueError, match="given twice"):
        write_feature_column(table, "new", PATHS[:1] * 2, features[:2], HEADER)
    with pytest.raises(ValueError, match="do not match"):
        write_feature_column(table, "new", PATHS, features[:3], HEADER)
    with pytest.raises(ValueError, match=r"1 features contain NaN or infinity.*b/1\.mp4"):
        write_feature_column(table, "new", PATHS[:1], features[:1] * np.nan, HEADER)
    with pytest.raises(ValueError, match="name of a column"):
        write_feature_column(table, "a b", PATHS, features[:4], HEADER)
    with pytest.raises(TableError, match="there is no table"):
        write_feature_column(f"{table}2", "net", PATHS, features[:4], HEADER)
    assert feature_columns(table) == ["feature_net"]
    read_table(table).call("describe", "feature_net", {FACTS: '{"version": 1, "root": 1}'})
    with pytest.raises(ValueError, match="is not the table of an index"):
        read_index(table)


def test_conditions_on_the_columns_of_the_table_and_its_videos_on_the_page(
    table, features, tmp_path
):
    """An index of its own, and the column of features; a file of columns counts more."""
    import lance
    import pyarrow as pa

    paths = [*PATHS, "a/1.mp4", "b/2.mp4"]
    taken = pa.array([None, 1.5, float("nan"), 2, 3, 4])
    more = {"path": paths, "lens": taken, "sharp": [True, False] * 3, "camera": [*"xyxyxy"]}
    lance.dataset(str(table)).merge(pa.table(more), "path")
    write_feature_column(table, "net", PATHS, features[:4], HEADER)
    store = FileStore(tmp_path / "index" / FEATURES)
    store.file.parent.mkdir()
    records = {path: FileRecord(1, 1, row) for path, row in zip(paths, features, strict=True)}
    store.write(replace(HEADER, root=str(table)), dict(sorted(records.items())))

    def passing(index, where, file=None):
        found = columns_of_index(index, file).matching(where)
        return {index.path(row) for row in np.flatnonzero(found)}

    for index, known in ((store.open(), paths), (read_index(table), PATHS)):
        assert passing(index, "class_name = 'a' AND frames > 40") == {"a/2.mp4", "a/1.mp4"} & {
            *known
        }
        assert passing(index, "lens IS NULL") == {"b/1.mp4", "a/2.mp4"}
        assert passing(index, "sharp AND width = 64 OR lens = 1.5") == {*PATHS[:2]}
        columns = columns_of_index(index)
        assert columns.without == 0 and not {"stream", "hash", "settings"} & {*columns.names}
    (tmp_path / "more.csv").write_text("path,Camera,site\na/0.mp4,z,here\n")
    index = store.open()
    assert passing(index, "camera = 'z' AND lens = 1.5", tmp_path / "more.csv") == {"a/0.mp4"}
    assert passing(index, "camera = 'x'", tmp_path / "more.csv") == set()
    with pytest.raises(ValueError, match=r"no such column: place\. .*videos\.lance are: path, "):
        passing(index, "place = 1")

    state = SearchState(index, IndexNetwork(), LabelList(tmp_path / "labels.txt"))
    try:
        row = index.row("a/0.mp4")
        assert state.missing([row]).rows == [] and state.columns.described[0].name == "label"
        assert state.picture(row, middle_frame)[:2] == b"\xff\xd8"
        assert b"ftyp" in state.picture(row, whole)[:12]
    finally:
        state.close()


def test_columns_of_a_table_are_kept_in_the_cache(table, features, tmp_path, monkeypatch):
    """Until the table changes; Lance's folder is left alone."""
    monkeypatch.setenv("SCE_VIDEO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sce_video.find.columns._MANY", 1)
    write_feature_column(table, "net", PATHS, features[:4], HEADER)
    parts = set((tmp_path / "videos.lance").iterdir())

    def found(column="net"):
        index = read_index(table, column)
        rows = np.flatnonzero(columns_of_index(index).matching("class_name = 'a'"))
        files = {f: f.stat().st_ino for f in (tmp_path / "cache" / "columns").iterdir()}
        return {index.path(row) for row in rows}, files

    first = found()
    assert first[0] == {"a/0.mp4", "a/2.mp4"} and len(first[1]) == 1 and found() == first
    write_feature_column(table, "net", ["a/1.mp4"], features[4:5], HEADER)
    assert found()[0] == {"a/0.mp4", "a/1.mp4", "a/2.mp4"}
    write_feature_column(table, "other", PATHS[1:2], features[:1], HEADER)
    assert found("other")[0] == {"a/0.mp4"} and len(found()[1]) == 2
    assert set((tmp_path / "videos.lance").iterdir()) == parts
