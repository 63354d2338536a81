"""The ways from a file to its frames agree: index and packets, seeking or not, all backends."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.videos import numbered_frames, read_number, write_video

from sce_video.datasets import FrameCountError, VideoDecodeError, backend_importable, open_reader
from sce_video.datasets.readers import AvReader, av_reader
from sce_video.datasets.readers import backend_choice as choice
from sce_video.datasets.readers.av_file import AvFile, can_be_quick
from sce_video.datasets.readers.fallback_reader import FallbackReader
from sce_video.datasets.readers.frame_table import (
    FrameTable,
    TableCache,
    table_from_index,
    table_from_packets,
)

av.logging.set_libav_level(av.logging.FATAL)
X264 = {"crf": "12", "g": "12", "bf": "3", "sc_threshold": "0"}
VIDEOS = {
    "b_frames.mp4": dict(options=X264),
    "b_frames.mov": dict(options=X264),
    "intra.mp4": dict(options={"crf": "12", "g": "1"}),
    "open_gop.mp4": dict(
        options={"x264-params": "open-gop=1:keyint=12:bframes=3:b-pyramid=normal:scenecut=0"}
    ),
    "pyramid.mkv": dict(options={"x264-params": "keyint=15:bframes=7:b-pyramid=normal"}),
    "p_frames.avi": dict(codec="mpeg4", options={"g": "10", "b": "2000k"}),
    "vp9.webm": dict(codec="libvpx-vp9", options={"g": "12", "deadline": "realtime"}),
}


@pytest.fixture(scope="module", params=VIDEOS)
def video(request, tmp_path_factory):
    """50 numbered frames."""
    path = tmp_path_factory.mktemp("ways") / request.param
    try:
        return str(write_video(path, numbered_frames(50), **VIDEOS[request.param]))
    except (av.FFmpegError, ValueError) as error:
        pytest.skip(f"cannot be written here: {error}")


def packet_table(path):
    """The table by reading every packet, and its first time stamp."""
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


# -- the index ------------------------------------------------------------------------------


def test_the_index_says_what_the_packets_say(video):
    table = index_table(video)
    if not video.endswith((".mp4", ".mov", ".avi")):
        assert table is None
        return
    assert_same(table, packet_table(video))
    with AvReader(video) as reader:
        assert reader._indexed and reader._file.quick == (not video.endswith(".avi"))


def remux(source, target, change=lambda packet: None, **options):
    """Copy the packets, with container options, or changed."""
    with av.open(str(source)) as old, av.open(str(target), "w", options=options) as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        for packet in old.demux(video=0):
            if packet.dts is not None and change(packet) is not False:
                packet.stream = stream
                new.mux(packet)
    return str(target)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "plain.mp4"
    return str(write_video(path, numbered_frames(50), options=X264))


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
def test_ways_to_write_an_mp4(plain, tmp_path, options):
    path = remux(plain, tmp_path / "v.mp4", **options)
    table = index_table(path)
    if "frag" in options.get("movflags", ""):
        assert table is None, "of a fragmented file the index knows the first fragment only"
    else:
        assert_same(table, packet_table(path))
    with open_reader(path) as reader:
        assert reader.timestamps == pytest.approx(np.arange(50) / 25, abs=1e-5)
        assert numbers(reader.read(np.array([0, 13, 49]))) == [0, 13, 49]


def test_an_edit_list_that_cuts_is_left_to_the_packets(plain, tmp_path):
    """Cut to start 0.6 s in, without encoding: the frames before are there, and not shown."""
    data = bytearray(Path(plain).read_bytes())
    place = data.index(b"elst")
    count, _, media_time = struct.unpack_from(">IIi", data, place + 8)
    assert count == 1
    struct.pack_into(">i", data, place + 16, media_time + 15 * _ticks(plain))
    path = tmp_path / "cut.mp4"
    path.write_bytes(bytes(data))
    expected = [read_number(frame.to_ndarray(format="rgb24")) for frame in decoded(str(path))]
    assert 15 in expected and 3 not in expected
    with open_reader(str(path)) as reader:
        assert not reader._indexed
        count = len(reader.timestamps)
        assert numbers(reader.read(np.arange(count))) == expected
        assert numbers(reader.read(np.array([1]))) == expected[1:2]


def _ticks(path):
    with av.open(path) as container:
        return int(Fraction(1, 25) / container.streams.video[0].time_base)


def decoded(path):
    with av.open(path) as container:
        yield from container.decode(video=0)


def test_a_file_cut_short_behind_a_good_header(plain, tmp_path):
    whole = remux(plain, tmp_path / "whole.mp4", movflags="faststart")
    data = Path(whole).read_bytes()
    cut = tmp_path / "cut.mp4"
    media = data.index(b"mdat")
    cut.write_bytes(data[: media + (len(data) - media) * 6 // 10])
    assert index_table(str(cut)) is None
    with open_reader(str(cut)) as reader:
        assert 20 < len(reader.timestamps) < 45
        assert numbers(reader.read(np.array([0, 7, 15]))) == [0, 7, 15]


def test_an_avi_file_cut_short(tmp_path):
    path = write_video(tmp_path / "v.avi", numbered_frames(40), **VIDEOS["p_frames.avi"])
    data = path.read_bytes()
    cut = tmp_path / "cut.avi"
    media, end = data.index(b"movi"), data.index(b"idx1")
    cut.write_bytes(data[: media + (end - media) * 7 // 10])
    assert index_table(str(cut)) is None
    with open_reader(str(cut)) as reader:
        assert 15 < len(reader.timestamps) < 40
        assert numbers(reader.read(np.array([0, 7, 14]))) == [0, 7, 14]


def test_an_index_that_lies_is_found_out(plain, tmp_path, monkeypatch):
    """Another table than the packets': noticed while decoding, and the packets are believed."""
    real = table_from_index

    def wrong(path, stream):
        table = real(path, stream)
        pts = table.pts.copy()
        pts[20:] += 3
        return FrameTable(pts, table.is_key, table.last_duration)

    monkeypatch.setattr(av_reader, "table_from_index", wrong)
    with open_reader(plain) as reader:
        assert reader._indexed
        assert numbers(reader.read(np.array([0, 20, 41]))) == [0, 20, 41]
        assert not reader._indexed
        assert reader.timestamps == pytest.approx(np.arange(50) / 25, abs=1e-6)


