"""Record stores: what they hold, who may write them, and files that are none."""

from __future__ import annotations

import os
import shutil
import sqlite3

import pytest
from helpers.disk_faults import file_size_limit

from sce_video.jobs import BusyStoreError, Record, RecordStore, StorageError, StoreError


def record(key="a", done=True, **changes):
    values = {"source": {"size": 3}, "settings": {"crf": 1.5}, "facts": {"frames": 4}, **changes}
    return Record(key, done, **values)


def test_a_record_is_read_as_it_was_written(tmp_path):
    name = os.fsdecode(b"caf\xe9 \t.mp4")
    known = [
        record(name, output=name + ".mp4", output_bytes=2**40, time_limit=1.5),
        record("b", False, source=None, facts={}, kind="bad", reason="\udce9 no", settings={}),
    ]
    with RecordStore(tmp_path / "new/records.sqlite", "job") as store:
        known = [store.put(entry) for entry in known]
        assert store.get("c") is None
    with RecordStore(tmp_path / "new/records.sqlite", "job") as store:
        assert store.get(name) == known[0] and known[0].time > 1.7e9
        assert store.get("b").reason == "? no" and len(store) == 2
        assert [entry.key for entry in store] == ["b", name]
        assert list(store.outputs()) == [(name + ".mp4", name)]
        store.put(record("b"))
        assert store.get("b").done and len(store) == 2
    with RecordStore(tmp_path / "new/records.sqlite", "job", restart=True) as store:
        assert len(store) == 0
    assert os.listdir(tmp_path / "new") == ["records.sqlite"]  # one file, when closed


def test_one_driver_at_a_time(tmp_path):
    path = tmp_path / "records.sqlite"
    with RecordStore(path, "job") as store:
        store.put(record())
        with pytest.raises(BusyStoreError, match=r"another run is writing .*records\.sqlite"):
            RecordStore(path, "job", wait=0.1)
        with RecordStore(None, "job") as other, pytest.raises(BusyStoreError, match="another run"):
            other.absorb(path)
        store.put(record("b"))
    RecordStore(path, "job").close()


def test_the_records_of_a_killed_driver_are_kept(tmp_path):
    path = tmp_path / "records.sqlite"
    with RecordStore(path, "job") as store:
        for number in range(100):
            store.put(record(str(number)))
        for suffix in ("", "-wal"):  # as a kill leaves them
            shutil.copy(f"{path}{suffix}", tmp_path / f"copy{suffix}")
    with RecordStore(None, "job") as reader:
        reader.absorb(tmp_path / "copy")
        assert len(reader) == 100
    cut = tmp_path / "copy-wal"
    os.truncate(cut, cut.stat().st_size - 100)  # and a power failure may
    with RecordStore(tmp_path / "copy", "job") as store:
        assert len(store) == 99


def test_of_several_stores_the_latest_record_counts(tmp_path):
    data = bytes(range(256)) * 9
    for name, when, done in (("a", 1.0, True), ("b", 3.0, False), ("c", 2.0, True)):
        with RecordStore(tmp_path / name, "job") as store:
            store.put(record("x", done, time=when))
            store.put(record(name, time=when, data=data, settings={"crf": when}))
    with RecordStore(None, "job") as store:
        for name in "bca":
            store.absorb(tmp_path / name)
        times = {entry.key: entry.time for entry in store}
        assert times == {"a": 1.0, "b": 3.0, "c": 2.0, "x": 3.0} and not store.get("x").done
        assert store.get("a").data == data and store.get("x").data is None
        assert sorted(s["crf"] for s in store.settings()) == [1.0, 1.5, 2.0, 3.0]
        store.clear()
        assert len(store) == 0 and store.settings() == []


@pytest.mark.parametrize("content", [b"a.mp4 0\n", bytes(8192), b"SQLite format 3\0" + b"x" * 5000])
def test_another_file_is_left_alone(tmp_path, content):
    path = tmp_path / "records.sqlite"
    path.write_bytes(content)
    for restart in (False, True):
        with pytest.raises(StoreError, match=r"records\.sqlite is no store of records of job"):
            RecordStore(path, "job", restart=restart)
    with RecordStore(None, "job") as store, pytest.raises(StoreError, match=r"records\.sqlite"):
        store.absorb(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("target", ["empty", "missing"])
def test_a_store_is_made_through_no_link(tmp_path, target):
    (tmp_path / "empty").touch()
    (tmp_path / "records").symlink_to(tmp_path / target)
    with pytest.raises(StorageError, match="cannot write .*records: it is a symbolic link"):
        RecordStore(tmp_path / "records", "test")
    assert not (tmp_path / "empty").read_bytes() and not (tmp_path / "missing").exists()


def test_the_store_of_another_program_or_job_is_refused(tmp_path):
    sqlite3.connect(tmp_path / "theirs").execute("CREATE TABLE records (key)").connection.close()
    with pytest.raises(StoreError, match="theirs is no store of records of job"):
        RecordStore(tmp_path / "theirs", "job")
    RecordStore(tmp_path / "other", "verify").close()
    with pytest.raises(StoreError, match="'verify'"):
        RecordStore(tmp_path / "other", "job")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="cannot write .*folder"):
        RecordStore(tmp_path / "folder", "job")


def test_damaged_values_are_an_error(tmp_path):
    with RecordStore(tmp_path / "a", "job") as store:
        store.put(record())
    for value in ("'[' || facts", "'[1]'", "5", "zeroblob(9)", "replace(facts, '4', x'ff')"):
        shutil.copy(tmp_path / "a", tmp_path / "b")
        connection = sqlite3.connect(tmp_path / "b", isolation_level=None)
        connection.execute(f"UPDATE records SET facts = {value}")
        connection.close()
        with (
            RecordStore(tmp_path / "b", "job") as store,
            pytest.raises(StoreError, match="damaged"),
        ):
            store.get("a")


def test_a_full_disk_loses_no_earlier_record(tmp_path):
    path = tmp_path / "records.sqlite"
    with RecordStore(path, "job") as store:
        with file_size_limit(200_000), pytest.raises(StorageError, match=r"cannot write .*sqlite"):
            for number in range(1000):
                store.put(record(str(number), facts={"text": "x" * 1000}))
        kept = len(store)
    with RecordStore(path, "job") as store:
        assert 10 < len(store) == kept == number
