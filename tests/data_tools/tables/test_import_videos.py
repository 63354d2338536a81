"""Rows of files, and imports that are interrupted, resumed and repeated."""

from __future__ import annotations

import hashlib
import os
import shutil
import zlib
from dataclasses import fields
from fractions import Fraction

import av
import numpy as np
import pytest
from helpers.tables import run, sources, write_folder, write_repacked
from helpers.videos import numbered_frames, trim, write_video

from sce_video.commands.import_table import main
from sce_video.data_tools.table_writer import TableWriter, write_rows
from sce_video.data_tools.video_row import RowSource, VideoRow, video_row
from sce_video.datasets import LanceVideoDataset
from sce_video.datasets.tables.row_columns import FrameIndex, list_rows, schema
from sce_video.datasets.tables.table import TableError

lance = pytest.importorskip("lance", reason="needs Lance: pip install 'sce-video[lance]'")


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "files")


def content(table):
    return lance.dataset(str(table)).to_table(columns=["path", "failure", "hash"]).to_pylist()


# -- rows -----------------------------------------------------------------------------------------


def test_a_row_has_the_columns_of_the_table():
    assert sorted(field.name for field in fields(VideoRow)) == sorted(schema().names)


@pytest.mark.parametrize("keyint", [1, 3])
def test_a_row_holds_the_packets_of_the_file(tmp_path, keyint):
    path = write_repacked(tmp_path / "v.mp4", 12, keyint=keyint)
    row = video_row(RowSource(str(path), "sub/v.mp4", label=4))
    index = FrameIndex.unpack(row.index)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        contents = [bytes(packet) for packet in packets]
        assert row.stream == b"".join(contents)
        assert np.diff(index.offsets).tolist() == [len(content) for content in contents]
        assert index.checks.tolist() == [zlib.crc32(content) for content in contents]
        assert index.pts.tolist() == [packet.pts for packet in packets]
        assert Fraction(*index.time_base) == stream.time_base
        keys = [i for i, packet in enumerate(packets) if packet.is_keyframe]
        assert keys == list(range(0, 12, keyint))
        assert np.flatnonzero(index.is_key).tolist() == keys
        assert index.parameters.extradata == stream.codec_context.extradata
    assert row.hash == hashlib.blake2b(row.stream, digest_size=16).digest()
    assert (row.codec, row.height, row.width) == ("h264", 64, 80)
    assert (row.pixel_format, row.rotation, row.duration) == ("yuv420p", 0, 12 / 25)
    assert (row.path, row.label, row.failure) == ("sub/v.mp4", 4, "")
    status = os.stat(path)
    assert (row.source_size, row.source_mtime_ns) == (status.st_size, status.st_mtime_ns)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: None, "cannot be opened: No such file"),
        (lambda p: p.write_text("no video " * 90), "cannot be opened"),
        (
            lambda p: write_video(p, numbered_frames(20), options={"bf": "3", "g": "12"}),
            "not stored in display order: repack it",
        ),
        (
            lambda p: trim(write_video(p.with_name("w.mp4"), numbered_frames(20)), p, 0.2),
            "packets that do not belong to exactly one frame: repack it",
        ),
    ],
)
def test_what_cannot_become_a_row_is_a_row_with_the_reason(tmp_path, make, reason):
    make(tmp_path / "v.mp4")
    row = video_row(RowSource(str(tmp_path / "v.mp4"), "v.mp4"))
    assert reason in row.failure
    assert row.stream is None


# -- imports --------------------------------------------------------------------------------------


