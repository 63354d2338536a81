"""A folder of images read as a video."""

import cv2
import numpy as np
import pytest

from sce_video.datasets import VideoDecodeError
from sce_video.datasets.readers.images import FrameFolderReader
from sce_video.datasets.transforms import KeyFrameClip, OpenFrameFolder


def write(folder, numbers, size=(12, 16)):
    folder.mkdir(exist_ok=True)
    for number in numbers:
        image = np.full((*size, 3), (10, 20, number), dtype=np.uint8)  # BGR
        cv2.imwrite(str(folder / f"film_{number:06d}.png"), image)
    return str(folder)


def test_frames_times_and_colours(tmp_path):
    reader = FrameFolderReader(write(tmp_path / "film", range(1, 61)), fps=30)
    assert reader.timestamps[[0, 30]].tolist() == [0.0, 1.0] and reader.duration == pytest.approx(2)
    frames = reader.read(np.array([0, 29, 59]))
    assert frames[:, 0, 0].tolist() == [[1, 20, 10], [30, 20, 10], [60, 20, 10]]
    assert (reader.height, reader.width) == (12, 16)


def test_around_a_key_frame(tmp_path):
    """Second 902 of an excerpt from 900 s is image 61 at 30 frames per second."""
    path = write(tmp_path / "film", range(1, 121))
    results = OpenFrameFolder()({"path": path, "timestamp": 902})
    (clip,) = KeyFrameClip(4, 8)(results)["clips"]
    shown = results["reader"].read(clip.frames)[:, 0, 0, 0].tolist()
    assert shown == [61 - 16, 61 - 8, 61, 61 + 8]


def test_a_missing_number_is_a_gap_in_the_time_stamps(tmp_path):
    (tmp_path / "film").mkdir()
    (tmp_path / "film/notes.txt").write_text("no image")
    reader = FrameFolderReader(write(tmp_path / "film", [1, 2, 5]), fps=10)
    assert reader.timestamps.tolist() == pytest.approx([0.0, 0.1, 0.4])
    assert reader.duration == pytest.approx(0.5)


def test_errors_name_folder_and_file(tmp_path):
    with pytest.raises(VideoDecodeError, match="no folder of frames"):
        FrameFolderReader(str(tmp_path / "none"))
    with pytest.raises(VideoDecodeError, match="no image with a number of 1 or more"):
        FrameFolderReader(write(tmp_path / "empty", []))
    path = write(tmp_path / "film", [1, 2])
    (tmp_path / "film/other_2.jpg").write_bytes(b"x")
    with pytest.raises(VideoDecodeError, match="two images with number 2"):
        FrameFolderReader(path)
    (tmp_path / "film/other_2.jpg").rename(tmp_path / "film/film_000003.jpg")
    with pytest.raises(VideoDecodeError, match=r"film_000003\.jpg is no image that can be decoded"):
        FrameFolderReader(path).read(np.array([2]))
    write(tmp_path / "film", [4], size=(8, 8))
    with pytest.raises(VideoDecodeError, match="different sizes"):
        FrameFolderReader(path).read(np.array([0, 3]))
