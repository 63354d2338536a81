"""Repacking one file: frames, times, sizes, key frames, PSNR, against plain decoding and numpy."""

from __future__ import annotations

import re
import resource
from fractions import Fraction

import av
import cv2
import numpy as np
import pytest
from helpers.videos import (
    DISPLAY_MATRICES,
    damaged_h264,
    displayed,
    numbered_frames,
    read_number,
    set_display_matrix,
    trim,
    write_video,
)

from sce_video.data_tools.repack import encode as work
from sce_video.data_tools.repack import video_source
from sce_video.data_tools.repack.encode import repack_file
from sce_video.data_tools.repack.plan import EncoderLimits, Settings
from sce_video.datasets import FrameCountError, open_reader
from sce_video.jobs import ItemError, StorageError
from sce_video.options.prepare import CRF_RANGE

av.logging.set_libav_level(av.logging.FATAL)


def repacked(path, tmp_path, min_psnr=20.0, **settings):
    """(facts, path of the output)."""
    output = tmp_path / "out.mp4"
    options = EncoderLimits(min_psnr=min_psnr)
    return repack_file(str(path), str(output), Settings(**settings), options), output


def refused(path, tmp_path, min_psnr=20.0, **settings):
    """(kind, reason) of a file that is not repacked, which leaves no output."""
    with pytest.raises(ItemError) as error:
        repacked(path, tmp_path, min_psnr, **settings)
    assert not (tmp_path / "out.mp4").exists()
    return error.value.kind, str(error.value)


def decode(path):
    """Frames as (n, H, W, 3), seconds (n,), and which packets are key frames."""
    frames, times, keys = [], [], []
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            if packet.size:
                keys.append(packet.is_keyframe)
            for frame in packet.decode():
                frames.append(frame.to_ndarray(format="rgb24"))
                times.append(float(frame.pts * frame.time_base))
    return np.stack(frames), np.array(times), keys


def noise(count, height=64, width=80, seed=0):
    """Smoothed noise, which encoding changes visibly."""
    frames = np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), np.uint8)
    return np.stack([cv2.GaussianBlur(frame, (0, 0), 2) for frame in frames])


@pytest.mark.parametrize("keyint", [1, 4])
def test_constant_rate_keeps_every_frame_and_time(tmp_path, keyint):
    path = write_video(tmp_path / "in.mkv", numbered_frames(23), fps=30)
    facts, output = repacked(path, tmp_path, keyint=keyint)
    frames, times, keys = decode(output)
    assert [read_number(frame) for frame in frames] == list(range(23))
    assert np.allclose(times, np.arange(23) / 30, atol=1e-9)
    assert keys == [number % keyint == 0 for number in range(23)]
    assert facts.constant and facts.rate == "30"
    assert facts.output.frames == facts.source.frames == 23


@pytest.mark.parametrize(("keyint", "b_frames"), [(50, 0), (50, 3), (200, 3)])
def test_a_file_trimmed_without_encoding_keeps_its_frames(tmp_path, keyint, b_frames):
    """Frames before the start are hidden by an edit list, and others refer to them."""
    options = {"crf": "12", "g": str(keyint), "bf": str(b_frames), "sc_threshold": "0"}
    whole = write_video(tmp_path / "whole.mp4", numbered_frames(120), options=options)
    facts, output = repacked(trim(whole, tmp_path / "in.mp4", 3.2), tmp_path)
    frames, times, _ = decode(output)
    assert [read_number(frame) for frame in frames] == list(range(80, 120))
    assert np.allclose(times, np.arange(40) / 25, atol=1e-9)
    assert facts.source.frames == facts.source.promised == 40


def test_variable_rate_is_right_in_seconds(tmp_path):
    """Each output frame is the frame that the source shows at its time."""
    gaps = [40] * 20 + [120] * 5 + [40] * 10 + [500, 40, 40, 80, 200]
    stamps = np.concatenate([[0], np.cumsum(gaps)]).tolist()
    path = write_video(tmp_path / "in.mkv", numbered_frames(len(stamps)), pts=stamps)
    facts, output = repacked(path, tmp_path)
    frames, times, _ = decode(output)
    assert not facts.constant and facts.rate == "25"
    for frame, time in zip(frames, times, strict=True):
        shown = max(i for i, stamp in enumerate(stamps) if stamp / 1000 <= time + 1e-6)
        assert read_number(frame) == shown
    with open_reader(str(path)) as reader:
        assert abs(len(frames) / 25 - reader.duration) <= 1 / 25


def test_frames_that_do_not_decode_leave_a_gap(tmp_path):
    """No frames between a damaged packet and the next key frame, as in the reader."""
    options = {"crf": "20", "x264-params": "keyint=10:scenecut=0:bframes=0"}
    path = write_video(tmp_path / "in.mkv", numbered_frames(40), options=options)
    with av.open(str(path)) as container:
        packet = [bytes(packet) for packet in container.demux(video=0)][13]
    data = path.read_bytes()
    assert data.count(packet) == 1
    path.write_bytes(data.replace(packet, b"\xff" * len(packet)))
    facts, output = repacked(path, tmp_path)
    shown = [read_number(frame) for frame in decode(output)[0]]
    assert shown == [*range(13), *[12] * 7, *range(20, 40)]
    assert (facts.source.frames, facts.source.promised) == (33, 40)


