"""Memory that one file may take: of its largest frame, and of all frames held."""

from __future__ import annotations

import os
import struct
import types
import zlib

import cv2
import numpy as np
import pytest
from helpers.videos import numbered_frames, write_video

from sce_video.data_tools.examination import examine_file
from sce_video.data_tools.repack.encode import repack_file
from sce_video.data_tools.repack.plan import EncoderLimits, Settings
from sce_video.datasets import FrameCountError, VideoDecodeError, open_reader, run_pipeline
from sce_video.datasets.readers import av_reader as av_frames
from sce_video.datasets.readers import frame_table
from sce_video.datasets.readers.base import DecodeLimits
from sce_video.datasets.readers.images import FrameFolderReader
from sce_video.datasets.transforms import (
    CenterCropClips,
    DecodeClips,
    DecodeSharedFrames,
    LoadImage,
    OpenFrameFolder,
    OpenVideo,
    PackClips,
    PackVideo,
    ResizeShortSide,
    UniformClips,
)
from sce_video.jobs import ItemError

FRAME = b"\x21\xf9\x04\0\x0a\0\0\0\x2c\0\0\0\0\1\0\1\0\0\x02\x02\x44\x01\0"


def write_gif(path, width, height, count=30):
    """A GIF of a few hundred bytes: frames of one pixel on a large screen."""
    head = b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0" + bytes(3) + b"\xff" * 3
    path.write_bytes(head + FRAME * count + b"\x3b")
    return str(path)


