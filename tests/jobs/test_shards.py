"""Stores of several drivers in one folder."""

from __future__ import annotations

import pytest

from sce_video.jobs import BusyStoreError, Record
from sce_video.jobs.shards import Shard, SharedFolder


def put(store, key, when, done=True):
    store.put(Record(key, done, {}, {}, output=key, time=when))


def every(record):
    return True


def test_earlier_runs_are_known_and_all_are_read(tmp_path):
    stores = SharedFolder(tmp_path / "records", "job", "list.")
    with stores.open(Shard(), every) as whole:
        put(whole, "a", 1.0)
        put(whole, "b", 1.0)
    with stores.open(Shard(1, 2), lambda record: record.output == "a") as first:
        assert first.get("a").done and first.get("b") is None
        put(first, "a", 2.0, done=False)
        with stores.open(Shard(2, 2), lambda record: record.output == "b") as second:
            assert second.get("a") is None  # of a shard that runs beside it
            put(second, "c", 2.0)
        with stores.joint() as joint:  # without the first shard, which is being written
            assert [(r.key, r.time) for r in joint] == [("a", 1.0), ("b", 1.0), ("c", 2.0)]
    with stores.joint(lambda record: record.key != "b") as joint:
        assert [(r.key, r.time) for r in joint] == [("a", 2.0), ("c", 2.0)]
    with stores.open(Shard(3, 3), every) as other_number:
        assert not other_number.get("a").done and len(other_number) == 3


def test_runs_that_may_write_the_same_outputs_are_refused(tmp_path):
    stores = SharedFolder(tmp_path / "records", "job", "list.")
    with stores.open(Shard(1, 2), every):
        for base, shard in (("", Shard()), ("list.", Shard(1, 3)), ("other.", Shard(2, 2))):
            with pytest.raises(BusyStoreError, match="only shards of one list"):
                SharedFolder(tmp_path / "records", "job", base).open(shard, every)
        with pytest.raises(BusyStoreError, match="--shard"):
            stores.open(Shard(1, 2), every)
    stores.open(Shard(1, 3), every).close()
