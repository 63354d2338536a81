"""Where decoding can start: intra refresh, open GOPs, and containers that flag wrong packets."""

from __future__ import annotations

import av
import numpy as np
import pytest
from helpers.videos import decode_all, write_video

from sce_video.datasets import open_reader
from sce_video.datasets.readers import AvReader
from sce_video.datasets.readers.frame_table import _exp_golomb, _recovery_frames, is_restart_point

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
    """70 frames of a moving, noisy texture: intra refresh takes its time to show through it."""
    rng = np.random.default_rng(0)
    texture = rng.integers(60, 196, (12, 40, 3)).repeat(8, axis=0).repeat(8, axis=1)
    frames = np.stack([np.roll(texture, -2 * i, axis=1)[:, :128] for i in range(70)])
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
    step = 1 if packets == "indexed" else 5
    for index in range(0, 70, step):
        with open_reader(path) as reader:
            np.testing.assert_array_equal(
                reader.read(np.array([index]))[0], expected[index], err_msg=f"{path} {index}"
            )


def test_several_frames_at_once_equal_the_full_decode(file):
    path, expected = file
    rng = np.random.default_rng(1)
    with open_reader(path) as reader:  # one reader, used repeatedly
        assert len(reader.timestamps) == 70
        for count in (1, 2, 4, 8):
            indices = np.sort(rng.choice(70, count, replace=False))
            np.testing.assert_array_equal(
                reader.read(indices), np.stack([expected[i] for i in indices])
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
        for index in (5, 33, 58):
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
