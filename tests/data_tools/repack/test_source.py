"""Reading of sources."""

from __future__ import annotations

import pytest

from sce_video.data_tools.repack import Settings, source
from sce_video.datasets import VideoDecodeError


@pytest.mark.parametrize("run", [1, 8, 250, 100_000])
def test_the_sample_of_a_long_video_stays_small(run):
    frame_bytes = 1920 * 1080 * 3 // 2
    keep = source._choose(20_000, frame_bytes, run)
    kept = [number for number in range(20_000) if keep(number)]
    assert 0 < len(kept) * frame_bytes <= source.SAMPLE_BYTES
    if run > 1:  # whole runs, as far as they fit
        assert kept[: min(run, len(kept))] == list(range(min(run, len(kept))))


def test_read_source_names_a_missing_file(tmp_path):
    with pytest.raises(VideoDecodeError, match=r"gone\.mp4"):
        source.read_source(str(tmp_path / "gone.mp4"), Settings())
