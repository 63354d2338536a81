"""All backends behind one function: the same frames, times and errors."""

from __future__ import annotations

import os
import struct

import av
import cv2
import numpy as np
import pytest
from helpers.readers import SlowCopy
from helpers.videos import (
    DISPLAY_MATRICES,
    add_cover,
    decode_all,
    displayed,
    numbered_frames,
    read_numbers,
    set_display_matrix,
    write_sound,
    write_video,
)

from sce_video.data_tools.examination import examine_file
from sce_video.data_tools.prepare.ava_lists import probe_video
from sce_video.datasets import FrameCountError, VideoDecodeError, backend_importable, open_reader
from sce_video.datasets.readers import AvReader, VideoReader, check_backend
from sce_video.datasets.readers.base import VideoTimeoutError
from sce_video.datasets.readers.images import FrameFolderReader
from sce_video.datasets.segments import stated_duration
from sce_video.datasets.transforms import OpenVideo
from sce_video.engine.config.load import load_config, set_backend
from sce_video.inference.clips import copy_clip
from sce_video.registry import READERS

BACKENDS = ["av", "decord", "torchcodec"]


@pytest.fixture(params=BACKENDS)
def backend(request):
    if not backend_importable(request.param):
        pytest.skip(f"{request.param} cannot be imported here")
    return request.param


def test_time_stamps_and_frames(video, backend):
    with open_reader(video, backend) as reader:
        assert reader.timestamps == pytest.approx(np.arange(60) / 25, abs=1e-6)
        assert reader.duration == pytest.approx(2.4, abs=1e-6)
        assert reader.size == (64, 80)
        frames = reader.read(np.array([0, 1, 11, 12, 13, 30, 58, 59]))
    assert frames.dtype == np.uint8 and frames.shape == (8, 64, 80, 3)
    assert read_numbers(frames) == [0, 1, 11, 12, 13, 30, 58, 59]


def test_files_that_are_no_video(tmp_path):
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("this is no video\n" * 100)
    (tmp_path / "folder.mp4").mkdir()
    os.mkfifo(tmp_path / "pipe.mp4")  # opened, it would be waited for without end
    for name, word in [("empty", "empty"), ("text", "open"), ("folder", "regular"),
                       ("pipe", "regular"), ("nowhere", "opened")]:  # fmt: skip
        for backend in ("av", "decord"):
            with pytest.raises(VideoDecodeError, match=f"{name}.mp4.*{word}") as error:
                open_reader(str(tmp_path / f"{name}.mp4"), backend)
            assert error.value.permanent


def test_a_file_with_audio_only(tmp_path):
    path = str(tmp_path / "sound.mp4")
    with av.open(path, "w") as container:
        stream = container.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.rate = 16000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(VideoDecodeError, match="no video stream"):
        open_reader(path)


def test_reading_raises_after_the_deadline(video, clock):
    clock[0] = 5.0
    with pytest.raises(VideoTimeoutError):
        open_reader(video, deadline=4.0)
    reader = open_reader(video)
    reader._stream.deadline = 4.0
    with reader, pytest.raises(VideoTimeoutError):
        reader.read(np.array([50]))


def test_colours_of_known_material(tmp_path, backend):
    """Uniform colours written as limited-range BT.601 yuv are read within 3 levels."""
    colours = np.array([[200, 40, 40], [40, 180, 60], [50, 60, 210], [128, 128, 128]])
    frames = np.broadcast_to(colours[:, None, None], (4, 48, 64, 3)).astype(np.uint8)
    path = write_video(tmp_path / "flat.mp4", frames, options={"crf": "1", "g": "1"})
    with open_reader(str(path), backend) as reader:
        seen = reader.read(np.arange(4))
    assert np.abs(seen.mean((1, 2)) - colours).max() < 3


# -- display matrices -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lopsided(tmp_path_factory):
    """Five frames that differ from each of their other orientations."""
    frames = np.full((5, 48, 80, 3), 90, np.uint8)
    frames[:, :16, :24] = (230, 30, 30)
    frames[:, 32:, :48] = (30, 30, 230)
    path = tmp_path_factory.mktemp("lopsided") / "a.mp4"
    return str(write_video(path, frames, options={"crf": "1", "g": "1"}))


