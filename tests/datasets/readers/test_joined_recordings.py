"""Files whose clock restarts or jumps: recordings joined end to end, recorders that lose a signal.

Their frames are known by the numbers drawn into them, in the order in which players show them.
"""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest
from helpers.videos import join_recordings, numbered_frames, read_numbers, write_video

from sce_video.data_tools.examination import examine_file
from sce_video.data_tools.repack.encode import repack_file
from sce_video.data_tools.repack.plan import EncoderLimits, Settings
from sce_video.data_tools.verify import file_problems
from sce_video.data_tools.video_row import RowSource, video_row
from sce_video.datasets import VideoDecodeError, open_reader
from sce_video.datasets.clip_sampling import Windows, window_spans
from sce_video.datasets.readers.frame_table import Clock
from sce_video.datasets.segments import check_segment_files, stated_duration
from sce_video.inference.clips import copy_clip, cut_clip

av.logging.set_libav_level(av.logging.FATAL)

H264 = dict(options={"crf": "12", "g": "12", "bf": "2", "sc_threshold": "0"})
MPEG2 = dict(codec="mpeg2video", options={"g": "12", "bf": "2", "b": "4M"})
OPEN_GOP = dict(options={"x264-params": "open-gop=1:keyint=12:bframes=3:scenecut=0"})
FPS, COUNT = 25, 110

#: Container, encoder and when the clock of each recording begins, seconds. The recordings have 60,
#: 36 and 14 frames, 2.4, 1.44 and 0.56 s, or 60 and 50 frames.
JOINED = {
    "restart at the beginning": ("ts", H264, [0, 0, 0]),
    "overlap by a second": ("ts", H264, [0, 1.41, 1.93]),
    "overlap by less than a frame": ("ts", H264, [0, 2.33, 3.71]),
    "jump by an hour": ("ts", H264, [0, 3600, 7200]),
    "jump back by an hour": ("ts", H264, [3600, 10, 3600.53]),
    "33 bits that overflow": ("ts", H264, [95442, 500, 95000]),
    "open groups of pictures": ("ts", OPEN_GOP, [0, 1.41, 9000]),
    "MPEG-2 in a program stream": ("mpg", MPEG2, [0, 0, 0.5]),
    "a program stream that jumps": ("mpg", MPEG2, [0, 100, 500]),
    "Matroska": ("mkv", H264, [0, 0]),
    "WebM": ("webm", dict(codec="libvpx", options={"g": "12", "b": "4M"}), [0, 0]),
    "FLV": ("flv", H264, [0, 0, 0]),
}


@pytest.fixture(params=JOINED)
def joined(request, tmp_path):
    kind, encoder, starts = JOINED[request.param]
    parts = np.split(numbered_frames(COUNT), [60, 96][: len(starts) - 1])
    return join_recordings(tmp_path, parts, starts, kind, **encoder), len(starts) - 1


@pytest.fixture(params=["held", "streamed"])
def paths_to_packets(request, monkeypatch):
    from sce_video.datasets.readers import av_file

    if request.param == "streamed":  # as a file above 64 MiB is read
        monkeypatch.setattr(av_file, "_MAX_HELD_BYTES", 0)


@pytest.mark.usefixtures("paths_to_packets")
def test_frames_and_times_are_continuous(joined):
    joined, restarts = joined
    with open_reader(joined) as reader:
        assert not reader.by_count and reader.restarts == restarts
        np.testing.assert_allclose(reader.timestamps, np.arange(COUNT) / FPS, atol=0.0021)
        assert reader.duration == pytest.approx(COUNT / FPS, abs=0.05)
        assert reader.stated_duration is None
        whole = reader.read(np.arange(COUNT))
        assert read_numbers(whole) == list(range(COUNT))
        asked = np.unique(np.linspace(0, COUNT - 1, 17).astype(int))
        streamed = [i for part, _ in reader.stream(asked) for i in part.tolist()]
        assert streamed == asked.tolist()
        for start in range(4):
            some = np.flatnonzero(reader.timestamps.astype(int) == start)
            np.testing.assert_array_equal(reader.read(some), whole[some])
    for index in (0, 35, 59, 60, 61, 75, 95, 96, 109):  # each read alone, by a new reader
        with open_reader(joined) as reader:
            np.testing.assert_array_equal(reader.read(np.array([index]))[0], whole[index])
    for start in (0, 1, 2, 3):
        with open_reader(f"{joined}@{start}-{start + 1}") as reader:
            assert len(reader.timestamps) == FPS
            numbers = read_numbers(reader.read(np.arange(FPS)))
            assert numbers == list(range(start * FPS, (start + 1) * FPS))