def test_damaged_frames_are_counted_and_too_many_refused(tmp_path):
    path, flagged = damaged_h264(tmp_path, 4)
    facts, _ = repacked(path, tmp_path)
    assert facts.source.damaged == flagged == 4 and facts.output.frames == 60
    (tmp_path / "out.mp4").unlink()
    kind, reason = refused(damaged_h264(tmp_path, 12)[0], tmp_path)
    assert kind == "bad" and "12 of 60 frames that were read are damaged" in reason


def test_an_odd_size_is_cropped_not_scaled(tmp_path):
    frames = noise(4, 65, 81)
    path = write_odd(tmp_path / "in.mkv", frames)
    facts, output = repacked(path, tmp_path, crf=4)
    made, _, _ = decode(output)
    assert made.shape[1:3] == (64, 80) and not facts.scaled
    source_frames, _, _ = decode(path)
    assert psnr(made, source_frames[:, :64, :80]) > 35


def write_odd(path, frames):
    """FFV1 accepts odd sizes and is lossless."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "bgr0"
        for array in frames:
            frame = av.VideoFrame.from_ndarray(array, format="rgb24").reformat(format="bgr0")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def psnr(one, other):
    error = np.mean((one.astype(float) - other.astype(float)) ** 2)
    return 10 * np.log10(255**2 / max(error, 1e-9))


def test_rotation_is_applied(shared_videos, tmp_path):
    path = shared_videos / "formats" / "decord__video_270.mov"
    _, output = repacked(path, tmp_path, short_side=None, preset="ultrafast")
    with open_reader(str(path)) as one, open_reader(str(output)) as other:
        indices = np.arange(len(one.timestamps))
        upright, made = one.read(indices), other.read(indices)
    assert upright.shape == made.shape == (3, 568, 320, 3)
    assert psnr(upright, made) > 30
    with av.open(str(output)) as container:
        assert next(container.decode(video=0)).rotation == 0


@pytest.mark.parametrize("name", DISPLAY_MATRICES)
def test_all_eight_orientations_are_applied(tmp_path, name):
    frames = np.full((4, 48, 80, 3), 90, np.uint8)
    frames[:, :16, :24] = (230, 30, 30)
    frames[:, 32:, :48] = (30, 30, 230)
    plain = write_video(tmp_path / "plain.mp4", frames, options={"crf": "1", "g": "1"})
    path = set_display_matrix(plain, tmp_path / "source.mp4", name)
    _, output = repacked(path, tmp_path, short_side=None, crf=1, preset="ultrafast")
    with open_reader(str(output)) as reader:
        made = reader.read(np.arange(4))
    expected = np.stack([displayed(frame, DISPLAY_MATRICES[name]) for frame in frames])
    assert made.shape == expected.shape and psnr(expected, made) > 25
    with av.open(str(output)) as container:
        assert next(container.decode(video=0)).side_data.get("DISPLAYMATRIX") is None


def test_full_range_and_colour_matrix(shared_videos, tmp_path):
    path = shared_videos / "formats" / "torchcodec__bt709_full_range.mp4"
    _, output = repacked(path, tmp_path, short_side=None, crf=10, preset="ultrafast")
    with open_reader(str(path)) as one, open_reader(str(output)) as other:
        first, made = one.read(np.array([0])), other.read(np.array([0]))
    difference = made.astype(int) - first
    assert abs(difference.mean()) < 0.5 and psnr(first, made) > 33
    with av.open(str(path)) as container, av.open(str(output)) as result:
        before, after = container.streams.video[0].codec_context, result.streams.video[0]
        assert after.codec_context.colorspace == before.colorspace
        assert after.codec_context.pix_fmt == "yuv420p"


def test_audio_is_dropped_and_the_index_is_at_the_beginning(shared_videos, tmp_path):
    path = shared_videos / "formats" / "onedl-mmcv__test.mp4"
    _, output = repacked(path, tmp_path, short_side=64, crf=25, preset="ultrafast")
    with av.open(str(output)) as container:
        assert [stream.type for stream in container.streams] == ["video"]
    data = output.read_bytes()
    assert 0 < data.find(b"moov") < data.find(b"mdat")


def yuv(path):
    """(n, 3 H / 2, W) float: decoded Y, U, V planes."""
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray() for frame in container.decode(video=0)]
    return np.stack(frames).astype(float)


def test_psnr_against_numpy(tmp_path):
    path = write_video(tmp_path / "in.mp4", noise(12), options={"crf": "2"})
    facts, output = repacked(path, tmp_path, crf=27)
    error = (yuv(path) - yuv(output)) ** 2
    assert facts.output.psnr == pytest.approx(10 * np.log10(255**2 / error.mean()), abs=1e-3)
    luma = 10 * np.log10(255**2 / error[:, :64].mean())
    assert facts.output.psnr_luma == pytest.approx(luma, abs=1e-3)
    assert facts.output.psnr_frames == 12 and facts.crf == 27


def test_the_crf_is_chosen_to_reach_the_psnr(tmp_path):
    path = write_video(tmp_path / "in.mp4", noise(16), options={"crf": "2"})
    found = {}
    for aim in (39.0, 42.0):
        facts, output = repacked(path, tmp_path, psnr=aim, keyint=8)
        error = (yuv(path) - yuv(output)) ** 2
        worse = max(error.mean(), error[:, :64].mean())  # the chroma of noise has the lower PSNR
        assert aim <= 10 * np.log10(255**2 / worse) < aim + 1
        found[aim] = facts.crf
    assert CRF_RANGE[0] < found[42.0] < found[39.0] < CRF_RANGE[1]


def test_a_long_video_is_compared_on_a_sample(tmp_path, monkeypatch):
    monkeypatch.setattr(video_source, "HELD_BYTES", 100_000)
    monkeypatch.setattr(video_source, "SAMPLE_BYTES", 64 * 80 * 3 // 2 * 8)
    stamps = np.concatenate([np.arange(20) * 40, 800 + np.arange(10) * 120]).tolist()
    path = write_video(tmp_path / "vfr.mkv", numbered_frames(30), pts=stamps)
    facts, output = repacked(path, tmp_path, keyint=2)
    shown = [read_number(frame) for frame in decode(output)[0]]
    assert shown == [*range(20), *np.repeat(np.arange(20, 29), 3), 29]
    assert facts.output.psnr_frames < facts.output.frames == 48


def test_wrong_outputs_are_refused(tmp_path, monkeypatch):
    path = write_video(tmp_path / "in.mp4", numbered_frames(20), fps=25)
    encode = work.encode

    def spoil(*, frames=lambda list_: list_, **changed):
        def spoiled(made, name, **options):
            if "x264" in changed:
                options["options"]["x264-params"] = changed["x264"]
            options |= {key: value for key, value in changed.items() if key != "x264"}
            encode(frames(list(made)), name, **options)

        monkeypatch.setattr(work, "encode", spoiled)
        return refused(path, tmp_path, min_psnr=30)[1]

    assert "frame count (19 of 20)" in spoil(frames=lambda made: made[:-1])
    assert "timestamp" in spoil(rate=Fraction(24))
    assert "key frames" in spoil(x264="keyint=5:scenecut=0")
    assert "PSNR" in spoil(frames=lambda made: [*made[1:], made[-1]])


def test_bad_sources_fail_with_their_reason(tmp_path):
    (tmp_path / "no.mp4").write_bytes(b"this is no video" * 100)
    for name, kind, words in (
        ("no.mp4", "bad", "cannot be opened"), ("gone.mp4", "missing", "No such file")
    ):  # fmt: skip
        found, reason = refused(tmp_path / name, tmp_path)
        assert found == kind and words in reason


def test_a_full_disk_is_not_a_failure_of_the_video(tmp_path):
    path = write_video(tmp_path / "in.mp4", noise(30), options={"crf": "2"})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, limits[1]))
    try:
        with pytest.raises(StorageError, match=re.escape(str(tmp_path / "out.mp4"))):
            repacked(path, tmp_path, crf=10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not (tmp_path / "out.mp4").exists()
    with pytest.raises(StorageError):
        repack_file(str(path), str(tmp_path / "no/out.mp4"), Settings())


def reader_of(path):
    """An open reader of the frames that can be decoded."""
    reader = open_reader(str(path))
    try:
        reader.read(np.array([len(reader.timestamps) - 1]))
    except FrameCountError as error:
        reader.close()
        return open_reader(str(path), correction=error.correction)
    return reader


FORMATS = [
    "decord__corrupted.mp4",
    "decord__unordered.mov",
    "derived__mpeg2video.mpg",
    "derived__truncated50_test.avi",
    "derived__vpx-vp9.webm",
    "torchcodec__h264_10bits.mp4",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_output_and_source_show_the_same_frames_at_the_same_times(shared_videos, tmp_path, name):
    """Read by the package's reader: upright, in RGB, at six times per file."""
    path = shared_videos / "formats" / name
    facts, output = repacked(path, tmp_path, preset="veryfast")
    with reader_of(path) as one, open_reader(str(output)) as other:
        assert facts.source.frames == len(one.timestamps)
        frame = float(1 / Fraction(facts.rate))
        assert abs(one.duration - other.duration) <= frame + 1e-6
        if facts.constant:
            assert len(one.timestamps) == len(other.timestamps)
        seconds = np.unique(np.linspace(0, len(other.timestamps) - 1, 6).astype(int))
        made = other.read(seconds)
        shown = np.searchsorted(one.timestamps, seconds * frame + 0.1 * frame, side="right") - 1
        wanted = one.read(np.unique(shown))[np.unique(shown, return_inverse=True)[1]]
    for frame_made, reference in zip(made, wanted, strict=True):
        assert min(frame_made.shape[:2]) <= 256
        scaled = cv2.resize(reference, frame_made.shape[1::-1], interpolation=cv2.INTER_AREA)
        assert psnr(frame_made, scaled) > 24, psnr(frame_made, scaled)
