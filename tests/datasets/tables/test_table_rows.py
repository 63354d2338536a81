"""Frames of the rows of a table depend on their packets alone, damaged ones, too."""

from __future__ import annotations

import av
import numpy as np
import pytest
from helpers.videos import damaged_hevc

from sce_video.data_tools.video_row import _read_stream
from sce_video.datasets import VideoDecodeError
from sce_video.datasets.readers.base import DecodeLimits
from sce_video.datasets.tables import table_rows
from sce_video.datasets.tables.table_rows import TableReader

av.logging.set_libav_level(av.logging.PANIC)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """(intact, 16 damaged files) of HEVC without B frames."""
    return damaged_hevc(tmp_path_factory.mktemp("hevc"))


def frames_of(path, behind=b""):
    """Frames of a file as those of a row, or None; ``behind`` lies in memory behind each packet."""
    stream, index = _read_stream(path, 0, 1.0, None, DecodeLimits())

    def fetch(positions):
        for p in positions.tolist():
            data = stream[index.offsets[p] : index.offsets[p + 1]]
            yield memoryview(data + behind)[: len(data)]

    with TableReader(path, index=index, fetch=lambda positions: [*fetch(positions)]) as reader:
        try:
            return reader.read(np.arange(len(reader.timestamps)))
        except VideoDecodeError:
            return None


def test_what_lies_behind_a_packet_changes_nothing(damaged, monkeypatch):
    monkeypatch.setattr(table_rows, "_MOST_IDLE", 0)
    decoded = 0
    for path in damaged[1]:
        one, other = frames_of(path, bytes(4096)), frames_of(path, b"\xa5" * 4096)
        np.testing.assert_array_equal(one, other, err_msg=path)
        decoded += one is not None
    assert decoded


def test_rows_that_were_read_before_change_nothing(damaged, monkeypatch):
    monkeypatch.setattr(table_rows, "_idle_decoders", type(table_rows._idle_decoders)())
    whole, paths = damaged
    for path in paths:
        table_rows._idle_decoders.clear()
        alone = frames_of(path)
        frames_of(whole)
        np.testing.assert_array_equal(frames_of(path), alone, err_msg=path)
