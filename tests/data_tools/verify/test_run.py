"""Runs over lists and folders, resumed from their records."""

from __future__ import annotations

import os

import pytest
from helpers import verification_fakes as fakes

from sce_video.data_tools.verify import (
    Limits,
    VerifyJob,
    file_problems,
    open_records,
    read_videos,
    verify_videos,
)
from sce_video.jobs import Workers, process_pool


def test_reading_lists_and_folders(tmp_path, videos, monkeypatch):
    listed = tmp_path / "sub" / "list.txt"
    listed.parent.mkdir()
    listed.write_text("\na.mp4 0\n\nb.mkv 1\n")
    entries, root, lines = read_videos(str(listed), str(videos))
    assert (len(entries), root, lines) == (2, str(videos), [2, 4])
    with pytest.raises(ValueError, match=r"a\.mp4.*--data-root"):
        read_videos(str(listed), None)
    monkeypatch.chdir(videos)  # the second choice, after the list's own folder
    assert read_videos(str(listed), None)[1] == "."
    (listed.parent / "b.mkv").touch()
    assert read_videos(str(listed), None)[1] == str(listed.parent)
    entries, root, lines = read_videos(str(videos), None)
    assert (len(entries), root, lines) == (3, str(videos), None)
    with pytest.raises(ValueError, match="--data-root"):
        read_videos(str(videos), str(videos))
    with pytest.raises(ValueError, match="nowhere"):
        read_videos(str(tmp_path / "nowhere.txt"), None)


@pytest.fixture
def folder(tmp_path):
    for name in ("a.mp4", "b.mp4", "c.mp4"):
        (tmp_path / name).write_text(name)
    return tmp_path


def verify(folder, names, examine=fakes.note_and_pass, timeout=20.0, workers=2, **options):
    with open_records(folder / "records.sqlite", options.pop("restart", False)) as store:
        job = VerifyJob(str(folder), timeout, examine=examine)
        facts = verify_videos(names, job, store, Workers(workers, timeout), **options)
        return {name: facts(name) for name in names}


def calls(folder):
    log = folder / "calls.log"
    names = sorted(log.read_text().split()) if log.exists() else []
    log.unlink(missing_ok=True)
    return names


def test_each_file_is_examined_once_and_never_again(folder):
    names = ["a.mp4", "b.mp4", "a.mp4", "gone.mp4"]
    facts = verify(folder, names)
    assert calls(folder) == ["a.mp4", "b.mp4"]
    assert {path: f["outcome"] for path, f in facts.items()} == {
        "a.mp4": "decoded", "b.mp4": "decoded", "gone.mp4": "missing",
    }  # fmt: skip
    again = verify(folder, [*names, "c.mp4"])
    assert calls(folder) == ["c.mp4"]
    assert again["a.mp4"] == facts["a.mp4"] and again["a.mp4"]["frames"] == 100
    verify(folder, names, restart=True)
    assert calls(folder) == ["a.mp4", "b.mp4"]


def test_a_changed_file_is_examined_again(folder):
    names = ["a.mp4", "b.mp4", "c.mp4"]
    verify(folder, names)
    calls(folder)
    status = (folder / "a.mp4").stat()
    os.utime(folder / "a.mp4", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    keep = (folder / "b.mp4").stat()
    (folder / "b.mp4").write_text("longer now")
    os.utime(folder / "b.mp4", ns=(keep.st_atime_ns, keep.st_mtime_ns))
    verify(folder, names)
    assert calls(folder) == ["a.mp4", "b.mp4"]
    verify(folder, names)
    assert calls(folder) == []


def test_a_file_that_appears_is_no_longer_missing(folder):
    assert verify(folder, ["d.mp4"])["d.mp4"]["outcome"] == "missing"
    (folder / "d.mp4").touch()
    assert verify(folder, ["d.mp4"])["d.mp4"]["outcome"] == "decoded"


def test_crashes_and_hangs_are_named_and_tried_again(folder, monkeypatch):
    monkeypatch.setattr(process_pool, "_GRACE", 0.2)
    for name in ("crash.mp4", "hang.mp4", "fail.mp4"):
        (folder / name).touch()
    names = ["a.mp4", "crash.mp4", "b.mp4", "hang.mp4", "fail.mp4", "c.mp4"]
    facts = verify(folder, names, examine=fakes.by_name, timeout=2.0)
    assert calls(folder) == ["a.mp4", "b.mp4", "c.mp4"]
    assert "SIGSEGV" in facts["crash.mp4"]["error"]
    assert facts["hang.mp4"]["outcome"] == "timeout" and "2 s" in facts["hang.mp4"]["error"]
    assert "KeyError" in facts["fail.mp4"]["error"]
    for name in ("crash.mp4", "hang.mp4", "fail.mp4"):
        assert [kind for kind, _ in file_problems(name, facts[name], Limits())] == ["bad"]
    # crashes are tried again always, timeouts with a longer limit only
    verify(folder, names, timeout=1.5)
    assert calls(folder) == ["crash.mp4", "fail.mp4"]
    verify(folder, names, timeout=3.0)
    assert calls(folder) == ["hang.mp4"]


def test_progress(folder):
    verify(folder, ["a.mp4"])
    seen = []
    verify(folder, ["a.mp4", "b.mp4", "c.mp4", "gone.mp4"], on_progress=lambda *n: seen.append(n))
    assert seen == [(0, 2, 2), (1, 2, 2), (2, 2, 2)]


def test_names_that_are_not_utf8(folder):
    name = os.fsdecode(b"caf\xe9 \t.mp4")
    (folder / name).touch()
    assert verify(folder, [name])[name]["outcome"] == "decoded"
    verify(folder, [name])
    assert len(calls_bytes := (folder / "calls.log").read_bytes().splitlines()) == 1, calls_bytes


@pytest.mark.parametrize("content", [b"a.mp4 0\n", b'{"frames": 3}\n', bytes(4096)])
def test_a_file_that_holds_no_records_is_left_alone(folder, content):
    (folder / "records.sqlite").write_bytes(content)
    for restart in (False, True):
        with pytest.raises(ValueError, match=r"records\.sqlite is no store of records.*--out"):
            verify(folder, ["a.mp4"], restart=restart)
    assert (folder / "records.sqlite").read_bytes() == content
