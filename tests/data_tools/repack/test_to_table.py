"""Repacking into a table: rows equal to those of repacked files, resumed, with failures as rows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from helpers.tables import contents
from helpers.videos import numbered_frames, write_video

from sce_video.commands.import_table import main as import_main
from sce_video.commands.repack import main
from sce_video.data_tools.repack.encode import repack_file
from sce_video.data_tools.repack.plan import EncoderLimits, Settings
from sce_video.data_tools.repack.repack_job import EncodedRow, repack_to_table
from sce_video.datasets import scan_folder
from sce_video.jobs import StorageError

pytest.importorskip("lance", reason="needs Lance: pip install 'sce-video[lance]'")

FAST = Settings(preset="ultrafast", crf=25)
ARGUMENTS = ["--preset", "ultrafast", "--crf", "25", "--workers", "1", "--min-psnr", "20"]
OF_THE_SOURCE = {"source_size", "source_mtime_ns", "settings"}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Five videos of two classes and one without; not to be changed."""
    root = tmp_path_factory.mktemp("original")
    names = ["One/a b.avi", "One/c.avi", "One/c.mp4", "Two/d.avi", "Two/e.webm", "f.avi"]
    for number, name in enumerate(names):
        codec = "libvpx" if name.endswith("webm") else "mpeg4"
        write_video(root / name, numbered_frames(10 + number), codec=codec, options={"b": "1M"})
    return root


@pytest.fixture
def folder(tmp_path):
    """Four small videos of one class, which a test may change."""
    for number in range(4):
        write_video(tmp_path / f"data/x/{number}.mp4", numbered_frames(8 + number))
    return tmp_path / "data"


def note_and_repack(source, *arguments):
    """Report a full disk for the source ``full``; note others in ``calls.log`` and repack them."""
    path = Path(source)
    with open(path.parent / "calls.log", "a") as log:
        log.write(f"{path.name}\n")
    if path.stem == "full":
        raise StorageError("cannot write: the disk is full")
    return repack_file(source, *arguments)


@pytest.fixture
def by_name(in_process, monkeypatch):
    """Files are encoded in this process, by their names."""
    monkeypatch.setattr("sce_video.data_tools.repack.repack_job.repack_file", note_and_repack)


def run(folder, table, settings=FAST, force=False):
    videos, limits = scan_folder(str(folder)), EncoderLimits(min_psnr=20.0)
    return repack_to_table(videos, str(folder), str(table), settings, limits, force=force)


def encoded(folder):
    """Names of the files that were encoded since the last call."""
    log = Path(folder, "x/calls.log")
    names = sorted(log.read_text().split()) if log.exists() else []
    log.unlink(missing_ok=True)
    return names


def test_rows_are_those_of_repacked_files(original, tmp_path, in_process, capsys):
    """Of ``repack --to``, as of repack and import, in all columns but those of their sources."""
    one, two, files = tmp_path / "one.lance", tmp_path / "two.lance", tmp_path / "files"
    assert main([str(original), "--to", str(one), *ARGUMENTS]) == 0
    assert "6 files: 6 repacked, 0 up to date, 0 failed" in capsys.readouterr().out
    assert main([str(original), str(files), *ARGUMENTS]) == 0
    assert import_main([str(files), str(two), "--workers", "1"]) == 0
    ours, theirs = contents(one), contents(two)
    assert ours.keys() == theirs.keys() and len(ours) == 6
    for path, row in ours.items():
        assert row.keys() == theirs[path].keys()
        assert {n for n in row if row[n] != theirs[path][n]} <= OF_THE_SOURCE
    row, status = ours["One/c.avi.mp4"], os.stat(original / "One/c.avi")
    assert (row["source_size"], row["source_mtime_ns"]) == (status.st_size, status.st_mtime_ns)
    made = json.loads(row["settings"])
    assert made["repack"] == Settings(preset="ultrafast", crf=25).as_dict()
    assert made["crf"] == 25 and 20 < made["psnr"] <= 100 and made["source_frames"] == 11


