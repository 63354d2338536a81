"""Packets of a file: opening, decoding, and the tables of the index and of the packets."""

from __future__ import annotations

import os
import shutil
import struct
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
from helpers.videos import decode_all, numbered_frames, read_numbers, remux, write_video

from sce_video.data_tools.examination import examine_file
from sce_video.data_tools.repack.encode import repack_file
from sce_video.data_tools.repack.plan import Settings
from sce_video.datasets import FrameCountError, VideoDecodeError, backend_importable, open_reader
from sce_video.datasets.readers import AvReader
from sce_video.datasets.readers import av_file as av_stream
from sce_video.datasets.readers.av_file import AvFile, can_be_quick, decode_packets, open_container
from sce_video.datasets.readers.frame_table import (
    FrameTable,
    _exp_golomb,
    _recovery_frames,
    is_restart_point,
    table_from_index,
    table_from_packets,
)
from sce_video.jobs import ItemError


def test_quick_opening_gives_the_same_frames(any_video):
    assert can_be_quick(any_video) == (not any_video.endswith(".avi"))
    if any_video.endswith(".avi"):
        return
    with AvReader(any_video) as quick:
        assert quick._stream.file.quick
        frames = quick.read(np.arange(50))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(av_stream, "can_be_quick", lambda _: False)
        with AvReader(any_video) as probed:
            assert not probed._stream.file.quick
            assert (probed.timestamps == quick.timestamps).all()
            assert probed.duration == quick.duration
            assert (probed.read(np.arange(50)) == frames).all()


def test_without_the_reorder_depth_the_file_is_opened_again_with_probing(plain, monkeypatch):
    """A stream with B frames whose header does not state how many."""
    monkeypatch.setattr(AvFile, "quick_was_enough", lambda self, _: not self.quick)
    with AvReader(plain) as reader:
        assert not reader._stream.file.quick
        assert read_numbers(reader.read(np.array([1, 2, 30]))) == [1, 2, 30]


# -- packets to frames --------------------------------------------------------------------------


class Decoder:
    """Holds back one frame; refuses damaged packets; records what it was given."""

    def __init__(self):
        self.given, self.held, self.flushed = [], [], 0

    def decode(self, packet):
        if packet is None:
            held, self.held = self.held, []
            return held
        self.given.append(packet.number)
        if packet.damaged:
            raise av.FFmpegError(1, "invalid data")
        out, self.held = self.held, [packet.number]
        return out

    def flush_buffers(self):
        self.flushed += 1


def packet_list(pattern):
    """K: key frame, p: other, x: damaged, X: damaged key frame."""
    return [
        SimpleNamespace(number=i, is_keyframe=c in "KX", damaged=c in "xX")
        for i, c in enumerate(pattern)
    ]


