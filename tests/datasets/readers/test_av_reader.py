"""The frames of PyAV: the right ones, by every path to them, of good and of damaged files."""

from __future__ import annotations

import ctypes
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.videos import (
    damaged_h264,
    damaged_hevc,
    decode_all,
    numbered_frames,
    read_numbers,
    remux,
    write_video,
)

from sce_video.datasets import FrameCountError, VideoDecodeError, open_reader

UNREADABLE = {"derived__empty.mp4", "derived__truncated50_test.mp4"}


def test_any_subset_equals_decoding_all_frames(any_video):
    with open_reader(any_video) as reader:
        everything = reader.read(np.arange(50))
    assert read_numbers(everything) == list(range(50))
    rng = np.random.default_rng(7)
    with open_reader(any_video) as again:  # one reader, used repeatedly
        for count in (1, 1, 2, 3, 8, 49):
            indices = np.sort(rng.choice(50, count, replace=False))
            with open_reader(any_video) as fresh:
                for reader in (again, fresh):
                    assert (reader.read(indices) == everything[indices]).all(), indices
                    assert not reader.by_count, "found by time stamp, in one pass"


@pytest.mark.parametrize("fps", [24, 29])
def test_time_stamps_are_correctly_rounded(tmp_path, fps):
    path = write_video(tmp_path / "v.mp4", numbered_frames(2 * fps), fps=fps)
    with open_reader(str(path)) as reader:
        assert reader.timestamps.tolist() == [i / fps for i in range(2 * fps)]
        assert reader.duration == pytest.approx(2.0, abs=1e-9)


@pytest.mark.parametrize(
    ("codec", "suffix", "options"),
    [
        ("libx264", ".avi", {"bf": "3", "g": "20"}),
        ("libx264", ".ts", {"bf": "2", "g": "20"}),
        ("mpeg4", ".avi", {"bf": "2", "g": "10", "b": "2000k"}),
        ("mpeg2video", ".mpg", {"bf": "2", "b": "4000k"}),
        ("libx264", ".h264", {"bf": "2", "g": "20"}),
        ("mjpeg", ".avi", {"strict": "unofficial"}),
        ("libx264", ".mp4", {"x264-params": "open-gop=1:keyint=12:bframes=3:b-pyramid=normal"}),
    ],
)
def test_formats_equal_the_plain_loop(numbered_video, codec, suffix, options, packets):
    path = numbered_video(f"v{suffix}", 40, codec=codec, options=options)
    everything = decode_all(path)
    assert read_numbers(everything) == list(range(40))
    for indices in ([17], [5, 6, 21, 38], list(range(40))):
        with open_reader(path) as reader:
            assert len(reader.timestamps) == 40
            picked = reader.read(np.array(indices))
        for i, frame in zip(indices, picked, strict=True):
            assert (frame == everything[i]).all(), i


def test_equal_time_stamps(tmp_path):
    """mkv counts milliseconds, so at 2000 fps neighbouring frames share a time stamp."""
    path = str(write_video(tmp_path / "fast.mkv", numbered_frames(30), fps=2000))
    with open_reader(path, num_threads=3) as reader:
        assert len(np.unique(reader.timestamps)) < len(reader.timestamps) == 30
        assert read_numbers(reader.read(np.array([0, 7, 8, 29]))) == [0, 7, 8, 29]


def test_wrong_indices(video):
    with open_reader(video) as reader:
        for wrong in ([], [3, 3], [5, 2], [-1], [60]):
            with pytest.raises(ValueError):
                reader.read(np.array(wrong, dtype=np.int64))
    with pytest.raises(ValueError, match="closed"):
        reader.read(np.array([0]))


# -- nothing is decoded or read needlessly ------------------------------------------------------


def test_decoded_frames_are_valid_after_closing(plain):
    with open_reader(plain) as reader:
        decoded = reader.decode(np.array([3, 30]))
    assert len(decoded) == 2 and decoded.size == (64, 80)
    assert read_numbers([decoded[0], decoded[1]]) == [3, 30]


# -- damaged files ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def half_zeroed(numbered_video, tmp_path_factory):
    """An mp4 whose header (in front) lists 60 frames, and whose second half is zeroed."""
    options = {"crf": "12", "g": "12", "bf": "2", "sc_threshold": "0"}
    whole = numbered_video("whole.mp4", 60, options=options)
    front = tmp_path_factory.mktemp("damaged") / "cut.mp4"
    remux(whole, front, movflags="faststart")
    data = bytearray(front.read_bytes())
    middle = (data.index(b"mdat") + len(data)) // 2
    data[middle:] = bytes(len(data) - middle)
    front.write_bytes(bytes(data))
    return str(front)


def test_missing_frames_are_counted_and_the_others_are_right(half_zeroed, packets):
    with open_reader(half_zeroed) as reader:
        assert len(reader.timestamps) == 60
        with pytest.raises(FrameCountError) as error:
            reader.read(np.array([10, 59]))
    found = error.value
    assert found.promised == 60 and 12 <= len(found.timestamps) < 50
    with open_reader(half_zeroed, correction=found.correction) as reader:
        assert (reader.timestamps == found.timestamps).all()
        assert reader.duration == pytest.approx(found.timestamps[-1] + 0.04)
        frames = reader.read(np.arange(len(found.timestamps)))
    # a frame has the number its time stamp says
    assert read_numbers(frames) == np.rint(found.timestamps * 25).astype(int).tolist()
    with open_reader(half_zeroed) as reader:  # frames before the damage need no second attempt
        assert read_numbers(reader.read(np.array([0, 5, 11]))) == [0, 5, 11]


