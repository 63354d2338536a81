"""Tables that are written to S3-compatible storage, which fails in several ways."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from helpers.tables import contents

from sce_video.commands.import_table import main
from sce_video.data_tools.tables.fill import import_videos
from sce_video.data_tools.tables.writer import ImportOptions
from sce_video.datasets import LanceVideoDataset, scan_folder
from sce_video.datasets.tables.table import TableError, client_options
from sce_video.jobs import StorageError

lance = pytest.importorskip("lance", reason="needs Lance: pip install 'sce-video[lance]'")


def run(folder, table, on_progress=None, **options):
    options = ImportOptions(**{"commit_seconds": 0.0, **options})
    videos = scan_folder(str(folder))
    return import_videos(videos, str(folder), table, options, on_progress=on_progress)


def rows(table):
    opened = lance.dataset(table, storage_options=client_options(table))
    return opened.to_table(columns=["path", "failure"]).to_pylist()


@pytest.mark.slow
def test_the_command_writes_to_a_bucket_with_processes(folder, bucket):
    """In a process of its own: workers that this one has started have its earlier environment."""
    table = bucket.url("some/v.lance")
    words = [sys.executable, "-m", "sce_video", "import", str(folder), table, "--workers", "1"]
    subprocess.run(words, check=True)
    assert len(rows(table)) == 6 == len(LanceVideoDataset(table))
    assert bucket.unfinished_uploads() == []


def test_a_bucket_that_vanishes_ends_the_import(folder, bucket, inside):
    def vanish(done, total, failed):
        if done == 2:
            bucket.vanish()

    table = bucket.url("v.lance")
    with pytest.raises((StorageError, TableError), match="the bucket does not exist"):
        run(folder, table, vanish)
    bucket.client.create_bucket(Bucket=bucket.name)
    assert run(folder, table).imported == 6


def test_credentials_that_are_refused_in_the_middle_end_the_import(folder, bucket, inside):
    def refuse(done, total, failed):
        if done == 3:  # the first batch of two is committed
            bucket.check_credentials_after(0)

    table = bucket.url("v.lance")
    try:
        with pytest.raises((StorageError, TableError), match="refuses the credentials"):
            run(folder, table, refuse)
    finally:
        bucket.check_credentials_after(float("inf"))
    result = run(folder, table)
    assert result.known == 2 and result.known + result.imported == 6 == len(rows(table))


def test_storage_that_does_not_answer_is_an_error(folder, bucket, monkeypatch, capsys):
    with socket.socket() as closed:  # bound, but nobody listens
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        assert main([str(folder), "s3://videos/v.lance"]) == 2
    assert "the storage does not answer: check the network" in capsys.readouterr().err


def test_missing_credentials_are_named(folder, bucket, monkeypatch, capsys, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert main([str(folder), bucket.url("v.lance")]) == 2
    assert "there are no credentials: set AWS_ACCESS_KEY_ID" in capsys.readouterr().err


def test_rows_are_those_of_a_local_table(folder, bucket, inside, tmp_path):
    table = bucket.url("v.lance")
    run(folder, table)
    run(folder, str(tmp_path / "v.lance"))
    for key in bucket.keys():
        path = tmp_path / "copy" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bucket.get(key))
    assert contents(tmp_path / "copy/v.lance") == contents(tmp_path / "v.lance")