@pytest.mark.parametrize(("kind", "pause"), [("ts", 5.0), ("mkv", 3600.0), ("mp4", 3600.0)])
def test_a_pause_stays_a_pause(tmp_path, kind, pause):
    """Of a few seconds in MPEG-TS, and of any length where the container states times itself."""
    stamps = [40 * i + 1000 * int(pause) * (i >= 20) for i in range(40)]
    options = {"crf": "12", "g": "10"}
    path = write_video(tmp_path / f"a.{kind}", numbered_frames(40), options=options, pts=stamps)
    with open_reader(str(path)) as reader:
        assert reader.restarts == 0
        np.testing.assert_allclose(reader.timestamps, np.array(stamps) / 1000, atol=0.002)
        assert read_numbers(reader.read(np.arange(15, 30))) == list(range(15, 30))


# -- what uses these times -------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["restart", "jump by an hour"])
def two_recordings(request, tmp_path_factory):
    """An MPEG-TS file of 100 and 60 frames, 6.4 s."""
    folder = tmp_path_factory.mktemp("two_recordings")
    parts = np.split(numbered_frames(160), [100])
    start = 1.01 if request.param == "restart" else 3600
    return join_recordings(folder, parts, [0, start], "ts", **H264)


def test_windows_and_segments_last_as_long_as_the_frames(two_recordings):
    with open_reader(two_recordings) as reader:
        spans = window_spans(reader.duration, Windows(2.0, 2.0))
    assert len(spans) in (3, 4) and spans.max() <= 6.5
    check_segment_files([("s.csv, line 2", two_recordings, 6.4)])
    with open_reader(two_recordings) as reader:
        beyond = reader.stated_duration is None and stated_duration(two_recordings, 9.0) == 6.4
    restarts = stated_duration(two_recordings) < 6.4  # as FFmpeg makes it up
    assert beyond == restarts
    if restarts:
        with pytest.raises(ValueError, match=r"ends at 9 s, but .* at 6\.40 s"):
            check_segment_files([("s.csv, line 2", two_recordings, 9.0)])


def test_verify_says_so_and_calls_the_file_readable(two_recordings):
    facts = examine_file(two_recordings, 60)
    assert (facts.video.frames, facts.video.packets, facts.video.restarts) == (160, 160, 1)
    assert facts.video.seconds == pytest.approx(6.4, abs=0.01)
    problems = file_problems(two_recordings, facts)
    assert problems == [("clock", "its clock restarts or jumps at 1 place, where time continues")]


@pytest.mark.parametrize("span", [None, (0.4, 1.2), (3.6, 4.4), (4.4, 6.0)])
def test_repack_keeps_all_frames(two_recordings, tmp_path, span):
    output = tmp_path / "out.mp4"
    settings = Settings(short_side=None, crf=12, preset="ultrafast")
    facts = repack_file(two_recordings, str(output), settings, EncoderLimits(), span)
    first, stop = (0, 160) if span is None else (round(25 * seconds) for seconds in span)
    assert facts.frames_not_shown == 0 and facts.constant
    with open_reader(str(output)) as reader:
        every = np.arange(len(reader.timestamps))
        np.testing.assert_allclose(reader.timestamps, every / FPS, atol=1e-6)
        assert read_numbers(reader.read(every)) == list(range(first, stop))


def test_a_table_refuses_packets_whose_times_are_others(two_recordings):
    row = video_row(RowSource(two_recordings, "a.ts"))
    assert row.failure.endswith("repack it")


