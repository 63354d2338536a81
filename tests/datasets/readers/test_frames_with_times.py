"""Frames by number and by time, compared with a plain loop of PyAV."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from helpers.videos import numbered_frames, read_numbers, remux, write_video

import sce_video
from sce_video.datasets import VideoDecodeError, open_video
from sce_video.datasets.readers.base import DecodeLimits, FrameBatch
from sce_video.datasets.readers.images import FrameFolderReader

#: Starts of frames in milliseconds: bursts, gaps and frames that are displayed for one millisecond.
UNEVEN = [0, 10, 11, 50, 400, 440, 441, 1000, 1033, 1067, 1100, 2500, 2501, 2502, 3000, 3040]


def decoded_by_pyav(path: str | Path) -> tuple[np.ndarray, np.ndarray, float]:
    """All frames (F, H, W, 3), their starts from 0 in seconds, and the end of the last one."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        found = list(container.decode(stream))
        frames = np.stack(
            [np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90) for frame in found]
        )
        # The demuxer of AVI files states the times of B frames in the order of decoding.
        starts = np.sort([float(frame.pts * stream.time_base) for frame in found])
        last = float(found[-1].duration * stream.time_base)
    return frames, starts - starts[0], float(starts[-1] - starts[0]) + last


def displayed_at(starts: np.ndarray, seconds: float) -> int:
    """The last frame that begins at or before a time."""
    shown = 0
    for number, start in enumerate(starts):
        if start <= seconds + 1e-9:
            shown = number
    return shown


def check_against_pyav(path: str) -> None:
    """Compare frames by number and by time, in any order and repeated, with those of PyAV."""
    frames, starts, end = decoded_by_pyav(path)
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, len(frames), 12).tolist()
    middles = (starts + np.append(starts[1:], end)) / 2
    times = [0.0, *starts[numbers], *middles[numbers], *rng.uniform(0, end, 8), end - 1e-4]
    with open_video(path) as reader:
        by_number, by_time = reader.frames_at(numbers), reader.frames_played_at(times)
    shown = [displayed_at(starts, time) for time in times]
    for batch, expected in ((by_number, numbers), (by_time, shown)):
        assert batch.frames.dtype == torch.uint8 and len(batch) == len(expected)
        np.testing.assert_array_equal(batch.frames.numpy(), frames[expected])
        np.testing.assert_allclose(batch.timestamps.numpy(), starts[expected], atol=1e-6)
        ends = (batch.timestamps + batch.durations).numpy()
        np.testing.assert_allclose(ends, np.append(starts[1:], end)[expected], atol=1e-6)
    assert all(
        begin <= time + 1e-6 and time < begin + length
        for time, begin, length in zip(times, by_time.timestamps, by_time.durations, strict=True)
    )


def test_frames_and_times_of_any_container(any_video):
    check_against_pyav(any_video)


def test_a_variable_frame_rate(tmp_path):
    path = write_video(tmp_path / "vfr.mkv", numbered_frames(len(UNEVEN)), pts=UNEVEN)
    check_against_pyav(str(path))
    with open_video(path) as reader:
        at = reader.frames_played_at(seconds=[0.0105, 2.4999, 2.5, 2.5011, 1.08])
        assert read_numbers(at.frames.numpy()) == [1, 10, 11, 12, 9]
        assert at.durations.tolist() == pytest.approx([0.001, 1.4, 0.001, 0.001, 0.033])


@pytest.mark.parametrize(
    "name",
    [
        "derived__vfr_test.mp4",
        "decord__flipping_a_pancake.mkv",
        "decord__video_90.mov",
        "mmaction2__test.avi",
        "derived__vpx-vp9.webm",
    ],
)
def test_real_files(shared_videos, name):
    check_against_pyav(str(shared_videos / "formats" / name))


def test_a_segment_counts_from_its_first_frame(video):
    frames, starts, _ = decoded_by_pyav(video)
    with open_video(f"{video}@0.5-1.5") as reader:
        batch = reader.frames_played_at(seconds=[0.0, 0.9])
    first = displayed_at(starts, 0.52)
    assert batch.timestamps.tolist() == pytest.approx([0.0, 0.88])
    np.testing.assert_array_equal(batch.frames.numpy(), frames[[first, first + 22]])


def test_a_folder_of_images(tmp_path):
    cv2 = pytest.importorskip("cv2")
    for number, frame in enumerate(numbered_frames(4)):
        cv2.imwrite(str(tmp_path / f"{number + 1:03d}.png"), frame)
    with FrameFolderReader(str(tmp_path)) as reader:
        assert read_numbers(reader.frames_at(indices=[3, 0, 3]).frames.numpy()) == [3, 0, 3]


def test_the_reader_at_the_top_of_the_package(video):
    with sce_video.open_video(path=Path(video)) as reader:
        batch = reader.frames_at(indices=torch.tensor([5, 2]))
    assert isinstance(batch, FrameBatch) and batch.frames.shape == (2, 64, 80, 3)
    assert (batch.timestamps.dtype, batch.durations.dtype) == (torch.float64, torch.float64)
    with pytest.raises(FrozenInstanceError):
        batch.frames = batch.frames[:1]
    with pytest.raises(ValueError, match="is closed"):
        reader.frames_at([0])


@pytest.mark.parametrize("wrong", [[], [1.5], 3, [[0]], [True], None])
def test_indices_that_are_no_list_of_numbers(video, wrong):
    with open_video(video) as reader, pytest.raises(ValueError, match="list of whole numbers"):
        reader.frames_at(wrong)


def test_what_is_outside_of_the_video(video):
    with open_video(video) as reader:
        for wrong in (-1, 60):
            with pytest.raises(ValueError, match=f"has no frame {wrong}. Its .* 0 to 59"):
                reader.frames_at([0, wrong])
        for seconds in (-0.1, 2.4, 1e9, float("nan")):
            with pytest.raises(
                ValueError, match=re.escape(f"displayed at {seconds:g} s. Times must")
            ):
                reader.frames_played_at([1.0, seconds])
        for no_list in (1.0, []):
            with pytest.raises(ValueError, match="seconds must be a list of times"):
                reader.frames_played_at(no_list)


def test_repeated_frames_are_within_the_limit_of_memory(video):
    limits = DecodeLimits(max_held_bytes=200_000)
    with open_video(video, limits=limits) as reader:
        assert len(reader.frames_at([7] * 13)) == 13
        with pytest.raises(VideoDecodeError, match="14 of its frames take 215040 bytes"):
            reader.frames_at([7] * 14)


def test_frames_that_the_header_promises(tmp_path):
    """The second half of the media data is zeroed; frames of the first half are returned."""
    whole = write_video(tmp_path / "whole.mp4", numbered_frames(60), options={"g": "12", "bf": "2"})
    path = remux(whole, tmp_path / "a.mp4", movflags="faststart")
    data = bytearray(Path(path).read_bytes())
    middle = (data.index(b"mdat") + len(data)) // 2
    data[middle:] = bytes(len(data) - middle)
    Path(path).write_bytes(data)
    with open_video(path) as reader:
        assert read_numbers(reader.frames_at([5, 0]).frames.numpy()) == [5, 0]
        with pytest.raises(VideoDecodeError, match=r"a.mp4: only \d\d of its 60 promised frames"):
            reader.frames_played_at([0.0, 2.39])
