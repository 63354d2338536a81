"""Tables in S3-compatible storage, by a server on this machine."""

from __future__ import annotations

import logging
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.tables import PIPELINE, sources

pytest.importorskip("lance", reason="needs Lance: pip install 'sce-video[lance]'")

from sce_video.data_tools.tables.video_row import video_row
from sce_video.data_tools.tables.writer import TableWriter, write_rows
from sce_video.datasets import LanceVideoDataset, ResumableSampler, SampleRequest, VideoDataset
from sce_video.datasets.tables.reader_process import open_dataset
from sce_video.datasets.tables.table import TableError, cannot, client_options, dataset_arguments


@pytest.fixture(scope="module")
def server():
    moto = pytest.importorskip("moto.server", reason="needs moto[server], of the extra dev")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    yield "http://{}:{}".format(*running.get_host_and_port())
    running.stop()


@pytest.fixture
def bucket(server, monkeypatch):
    """A bucket ``videos``; credentials and endpoint are in the environment."""
    boto3 = pytest.importorskip("boto3")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=server)
    client.create_bucket(Bucket="videos")
    return client


def upload(client, table: str, name: str) -> str:
    for path in Path(table).rglob("*"):
        if path.is_file():
            client.upload_file(str(path), "videos", f"{name}/{path.relative_to(table)}")
    return f"s3://videos/{name}"


def test_samples_equal_those_of_the_files_and_few_bytes_are_read(folder, table, bucket):
    uri = upload(bucket, table, "some/videos.lance")
    files, rows = VideoDataset(folder, pipeline=PIPELINE), LanceVideoDataset(uri, None, PIPELINE)
    assert rows.path(0) == "s3://videos/some/videos.lance/a/0.mp4"
    requests = [SampleRequest(index, 20 + index) for index in (4, 0, 1, 4)]
    for one, other in zip(files.__getitems__(requests), rows.__getitems__(requests), strict=True):
        assert np.array_equal(one["label"], other["label"])
        assert all(map(torch.equal, one["inputs"], other["inputs"]))


def test_the_next_batch_is_read_while_this_one_is_decoded(folder, table, bucket, monkeypatch):
    rows = LanceVideoDataset(upload(bucket, table, "next.lance"), None, PIPELINE)
    files = VideoDataset(folder, pipeline=PIPELINE)
    assert rows.reads_ahead and not LanceVideoDataset(table, None, PIPELINE).reads_ahead
    sampler = ResumableSampler(rows, seed=2)
    sampler.announce_batches(2, 1)
    requests = list(sampler)
    first = rows.__getitems__(requests[:2])
    rows._reader._next[1].result()
    with monkeypatch.context() as patched:
        patched.setattr(rows._source, "read_indexes", None)  # it is here already
        second = rows.__getitems__([SampleRequest(*request) for request in requests[2:4]])
    for one, other in zip(first + second, files.__getitems__(requests[:4]), strict=True):
        assert one["index"] == other["index"] and one["failures"] == []
        assert all(map(torch.equal, one["inputs"], other["inputs"]))
    other = [SampleRequest(0, 5), SampleRequest(1, 6)]  # not what was announced
    rows.__getitems__(requests[:2])
    assert [sample["index"] for sample in rows.__getitems__(other)] == [0, 1]


def test_an_import_writes_to_a_bucket(folder, bucket):
    table = "s3://videos/written.lance"
    writer = TableWriter(table)
    writer.commit(write_rows(table, [video_row(s) for s in sources(folder, ["a/0.mp4"])]))
    assert len(LanceVideoDataset(table)) == 1
    (batch,) = TableWriter(table).states(["path"])
    assert batch["path"].to_pylist() == ["a/0.mp4"]


def test_what_is_missing_is_named_in_bounded_time(bucket, monkeypatch):
    begin = time.monotonic()
    with pytest.raises(TableError, match="the bucket does not exist"):
        LanceVideoDataset("s3://nobody/videos.lance")
    with pytest.raises(TableError, match="there is no table at this address"):
        LanceVideoDataset("s3://videos/none.lance")
    with socket.socket() as closed:  # bound, but nobody listens
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(TableError, match="the storage does not answer"):
            LanceVideoDataset("s3://videos/videos.lance")
    assert time.monotonic() - begin < 60


def test_a_bucket_that_vanishes_ends_the_training(table, bucket):
    uri = upload(bucket, table, "gone.lance")
    rows = LanceVideoDataset(uri, None, PIPELINE)
    assert rows[0]["failures"] == []
    for item in bucket.list_objects_v2(Bucket="videos", Prefix="gone.lance")["Contents"]:
        bucket.delete_object(Bucket="videos", Key=item["Key"])
    with pytest.raises(TableError, match="cannot open the table"):
        rows.__getitems__([1, 2, 3])


@pytest.mark.parametrize(
    ("reason", "attempts"),
    [
        ("Server returned non-2xx status code: 503 Service Unavailable: SlowDown", [3, 100]),
        ("HTTP error: error sending request", [3]),
    ],
)
def test_only_a_store_that_answers_is_asked_patiently(reason, attempts):
    opened = []

    def dataset(storage_options, **arguments):
        opened.append(int(storage_options["client_max_retries"]))
        if len(opened) == 1:
            raise OSError(reason)

    with suppress(OSError):
        open_dataset(SimpleNamespace(dataset=dataset), dataset_arguments("s3://b/t"))
    assert opened == attempts


def test_messages_name_the_reason():
    refused = OSError("Error performing GET: Server returned non-2xx status code: 403 Forbidden")
    assert "refuses the credentials" in cannot("open", "s3://b/t", refused)
    missing = OSError("Failed to get AWS credentials: ProviderError(...)")
    assert "there are no credentials" in cannot("open", "s3://b/t", missing)
    overloaded = OSError(
        "non-2xx status code: 503 Service Unavailable: <Error><Code>SlowDown</Code>"
    )
    assert "too busy" in cannot("read", "s3://b/t", overloaded)
    slow = OSError("Error performing GET in 403.2ms - HTTP error: error sending request")
    assert "does not answer" in cannot("open", "s3://b/t", slow)
    assert "credentials" not in cannot("open", "/data/t", refused)


def test_given_options_come_before_those_of_the_environment(monkeypatch):
    assert client_options("/data/t.lance", {"region": "x"}) is None
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://storage.example.org")
    options = client_options("s3://b/t", {"endpoint": "http://10.0.0.1:9000"})
    assert options["aws_endpoint"] == "http://10.0.0.1:9000"
    assert options["allow_http"] == "true"
    assert "allow_http" not in client_options("s3://b/t")
    assert client_options("s3://b/t", {"client_max_retries": "9"})["client_max_retries"] == "9"
