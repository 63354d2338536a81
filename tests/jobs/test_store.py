"""Record stores: what they hold, who may write them, and files that are none."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
from contextlib import closing

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
        with pytest.raises(StoreError, match=r"records\.sqlite is not the record store of job"):
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
    with pytest.raises(StoreError, match="theirs is not the record store of job"):
        RecordStore(tmp_path / "theirs", "job")
    RecordStore(tmp_path / "other", "verify").close()
    with pytest.raises(StoreError, match="'verify'"):
        RecordStore(tmp_path / "other", "job")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="cannot write .*folder"):
        RecordStore(tmp_path / "folder", "job")


def test_a_journal_that_names_another_file_is_refused(tmp_path):
    """SQLite removes the file that is named as the journal of several databases, wherever it is."""
    path, other = tmp_path / "records.sqlite", tmp_path / "elsewhere" / "precious.txt"
    other.parent.mkdir()
    other.write_text("not a journal")
    RecordStore(path, "job").close()
    content, name, size = path.read_bytes(), os.fsencode(other), 4096
    magic = bytes.fromhex("d9d505f920a163d7")
    journal = magic + struct.pack(">5I", 1, 0, len(content) // size, 512, size)
    checksum = sum(content[i] for i in range(size - 200, 0, -200))
    journal = journal.ljust(512, b"\0") + struct.pack(">I", 1) + content[:size]
    journal += struct.pack(">2I", checksum, 2**30 // size + 1) + name
    journal += struct.pack(">2I", len(name), sum(name)) + magic
    (tmp_path / "records.sqlite-journal").write_bytes(journal)
    message = r"records\.sqlite-journal names another file. Remove it"
    with pytest.raises(StoreError, match=message):
        RecordStore(path, "job")
    with RecordStore(None, "job") as store, pytest.raises(StoreError, match=message):
        store.absorb(path)
    assert other.read_text() == "not a journal"
    # SQLite itself does so, which makes the check worth its lines.
    with closing(sqlite3.connect(path)) as base:
        base.execute("SELECT * FROM records")
    assert not other.exists()


def test_a_link_or_a_pipe_is_no_store(tmp_path):
    empty = tmp_path / "elsewhere"
    empty.touch()
    (tmp_path / "link").symlink_to(empty)
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "dangling", "pipe"):
        refused = "it is (not a regular file|a symbolic link)"
        with pytest.raises((StoreError, StorageError), match=refused):
            RecordStore(tmp_path / name, "job")
    assert empty.stat().st_size == 0 and not (tmp_path / "new").exists()


def test_keys_out_of_order_are_an_error(tmp_path):
    """As those of a file whose pages lead back to each other, which would be read for ever."""
    path = tmp_path / "records.sqlite"
    with RecordStore(path, "job") as store:
        for key in ("a", "middle", os.fsdecode(b"\xff"), "\u00e9"):
            store.put(record(key))
        assert [entry.key for entry in store] == ["a", "middle", "\u00e9", "\udcff"]
    path.write_bytes(path.read_bytes().replace(b"middle", b"\xff\xffddle"))
    with (
        RecordStore(path, "job") as store,
        pytest.raises(StoreError, match="keys are not in order"),
    ):
        list(store)
    with RecordStore(None, "job") as store:
        with pytest.raises(StoreError, match="keys are not in order"):
            store.absorb(path)
        assert len(store) == 0


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
