"""Clips of segments: frames, time stamps and sound are those of the source."""

from fractions import Fraction

import av
import numpy as np
import pytest
from helpers.tiny_encoder import moving_frames
from helpers.videos import numbered_frames, read_numbers, remux, trim, write_video

from sce_video.datasets import VideoDecodeError, open_video
from sce_video.inference.clips import copy_clip, cut_clip, write_clips

FPS, RATE = 25, 44_100


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Six seconds with a key frame every 0.48, frames of their own, and a rising tone."""
    path = tmp_path_factory.mktemp("clips") / "a.mp4"
    time = np.arange(6 * RATE) / RATE
    tone = (0.5 * np.sin(2 * np.pi * (200 + 100 * time) * time)).astype(np.float32)
    with av.open(str(path), "w") as container:
        options = {"crf": "12", "x264-params": "keyint=12:min-keyint=12:scenecut=0"}
        video = container.add_stream("libx264", rate=FPS, options=options)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        audio = container.add_stream("aac", rate=RATE, layout="mono")
        for begin in range(0, len(tone), 1024):
            part = np.ascontiguousarray(tone[None, begin : begin + 1024])
            frame = av.AudioFrame.from_ndarray(part, format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = RATE, begin, Fraction(1, RATE)
            container.mux(audio.encode(frame))
        container.mux(audio.encode())
        for image in moving_frames(6 * FPS, seed=2)[:, :48, :64]:
            image = np.pad(image, [(0, 48 - image.shape[0]), (0, 64 - image.shape[1]), (0, 0)])
            container.mux(video.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(video.encode())
    return str(path), tone


def frames_of(path):
    with open_video(str(path)) as reader:
        return reader.read(np.arange(len(reader.timestamps))), reader.timestamps


def sound_of(path):
    with av.open(str(path)) as container:
        return np.concatenate([f.to_ndarray() for f in container.decode(audio=0)], axis=1)[0]


@pytest.mark.parametrize(("start", "end"), [(0.0, 0.6), (1.01, 2.5), (4.0, 20.0)])
def test_exact_frames_and_sound(source, tmp_path, start, end):
    video, tone = source
    frames, times = frames_of(video)
    own = np.flatnonzero((times >= start - 1e-6) & (times < end - 1e-6))
    assert cut_clip(video, start, end, tmp_path / "cut.mp4") == len(own)
    cut, stamps = frames_of(tmp_path / "cut.mp4")
    np.testing.assert_allclose(stamps, times[own] - times[own[0]], atol=1e-4)
    errors = [
        np.mean((cut[k].astype(float) - frames.astype(float)) ** 2, axis=(1, 2, 3))
        for k in range(len(own))
    ]
    # Every frame is that of the source, and no neighbour.
    assert [int(e.argmin()) for e in errors] == own.tolist()
    assert max(e.min() for e in errors) < 255**2 / 10**3.0  # 30 dB
    sound = sound_of(tmp_path / "cut.mp4")
    first = round(times[own[0]] * RATE)
    expected = tone[first : first + len(own) * RATE // FPS]
    assert abs(len(sound) - len(expected)) < 2 * 1024
    middle = slice(2000, min(len(expected), len(sound)) - 2000)
    lags = range(-200, 201, 4)
    fits = [np.corrcoef(sound[middle], np.roll(expected, lag)[middle])[0, 1] for lag in lags]
    assert max(fits) > 0.9 and abs(lags[int(np.argmax(fits))]) < 100


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_no_frame_is_lost_where_decoding_times_are_unknown(source, tmp_path, start):
    """FFmpeg knows none of the first packets of a Matroska file, nor of those after a seek."""
    video = remux(source[0], tmp_path / "a.mkv")
    begin, end = copy_clip(video, start, start + 1, tmp_path / "b.mp4")
    frames, _ = frames_of(video)
    copied, stamps = frames_of(tmp_path / "b.mp4")
    assert begin <= start and end >= start + 1
    own = slice(round(begin * FPS), round(end * FPS))
    np.testing.assert_array_equal(copied, frames[own])
    np.testing.assert_allclose(stamps, np.arange(len(copied)) / FPS, atol=0.002)


def test_copied_packets_are_those_of_the_source(source, tmp_path):
    video, _ = source
    assert copy_clip(video, 1.0, 1.9, tmp_path / "b.mp4") == pytest.approx((0.96, 1.92))
    frames, _ = frames_of(video)
    copied, stamps = frames_of(tmp_path / "b.mp4")
    np.testing.assert_array_equal(copied, frames[24:48])
    np.testing.assert_allclose(np.diff(stamps), 1 / FPS, atol=1e-6)
    assert len(sound_of(tmp_path / "b.mp4")) / RATE == pytest.approx(0.96, abs=0.06)


@pytest.mark.parametrize("b_frames", [0, 3])
def test_frames_that_an_edit_list_hides_stay_hidden(tmp_path, b_frames):
    options = {"crf": "12", "g": "50", "bf": str(b_frames), "sc_threshold": "0"}
    whole = write_video(tmp_path / "whole.mp4", numbered_frames(120), options=options)
    trimmed = trim(whole, tmp_path / "trimmed.mp4", 1.2)
    assert copy_clip(trimmed, 0.2, 0.6, tmp_path / "b.mp4") == pytest.approx((0.0, 0.8))
    assert read_numbers(frames_of(tmp_path / "b.mp4")[0]) == list(range(30, 50))
    assert copy_clip(trimmed, 1.0, 1.2, tmp_path / "c.mkv") == pytest.approx((0.8, 2.8))
    assert read_numbers(frames_of(tmp_path / "c.mkv")[0]) == list(range(50, 100))
    assert cut_clip(trimmed, 0.2, 0.6, tmp_path / "d.mp4") == 10
    assert read_numbers(frames_of(tmp_path / "d.mp4")[0]) == list(range(35, 45))
    with pytest.raises(VideoDecodeError, match=r"trimmed\.mp4: hides frames.*Remove --fast"):
        copy_clip(trimmed, 0.2, 0.6, tmp_path / "e.mkv")  # Matroska cannot hide frames
    assert not (tmp_path / "e.mkv").exists()


def test_folders_and_failures(source, tmp_path):
    video, _ = source
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    wanted = [(video, 1.0, 2.0), (str(tmp_path / "bad.mp4"), 0.0, 1.0), (video, 9.0, 10.0)]
    for fast in (False, True):
        folder = tmp_path / f"clips{fast}"
        written, failures = write_clips(folder, wanted[: 3 - fast], fast)
        assert [path.name for path in written] == ["0001_a_1-2.mp4"]
        assert [path for path, _ in failures] == [path for path, *_ in wanted[1 : 3 - fast]]
        assert sorted(path.name for path in folder.iterdir()) == ["0001_a_1-2.mp4"]
    with pytest.raises(VideoDecodeError, match=r"ends at 6\.00 s, before 9 s"):
        cut_clip(video, 9.0, 10.0, tmp_path / "c.mp4")
