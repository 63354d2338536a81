"""Samples from a table equal those of the files; only the needed bytes and rows are read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
import torch
from helpers.tables import PIPELINE, write_repacked, write_table

from sce_video.datasets import (
    LanceVideoDataset,
    SampleRequest,
    TooManyBadFilesError,
    VideoDataset,
    VideoDecodeError,
    open_video,
)
from sce_video.datasets.labelled import read_labelled
from sce_video.datasets.sources import video_exists
from sce_video.datasets.tables import row_columns as row_list
from sce_video.datasets.tables.row_columns import FORMAT, FORMAT_KEY
from sce_video.datasets.tables.table import TableError, dataset_arguments
from sce_video.datasets.video_list import VideoList
from sce_video.registry import DATASETS

pytest.importorskip("lance", reason="needs Lance: pip install 'sce-video[lance]'")

DIFFERENCES = [PIPELINE[0], {**PIPELINE[1], "diff_prob": 0.5, "num_views": 3}, *PIPELINE[2:]]
TEST_VIEWS = [
    {"type": "OpenVideo"},
    {"type": "UniformClips", "clip_duration": 0.5, "num_frames": 4, "num_clips": 3},
    {"type": "DecodeSharedFrames"},
    {"type": "ResizeShortSide", "size": 40},
    {"type": "PackVideo", "crop_size": 32, "num_crops": 3},
]


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        if name == "inputs":
            assert all(map(torch.equal, value, second[name])) and len(value) == len(second[name])
        else:
            assert np.array_equal(value, second[name]), name


@pytest.mark.parametrize("pipeline", [PIPELINE, DIFFERENCES, TEST_VIEWS])
def test_samples_equal_those_of_the_files(folder, table, pipeline):
    files, rows = VideoDataset(folder, pipeline=pipeline), LanceVideoDataset(table, None, pipeline)
    assert len(files) == len(rows) == 6
    assert np.array_equal(files.labels, rows.labels)
    assert files.metainfo == rows.metainfo == {"classes": ("a", "b")}
    for seed in range(2):
        requests = [SampleRequest(index, 1000 * seed + index) for index in (0, 3, 5, 3, 1)]
        for one, other in zip(
            files.__getitems__(requests), rows.__getitems__(requests), strict=True
        ):
            assert_equal(one, other)
    assert_equal(files[2], rows[2])  # a single sample, with the seed of a plain index
    assert [clip.start for clip in files.origin(requests[0]).clips] == [
        clip.start for clip in rows.origin(requests[0]).clips
    ]


def test_segments_of_rows_and_urls_equal_those_of_the_files(folder, table, bucket, tmp_path):
    """As videos of a list, of a CSV file of segments, and opened alone."""
    paths = [VideoDataset(folder).videos.path(i) for i in range(3)]
    lines = [
        f"{path},{0.1 * i + 0.05:g},{0.5 + 0.1 * i:g},{'ab'[i % 2]}"
        for i in (0, 1, 2)
        for path in paths
    ]
    (tmp_path / "s.csv").write_text("\n".join(["path,start,end,label", *lines]))
    made = []
    for i, root in enumerate((folder, table)):
        config = read_labelled(str(tmp_path / "s.csv"), str(root)).dataset(
            tmp_path / str(i), "train"
        )
        made.append(DATASETS.build({"type": "VideoDataset", **config, "pipeline": PIPELINE}))
    files, rows = made
    assert type(rows) is LanceVideoDataset and len(files) == len(rows) == 9
    requests = [SampleRequest(index, 50 + index) for index in (4, 0, 8, 4)]
    for one, other in zip(files.__getitems__(requests), rows.__getitems__(requests), strict=True):
        assert_equal(one, other)
    bucket.put("a b.mp4", Path(folder, paths[0]).read_bytes())
    with open_video(f"{folder}/{paths[0]}@0.1-0.4") as reader:
        every = np.arange(len(reader.timestamps))
        frames = reader.read(every)
    for name in (f"{table}/{paths[0]}", bucket.url("a b.mp4")):
        assert video_exists(f"{name}@0.1-0.4") and not video_exists(f"{name}2@0.1-0.4")
        with open_video(f"{name}@0-0.6@0.1-0.4") as reader:  # a segment of a segment
            np.testing.assert_array_equal(reader.read(every), frames)
        with pytest.raises(VideoDecodeError, match="before the start"):
            open_video(f"{name}@100-101")
    for row, message in (
        ("none.mp4,0,1,a", "line 11: there is no video"),
        (f"{paths[0]},0,99,a", "line 11: the segment ends at 99 s"),
    ):
        (tmp_path / "s.csv").write_text("\n".join(["path,start,end,label", *lines, row]))
        with pytest.raises(ValueError, match=message):
            read_labelled(str(tmp_path / "s.csv"), str(table))


def test_frames_between_key_frames_equal_those_of_the_files(tmp_path):
    folder = tmp_path / "files"
    for keyint in (2, 7):
        write_repacked(folder / f"{keyint}.mp4", keyint=keyint)
    table = write_table(folder, tmp_path / "videos.lance")
    files, rows = VideoDataset(folder, pipeline=PIPELINE), LanceVideoDataset(table, None, PIPELINE)
    requests = [SampleRequest(index % 2, 50 + index) for index in range(6)]
    for one, other in zip(files.__getitems__(requests), rows.__getitems__(requests), strict=True):
        assert_equal(one, other)


SCRIPT = """
import sys, torch
from torch.utils.data import DataLoader
from sce_video.datasets import LanceVideoDataset, collate_views
sys.path.insert(0, sys.argv[1])
from helpers.tables import PIPELINE
def main():
    rows = LanceVideoDataset(sys.argv[2], None, PIPELINE)
    own = list(DataLoader(rows, 3, collate_fn=collate_views))
    workers = DataLoader(rows, 3, num_workers=1, collate_fn=collate_views, timeout=60)
    for one, other in zip(own, workers, strict=True):
        assert all(map(torch.equal, one["inputs"], other["inputs"]))
    assert "lance" not in sys.modules
    print("equal")
