"""Several drivers on one table, failing workers, damaged tables, full disks."""

from __future__ import annotations

import os

import pytest
from helpers.tables import contents, run, write_folder, write_repacked

from sce_video.data_tools.table_fill import RowMaker, fill_table, row_sources
from sce_video.data_tools.table_writer import TableWriter, write_rows
from sce_video.data_tools.video_row import video_row
from sce_video.datasets import LanceVideoDataset, scan_folder
from sce_video.datasets.tables.table import TableError
from sce_video.jobs import StorageError, Workers

lance = pytest.importorskip("lance", reason="needs Lance: pip install 'sce-video[lance]'")


def paths(folder):
    videos = scan_folder(str(folder))
    return [videos.path(index) for index in range(len(videos))]


class Making(RowMaker):
    """Makes rows with a function, in batches of any size."""

    batches_per_worker = 1

    def __init__(self, make):
        self.make = make


def test_drivers_keep_the_same_row_whoever_cleans_up(folder, tmp_path, in_process, monkeypatch):
    """The other one commits in the middle, and replaces a row that this one replaces too."""
    files, table = write_folder(tmp_path / "files"), str(tmp_path / "v.lance")
    run(files, table)
    write_repacked(files / "a/0.mp4", 20, seed=5)

    def making(source):
        run(files, table)  # another driver, which finds the same file due
        return video_row(source)

    sources = row_sources(scan_folder(str(files)), str(files))
    result = fill_table(table, sources, Making(making), Workers(1, 60.0))
    assert result.imported == 1
    assert sorted(contents(table)) == paths(files)
    assert contents(table)["a/0.mp4"]["frames"] == 20
    # a row that was copied since, by Lance's update, is not taken for a newer one
    writer = TableWriter(table)
    states = [state for batch in writer.states(["path"]) for state in batch.to_pylist()]
    row = {state["path"]: state["_rowid"] for state in states}
    writer.commit(write_rows(table, [video_row(s) for s in sources if s.path == "a/0.mp4"]))
    writer.relabel([row["a/0.mp4"]], 9, None)
    assert run(files, table).known == 6
    assert contents(table)["a/0.mp4"]["label"] == -1


def test_columns_of_others_stay(folder, tmp_path, in_process):
    """A table with a column of features takes rows, and keeps them where a label changes."""
    table = str(tmp_path / "v.lance")
    files = write_folder(tmp_path / "files")
    run(files, table)
    lance.dataset(table).add_columns({"feature": "CAST(frames AS FLOAT)"})
    write_repacked(files / "c/new.mp4", 20)
    assert run(files, table).imported == 1
    os.rename(files / "b", files / "d")
    listed = tmp_path / "list.txt"
    listed.write_text("a/0.mp4 5\n")
    result = run(listed, table, data_root=files)
    assert result.relabelled == 1
    rows = contents(table)
    assert rows["a/0.mp4"]["label"] == 5 and rows["a/0.mp4"]["feature"] == 40
    assert rows["c/new.mp4"]["feature"] is None and len(rows) == 7


# -- processes that end ---------------------------------------------------------------------------


def test_an_exception_costs_one_file(folder, tmp_path, in_process):
    def making(source):
        if source.path == "b/0.mp4":
            raise KeyError("no such thing")
        return video_row(source)

    table = str(tmp_path / "v.lance")
    sources = row_sources(scan_folder(str(folder)), str(folder))
    result = fill_table(table, sources, Making(making), Workers(1, 60.0))
    assert result.failures == [("b/0.mp4", "KeyError: 'no such thing'")]
    assert sorted(contents(table)) == paths(folder)


def test_a_worker_that_writes_to_another_disk_is_noticed(folder, tmp_path, in_process, monkeypatch):
    """As on a cluster without a shared disk: nothing is committed that is not there."""

    def elsewhere(table, rows):
        return write_rows(f"{tmp_path}/elsewhere.lance", rows)

    TableWriter(f"{tmp_path}/elsewhere.lance")
    monkeypatch.setattr("sce_video.data_tools.table_fill.write_rows", elsewhere)
    with pytest.raises(TableError, match="all machines must reach the same storage"):
        run(folder, tmp_path / "v.lance")
    monkeypatch.undo()
    assert contents(tmp_path / "v.lance") == {}


# -- damaged tables, full disks --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "content", "message"),
    [
        # Not made again: that would hide the rows.
        ("_versions/*.manifest", None, r"files of rows \(data/.*, but no manifest"),
        ("data/*.lance", None, "cannot read the rows of the table .*: a file is missing"),
        ("_versions/*.manifest", b"no manifest " * 20, "cannot open the table"),
    ],
)
def test_damaged_tables_are_named(folder, tmp_path, in_process, where, content, message):
    table = tmp_path / "v.lance"
    run(folder, table)
    for path in table.glob(where):
        path.unlink() if content is None else path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(TableError, match=message):
            run(folder, table)


pytest.importorskip("lance", reason="needs Lance: pip install 'sce-video[lance]'")


@pytest.fixture(autouse=True)
def _every_batch_is_committed(monkeypatch):
    monkeypatch.setattr("sce_video.data_tools.table_fill._COMMIT_SECONDS", 0.0)


def test_a_bucket_that_vanishes_ends_the_import(folder, bucket, in_process, monkeypatch):
    def vanish(done, total, failed):
        if done == 2:
            bucket.vanish()

    table = bucket.url("v.lance")
    progress = "sce_video.data_tools.table_fill.file_progress"
    monkeypatch.setattr(progress, lambda *_: vanish)
    with pytest.raises((StorageError, TableError), match="the bucket does not exist"):
        run(folder, table)
    monkeypatch.setattr(progress, lambda *_: lambda *_: None)
    bucket.client.create_bucket(Bucket=bucket.name)
    assert run(folder, table).imported == 6


def test_rows_are_those_of_a_local_table(folder, bucket, in_process, tmp_path):
    table = bucket.url("v.lance")
    run(folder, table)
    run(folder, str(tmp_path / "v.lance"))
    for key in bucket.keys():
        path = tmp_path / "copy" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bucket.get(key))
    assert contents(tmp_path / "copy/v.lance") == contents(tmp_path / "v.lance")
    assert len(LanceVideoDataset(table)) == 6 and bucket.unfinished_uploads() == []