def test_no_frame_can_be_decoded(half_zeroed, tmp_path):
    data = bytearray(Path(half_zeroed).read_bytes())
    start, path = data.index(b"mdat") + 4, tmp_path / "zeroed.mp4"
    path.write_bytes(data[:start] + bytes(len(data) - start))
    with open_reader(str(path)) as reader, pytest.raises(VideoDecodeError, match="no frame"):
        reader.read(np.array([0]))


def test_truncated_mkv_and_avi_give_the_frames_they_hold(tmp_path):
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
        assert read_numbers(frames)[:-2] == list(range(len(frames) - 2))


def test_a_correction_refers_to_the_packets_not_to_the_index(tmp_path):
    """An AVI file whose index has other times than its packets; three packets are destroyed."""
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
    whole = decode_all(path)
    with av.open(str(path)) as container:
        stored = [(e.pos, e.size) for e in container.streams.video[0].index_entries if e.size]
    data = bytearray(path.read_bytes())
    for position, size in stored[3:6]:
        data[position + 8 : position + 8 + size] = b"\xff" * size
    path.write_bytes(bytes(data))
    with open_reader(str(path), "av") as reader, pytest.raises(FrameCountError) as raised:
        reader.read(np.arange(len(reader.timestamps)))
    rows = raised.value.correction
    assert len(rows) == 17
    for row in (0, 2, 5, 8, 12):
        with open_reader(str(path), "av", correction=rows) as reader:
            frame = reader.read(np.array([row]))[0]
            np.testing.assert_array_equal(frame, whole[rows[row]], err_msg=str(row))
            assert len(reader.timestamps) == 17


def test_interlaced_mpeg4_keeps_its_b_frames(tmp_path):
    """A decoder that began at a later key frame took every B frame for a damaged one afterwards."""
    options = {"bf": "2", "g": "12", "flags": "+ildct+ilme", "qscale": "3"}
    path = write_video(tmp_path / "a.mp4", numbered_frames(30), 25, "mpeg4", options)
    expected = decode_all(path)
    assert len(expected) == 30
    for index in (0, 13, 14, 23, 25, 29):
        with open_reader(str(path)) as reader:
            frame = reader.read(np.array([index]))[0]
        np.testing.assert_array_equal(frame, expected[index], err_msg=str(index))


def test_damaged_frames_depend_on_the_file_alone(tmp_path):
    """A decoder reads beyond the end of a damaged packet, where FFmpeg wants zeros."""
    whole, paths = damaged_hevc(tmp_path)
    with open_reader(whole) as reader:
        assert reader._stream._direct is not None, "packets are read without the demuxer"
        for _, packet in reader._stream._packets_from(0):
            assert ctypes.string_at(packet.buffer_ptr + packet.size, 64) == bytes(64)
    compared = 0
    for path in paths:
        expected = decode_all(path)
        if len(expected) == 30:  # no packet is refused
            with open_reader(path) as reader:
                np.testing.assert_array_equal(reader.read(np.arange(30)), expected, err_msg=path)
            compared += 1
    assert compared


def test_too_many_damaged_frames_make_a_bad_file(tmp_path, packets):
    for wanted, refused in ((0, False), (6, False), (7, True), (20, True)):
        path, flagged = damaged_h264(tmp_path, wanted)
        assert flagged == wanted, "frames that PyAV flags"
        for read in (lambda r: r.read(np.arange(60)), lambda r: [*r.stream(np.arange(60))]):
            with open_reader(path) as reader:
                if refused:
                    with pytest.raises(VideoDecodeError, match=f"{wanted} of 60 frames.* damaged"):
                        read(reader)
                else:
                    read(reader)
                assert reader.damaged == wanted
    with open_reader(path) as reader:
        assert reader.read(np.array([5])).shape == (1, 96, 128, 3)  # one frame is shown
        assert reader.read(np.arange(30, 60)).shape == (30, 96, 128, 3)  # these are intact
    with open_reader(f"{path}@0-2.4") as segment:
        segment.read(np.array([6, *range(40, 60)]))
        assert segment.damaged == 1


# -- real files ---------------------------------------------------------------------------------


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


FULL_CHECK = [
    "decord__unordered.mov", "decord__video_90.mov", "derived__mpeg2video.mpg",
    "derived__truncated50_test.avi", "derived__vfr_test.mp4", "derived__wmv2.wmv",
    "mae_st__mr-95-demo-vid-0.gif", "mmaction2__test.avi", "torchcodec__av1_video.mkv",
    "torchcodec__h264_10bits.mp4", "torchcodec__h265_video.mp4", "torchcodec__nasa_13013.mp4",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL_CHECK)
def test_real_files_equal_the_plain_loop(shared_videos, name):
    path = str(shared_videos / "formats" / name)
    everything = decode_all(path)
    rng = np.random.default_rng(len(name))
    count = len(everything)
    for size in (1, min(5, count)):
        indices = np.sort(rng.choice(count, size, replace=False))
        with open_reader(path) as reader:
            assert len(reader.timestamps) == count
            for i, frame in zip(indices, reader.read(indices), strict=True):
                assert (frame == everything[i]).all(), i


def test_a_decoder_that_keeps_its_first_options_still_gives_all_frames(shared_videos):
    """libdav1d keeps the skip_frame it is opened with; the first frame is not requested here."""
    path = str(shared_videos / "formats" / "torchcodec__av1_video.mkv")
    everything = decode_all(path)
    with open_reader(path) as reader:
        frames = reader.read(np.arange(1, 125))
    assert all((x == y).all() for x, y in zip(frames, everything[1:], strict=True))