@pytest.mark.parametrize(
    ("pattern", "frames", "given"),
    [
        ("KppKp", [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
        ("KpxppKp", [0, 1, 5, 6], [0, 1, 2, 5, 6]),  # 3 and 4 refer to the damaged 2
        ("KpXppXpKp", [0, 1, 7, 8], [0, 1, 2, 5, 7, 8]),
        ("xppKp", [3, 4], [0, 3, 4]),
        ("xpp", [], [0]),
        ("", [], []),
    ],
)
def test_after_a_refused_packet_decoding_continues_at_the_next_key_frame(pattern, frames, given):
    decoder = Decoder()
    batches = list(decode_packets(packet_list(pattern), lambda packet: decoder))
    assert [frame for batch in batches for frame in batch] == frames
    assert decoder.given == given
    assert not decoder.held and decoder.flushed == bool(given) + sum(
        packet.damaged for packet in packet_list(pattern) if packet.number in given
    )


# -- Only files are opened, whatever their names look like, and only containers of their own da

PLAYLISTS = {
    "concat": "ffconcat version 1.0\nfile real.ts\n",
    "hls": "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:3\n#EXT-X-MEDIA-SEQUENCE:0\n"
    "#EXTINF:2.0,\nreal.ts\n#EXT-X-ENDLIST\n",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\n"
    "m=video 15004 RTP/AVP 96\na=rtpmap:96 H264/90000\n",
    "text": "frame after frame of letters\n" * 40,
}
NAMES = ["cam:1/a.mp4", "http:x.mp4", "file:x.mp4", "concat:a|b.mp4", "a%03d.mp4", "-", "pipe:0"]


@pytest.fixture
def real(numbered_video, tmp_path, monkeypatch):
    """The current folder, with real.ts of 20 frames."""
    shutil.copy(numbered_video("real.ts", 20), tmp_path / "real.ts")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", PLAYLISTS)
@pytest.mark.parametrize("name", ["a.mp4", "b.m3u8"])
def test_playlists_are_no_videos(real, kind, name):
    (real / name).write_text(PLAYLISTS[kind])
    for backend in ("av", "decord"):
        if backend_importable(backend):
            with pytest.raises(VideoDecodeError, match="cannot be opened"):
                open_reader(name, backend)
    assert examine_file(name, 10.0).outcome == "unreadable"
    with pytest.raises(ItemError) as refused:
        repack_file(name, "out.mp4", Settings())
    assert refused.value.kind == "bad"
    with pytest.raises(VideoDecodeError, match="cannot be opened"):
        open_container(name)


@pytest.mark.parametrize("name", NAMES)
def test_names_that_look_like_protocols(numbered_video, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    shutil.copy(numbered_video("v.mp4", 20), tmp_path / name)
    for backend in ("av", "decord"):
        if backend_importable(backend):
            with open_reader(name, backend) as reader:
                assert getattr(reader, "_fallback", None) is None
                assert read_numbers(reader.read(np.array([3, 17]))) == [3, 17]
    assert examine_file(name, 10.0).video.frames == 20


X264 = {"crf": "12", "g": "12", "bf": "3", "sc_threshold": "0"}


def packet_table(path):
    """The table of all packets."""
    with av.open(path) as container:
        packets = [p for p in container.demux(video=0) if p.size]
        rows = [(p.pts, p.is_keyframe, p.duration or 0, p.is_discard) for p in packets]
        return table_from_packets(rows)


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
    with av.open(plain) as container:
        ticks = int(Fraction(1, 25) / container.streams.video[0].time_base)
    struct.pack_into(">i", data, elst + 16, media_time + 15 * ticks)
    path = tmp_path / "cut.mp4"
    path.write_bytes(bytes(data))
    expected = read_numbers(decode_all(path))
    assert 15 in expected and 3 not in expected
    with open_reader(str(path)) as reader:
        assert not reader._stream._indexed
        assert read_numbers(reader.read(np.arange(len(reader.timestamps)))) == expected
        assert read_numbers(reader.read(np.array([1]))) == expected[1:2]


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


@pytest.mark.parametrize(("bframes", "wrong"), [(0, 0), (0, 1), (2, 0)])
def test_packets_of_files_without_b_frames_are_read_at_their_offsets(
    tmp_path, monkeypatch, bframes, wrong
):
    options = {"g": "5", "bf": str(bframes), "crf": "12"}
    path = write_video(tmp_path / "v.mp4", numbered_frames(40), options=options)
    expected, real = decode_all(path), table_from_index

    def shifted(*given):
        table = real(*given)
        return replace(table, stored=table.stored + wrong) if wrong else table

    monkeypatch.setattr(av_stream, "table_from_index", shifted)
    with open_reader(str(path)) as reader:
        direct = reader._stream._direct
        assert (direct is not None) == (not bframes and not wrong)
        frames = reader.read(np.array([0, 3, 7, 8, 25, 39]))
        np.testing.assert_array_equal(frames, [expected[i] for i in (0, 3, 7, 8, 25, 39)])
        if direct is not None:
            os.truncate(path, path.stat().st_size // 4)
            with pytest.raises(VideoDecodeError):
                reader.read(np.array([39]))
            assert direct.closed


@pytest.mark.parametrize("damage", range(4))
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
    monkeypatch.setattr(av_stream, "_tables", {})
    demuxed, real = [], AvFile.packets

    def packets(self, deadline):
        return (demuxed.append(p.pts) or p for p in real(self, deadline))

    monkeypatch.setattr(AvFile, "packets", packets)
    for count, read in ((40, 40), (40, 0), (25, 25)):  # the second opening reads no packet
        if count == 25:
            write_video(tmp_path / "v.mkv", numbered_frames(25), options=X264)  # another file now
        demuxed.clear()
        with open_reader(path) as reader:
            assert len(demuxed) == read and len(reader.timestamps) == count
            assert read_numbers(reader.read(np.array([3, 20]))) == [3, 20]


def test_a_header_with_a_64_bit_size(plain, tmp_path):
    data = Path(plain).read_bytes()
    begin = data.index(b"moov") - 4
    assert begin > data.index(b"mdat"), "sample offsets would change"
    (size,) = struct.unpack_from(">I", data, begin)
    header = struct.pack(">I4sQ", 1, b"moov", size + 8)
    (tmp_path / "large.mp4").write_bytes(data[:begin] + header + data[begin + 8 :])
    assert_same(index_table(str(tmp_path / "large.mp4")), packet_table(plain))


# -- Where decoding can start: intra refresh, open GOPs, and containers that flag wrong packets

REFRESH = "intra-refresh=1:keyint=12"
FILES = {
    # name: codec, options
    "refresh.mp4": ("libx264", {"x264-params": f"{REFRESH}:bframes=0"}),
    "refresh.avi": ("libx264", {"x264-params": f"{REFRESH}:bframes=0"}),
    "refresh_b.mp4": ("libx264", {"x264-params": REFRESH}),
    "refresh.mkv": ("libx264", {"x264-params": f"{REFRESH}:bframes=0"}),
    "refresh.ts": ("libx264", {"x264-params": f"{REFRESH}:bframes=0"}),
    "open_gop.mp4": ("libx264", {"x264-params": "open-gop=1:keyint=12:bframes=3"}),
    "hevc_refresh.mp4": ("libx265", {"x265-params": f"{REFRESH}:log-level=none"}),
    "hevc_open.mp4": ("libx265", {"x265-params": "open-gop=1:keyint=12:log-level=none"}),
    "mpeg2.mpg": ("mpeg2video", {"g": "12", "bf": "2"}),
    "mpeg4.mp4": ("mpeg4", {"g": "12"}),
}


@pytest.fixture(scope="module")
def moving():
    """40 frames of a moving, noisy texture: intra refresh takes its time to show through it."""
    rng = np.random.default_rng(0)
    texture = rng.integers(60, 196, (12, 40, 3)).repeat(8, axis=0).repeat(8, axis=1)
    frames = np.stack([np.roll(texture, -2 * i, axis=1)[:, :128] for i in range(40)])
    return np.clip(frames + rng.integers(-6, 7, frames.shape), 0, 255).astype(np.uint8)


@pytest.fixture(scope="module", params=FILES)
def file(request, moving, tmp_path_factory):
    """The path of each of ``FILES``, and all its frames, decoded from the first to the last."""
    codec, options = FILES[request.param]
    path = tmp_path_factory.mktemp("restart") / request.param
    write_video(path, moving, codec=codec, options={"crf": "28", **options})
    return str(path), decode_all(path)


def test_every_frame_alone_equals_the_full_decode(file, packets):
    path, expected = file
    for index in range(0, 40, 1 if packets == "indexed" else 9):
        with open_reader(path) as reader:
            np.testing.assert_array_equal(
                reader.read(np.array([index]))[0], expected[index], err_msg=f"{path} {index}"
            )


def test_libraries_are_not_used_for_intra_refresh(file):
    """They decode from any packet that is flagged as a key frame."""
    path, expected = file
    with AvReader(path) as reader:
        assert reader.has_false_keys == path.rpartition("/")[2].startswith("refresh")
        if reader.has_false_keys:
            assert not reader.random_access_at_keys
    pytest.importorskip("decord")
    with open_reader(path, "decord") as reader:
        for index in (5, 20, 33):
            frame = reader.read(np.array([index]))[0]
            np.testing.assert_array_equal(frame, expected[index])


@pytest.mark.parametrize("codec", ["libx264", "libx265", "mpeg2video", "mpeg4"])
def test_packets_flagged_wrongly(tmp_path, moving, codec):
    """A container that flags every fifth packet as a key frame."""
    options = {"x265-params": "keyint=12:log-level=none"} if codec == "libx265" else {"g": "12"}
    plain, flagged = tmp_path / "plain.mp4", tmp_path / "flagged.mp4"
    write_video(plain, moving[:30], codec=codec, options=options)
    with av.open(str(plain)) as old, av.open(str(flagged), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for number, packet in enumerate(old.demux(video=0)):
            if packet.dts is not None:
                packet.is_keyframe = packet.is_keyframe or number % 5 == 0
                packet.stream = stream
                new.mux(packet)
    expected = decode_all(flagged)
    for index in range(0, 30, 3):
        with open_reader(str(flagged)) as reader:
            np.testing.assert_array_equal(reader.read(np.array([index]))[0], expected[index])
    with AvReader(str(flagged)) as reader:
        assert reader.has_false_keys


# -- bytes --------------------------------------------------------------------------------------

IDR, SLICE = b"\x65\x88\x84", b"\x41\x9a\x00"


def annex_b(*units):
    return b"".join(b"\0\0\0\1" + unit for unit in units)


def prefixed(*units):
    return b"".join(len(unit).to_bytes(4, "big") + unit for unit in units)


@pytest.mark.parametrize(
    ("sei", "expected"),
    [
        (None, False),  # an intra picture of which nothing is said
        (b"\x06\x06\x01\xc4\x80", True),  # recovery_frame_cnt 0, as of an open GOP
        (b"\x06\x06\x01\x24\x80", False),  # 3 frames
        (b"\x06\x05\x02ab\x06\x01\xc4\x80", True),  # after another message
        (b"\x06\x05\x02ab\x80", False),  # another message only
    ],
)
def test_h264(sei, expected):
    units = [b"\x09\xf0", *([sei] if sei else [])]
    avcc = b"\x01\x64\x00\x1f\xff\xe1"
    for join, extradata in ((annex_b, b""), (prefixed, avcc)):
        assert is_restart_point("h264", extradata, join(*units, SLICE)) == expected
        assert is_restart_point("h264", extradata, memoryview(join(*units, IDR, SLICE)))


def test_other_codecs():
    hvcc = bytes([1]) + bytes(20) + b"\x03" + b"\0"
    for kind, expected in ((1, False), (8, False), (16, True), (19, True), (21, True)):
        unit = bytes([kind << 1, 1, 0])
        assert is_restart_point("hevc", hvcc, prefixed(b"\x46\x01", unit)) == expected
        assert is_restart_point("hevc", b"", annex_b(b"\x46\x01", unit)) == expected
    for kind, expected in ((1, True), (2, False), (3, False)):
        picture = b"\0\0\1\x00" + bytes([0, kind << 3, 0])
        assert is_restart_point("mpeg2video", b"", b"\0\0\1\xb3ab" + picture) == expected
    for kind, expected in ((0, True), (1, False), (2, False)):
        assert is_restart_point("mpeg4", b"", b"\0\0\1\xb6" + bytes([kind << 6])) == expected
    assert is_restart_point("vp9", b"", b"anything")


def test_damaged_bytes_are_no_restart_point():
    rng = np.random.default_rng(0)
    for _ in range(300):
        data = rng.integers(0, 256, rng.integers(0, 40), dtype=np.uint8).tobytes()
        for codec in ("h264", "hevc", "mpeg2video", "mpeg4"):
            for extradata in (b"", b"\x01" * 30):
                assert is_restart_point(codec, extradata, data) in (True, False)
        _recovery_frames(data)
    assert _exp_golomb(b"") is None and _exp_golomb(b"\0") is None
    assert [_exp_golomb(bytes([b])) for b in (0x80, 0x40, 0x60, 0x20)] == [0, 1, 2, 3]
