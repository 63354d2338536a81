"""Objects in a store: boto3 reads back what was written, and errors are sentences."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from helpers.object_store import busy, change_answers, forget_sessions

from sce_video.utils import storage
from sce_video.utils.errors import MissingPackageError
from sce_video.utils.files import (
    WriteError,
    atomic_file,
    local_copy,
    output_file,
    write_json,
    write_text,
)
from sce_video.utils.storage import ObjectStoreError as StoreError
from sce_video.utils.storage import walk_files


def test_an_object_is_written_read_and_removed(bucket):
    url = bucket.url("run/results.json")
    write_json(url, {"top1": 1})
    assert bucket.get("run/results.json") == b'{\n  "top1": 1\n}\n'
    assert storage.exists(url) and storage.size(url) == 16
    assert not storage.exists(bucket.url("run/result"))
    bucket.put("run/deeper/epoch_9.pth", b"")
    bucket.put("run/a.json", b"12")
    found = storage.list_files(bucket.url("run"))
    assert [(f.name, f.size) for f in found] == [("a.json", 2), ("results.json", 16)]
    assert found[0].time > 1e9  # seconds since 1970
    storage.remove(url)
    storage.remove(url)
    assert bucket.keys() == ["run/a.json", "run/deeper/epoch_9.pth"]


@pytest.mark.parametrize("by", ["Ctrl-C", "another thread"])
def test_an_upload_in_parts_that_is_ended_leaves_none(bucket, tmp_path, monkeypatch, by):
    import s3fs

    async def ended(*args, **kwargs):
        assert bucket.unfinished_uploads() == ["large"]
        if by == "Ctrl-C":
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        else:
            storage.cancel_uploads()
        await asyncio.sleep(600)

    monkeypatch.setattr(s3fs.S3FileSystem, "_upload_file_part_concurrent", ended)
    monkeypatch.setattr(storage, "_ABORT", 60)
    # Programs that are started in the background ignore this signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    try:
        with pytest.raises(KeyboardInterrupt if by == "Ctrl-C" else WriteError):
            with atomic_file(bucket.url("large")) as file, open(file, "wb") as opened:
                opened.truncate(101 << 20)
    finally:
        signal.signal(signal.SIGINT, before)
    assert bucket.unfinished_uploads() == [] == bucket.keys()
    if by == "Ctrl-C":
        assert list(tmp_path.glob("sce_video_*")) == []


# -- a store that is busy or faulty ---------------------------------------------------------


@pytest.fixture
def waits(monkeypatch):
    """Record waiting times without waiting."""
    sleep, found = asyncio.sleep, []

    async def wait(seconds, *result):
        found.append(seconds)
        return await sleep(0, *result)

    monkeypatch.setattr(asyncio, "sleep", wait)
    return found


def test_a_store_that_stays_busy_is_asked_for_over_a_minute(bucket, waits, monkeypatch):
    change_answers(monkeypatch, busy(1.0))
    found = []
    for action in (
        lambda: storage.exists(bucket.url("x")),
        lambda: write_text(bucket.url("x"), ""),
    ):
        waits.clear()
        with pytest.raises((StoreError, WriteError), match="has been too busy for over a minute"):
            action()
        assert sum(waits) > 60 and max(waits) <= 10 and len(waits) == 15
        found.append(list(waits))
    assert all(a != b for a, b in zip(*found, strict=True))  # machines do not retry together


def test_a_flipped_byte_is_told_as_what_it_is(bucket, monkeypatch):
    import s3fs

    def flip(answer):
        def flipped(environ, start):
            content = b"".join(answer(environ, start))
            return [content.replace(b"good", b"gooe")]

        return flipped

    forget_sessions()
    monkeypatch.setattr(s3fs.S3FileSystem, "default_block_size", 100)
    url = bucket.put("run/config.py", b"good" * 100)
    change_answers(monkeypatch, flip)
    with pytest.raises(StoreError) as caught:
        local_copy(url)
    message = str(caught.value)
    assert message.startswith(
        f"{url} cannot be read: the received data differ from the stored data (Expected"
    )
    assert "did not match calculated checksum" in message and "cannot write" not in message


# -- local copies --------------------------------------------------------------------------


def test_a_process_keeps_to_the_version_that_it_has_read(bucket):
    url = bucket.put("list.txt", b"old")
    kept = local_copy(url)
    bucket.put("list.txt", b"new")
    assert local_copy(url) == kept and kept.read_bytes() == b"old"
    assert local_copy(url, newest=True).read_bytes() == b"new"
    assert local_copy(url).read_bytes() == b"new" and not kept.exists()


def test_a_truncated_download_is_no_copy(bucket, monkeypatch):
    import s3fs

    url = bucket.put("epoch_1.pth", b"x" * 100)
    monkeypatch.setattr(
        s3fs.S3FileSystem,
        "get_file",
        lambda self, url, path, max_concurrency: Path(path).write_bytes(b"x" * 60),
    )
    with pytest.raises(OSError, match="only 60 of 100 bytes of .* were read"):
        local_copy(url)
    monkeypatch.undo()


def test_output_files_are_uploaded_at_the_end(bucket):
    with output_file(bucket.url("out/features.npz")) as path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"features")
        assert bucket.keys() == []
    assert bucket.get("out/features.npz") == b"features" and not path.exists()


# -- errors --------------------------------------------------------------------------------


def assert_refused(action, error, *words):
    with pytest.raises(error) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message


def test_a_bucket_that_does_not_exist(bucket, tmp_path):
    url = "s3://there-is-no-such-bucket/run/list.txt"
    assert_refused(lambda: local_copy(url), StoreError, url, "bucket does not exist")
    assert_refused(lambda: storage.exists(url), StoreError, "bucket does not exist")
    assert_refused(lambda: storage.exists("s3://no_name!/x"), StoreError, "Invalid bucket name")
    assert_refused(lambda: storage.list_files(url), StoreError, "bucket does not exist")
    assert_refused(
        lambda: write_text(url, "a"), WriteError, url, "bucket does not exist", "file is"
    )


def test_an_object_that_does_not_exist(bucket):
    bucket.put("run/epoch_1.pth", b"")
    assert_refused(lambda: local_copy(bucket.url("x")), FileNotFoundError, bucket.url("x"))
    assert_refused(
        lambda: local_copy(bucket.url("run")), FileNotFoundError, "is a folder", "epoch_1.pth"
    )


def test_no_credentials(bucket, monkeypatch, tmp_path):
    url = bucket.put("x", b"")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    forget_sessions()
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert_refused(lambda: local_copy(url), StoreError, url, "AWS_ACCESS_KEY_ID")
    assert_refused(lambda: write_text(url, "a"), WriteError, url, "AWS_ACCESS_KEY_ID")


def test_wrong_credentials(bucket):
    url = bucket.put("x", b"")
    bucket.check_credentials_after(0)
    try:
        assert_refused(lambda: local_copy(url), StoreError, url, "access denied", "credentials")
        assert_refused(lambda: write_text(url, "a"), WriteError, url, "access denied")
    finally:
        bucket.check_credentials_after(float("inf"))


def test_nobody_listens(bucket, monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        forget_sessions()
        url = bucket.url("x")
        assert_refused(lambda: local_copy(url), StoreError, "does not answer", "AWS_ENDPOINT_URL")
        assert_refused(lambda: write_text(url, "a"), WriteError, "does not answer")


@pytest.mark.parametrize(("scheme", "package"), [("s3", "s3fs"), ("gs", "gcsfs")])
def test_a_package_that_is_not_installed(scheme, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # its import fails
    with pytest.raises(MissingPackageError, match=rf"pip install 'sce-video\[{scheme}\]'"):
        storage.exists(f"{scheme}://bucket/key")


# -- Searching folders for files


def find_files(*args):
    return sorted(walk_files(*args))


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_files_of_the_extensions_sorted_without_hidden_ones(tmp_path):
    touch(tmp_path, "b.png", "a/c.PNG", "a/d.jpg", "a/.e.png", ".f/g.png", "a.b/h.png", "png")
    assert find_files(tmp_path, [".png"]) == ["a.b/h.png", "a/c.PNG", "b.png"]
    assert find_files(str(tmp_path), (".jpg", ".png"))[2:] == ["a/d.jpg", "b.png"]
    assert find_files(tmp_path / "none", [".png"]) == []


def test_links_are_followed_and_loops_visited_once(tmp_path):
    touch(tmp_path, "far/a.png", "root/c/b.png")
    os.symlink(tmp_path / "far", tmp_path / "root/d")
    os.symlink(tmp_path / "root", tmp_path / "root/c/loop")
    assert find_files(tmp_path / "root", [".png"]) == ["c/b.png", "d/a.png"]
