"""Google's storage, gs://, compared with the REST interface of an emulator."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import urllib.request
from urllib.parse import quote

import pytest

from sce_video.utils import storage
from sce_video.utils.files import write_bytes, write_text
from sce_video.utils.storage import ObjectStoreError


@pytest.fixture(scope="module")
def server():
    # gcsfs reads this when it is imported. Otherwise, it uses another protocol for buckets.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="no gcp-storage-emulator")
    pytest.importorskip("gcsfs", reason="no gcsfs: pip install 'sce-video[gs]'")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="b")
    running.start()
    yield f"http://127.0.0.1:{port}"
    running.stop()


@pytest.fixture
def store(server, tmp_path, monkeypatch):
    import fsspec
    import gcsfs

    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("SCE_VIDEO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    gcsfs.GCSFileSystem.clear_instance_cache()
    yield server
    gcsfs.GCSFileSystem.clear_instance_cache()


def stored(server, key):
    with urllib.request.urlopen(f"{server}/b/b/o/{quote(key, safe='')}?alt=media") as answer:
        return answer.read()


def keys(server):
    with urllib.request.urlopen(f"{server}/b/b/o") as answer:
        return sorted(entry["name"] for entry in json.load(answer).get("items", []))


def test_an_object_is_written_listed_read_and_removed(store, tmp_path):
    write_text("gs://b/runs/a b/x.txt", "one")
    assert stored(store, "runs/a b/x.txt") == b"one"
    write_bytes("gs://b/runs/a b/x.txt", b"three")
    assert stored(store, "runs/a b/x.txt") == b"three"
    write_text("gs://b/runs/a b/c/y.txt", "")
    assert storage.exists("gs://b/runs/a b/x.txt") and storage.size("gs://b/runs/a b/x.txt") == 5
    assert [file.name for file in storage.list_files("gs://b/runs/a b")] == ["x.txt"]
    storage.get_file("gs://b/runs/a b/x.txt", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"three"
    storage.remove("gs://b/runs/a b/x.txt")
    storage.remove("gs://b/runs/a b/x.txt")
    assert keys(store) == ["runs/a b/c/y.txt"]


def test_nobody_listens(store, monkeypatch):
    import gcsfs

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds, *result: sleep(0))  # half a minute
    gcsfs.GCSFileSystem.clear_instance_cache()
    with pytest.raises(ObjectStoreError, match="the store does not answer"):
        storage.exists("gs://b/x.txt")
