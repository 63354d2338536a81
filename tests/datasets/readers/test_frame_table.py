"""The tables of the index and of the packets agree, or the index is not used."""

from __future__ import annotations

import os
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.videos import (
    numbered_frames,
    read_number,
    read_numbers,
    remux,
    write_video,
)

from sce_video.datasets import FrameCountError, VideoDecodeError, open_reader
from sce_video.datasets.readers import AvReader
from sce_video.datasets.readers import av_file as av_stream
from sce_video.datasets.readers.av_file import AvFile
from sce_video.datasets.readers.frame_table import (
    FrameTable,
    TableCache,
    table_from_index,
    table_from_packets,
)

X264 = {"crf": "12", "g": "12", "bf": "3", "sc_threshold": "0"}


def packet_table(path):
    """The table of all packets."""
    with av.open(path) as container:
        packets = [p for p in container.demux(video=0) if p.size]
        return table_from_packets(
            [p.pts for p in packets],
            [p.is_keyframe for p in packets],
            [p.duration or 0 for p in packets],
            [p.is_discard for p in packets],
        )


def index_table(path):
    with av.open(path) as container:
        return table_from_index(path, container.streams.video[0])


def assert_same(one: FrameTable, other: FrameTable) -> None:
    assert (one.pts - one.pts[0] == other.pts - other.pts[0]).all()
    assert (one.is_key == other.is_key).all()
    assert one.last_duration == other.last_duration


def test_index_and_packets_give_the_same_table(any_video):
    table = index_table(any_video)
    if not any_video.endswith((".mp4", ".mov", ".avi")):
        assert table is None
        return
    assert_same(table, packet_table(any_video))
    with AvReader(any_video) as reader:
        assert reader._stream._indexed and reader._stream.file.quick == (
            not any_video.endswith(".avi")
        )


@pytest.mark.parametrize(
    "options",
    [
        {"movflags": "faststart"},
        {"movflags": "negative_cts_offsets"},
        {"movflags": "frag_keyframe+empty_moov"},
        {"use_editlist": "0"},
        {"video_track_timescale": "90000"},
    ],
    ids=str,
)
def test_mp4_files_written_with_other_options(plain, tmp_path, options):
    path = remux(plain, tmp_path / "v.mp4", **options)
    table = index_table(path)
    if "frag" in options.get("movflags", ""):
        assert table is None, "of a fragmented file the index knows the first fragment only"
    else:
        assert_same(table, packet_table(path))
    with open_reader(path) as reader:
        assert reader.timestamps == pytest.approx(np.arange(50) / 25, abs=1e-5)
        assert read_numbers(reader.read(np.array([0, 13, 49]))) == [0, 13, 49]


def test_with_an_edit_list_that_cuts_frames_the_packets_are_used(plain, tmp_path):
    """Cut to start at 0.6 s without encoding: the frames before are stored but not displayed."""
    data = bytearray(Path(plain).read_bytes())
    elst = data.index(b"elst")
    count, _, media_time = struct.unpack_from(">IIi", data, elst + 8)
    assert count == 1
    struct.pack_into(">i", data, elst + 16, media_time + 15 * _ticks(plain))
    path = tmp_path / "cut.mp4"
    path.write_bytes(bytes(data))
    expected = [read_number(frame.to_ndarray(format="rgb24")) for frame in decoded(str(path))]
    assert 15 in expected and 3 not in expected
    with open_reader(str(path)) as reader:
        assert not reader._stream._indexed
        count = len(reader.timestamps)
        assert read_numbers(reader.read(np.arange(count))) == expected
        assert read_numbers(reader.read(np.array([1]))) == expected[1:2]


def _ticks(path):
    with av.open(path) as container:
        return int(Fraction(1, 25) / container.streams.video[0].time_base)


def decoded(path):
    with av.open(path) as container:
        yield from container.decode(video=0)


