"""Tables in S3-compatible storage, by a server on this machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.tables import PIPELINE

pytest.importorskip("lance", reason="needs Lance: pip install 'sce-video[lance]'")

from sce_video.datasets import LanceVideoDataset, ResumableSampler, SampleRequest, VideoDataset
from sce_video.datasets.tables.reader_process import open_dataset
from sce_video.datasets.tables.table import TableError, cannot, client_options, dataset_arguments


def upload(bucket, table: str, name: str) -> str:
    for path in Path(table).rglob("*"):
        if path.is_file():
            bucket.put(f"{name}/{path.relative_to(table)}", path.read_bytes())
    return bucket.url(name)


def test_samples_equal_those_of_the_files_and_few_bytes_are_read(folder, table, bucket):
    uri = upload(bucket, table, "some/videos.lance")
    files, rows = VideoDataset(folder, pipeline=PIPELINE), LanceVideoDataset(uri, None, PIPELINE)
    assert rows.path(0) == f"{uri}/a/0.mp4"
    requests = [SampleRequest(index, 20 + index) for index in (4, 0, 1, 4)]
    for one, other in zip(files.__getitems__(requests), rows.__getitems__(requests), strict=True):
        assert np.array_equal(one["label"], other["label"])
        assert all(map(torch.equal, one["inputs"], other["inputs"]))


def test_a_later_batch_is_read_while_this_one_is_decoded(folder, table, bucket, monkeypatch):
    rows = LanceVideoDataset(upload(bucket, table, "next.lance"), None, PIPELINE)
    files = VideoDataset(folder, pipeline=PIPELINE)
    assert rows.reads_ahead and not LanceVideoDataset(table, None, PIPELINE).reads_ahead
    sampler = ResumableSampler(rows, seed=2)
    sampler.announce_batches(2, 1)
    requests = list(sampler)
    found = rows.__getitems__(requests[:2]) + rows.__getitems__(requests[2:4])
    rows._later[0][1].result()
    with monkeypatch.context() as patched:
        patched.setattr(rows._source, "read_indexes", None)  # it is here already
        found += rows.__getitems__([SampleRequest(*request) for request in requests[4:]])
    for one, other in zip(found, files.__getitems__(requests), strict=True):
        assert one["index"] == other["index"] and one["failures"] == []
        assert all(map(torch.equal, one["inputs"], other["inputs"]))
    other = [SampleRequest(0, 5), SampleRequest(1, 6)]  # not what was announced
    for _ in range(3):  # nor is more kept than may still be asked for
        rows.__getitems__(requests[:2])
        assert [sample["index"] for sample in rows.__getitems__(other)] == [0, 1]
        assert len(rows._later) <= 2


def test_what_is_missing_is_named(bucket):
    with pytest.raises(TableError, match="the bucket does not exist"):
        LanceVideoDataset("s3://nobody/videos.lance")
    with pytest.raises(TableError, match="there is no table at this address"):
        LanceVideoDataset(bucket.url("none.lance"))


def test_a_bucket_that_vanishes_ends_the_training(table, bucket):
    uri = upload(bucket, table, "gone.lance")
    rows = LanceVideoDataset(uri, None, PIPELINE)
    assert rows[0]["failures"] == []
    bucket.vanish()
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
    for reason, advice in (
        ("GET: Server returned non-2xx status code: 403 Forbidden", "refuses the credentials"),
        ("Failed to get AWS credentials: ProviderError(...)", "there are no credentials"),
        ("non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>", "too busy"),
        ("Error performing GET in 403.2ms - error sending request", "does not answer"),
    ):
        assert advice in cannot("open", "s3://b/t", OSError(reason))
        assert advice not in cannot("open", "/data/t", OSError(reason))


def test_given_options_come_before_those_of_the_environment(monkeypatch):
    assert client_options("/data/t.lance", {"region": "x"}) is None
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://storage.example.org")
    options = client_options("s3://b/t", {"endpoint": "http://10.0.0.1:9000"})
    assert options["aws_endpoint"] == "http://10.0.0.1:9000"
    assert options["allow_http"] == "true"
    assert "allow_http" not in client_options("s3://b/t")
    assert client_options("s3://b/t", {"client_max_retries": "9"})["client_max_retries"] == "9"