def turned_by_ffmpeg(path, number):
    """A frame as the ffmpeg program turns it: the filters of ``-autorotate`` (ffmpeg_filter.c)."""
    with av.open(path) as container:
        frame = list(container.decode(video=0))[number]
        side = frame.side_data.get("DISPLAYMATRIX")
        matrix = np.frombuffer(side, np.int32).tolist() if side else [1, 0, 0, 0, 1]
        degrees = -frame.rotation % 360
        filters = []
        if degrees == 90:
            filters = [("transpose", "cclock_flip" if matrix[3] > 0 else "clock")]
        elif degrees == 270:
            filters = [("transpose", "clock_flip" if matrix[3] < 0 else "cclock")]
        elif degrees == 180:
            filters = [("hflip", None)] * (matrix[0] < 0) + [("vflip", None)] * (matrix[4] < 0)
        elif matrix[4] < 0:
            filters = [("vflip", None)]
        graph = av.filter.Graph()
        nodes = [graph.add_buffer(template=container.streams.video[0])]
        nodes += [graph.add(name, *([option] if option else [])) for name, option in filters]
        graph.link_nodes(*nodes, graph.add("buffersink")).configure()
        graph.push(frame)
        return graph.pull().to_ndarray(format="rgb24")


@pytest.mark.parametrize("name", DISPLAY_MATRICES)
def test_all_eight_orientations(lopsided, backend, tmp_path, name):
    """As the matrix is defined, and as the ffmpeg program turns frames."""
    path = set_display_matrix(lopsided, tmp_path / "turned.mp4", name)
    with open_reader(lopsided) as reader:
        stored = reader.read(np.array([2]))[0]
    with open_reader(path, backend) as reader:
        shown = reader.read(np.array([2]))[0]
        assert reader.size == shown.shape[:2]
        [(_, streamed)] = reader.stream(np.array([2]))
        np.testing.assert_array_equal(streamed[0], shown)
    np.testing.assert_array_equal(shown, displayed(stored, DISPLAY_MATRICES[name]))
    # FFmpeg turns before it converts to RGB, with other sums of neighbouring chroma samples.
    assert np.abs(shown.astype(int) - turned_by_ffmpeg(path, 2)).mean() < 1.5
    copy_clip(path, 0, 1, tmp_path / "clip.mp4")
    with open_reader(str(tmp_path / "clip.mp4")) as reader:
        np.testing.assert_array_equal(reader.read(np.array([2]))[0], shown)


@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_a_scaled_or_degenerate_matrix_is_no_error(lopsided, tmp_path, scale):
    data = bytearray(open(lopsided, "rb").read())
    at = data.index(b"tkhd") + 44
    path = tmp_path / "scaled.mp4"
    with open_reader(lopsided) as reader:
        stored = reader.read(np.array([2]))[0]
    for a, b, c, d in ((-scale, 0, 0, scale), (0, 0, 0, 0), (scale, scale, 0, 0)):
        values = (a, b, 0, c, d, 0, 0, 0, 2**14)
        data[at : at + 36] = struct.pack(">9i", *(int(value * 2**16) for value in values))
        path.write_bytes(data)
        with open_reader(str(path)) as reader:
            shown = reader.read(np.array([2]))[0]
        if a < 0:
            np.testing.assert_array_equal(shown, stored[:, ::-1])


# -- cover pictures -------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["first", "last", "attachment"])
def test_a_cover_is_not_the_video(video, backend, tmp_path, place):
    """It may be the first stream, the last one or an attachment of a Matroska file."""
    path = str(tmp_path / "with_cover.mp4")
    if place == "attachment":
        path = add_attached_cover(video, tmp_path / "with_cover.mkv")
    else:
        add_cover(video, path, first=place == "first")
    with av.open(path) as container:
        assert len(container.streams.video) == 2
    with open_reader(path, backend) as reader, open_reader(video) as plain:
        numbers = np.array([0, 7, 31, 59])
        assert len(reader.timestamps) == 60
        np.testing.assert_array_equal(reader.read(numbers), plain.read(numbers))
    begin, end = copy_clip(path, 0.5, 1, tmp_path / "clip.mp4")
    copied = list(range(round(begin * 25), round(end * 25)))
    assert read_numbers(decode_all(tmp_path / "clip.mp4")) == copied and len(copied) >= 12
    assert isinstance(probe_video(path), float)


def test_a_sound_file_with_a_cover_is_not_a_video(backend, tmp_path):
    path = add_cover(write_sound(tmp_path / "sound.mp4"), tmp_path / "podcast.mp4")
    with pytest.raises(VideoDecodeError, match="has no video stream, only a cover picture"):
        open_reader(path, backend)
    assert examine_file(path, 60).outcome == "unreadable"
    assert "only a cover picture" in str(probe_video(path))
    assert stated_duration(path) is None
    with pytest.raises(VideoDecodeError, match="only a cover picture"):
        copy_clip(path, 0, 1, tmp_path / "clip.mp4")


def add_attached_cover(source, target):
    """A Matroska file whose cover is an attachment, which FFmpeg lists as a stream of video."""
    jpeg = cv2.imencode(".jpg", np.full((64, 64, 3), 200, np.uint8))[1].tobytes()
    with av.open(source) as old, av.open(str(target), "w") as new:
        stream = new.add_stream_from_template(old.streams.video[0])
        new.add_attachment("cover.jpg", "image/jpeg", jpeg)
        for packet in old.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                new.mux(packet)
    return str(target)