main()
"""


def test_a_process_that_forks_workers_does_not_import_lance_itself(table):
    """Its reads go through a process of their own, so workers may be forked at any time."""
    here = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", SCRIPT, here, table],
        capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "equal"), done.stderr


def packet_sizes(path):
    with av.open(str(path)) as container:
        return np.array([packet.size for packet in container.demux(video=0) if packet.size])


def test_only_the_bytes_of_the_frames_are_read(tmp_path, monkeypatch):
    for number in range(2):
        write_repacked(tmp_path / f"files/{number}.mp4", 40, size=(128, 160), seed=number)
    table = write_table(tmp_path / "files", tmp_path / "videos.lance")
    dataset = LanceVideoDataset(table, None, PIPELINE)
    ask, asked = dataset._source._ask, 0

    def counting(rows, method, *arguments):
        nonlocal asked
        asked += sum(size for *_, size in arguments[1]) if method == "read_ranges" else 0
        return ask(rows, method, *arguments)

    monkeypatch.setattr(dataset._source, "_ask", counting)
    requests = [SampleRequest(index % 2, 7 + index) for index in range(6)]
    dataset.__getitems__(requests)
    monkeypatch.undo()
    used = 0
    for video in range(2):
        clips = [c for r in requests if r.index == video for c in dataset.origin(r).clips]
        frames = np.unique(np.concatenate([clip.frames for clip in clips]))
        used += packet_sizes(tmp_path / f"files/{video}.mp4")[frames].sum()
    assert asked == used


def damaged(table, target, row_bytes):
    """A copy of a table with one byte changed in a stream that contains ``row_bytes``."""
    shutil.copytree(table, target)
    for path in [*Path(target).rglob("*.blob"), *Path(target).rglob("*.lance")]:
        if path.is_dir():
            continue
        content = bytearray(path.read_bytes())
        at = content.find(row_bytes)
        if at >= 0:
            content[at + len(row_bytes) // 2] ^= 255
            path.write_bytes(content)
            return str(target)
    raise AssertionError("the bytes are in no file")


def test_damaged_bytes_are_a_bad_file_that_names_row_and_path(folder, table, tmp_path):
    with av.open(str(folder / "a/1.mp4")) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    copy = damaged(table, tmp_path / "copy.lance", packets[20])
    clips = {"type": "UniformClips", "clip_duration": 9.0, "num_frames": 41, "num_clips": 1}
    whole = [PIPELINE[0], clips, PIPELINE[2], PIPELINE[4]]
    strict = LanceVideoDataset(copy, None, whole, on_error="raise")
    assert strict[0]["label"] == 0
    with pytest.raises(VideoDecodeError, match=r"a/1\.mp4: row \d of .*packet 20 are damaged"):
        strict.__getitems__([0, 1])
    rows = LanceVideoDataset(copy, None, whole)
    first, replaced = rows.__getitems__([SampleRequest(0, 1), SampleRequest(1, 5)])
    assert first["failures"] == [] and first["index"] == 0 and replaced["index"] != 1
    ((path, reason),) = replaced["failures"]
    assert path == rows.path(1) and "damaged" in reason
    # Frames whose packets are good can still be read.
    early = LanceVideoDataset(
        copy, None, [PIPELINE[0], {**PIPELINE[1], "clip_duration": 0.1}, *PIPELINE[2:]]
    )
    assert any(not early[SampleRequest(1, seed)]["failures"] for seed in range(4))


def test_damaged_pages_of_the_columns_end_in_bounded_time_with_an_error(table, tmp_path):
    shutil.copytree(table, tmp_path / "copy.lance")
    for path in (tmp_path / "copy.lance/data").glob("*.lance"):
        content = path.read_bytes()
        half = len(content) // 2  # behind the streams, which are small and in the same file
        noise = np.random.default_rng(0).bytes(len(content) - half - 2048)
        path.write_bytes(content[:half] + noise + content[half + len(noise) :])
    with pytest.raises((TooManyBadFilesError, TableError, VideoDecodeError)):
        LanceVideoDataset(str(tmp_path / "copy.lance"), None, PIPELINE).__getitems__([0, 1])


def test_a_list_gives_order_and_labels(table, folder, tmp_path):
    listed = tmp_path / "train.txt"
    listed.write_text("b/2.mp4 7\na/0.mp4 3\nb/2.mp4 7\n")
    (tmp_path / "classes.txt").write_text("".join(f"class {n}\n" for n in range(8)))
    classes = str(tmp_path / "classes.txt")
    rows = LanceVideoDataset(table, str(listed), PIPELINE, class_file=classes)
    files = VideoDataset(str(folder), str(listed), PIPELINE, class_file=classes)
    assert rows.metainfo == files.metainfo
    for index in range(3):
        assert_equal(rows[index], files[index])
    assert rows.describe(1).endswith(f"of {table}: 'a/0.mp4'")
    listed.write_text("a/0.mp4 0\na/9.mp4 0\n")
    message = r"1 of the 2 listed videos .* not in the table .*'a/9.mp4'"
    with pytest.raises(ValueError, match=message):
        LanceVideoDataset(table, str(listed), PIPELINE)


def test_failed_imports_are_left_out_or_bad_files_of_a_list(tmp_path):
    write_repacked(tmp_path / "files/good.mp4")
    (tmp_path / "files/text.mp4").write_text("no video " * 100)
    table = write_table(tmp_path / "files", tmp_path / "videos.lance")
    rows = LanceVideoDataset(table, None, PIPELINE)
    assert len(rows) == 1
    (tmp_path / "list.txt").write_text("text.mp4\ngood.mp4\n")
    listed = LanceVideoDataset(table, str(tmp_path / "list.txt"), PIPELINE, on_error="raise")
    assert listed[1]["failures"] == []
    with pytest.raises(VideoDecodeError, match=r"text\.mp4: cannot be opened"):
        listed[0]


def test_what_is_no_table_is_one_sentence(tmp_path):
    import lance
    import pyarrow as pa

    lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "other.lance"))
    with pytest.raises(TableError, match="is not a table of videos"):
        LanceVideoDataset(str(tmp_path / "other.lance"))
    with pytest.raises(ValueError, match="block_size"):
        LanceVideoDataset(str(tmp_path / "other.lance"), block_size=1)
    for table, size in (("other.lance", 1024), ("s3://bucket/a.lance", 65536)):
        assert dataset_arguments(table)["block_size"] == size
        assert dataset_arguments(table, block_size=4096)["block_size"] == 4096


pa = pytest.importorskip("pyarrow")


@pytest.fixture
def content_of_a_table(monkeypatch):
    """A function that makes columns the content of the table."""

    def make(rows):
        fields = [("path", pa.string()), ("label", pa.int64()),
                  ("class_name", pa.string()), ("failure", pa.string())]  # fmt: skip
        named = [dict(zip(row_list._COLUMNS, row, strict=True)) for row in rows]
        parts = [pa.Table.from_pylist(part, pa.schema(fields)) for part in (named[:3], named[3:])]
        content = pa.concat_tables(parts)  # in chunks, as Lance returns it
        metadata = {FORMAT_KEY: FORMAT.encode()}
        opened = SimpleNamespace(metadata=metadata, version=7, call=lambda name, columns: content)
        monkeypatch.setattr(row_list, "read_table", lambda table, options: opened)

    return make


def by_a_loop(rows):
    newest = {}
    for number, (path, *_) in enumerate(rows):
        newest[path] = number
    kept = [newest[path] for path in sorted(newest) if not rows[newest[path]][3]]
    classes = sorted({rows[row][2] for row in kept if rows[row][2] is not None})
    labels = [classes.index(rows[r][2]) if rows[r][2] else -1 for r in kept]
    if not classes:
        labels = [rows[row][1] for row in kept]
    paths = [rows[row][0] for row in kept]
    return paths, labels, tuple(classes), kept


@pytest.mark.parametrize("with_classes", [True, False])
def test_rows_are_those_of_a_loop(content_of_a_table, with_classes):
    rng = np.random.default_rng(0)
    names = [f"{stem}{i}.mp4" for i in range(12) for stem in ("b", "é", "a b", "日")]
    rows = []
    for _ in range(90):
        kind = ("x", "é", "b", None)[rng.integers(4)] if with_classes else None
        failure = "broken" if rng.random() < 0.2 else ""
        rows.append((str(rng.choice(names)), int(rng.integers(-1, 9)), kind, failure))
    content_of_a_table(rows)
    found = row_list.list_rows("t.lance")
    videos = found.videos
    paths = [videos.path(index) for index in range(len(videos))]
    shown = paths, videos.labels.tolist(), videos.classes, found.rows.tolist()
    assert shown == by_a_loop(rows) and found.version == 7
    newest = {row[0]: number for number, row in enumerate(rows)}
    chosen = rng.permutation(list(newest)).tolist()
    listed = VideoList.from_paths(chosen, range(len(chosen)))
    of_list = row_list.list_rows("t.lance", None, listed)
    assert of_list.rows.tolist() == [newest[path] for path in chosen]
    assert of_list.videos is listed
    with pytest.raises(ValueError, match="2 of the 3 listed videos .* not in the table .* 'no'"):
        row_list.list_rows("t.lance", None, VideoList.from_paths(["no", chosen[0], "q"], [0] * 3))