def test_an_import_is_resumed_and_changed_files_are_replaced(folder, tmp_path, in_process):
    table = tmp_path / "v.lance"
    first = run(folder, table)
    assert (first.files, first.imported, first.known, first.failures) == (6, 6, 0, [])
    before = {row["path"]: row["hash"] for row in content(table)}
    again = run(folder, table)
    assert (again.imported, again.known) == (0, 6)
    write_repacked(folder / "a/1.mp4", 25, seed=77)
    (folder / "b/2.mp4").unlink()
    write_repacked(folder / "c/new.mp4", 20)
    changed = run(folder, table)
    assert (changed.files, changed.imported, changed.known) == (6, 2, 4)
    after = {row["path"]: row["hash"] for row in content(table)}
    assert len(content(table)) == len(after) == 7  # the row of the removed file stays
    assert {path for path in before if before[path] != after[path]} == {"a/1.mp4"}
    listed = list_rows(str(table))
    assert listed.videos.classes == ("a", "b", "c")
    assert listed.videos.labels.tolist() == [0, 0, 0, 1, 1, 1, 2]


def test_rows_between_writing_and_commit_are_no_part_of_the_table(folder, tmp_path, in_process):
    """A process killed there leaves a readable table; the same command completes it."""
    table = str(tmp_path / "v.lance")
    writer = TableWriter(table)
    writer.commit(write_rows(table, [video_row(s) for s in sources(folder, ["a/0.mp4"])]))
    write_rows(table, [video_row(s) for s in sources(folder, ["a/1.mp4", "b/0.mp4"])])
    assert [row["path"] for row in content(table)] == ["a/0.mp4"]
    assert len(LanceVideoDataset(table)) == 1
    result = run(folder, table)
    assert (result.imported, result.known) == (5, 1)
    assert sorted(row["path"] for row in content(table)) == [s.path for s in sources(folder)]


def test_of_two_rows_of_a_path_the_later_counts_and_the_next_import_removes_the_other(
    folder, tmp_path, in_process
):
    """As a kill between a commit and the removal of replaced rows leaves them."""
    table = str(tmp_path / "v.lance")
    (source,) = sources(folder, ["a/0.mp4"])
    writer = TableWriter(table)
    writer.commit(write_rows(table, [video_row(source)]))
    write_repacked(folder / "a/0.mp4", 20, seed=5)
    writer.commit(write_rows(table, [video_row(source)]))
    listed = list_rows(table)
    assert listed.rows.tolist() == [1]
    assert run(folder, table).imported == 5
    assert sorted(row["path"] for row in content(table)) == [s.path for s in sources(folder)]


def test_failures_are_kept_and_tried_again_on_request(tmp_path, in_process):
    write_repacked(tmp_path / "files/good.mp4")
    (tmp_path / "files/bad.mp4").write_text("no video " * 90)
    table = tmp_path / "v.lance"
    first = run(tmp_path / "files", table)
    assert [path for path, _ in first.failures] == ["bad.mp4"]
    again = run(tmp_path / "files", table)
    assert (again.imported, again.known, again.failed_before) == (0, 2, 1)
    third = run(tmp_path / "files", table, retry_failed=True)
    assert (third.imported, len(third.failures), len(content(table))) == (1, 1, 2)


def test_no_other_folder_or_file_is_taken_for_a_table(folder, tmp_path, in_process):
    (tmp_path / "v.lance/data").mkdir(parents=True)  # killed while it was made: is made again
    assert run(folder, tmp_path / "v.lance").imported == 6
    (tmp_path / "file.lance").write_text("")
    with pytest.raises(TableError, match="exists but is not a table"):
        run(folder, tmp_path / "file.lance")
    with pytest.raises(TableError, match="folder with other files, for example 'a'"):
        run(folder, shutil.copytree(folder, tmp_path / "other.lance"))


def test_the_command_imports_a_list(folder, tmp_path, in_process, capsys):
    (folder / "train.txt").write_text("b/1.mp4 5\na/2.mp4 3\nnone.mp4 3\n")
    table = str(tmp_path / "v.lance")
    assert main([str(folder / "train.txt"), table, "--workers", "1"]) == 1
    printed = capsys.readouterr().out
    assert "3 files: 2 imported, 0 up to date, 1 failed" in printed
    assert "none.mp4: cannot be opened: No such file or directory" in printed
    assert sorted(list_rows(table).videos.labels.tolist()) == [3, 5]
    assert main([str(tmp_path / "nothing"), table]) == 2
    assert "error: no list or folder at" in capsys.readouterr().err