def test_a_truncated_file_with_an_intact_header(plain, tmp_path):
    whole = remux(plain, tmp_path / "whole.mp4", movflags="faststart")
    data = Path(whole).read_bytes()
    cut = tmp_path / "cut.mp4"
    media = data.index(b"mdat")
    cut.write_bytes(data[: media + (len(data) - media) * 6 // 10])
    assert index_table(str(cut)) is None
    with open_reader(str(cut)) as reader:
        assert 20 < len(reader.timestamps) < 45
        assert read_numbers(reader.read(np.array([0, 7, 15]))) == [0, 7, 15]


def test_a_truncated_avi_file(tmp_path):
    path = write_video(
        tmp_path / "v.avi", numbered_frames(40), codec="mpeg4", options={"g": "10", "b": "2000k"}
    )
    data = path.read_bytes()
    cut = tmp_path / "cut.avi"
    media, end = data.index(b"movi"), data.index(b"idx1")
    cut.write_bytes(data[: media + (end - media) * 7 // 10])
    assert index_table(str(cut)) is None
    with open_reader(str(cut)) as reader:
        assert 15 < len(reader.timestamps) < 40
        assert read_numbers(reader.read(np.array([0, 7, 14]))) == [0, 7, 14]


def test_a_wrong_index_is_detected_while_decoding(plain, monkeypatch):
    """An index that differs from the packets: the packets are used then."""
    real = table_from_index

    def wrong(path, stream):
        table = real(path, stream)
        pts = table.pts.copy()
        pts[20:] += 3
        return FrameTable(pts, table.is_key, table.last_duration)

    monkeypatch.setattr(av_stream, "table_from_index", wrong)
    with open_reader(plain) as reader:
        assert reader._stream._indexed
        assert read_numbers(reader.read(np.array([0, 20, 41]))) == [0, 20, 41]
        assert not reader._stream._indexed
        assert reader.timestamps == pytest.approx(np.arange(50) / 25, abs=1e-6)


@pytest.mark.parametrize("damage", range(8))
def test_damaged_headers_never_crash(plain, tmp_path, damage):
    """Random bytes in the header: frames, an error, or FrameCountError, but no crash."""
    data = bytearray(Path(plain).read_bytes())
    start = data.index(b"moov")
    rng = np.random.default_rng(damage)
    for position in rng.integers(start, len(data), 6):
        data[position] = rng.integers(256)
    path = tmp_path / "damaged.mp4"
    path.write_bytes(bytes(data))
    try:
        with open_reader(str(path)) as reader:
            count = len(reader.timestamps)
            frames = reader.read(np.unique([0, count // 2, count - 1]))
            assert frames.dtype == np.uint8
    except (VideoDecodeError, FrameCountError):
        pass


def test_tables_of_large_files_are_cached(tmp_path, monkeypatch):
    path = str(write_video(tmp_path / "v.mkv", numbered_frames(40), options=X264))
    monkeypatch.setattr(av_stream, "_MAX_HELD_BYTES", 0)
    monkeypatch.setattr(av_stream, "_tables", TableCache(capacity=1))
    demuxed = []
    real = AvFile.packets
    monkeypatch.setattr(
        AvFile,
        "packets",
        lambda self, deadline: (demuxed.append(p.pts) or p for p in real(self, deadline)),
    )
    for expected in (40, 0):  # the second opening reads no packet
        demuxed.clear()
        with open_reader(path) as reader:
            assert len(demuxed) == expected
            assert read_numbers(reader.read(np.array([3, 30]))) == [3, 30]
    other = str(write_video(tmp_path / "w.mkv", numbered_frames(20), options=X264))
    for name, count in ((other, 20), (path, 40)):  # the cache holds one table
        demuxed.clear()
        with open_reader(name) as reader:
            assert len(demuxed) == len(reader.timestamps) == count
    write_video(tmp_path / "v.mkv", numbered_frames(25), options=X264)  # another file now
    with open_reader(path) as reader:
        assert len(reader.timestamps) == 25


def test_a_changed_file_of_the_same_size_is_not_in_the_cache(tmp_path):
    path = tmp_path / "v.mkv"
    path.write_bytes(b"one")
    cache, table = TableCache(capacity=2), table_from_packets([0], [True], [1], [False])
    cache.put(str(path), table)
    assert cache.get(str(path)) is table
    path.write_bytes(b"two")
    os.utime(path, ns=(0, 12345))
    assert cache.get(str(path)) is None


def test_a_header_with_a_64_bit_size(plain, tmp_path):
    data = Path(plain).read_bytes()
    begin = data.index(b"moov") - 4
    assert begin > data.index(b"mdat"), "sample offsets would change"
    (size,) = struct.unpack_from(">I", data, begin)
    header = struct.pack(">I4sQ", 1, b"moov", size + 8)
    (tmp_path / "large.mp4").write_bytes(data[:begin] + header + data[begin + 8 :])
    assert_same(index_table(str(tmp_path / "large.mp4")), packet_table(plain))


def test_the_last_duration_is_that_of_the_frame_displayed_last(tmp_path):
    """Variable frame rate with B frames: it is not the packet decoded last."""
    pts = [40 * i + (13 * i * i) % 29 for i in range(29)]
    path = str(write_video(tmp_path / "v.mp4", numbered_frames(29), options=X264, pts=pts))
    packets, index = packet_table(path), index_table(path)
    assert packets.pts.argmax() != len(packets.pts) - 1
    assert_same(index, packets)