@pytest.mark.parametrize("damage", range(8))
def test_damaged_headers_never_crash(plain, tmp_path, damage):
    """Bytes of the header overwritten at random: read rightly, refused, or found to be missing."""
    data = bytearray(Path(plain).read_bytes())
    start = data.index(b"moov")
    rng = np.random.default_rng(damage)
    for place in rng.integers(start, len(data), 6):
        data[place] = rng.integers(256)
    path = tmp_path / "damaged.mp4"
    path.write_bytes(bytes(data))
    try:
        with open_reader(str(path)) as reader:
            count = len(reader.timestamps)
            frames = reader.read(np.unique([0, count // 2, count - 1]))
            assert frames.dtype == np.uint8
    except (VideoDecodeError, FrameCountError):
        pass


def test_only_what_is_needed_is_read(tmp_path):
    """Of a file of two seconds, two frames: the media data in between stays untouched."""
    noise = np.random.default_rng(0).integers(0, 256, (60, 64, 80, 3), dtype=np.uint8)
    path = str(write_video(tmp_path / "n.mp4", noise, options={"crf": "20", "g": "1"}))

    def bytes_read():
        with open("/proc/self/io") as file:
            return int(file.readline().split()[1])

    before = bytes_read()
    with open_reader(path) as reader:
        reader.read(np.array([5, 50]))
    assert bytes_read() - before < os.path.getsize(path) * 2 / 3


def test_tables_of_large_files_are_remembered(tmp_path, monkeypatch):
    path = str(write_video(tmp_path / "v.mkv", numbered_frames(40), options=X264))
    monkeypatch.setattr(av_reader, "_MAX_HELD_BYTES", 0)
    monkeypatch.setattr(av_reader, "_tables", TableCache(capacity=1))
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
            assert numbers(reader.read(np.array([3, 30]))) == [3, 30]
    other = str(write_video(tmp_path / "w.mkv", numbered_frames(20), options=X264))
    for name, count in ((other, 20), (path, 40)):  # room for one table
        demuxed.clear()
        with open_reader(name) as reader:
            assert len(demuxed) == len(reader.timestamps) == count
    write_video(tmp_path / "v.mkv", numbered_frames(25), options=X264)  # another file now
    with open_reader(path) as reader:
        assert len(reader.timestamps) == 25


# -- opening without probing ------------------------------------------------------------------


def test_quick_opening_changes_nothing(video):
    if not can_be_quick(video):
        pytest.skip("not opened quickly")
    with AvReader(video) as quick:
        assert quick._file.quick
        frames = quick.read(np.arange(50))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(av_reader, "can_be_quick", lambda _: False)
        with AvReader(video) as probed:
            assert not probed._file.quick
            assert (probed.timestamps == quick.timestamps).all()
            assert probed.duration == quick.duration
            assert (probed.read(np.arange(50)) == frames).all()


def test_an_unknown_depth_of_reordering_is_probed(plain, monkeypatch):
    """A stream with B frames whose header does not say how many: opened again, with a look."""
    monkeypatch.setattr(
        AvFile, "quick_was_enough", lambda self, table: not (self.quick and table.reordered)
    )
    with AvReader(plain) as reader:
        assert not reader._file.quick
        assert numbers(reader.read(np.array([1, 2, 30]))) == [1, 2, 30]


# -- seeking against decoding on ------------------------------------------------------------


def numbers(frames):
    return [read_number(frame) for frame in frames]


def test_any_subset_is_that_of_decoding_everything(video):
    with open_reader(video) as reader:
        everything = reader.read(np.arange(50))
    assert numbers(everything) == list(range(50))
    rng = np.random.default_rng(7)
    with open_reader(video) as again:  # one reader, asked again and again
        for count in (1, 1, 1, 2, 2, 3, 5, 8, 16, 49):
            indices = np.sort(rng.choice(50, count, replace=False))
            for reader in (again, open_reader(video)):
                assert (reader.read(indices) == everything[indices]).all(), indices
                assert not reader.by_count, "found by their time stamps, in one pass"
                if reader is not again:
                    reader.close()


def test_nothing_is_decoded_past_the_last_wanted_frame(plain):
    """Key frames at 0, 12, 24...: the frames between stretches, and the rest, stay untouched."""
    fed = []
    with open_reader(plain) as reader:
        real = reader._packets_from
        reader._packets_from = lambda first: (fed.append(i) or (i, p) for i, p in real(first))
        reader.read(np.array([2, 26, 27]))
    assert 12 not in fed and max(fed) < 36
    assert len(fed) <= 10
    # each frame in its place by its packet: 26 and 27 lie within the first packets of 24
    assert set(fed) <= set(range(6)) | set(range(24, 32))


@pytest.mark.parametrize(("wanted", "most"), [([24], 1), ([0], 1), ([48, 49], 3), ([0, 24], 2)])
def test_a_key_frame_is_decoded_alone(plain, wanted, most):
    with open_reader(plain) as reader:
        assert numbers(reader.read(np.array(wanted))) == wanted
        assert reader.frames_decoded <= most


def test_decoded_frames_outlive_the_reader(plain):
    with open_reader(plain) as reader:
        pictures = reader.decode(np.array([3, 30]))
        assert reader.frames_converted == 0
    gc.collect()
    assert len(pictures) == 2 and pictures.size == (64, 80)
    assert numbers([pictures[0], pictures[1]]) == [3, 30]
    assert reader.frames_converted == 2


# -- backends ------------------------------------------------------------------------------


class SlowCopy(FallbackReader):
    """A library that reads like PyAV; how long it takes is up to the test."""

    codecs = frozenset({"h264"})
    opened = 0

    def _import(self):
        type(self).opened += 1

    def _open(self, path, num_threads):
        self._library = AvReader(path)
        return len(self._library.timestamps)

    def _read(self, indices):
        return self._library.read(np.array(indices))

    def _release(self):
        if hasattr(self, "_library"):
            self._library.close()


class Wrong(SlowCopy):
    """One that shows other pixels."""

    def _read(self, indices):
        return 255 - super()._read(indices)


@pytest.fixture
def clock(monkeypatch):
    """CPU times of the measured candidates, in their order."""
    choice.forget_choices()
    seconds = {"AvReader": 1.0, "SlowCopy": 0.5, "Wrong": 0.1}

    def timed(opener, path, indices, options):
        with opener(path, **options) as reader:
            return reader.read(indices), seconds[opener.__name__]

    monkeypatch.setattr(choice, "_timed", timed)
    yield seconds
    choice.forget_choices()


def test_the_fastest_that_agrees_is_chosen_once_per_kind(plain, clock):
    candidates = {"wrong": Wrong, "copy": SlowCopy}
    with AvReader(plain) as reader:
        assert choice.choose_backend(reader, candidates, 1, None) == "copy"
        clock["AvReader"] = 0.01
        assert choice.choose_backend(reader, candidates, 1, None) == "copy", "remembered"
        assert choice.choose_backend(reader, {"wrong": Wrong}, 1, None) == "av"
        assert choice.remembered_choice(reader) == "copy"
        choice.forget_choices()
        assert choice.choose_backend(reader, candidates, 1, None) == "av"
        choice.forget_choices()
        clock.update(AvReader=1.0, SlowCopy=0.95)  # not worth it
        assert choice.choose_backend(reader, candidates, 1, None) == "av"


def test_no_measuring_when_time_is_short(plain, clock):
    with AvReader(plain) as reader:
        assert choice.choose_backend(reader, {"copy": SlowCopy}, 1, choice.time.monotonic()) == "av"
        assert choice.choose_backend(reader, {"copy": SlowCopy}, 1, None) == "copy"


def test_what_a_library_does_not_read_rightly_is_read_with_pyav(tmp_path, plain):
    avi = write_video(tmp_path / "v.avi", numbered_frames(30), options={"bf": "0"})
    mpeg4 = write_video(tmp_path / "v.mp4", numbered_frames(30), codec="mpeg4", options={})
    for path, library in ((plain, True), (str(avi), False), (str(mpeg4), False)):
        with SlowCopy(path) as reader, AvReader(path) as own:
            assert reader.uses_library == library
            assert (reader.timestamps == own.timestamps).all()
            indices = np.array([2, 17, 29])
            assert (reader.read(indices) == own.read(indices)).all()


def test_a_library_that_fails_is_replaced(plain, monkeypatch):
    def broken(self, indices):
        raise RuntimeError("no")

    monkeypatch.setattr(SlowCopy, "_read", broken)
    with SlowCopy(plain) as reader:
        assert numbers(reader.read(np.array([4, 40]))) == [4, 40]
        assert not reader.uses_library
        assert numbers(reader.read(np.array([5]))) == [5]


@pytest.mark.parametrize("backend", ["auto", "decord", "torchcodec"])
def test_every_format_is_the_same_through_every_backend(shared_videos, backend):
    """Bit for bit, time stamps included; what cannot be read gives the same error."""
    if backend != "auto" and not backend_importable(backend):
        pytest.skip(f"{backend} cannot be imported here")

    def result(path, name):
        try:
            with open_reader(path, name) as reader:
                count = len(reader.timestamps)
                frames = reader.read(np.unique([0, 1 % count, count // 3, count // 2, count - 1]))
                return reader.timestamps.tolist(), reader.duration, frames
        except (VideoDecodeError, FrameCountError) as error:
            return str(error)

    read = 0
    for path in sorted((shared_videos / "formats").iterdir()):
        ours, theirs = result(str(path), "av"), result(str(path), backend)
        if isinstance(ours, str):
            assert theirs == ours
            continue
        assert theirs[:2] == ours[:2], path.name
        assert (theirs[2] == ours[2]).all(), path.name
        read += 1
    assert read > 30


# -- leaks -----------------------------------------------------------------------------------


def test_hundreds_of_opens_leave_nothing_behind(plain, tmp_path):
    """File descriptors and memory, of good and of bad files, closed and forgotten readers."""
    text = tmp_path / "text.mp4"
    text.write_text("no video\n" * 100)
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(Path(plain).read_bytes()[:2000])

    def some(count):
        for number in range(count):
            with open_reader(plain) as reader:
                reader.read(np.array([number % 50]))
            forgotten = open_reader(plain)
            forgotten.decode(np.array([1]))
            del forgotten
            for bad in (text, cut):
                with pytest.raises(VideoDecodeError):
                    open_reader(str(bad))
        gc.collect()

    def resident():
        ctypes.CDLL(None).malloc_trim(0)  # what is free goes back
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    some(30)
    descriptors, memory = len(os.listdir("/proc/self/fd")), resident()
    some(300)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert resident() - memory < 15 * 2**20  # a reader that stays alive holds 0.3 MB or more