# -- real files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("turn", "shape"), [(90, (568, 320, 3)), (180, (320, 568, 3))])
def test_all_backends_apply_the_rotation(shared_videos, backend, turn, shape):
    path, first = str(shared_videos / f"formats/decord__video_{turn}.mov"), np.array([1])
    with open_reader(path, backend) as reader, open_reader(path) as plain:
        frames = reader.read(first)
        assert frames[0].shape == shape and (plain.read(first) == frames).all()


def few_frames(path, backend):
    """Time stamps, duration and five frames of a file, or the text of its error."""
    try:
        with open_reader(path, backend) as reader:
            count = len(reader.timestamps)
            frames = reader.read(np.unique([0, 1 % count, count // 3, count // 2, count - 1]))
            return reader.timestamps.tolist(), reader.duration, frames
    except (VideoDecodeError, FrameCountError) as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["decord", "torchcodec"])
def test_every_format_is_the_same_with_every_backend(shared_videos, other):
    """Bit for bit, time stamps included; a file that cannot be read gives the same error."""
    if not backend_importable(other):
        pytest.skip(f"{other} cannot be imported here")
    read = 0
    for path in sorted(str(path) for path in (shared_videos / "formats").iterdir()):
        expected, found = few_frames(path, "av"), few_frames(path, other)
        if isinstance(expected, str):
            assert found == expected
            continue
        assert found[:2] == expected[:2], path
        assert (found[2] == expected[2]).all(), path
        read += 1
    assert read > 30


def test_the_time_limit_of_a_stream_is_that_of_the_next_frame(video, clock):
    """A file may take any time in all: that of an hour's file is much longer than the limit."""
    with open_reader(video) as reader:
        every = np.arange(len(reader.timestamps))
        seen = []
        for numbers, frames in reader.stream(every, patience=6.0):
            seen += numbers.tolist()
            assert len(frames) == len(numbers)
            clock[0] += 5.0
        assert seen == every.tolist() and clock[0] > 12
        with pytest.raises(VideoTimeoutError):
            list(reader.stream(every, patience=-1.0))


# -- Readers by contract: a new reader is one registered class

FRAMES = np.random.default_rng(0).integers(0, 256, (30, 24, 32, 3), dtype=np.uint8)


class ArrayFileReader(VideoReader):
    """Reads .npy arrays (T, H, W, 3) at 10 frames per second."""

    def __init__(self, path, **options):
        super().__init__(path, **options)
        self._frames = np.load(path)
        self.timestamps, self.duration = np.arange(len(self._frames)) / 10, len(self._frames) / 10

    def read(self, indices):
        return self._frames[self._check_indices(indices)]

    def close(self):
        self.closed = True


@pytest.fixture
def array_file(tmp_path, monkeypatch):
    """A file that the toy reader reads, which is registered as "arrays" for one test."""
    monkeypatch.setitem(READERS.module_dict, "arrays", ArrayFileReader)
    np.save(tmp_path / "v.npy", FRAMES)
    return str(tmp_path / "v.npy")


def test_a_reader_of_ones_own_is_opened_by_name(array_file):
    with open_reader(array_file, "arrays") as reader:
        assert type(reader) is ArrayFileReader and backend_importable("arrays")
        assert (reader.read(np.array([3, 9])) == FRAMES[[3, 9]]).all()
        assert (reader.decode(np.array([5]))[0] == FRAMES[5]).all()
        assert reader.size == (24, 32)
    assert reader.closed
    for use in (check_backend, lambda name: OpenVideo(backend=name)):
        with pytest.raises(ValueError, match=r"'magic'. Choose one of av, .*arrays"):
            use("magic")


def test_a_reader_whose_library_is_missing(monkeypatch, array_file):
    class Absent(ArrayFileReader):
        library = "sce_video_no_such_library"
        import_hint = "get it from the shelf"

    monkeypatch.setitem(READERS.module_dict, "absent", Absent)
    assert not Absent.importable() and not backend_importable("absent")
    for use in (lambda: check_backend("absent"), lambda: open_reader(array_file, "absent")):
        with pytest.raises(ImportError, match="'absent' cannot be imported here.*from the shelf"):
            use()


def test_custom_imports_register_a_reader_before_it_is_named(tmp_path, monkeypatch):
    (tmp_path / "my_reader.py").write_text(
        "from sce_video.datasets.readers import AvReader\n"
        "from sce_video.registry import READERS\n"
        "READERS.module_dict['mine'] = AvReader\n"
    )
    (tmp_path / "config.py").write_text(
        "custom_imports = dict(imports=['my_reader'])\n"
        "pipeline = [dict(type='OpenVideo')]\n"
        "model = dict(type='SCE')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(READERS, "_module_dict", dict(READERS.module_dict))
    cfg = load_config(tmp_path / "config.py")
    set_backend(cfg, "mine")
    assert cfg.pipeline[0].backend == "mine" and OpenVideo(**{"backend": "mine"})


def test_files_that_the_library_reads_wrongly_are_read_with_pyav(tmp_path, plain):
    avi = write_video(tmp_path / "v.avi", numbered_frames(30), options={"bf": "0"})
    mpeg4 = write_video(tmp_path / "v.mp4", numbered_frames(30), codec="mpeg4", options={})
    for path, library in ((plain, True), (str(avi), False), (str(mpeg4), False)):
        with SlowCopy(path) as reader, AvReader(path) as own:
            assert (reader._fallback is None) == library
            assert (reader.timestamps == own.timestamps).all()
            indices = np.array([2, 17, 29])
            assert (reader.read(indices) == own.read(indices)).all()


def test_pyav_takes_over_when_the_library_fails(plain, monkeypatch):
    monkeypatch.setattr(SlowCopy, "_read", lambda self, indices: self.none)
    monkeypatch.setattr(SlowCopy, "errors", (AttributeError,))
    with SlowCopy(plain) as reader:
        assert read_numbers(reader.read(np.array([4, 40]))) == [4, 40]
        assert reader._fallback
        assert read_numbers(reader.read(np.array([5]))) == [5]


@pytest.mark.parametrize(
    ("suffix", "codec", "options", "library"),
    [
        ("mp4", "libx264", {"crf": "12", "g": "12", "bf": "3", "flags": "+cgop"}, True),
        ("mp4", "libx264", {"crf": "12", "x264-params": "open-gop=1:keyint=12:bframes=3"}, False),
        ("mkv", "mpeg4", {"bf": "2", "g": "12", "qscale": "3"}, False),
        ("mp4", "libx264", {"crf": "12", "x264-params": "tff=1:keyint=12"}, False),
    ],
)
def test_decord_is_used_where_it_is_correct(tmp_path, suffix, codec, options, library):
    pytest.importorskip("decord")
    path = str(write_video(tmp_path / f"a.{suffix}", numbered_frames(60), 25, codec, options))
    expected = decode_all(path)
    for index in (0, 21, 40, 58):
        with open_reader(path, "decord") as reader:
            assert (reader._fallback is None) == library
            np.testing.assert_array_equal(reader.read(np.array([index]))[0], expected[index])


def write(folder, numbers, size=(12, 16)):
    folder.mkdir(exist_ok=True)
    for number in numbers:
        image = np.full((*size, 3), (10, 20, number), dtype=np.uint8)  # BGR
        cv2.imwrite(str(folder / f"film_{number:06d}.png"), image)
    return str(folder)


def test_frames_times_and_colours_of_a_folder(tmp_path):
    reader = FrameFolderReader(write(tmp_path / "film", range(1, 61)), fps=30)
    assert reader.timestamps[[0, 30]].tolist() == [0.0, 1.0] and reader.duration == pytest.approx(2)
    frames = reader.read(np.array([0, 29, 59]))
    assert frames[:, 0, 0].tolist() == [[1, 20, 10], [30, 20, 10], [60, 20, 10]]
    assert reader.size == (12, 16)
    (tmp_path / "film/notes.txt").write_text("no image")
    for number in (3, 4, *range(6, 61)):  # a missing number is a gap in the time stamps
        (tmp_path / f"film/film_{number:06d}.png").unlink()
    reader = FrameFolderReader(str(tmp_path / "film"), fps=10)
    assert reader.timestamps.tolist() == pytest.approx([0.0, 0.1, 0.4])
    assert reader.duration == pytest.approx(0.5)


def test_errors_name_folder_and_file(tmp_path):
    path = write(tmp_path / "film", [1, 2])
    (tmp_path / "film/other_2.jpg").write_bytes(b"x")
    for folder, message in (
        (str(tmp_path / "none"), "not a folder of frames"),
        (write(tmp_path / "empty", []), "no image that is numbered 1 or higher"),
        (path, "two images with the number 2"),
    ):
        with pytest.raises(VideoDecodeError, match=message):
            FrameFolderReader(folder)
    (tmp_path / "film/other_2.jpg").rename(tmp_path / "film/film_000003.jpg")
    write(tmp_path / "film", [4], size=(8, 8))
    with pytest.raises(
        VideoDecodeError, match=r"film_000003\.jpg is not an image that can be decoded"
    ):
        FrameFolderReader(path).read(np.array([2]))
    with pytest.raises(VideoDecodeError, match="different sizes"):
        FrameFolderReader(path).read(np.array([0, 3]))
