"""Readers of other libraries use PyAV where the library is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.readers import SlowCopy
from helpers.videos import decode_all, numbered_frames, read_numbers, write_video

from sce_video.datasets import open_reader
from sce_video.datasets.readers import AvReader


def test_files_that_the_library_reads_wrongly_are_read_with_pyav(tmp_path, plain):
    avi = write_video(tmp_path / "v.avi", numbered_frames(30), options={"bf": "0"})
    mpeg4 = write_video(tmp_path / "v.mp4", numbered_frames(30), codec="mpeg4", options={})
    for path, library in ((plain, True), (str(avi), False), (str(mpeg4), False)):
        with SlowCopy(path) as reader, AvReader(path) as own:
            assert reader.uses_library == library
            assert (reader.timestamps == own.timestamps).all()
            indices = np.array([2, 17, 29])
            assert (reader.read(indices) == own.read(indices)).all()


def test_pyav_takes_over_when_the_library_fails(plain, monkeypatch):
    def broken(self, indices):
        raise RuntimeError("no")

    monkeypatch.setattr(SlowCopy, "_read", broken)
    with SlowCopy(plain) as reader:
        assert read_numbers(reader.read(np.array([4, 40]))) == [4, 40]
        assert not reader.uses_library
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
    for index in range(0, 60, 7):
        with open_reader(path, "decord") as reader:
            assert reader.uses_library == library
            np.testing.assert_array_equal(reader.read(np.array([index]))[0], expected[index])
