"""Opening a container, reading its packets and decoding them."""

from __future__ import annotations

import shutil

import av
import numpy as np
import pytest
from helpers.videos import (
    decode_all,
    read_numbers,
)

from sce_video.data_tools.repack.encode import Job, repack_file
from sce_video.data_tools.repack.plan import Settings
from sce_video.data_tools.verify import examine_file
from sce_video.datasets import VideoDecodeError, backend_importable, open_reader
from sce_video.datasets.readers import AvReader
from sce_video.datasets.readers import av_file as av_stream
from sce_video.datasets.readers.av_file import AvFile, can_be_quick, decode_packets, open_container
from sce_video.jobs import ItemError


def test_quick_opening_gives_the_same_frames(any_video):
    if not can_be_quick(any_video):
        pytest.skip("not opened quickly")
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
    monkeypatch.setattr(
        AvFile, "quick_was_enough", lambda self, table: not (self.quick and table.reordered)
    )
    with AvReader(plain) as reader:
        assert not reader._stream.file.quick
        assert read_numbers(reader.read(np.array([1, 2, 30]))) == [1, 2, 30]


def test_streams_that_begin_later(video, monkeypatch):
    """PyAV raises IndexError for a packet of a stream that was unknown when opening (FLV)."""
    calls = []

    class Container:
        def __init__(self, container):
            self._container = container

        def __getattr__(self, name):
            return getattr(self._container, name)

        def demux(self, stream):
            calls.append(stream)
            for number, packet in enumerate(self._container.demux(stream)):
                yield packet
                if number == 6:
                    raise IndexError("list index out of range")

    class File(av_stream.AvFile):
        def _open_decoder(self, *arguments):
            super()._open_decoder(*arguments)
            self.container = Container(self.container)

    expected = decode_all(video)
    monkeypatch.setattr(av_stream, "AvFile", File)
    monkeypatch.setattr(av_stream, "table_from_index", lambda *_: None)
    monkeypatch.setattr(av_stream, "_tables", av_stream.TableCache(capacity=1))
    with open_reader(video, "av") as reader:
        assert len(reader.timestamps) == 60 and len(calls) > 5
        np.testing.assert_array_equal(reader.read(np.arange(60)), np.stack(expected))


# -- packets to frames --------------------------------------------------------------------------


class Packet:
    def __init__(self, number, is_keyframe, damaged=False):
        self.number, self.is_keyframe, self.damaged = number, is_keyframe, damaged


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
    return [Packet(i, c in "KX", c in "xX") for i, c in enumerate(pattern)]


@pytest.mark.parametrize(
    ("pattern", "frames", "given"),
    [
        ("KppKp", [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
        ("KpxppKp", [0, 1, 5, 6], [0, 1, 2, 5, 6]),  # 3 and 4 refer to the damaged 2
        ("KxpKxpp", [0, 3], [0, 1, 3, 4]),
        ("KpXppXpKp", [0, 1, 7, 8], [0, 1, 2, 5, 7, 8]),
        ("xppKp", [3, 4], [0, 3, 4]),
        ("xpp", [], [0]),
        ("", [], []),
    ],
)
def test_after_a_refused_packet_decoding_continues_at_the_next_key_frame(pattern, frames, given):
    decoder, asked = Decoder(), []

    def decoder_for(packet):
        asked.append(packet.number)
        return decoder

    batches = list(decode_packets(packet_list(pattern), decoder_for))
    assert [frame for batch in batches for frame in batch] == frames
    assert decoder.given == asked == given
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
    assert examine_file((name, 10.0))["outcome"] == "unreadable"
    with pytest.raises(ItemError) as refused:
        repack_file(Job(name, "out.mp4", Settings()))
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
                assert getattr(reader, "uses_library", True)
                assert read_numbers(reader.read(np.array([3, 17]))) == [3, 17]
    assert examine_file((name, 10.0))["frames"] == 20
