"""Opening a container, reading its packets and decoding them."""

from __future__ import annotations

import av
import numpy as np
import pytest
from helpers.videos import (
    decode_all,
    read_numbers,
)

from sce_video.datasets import open_reader
from sce_video.datasets.readers import AvReader
from sce_video.datasets.readers import av_file as av_stream
from sce_video.datasets.readers.av_file import AvFile, can_be_quick, decode_packets


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


def test_the_decoder_is_chosen_per_packet():
    """Seeking may reopen the file; the decoder of the last packet is drained."""
    first, second = Decoder(), Decoder()
    frames = decode_packets(packet_list("KpKp"), lambda p: first if p.number < 2 else second)
    assert [frame for batch in frames for frame in batch] == [0, 2, 3]
    assert (first.given, second.given) == ([0, 1], [2, 3])
