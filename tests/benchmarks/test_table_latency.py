"""benchmarks/table_latency.py: one small run; the server of it answers as an object store."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from helpers.videos import numbered_frames, write_video


@pytest.mark.slow
def test_a_small_run(repo, tmp_path):
    pytest.importorskip("lance", reason="needs Lance: pip install 'sce-video[lance]'")
    for folder, key_distance in (("videos", "30"), ("repacked", "1")):
        frames = numbered_frames(90, 120, 160)
        write_video(tmp_path / folder / "v.mp4", frames, options={"g": key_distance, "bf": "0"})
    out = tmp_path / "out.json"
    options = {"videos": tmp_path / "videos", "repacked": tmp_path / "repacked", "json": out,
               "rounds": 1, "rows": 8, "samples": 16, "batch": 4, "delay": 0.01}  # fmt: skip
    command = [sys.executable, str(repo / "benchmarks/table_latency.py"), "--all"]
    command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
    environment = {**os.environ, "PYTHONPATH": str(repo), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert set(found["samples_per_second"]) == {"local", "remote", "remote, each batch for itself"}
    assert min(found["samples_per_second"].values()) > 0 and found["ratio"] > 0
    assert found["bytes_read_to_used"] >= 1 and found["requests_per_sample"] > 1


def test_a_range_of_a_file_is_answered(repo, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(repo / "benchmarks"))
    import slow_store

    (tmp_path / "a").mkdir()
    (tmp_path / "a/b.txt").write_bytes(bytes(range(100)))
    (tmp_path.parent / "outside.txt").touch()
    store = slow_store.Store(tmp_path, 0.0)

    def ask(path, headers=b"", method=b"GET"):
        head, _, body = store.answer(
            b"%s %s HTTP/1.1\r\nHost: x%s\r\n" % (method, path, headers)
        ).partition(b"\r\n\r\n")
        return head, body

    head, body = ask(b"/bucket/a/b.txt", b"\r\nRange: bytes=10-19")
    assert b" 206 " in head and b"bytes 10-19/100" in head and body == bytes(range(10, 20))
    assert ask(b"/bucket/a/b.txt", b"\r\nrange: bytes=-5")[1] == bytes(range(95, 100))
    head, body = ask(b"/bucket/a/b.txt", method=b"HEAD")
    assert b"Content-Length: 100" in head and body == b""
    assert b" 404 " in ask(b"/bucket/../outside.txt")[0]
    listing = ask(b"/bucket?list-type=2&prefix=&delimiter=%2F")[1]
    assert b"<CommonPrefixes><Prefix>a/</Prefix>" in listing and b"b.txt" not in listing
    assert b"<Key>a/b.txt</Key><Size>100</Size>" in ask(b"/bucket?prefix=a/")[1]
    assert store.counts == {"requests": 6, "bytes": 15}
    assert json.loads(ask(b"/-/counts")[1]) == store.counts