def write_png(path, width, height):
    """The header of a PNG, and no pixels."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", b"")]
    data = b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + data)
    return str(path)


@pytest.fixture
def no_conversion(monkeypatch):
    """Fail where a frame is converted to RGB."""

    def convert(self, index):
        raise AssertionError("a frame was converted")

    monkeypatch.setattr(av_frames.AvFrames, "__getitem__", convert)


# -- one frame ----------------------------------------------------------------------------------


def test_frames_that_are_too_large_are_refused(tmp_path, no_conversion):
    path = write_gif(tmp_path / "a.gif", 8000, 8000)
    assert os.path.getsize(path) < 1000
    with pytest.raises(
        VideoDecodeError, match="8000 x 8000 pixels, more than the 40000000 allowed"
    ) as raised:
        open_reader(path)
    assert raised.value.permanent
    with open_reader(write_gif(tmp_path / "b.gif", 400, 300)) as reader:
        assert len(reader.timestamps) == 30


def test_the_limit_is_a_setting(tmp_path):
    path = write_gif(tmp_path / "a.gif", 400, 300)
    with pytest.raises(VideoDecodeError, match="400 x 300 pixels, more than the 119999 allowed"):
        open_reader(path, limits=DecodeLimits(max_pixels=119_999))
    with open_reader(path, limits=DecodeLimits(max_pixels=120_000)) as reader:
        assert reader.read(np.array([0])).shape == (1, 300, 400, 3)
    with pytest.raises(VideoDecodeError, match="more than the 100 allowed"):
        OpenVideo(max_pixels=100)({"path": path})
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="max_pixels must be a positive whole number"):
            DecodeLimits(max_pixels=wrong)


def test_a_stream_whose_frames_become_too_large(tmp_path):
    """The header tells the first size only; the decoder itself is bounded."""
    parts = [
        write_video(tmp_path / f"{i}.h264", numbered_frames(5, 48 * i, 80 * i)) for i in (1, 8)
    ]
    path = tmp_path / "both.h264"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    with open_reader(str(path)) as reader:
        assert len(reader.read(np.arange(10))) == 10
    with open_reader(str(path), limits=DecodeLimits(max_pixels=10_000)) as reader:
        assert len(reader.timestamps) == 5  # the decoder returns no larger ones


def test_a_library_is_bounded_too(numbered_video):
    pytest.importorskip("decord")
    path = numbered_video("v.mp4", 50, options={"crf": "12", "g": "12"})
    with open_reader(path, "decord", limits=DecodeLimits(max_held_bytes=100_000)) as reader:
        assert getattr(reader, "_fallback", None) is None and len(reader.read(np.arange(6))) == 6
        with pytest.raises(VideoDecodeError, match="20 of its frames take 307200 bytes"):
            reader.read(np.arange(20))
    with pytest.raises(VideoDecodeError, match="80 x 64"):
        open_reader(path, "decord", limits=DecodeLimits(max_pixels=5000))


# -- frames held --------------------------------------------------------------------------------


def test_the_frames_held_are_bounded_together(tmp_path, no_conversion):
    path = write_gif(tmp_path / "a.gif", 1000, 1000)
    with open_reader(path, limits=DecodeLimits(max_held_bytes=30_000_000)) as reader:
        assert len(reader.decode(np.arange(5))) == 5
        with pytest.raises(VideoDecodeError, match=r"8 of its frames take 3\d{7} bytes") as raised:
            reader.decode(np.arange(30))
        assert not raised.value.permanent
        with pytest.raises(VideoDecodeError, match="10 of its frames take 30000000"):
            DecodeLimits(max_held_bytes=29_999_999).check_held("a", 10, 30_000_000)


def pipeline(*last):
    rng = np.random.default_rng(0)
    steps = [OpenVideo(), UniformClips(1.0, 8, 2), *last]
    return lambda path: run_pipeline(
        steps, {"path": path, "rng": rng, "label": 0, "index": 0, "seed": 0}
    )


def test_a_frame_of_two_rows_is_not_enlarged(tmp_path):
    """Its short side of 2 pixels resized to 256 would make its long side 7.7 million."""
    path = write_gif(tmp_path / "a.gif", 60000, 2)
    for last in (
        (DecodeClips(), ResizeShortSide(256), CenterCropClips(224), PackClips()),
        (DecodeSharedFrames(), ResizeShortSide(256), PackVideo(256, 3)),
    ):
        with pytest.raises(VideoDecodeError, match="7680000 x 256 pixels, more than the"):
            pipeline(*last)(path)
    path = write_gif(tmp_path / "b.gif", 600, 20)
    packed = pipeline(DecodeSharedFrames(), ResizeShortSide(40), PackVideo(40, 3))(path)
    assert packed["frames"].shape[1:] == (40, 1200, 3)


def test_packed_frames_are_bounded(tmp_path):
    path = write_gif(tmp_path / "a.gif", 600, 20)
    steps = [
        OpenVideo(max_held_bytes=3_000_000), UniformClips(1.0, 8, 2), DecodeSharedFrames(),
        ResizeShortSide(100), PackVideo(100, 3),
    ]  # fmt: skip
    given = {"path": path, "rng": np.random.default_rng(0), "label": 0, "index": 0, "seed": 0}
    with pytest.raises(VideoDecodeError, match="more than the 3000000 allowed"):
        run_pipeline(steps, given)


# -- images -------------------------------------------------------------------------------------


def test_images(tmp_path, monkeypatch):
    path = write_png(tmp_path / "a.png", 30_000, 20_000)
    with monkeypatch.context() as patch:
        patch.setattr(cv2, "imdecode", lambda *_: pytest.fail("the image was decoded"))
        with pytest.raises(VideoDecodeError, match="30000 x 20000|is too large"):
            LoadImage()({"path": path})
        with pytest.raises(VideoDecodeError, match="12000 x 12000 pixels, more than the"):
            LoadImage()({"path": write_png(tmp_path / "b.png", 12_000, 12_000)})
    cv2.imwrite(str(tmp_path / "c.png"), np.zeros((30, 40, 3), np.uint8))
    given = {"path": str(tmp_path / "c.png")}
    assert LoadImage(1, max_pixels=1200)(dict(given))["views"][0].shape == (1, 30, 40, 3)
    with pytest.raises(VideoDecodeError, match="40 x 30 pixels, more than the 1199"):
        LoadImage(1, max_pixels=1199)(dict(given))


def test_folders_of_frames(tmp_path):
    for number in range(1, 5):
        cv2.imwrite(str(tmp_path / f"{number}.png"), np.zeros((30, 40, 3), np.uint8))
    results = OpenFrameFolder(max_pixels=1199)({"path": str(tmp_path)})
    with pytest.raises(VideoDecodeError, match=r"1\.png has frames of 40 x 30 pixels"):
        results["reader"].read(np.array([0]))
    reader = FrameFolderReader(str(tmp_path), limits=DecodeLimits(max_held_bytes=15_000))
    assert len(reader.read(np.array([0, 1]))) == 2
    with pytest.raises(VideoDecodeError, match="more than the 15000 allowed"):
        reader.read(np.arange(4))


# -- the tools ----------------------------------------------------------------------------------


def test_verify_and_repack_refuse_them(tmp_path):
    path = write_gif(tmp_path / "a.gif", 8000, 8000)
    facts = examine_file(path, 60.0)
    assert facts.outcome == "unreadable" and "8000 x 8000 pixels" in facts.error
    with pytest.raises(ItemError, match="8000 x 8000 pixels"):
        repack_file(path, str(tmp_path / "out.mp4"), Settings())
    small = write_gif(tmp_path / "b.gif", 400, 300)
    assert examine_file(small, 60.0).outcome == "decoded"
    limits = EncoderLimits(max_pixels=1000)
    with pytest.raises(ItemError, match="400 x 300 pixels, more than the 1000"):
        repack_file(small, str(tmp_path / "out.mp4"), Settings(), limits)


# -- the index ----------------------------------------------------------------------------------


def test_an_index_of_more_samples_than_bytes_is_not_read(tmp_path, monkeypatch):
    """A header of a few bytes may state millions of samples of one byte."""

    class Entries:
        def __len__(self):
            return 10**8

        def __iter__(self):
            raise AssertionError("the entries were read")

    path = tmp_path / "a.mp4"
    path.write_bytes(bytes(1000))
    stream = types.SimpleNamespace(index_entries=Entries())
    assert frame_table.table_from_index(str(path), stream) is None
    box = struct.pack(">II", 0, 1) + struct.pack(">ii", 2**26, 1)
    with pytest.raises(ValueError, match="does not list"):
        frame_table._runs(memoryview(box), "stts", 10)


def test_the_decoder_is_bounded_before_it_allocates(tmp_path):
    """A frame of a stream may be larger than the container says."""
    path = str(write_video(tmp_path / "a.mp4", numbered_frames(3, 480, 800)))
    data = bytearray(open(path, "rb").read())
    for at in range(len(data) - 4):  # width and height of the sample entry and of the track
        if data[at : at + 4] == struct.pack(">HH", 800, 480):
            data[at : at + 4] = struct.pack(">HH", 80, 48)
    with open(path, "wb") as file:
        file.write(data)
    with pytest.raises((VideoDecodeError, FrameCountError)):
        with open_reader(path, limits=DecodeLimits(max_pixels=100_000)) as reader:
            reader.read(np.array([0]))