def test_rows_that_are_up_to_date_are_not_encoded_again(folder, tmp_path, by_name, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    table = tmp_path / "v.lance"
    result = run(folder, table)
    assert (result.imported, result.known, len(encoded(folder))) == (4, 0, 4)
    assert list((tmp_path / "temporary").iterdir()) == []  # no file is left
    assert run(folder, table).known == 4 and encoded(folder) == []
    before = contents(table)
    write_video(folder / "x/1.mp4", numbered_frames(20))
    os.utime(folder / "x/2.mp4")
    (folder / "x/3.mp4").unlink()
    assert run(folder, table).imported == 2 and encoded(folder) == ["1.mp4", "2.mp4"]
    after = contents(table)
    assert [path for path in after if after[path]["hash"] != before[path]["hash"]] == ["x/1.mp4"]
    assert run(folder, table, force=True).imported == 3 and len(encoded(folder)) == 3
    assert run(folder, table, Settings(preset="ultrafast", crf=26)).imported == 3
    assert len(encoded(folder)) == 3


def test_settings_and_psnr_decide_whether_a_row_is_good_enough():
    made = {"repack": FAST.as_dict(), "psnr": 33.0, "psnr_luma": 31.0, "crf": 25}

    def is_good(settings, least, text):
        return EncodedRow(settings, EncoderLimits(min_psnr=least)).is_current(text)

    assert is_good(FAST, 31.0, json.dumps(made))
    assert not is_good(FAST, 31.5, json.dumps(made))
    assert not is_good(Settings(crf=25), 31.0, json.dumps(made))
    for text in ("", "{", "null", json.dumps({**made, "psnr": None}), "[" * 10**5):
        assert not is_good(FAST, 30.0, text)


def test_failures_are_rows_and_are_tried_again(folder, tmp_path, by_name):
    (folder / "x/bad.mp4").write_text("no video " * 90)
    table = tmp_path / "v.lance"
    for _ in range(2):
        result = run(folder, table)
        assert [path for path, _ in result.failures] == ["x/bad.mp4"]
    rows = contents(table)
    assert len(rows) == 5 and "cannot be opened" in rows["x/bad.mp4"]["failure"]
    assert rows["x/bad.mp4"]["stream"] is None or rows["x/bad.mp4"]["stream"] == b""
    encoded(folder)
    write_video(folder / "x/bad.mp4", numbered_frames(9))
    assert run(folder, table).failures == [] and encoded(folder) == ["bad.mp4"]
    assert contents(table)["x/bad.mp4"]["failure"] == ""


def test_a_file_that_changes_while_it_is_encoded_fails_and_is_due(
    folder, tmp_path, by_name, monkeypatch
):
    def touching(source, *arguments):
        facts = note_and_repack(source, *arguments)
        if source.endswith("2.mp4"):
            os.utime(source, ns=(1, 1))
        return facts

    with monkeypatch.context() as patched:
        patched.setattr("sce_video.data_tools.repack.repack_job.repack_file", touching)
        result = run(folder, tmp_path / "v.lance")
    assert result.failures == [("x/2.mp4", "changed while it was being read")]
    assert run(folder, tmp_path / "v.lance").imported == 1
    assert len(contents(tmp_path / "v.lance")) == 4


def test_a_full_disk_ends_the_run_and_keeps_what_was_done(folder, tmp_path, by_name):
    os.rename(folder / "x/2.mp4", folder / "x/full.mp4")  # the last by name
    table = tmp_path / "v.lance"
    with pytest.raises(StorageError, match="the disk is full"):
        run(folder, table)
    assert sorted(contents(table)) == ["x/0.mp4", "x/1.mp4", "x/3.mp4"]
    os.rename(folder / "x/full.mp4", folder / "x/2.mp4")
    encoded(folder)
    assert run(folder, table).imported == 1 and encoded(folder) == ["2.mp4"]
