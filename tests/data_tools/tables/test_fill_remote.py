"""Tables that are written to S3-compatible storage, which fails in several ways."""

from __future__ import annotations

import pytest
from helpers.tables import contents

from sce_video.data_tools.tables.fill import import_videos
from sce_video.data_tools.tables.writer import ImportOptions
from sce_video.datasets import LanceVideoDataset, scan_folder
from sce_video.datasets.tables.table import TableError, client_options
from sce_video.jobs import StorageError

lance = pytest.importorskip("lance", reason="needs Lance: pip install 'sce-video[lance]'")


def run(folder, table, on_progress=None, **options):
    videos = scan_folder(str(folder))
    options = ImportOptions(**options)
    return import_videos(videos, str(folder), table, options, on_progress=on_progress)


@pytest.fixture(autouse=True)
def _every_batch_is_committed(monkeypatch):
    monkeypatch.setattr("sce_video.data_tools.tables.fill._COMMIT_SECONDS", 0.0)


def rows(table):
    opened = lance.dataset(table, storage_options=client_options(table))
    return opened.to_table(columns=["path", "failure"]).to_pylist()


def test_a_bucket_that_vanishes_ends_the_import(folder, bucket, in_process):
    def vanish(done, total, failed):
        if done == 2:
            bucket.vanish()

    table = bucket.url("v.lance")
    with pytest.raises((StorageError, TableError), match="the bucket does not exist"):
        run(folder, table, vanish)
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
