"""Tables that are written to S3-compatible storage, which fails in several ways."""

from __future__ import annotations

import pytest
from helpers.tables import contents, run

from sce_video.datasets import LanceVideoDataset
from sce_video.datasets.tables.table import TableError
from sce_video.jobs import StorageError

pytest.importorskip("lance", reason="needs Lance: pip install 'sce-video[lance]'")


@pytest.fixture(autouse=True)
def _every_batch_is_committed(monkeypatch):
    monkeypatch.setattr("sce_video.data_tools.tables.fill._COMMIT_SECONDS", 0.0)


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