def with_sound(path, folder, kind, starts):
    """Recordings of 2 s each, numbered on, with a tone of 400 Hz and then of 1200 Hz."""
    data = b""
    for number, start in enumerate(starts):
        part = folder / f"{number}.{kind}"
        with av.open(str(part), "w") as container:
            video = container.add_stream("libx264", rate=FPS, options=H264["options"])
            video.height, video.width, video.pix_fmt = 64, 80, "yuv420p"
            audio = container.add_stream("aac", rate=44_100, layout="mono")
            seconds = np.arange(2 * 44_100) / 44_100
            tone = (0.5 * np.sin(2 * np.pi * 400 * (1 + 2 * number) * seconds)).astype(np.float32)
            for i, image in enumerate(numbered_frames(100)[50 * number : 50 * number + 50]):
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                frame.pts, frame.time_base = i + round(start * FPS), Fraction(1, FPS)
                container.mux(video.encode(frame))
            for begin in range(0, len(tone), 1024):
                piece = np.ascontiguousarray(tone[None, begin : begin + 1024])
                frame = av.AudioFrame.from_ndarray(piece, format="fltp", layout="mono")
                frame.pts = begin + round(start * 44_100)
                frame.sample_rate, frame.time_base = 44_100, Fraction(1, 44_100)
                container.mux(audio.encode(frame))
            container.mux([*video.encode(), *audio.encode()])
        data += part.read_bytes()
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize("starts", [(0, 0.4), (0, 3600)])
def test_a_clip_has_the_sound_of_its_frames(tmp_path, starts):
    path = with_sound(tmp_path / "joined.ts", tmp_path, "ts", starts)
    for begin, end, hertz in ((0.4, 1.6, 400), (2.4, 3.6, 1200)):
        cut_clip(path, begin, end, tmp_path / "cut.mp4")
        with open_reader(str(tmp_path / "cut.mp4")) as reader:
            numbers = read_numbers(reader.read(np.arange(len(reader.timestamps))))
        assert numbers == list(range(round(begin * FPS), round(end * FPS)))
        with av.open(str(tmp_path / "cut.mp4")) as container:
            sound = np.concatenate([f.to_ndarray() for f in container.decode(audio=0)], axis=1)[0]
        middle = sound[4410:-4410]
        spectrum = np.abs(np.fft.rfft(middle))
        assert abs(spectrum.argmax() * 44_100 / len(middle) - hertz) < 20
    with pytest.raises(VideoDecodeError, match="timestamps that restart or jump. Remove --fast"):
        copy_clip(path, 0.4, 1.6, tmp_path / "copy.ts")
    assert not (tmp_path / "copy.ts").exists()


# -- the tables -----------------------------------------------------------------------------------


def by_a_loop(pts, durations, parts):
    """Each recording begins where the one before ends: the oracle for ``Clock.shifts``."""
    moved, end = [], None
    for begin, stop in parts:
        own = pts[begin:stop]
        shift = 0 if end is None else end - min(own)
        moved += [value + shift for value in own]
        last = own.index(max(own))
        end = max(own) + shift + durations[begin + last]
    return moved


def columns(rows):
    """Time stamps, key frames, durations of one and whether shown, of (pts, is_key, shown)."""
    pts, is_key, shown = (np.array(column) for column in zip(*rows, strict=True))
    return pts, is_key, np.ones(len(pts), dtype=np.int64), shown


def test_shifts_against_a_loop():
    rng = np.random.default_rng(5)
    for _ in range(50):
        lengths = rng.integers(1, 9, rng.integers(2, 6))
        edges = np.concatenate([[0], np.cumsum(lengths)])
        pts = np.concatenate([rng.integers(-99, 9**9) + rng.permutation(n) * 7 for n in lengths])
        durations, shown = rng.integers(1, 9, len(pts)), np.ones(len(pts), dtype=bool)
        clock = Clock(np.full(len(pts), np.nan), Fraction(1, 90_000), True)
        shifts = clock.shifts(pts, durations, shown, edges[1:-1])
        parts = list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
        expected = by_a_loop(pts.tolist(), durations.tolist(), parts)
        np.testing.assert_array_equal(pts + shifts, expected)


@pytest.mark.parametrize("free", [True, False])
def test_no_restart_in_an_ordinary_order(free):
    """B frames after an open group's key frame, an unknown decoding time, frames that are hidden.

    An edit list hides the frames from a key frame to the place where a part begins.
    """
    stamps = [2, 0, 1, 5, 3, 4, 8, 6, 7, 9]
    plain = [(pts, i in (0, 6), True) for i, pts in enumerate(stamps)]
    hidden = [(6 + i, i == 0, i >= 4) for i in range(8)]
    dts = [np.nan, *range(-1, 8)]
    for rows, times, expected in (
        (plain, dts, None),
        (plain + hidden, [*dts, *range(4, 12)], None),
        (plain + plain, [*dts, -2, *dts[1:]], [10]),
    ):
        clock = Clock(np.array(times, dtype=np.float64), Fraction(1, 25), free)
        found = clock.restarts(*columns(rows))
        assert (None if found is None else found.tolist()) == expected
