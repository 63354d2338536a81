"""A list that is written reads back, and what no list can hold is returned."""

from __future__ import annotations

import pytest

from sce_video.datasets.video_list import read_annotation_list, write_annotation_list


@pytest.mark.parametrize(
    "labels, held, refused",
    [
        ([3, 0], ["a 12", "b/ü\udc80 c.mp4", "a\tb.mp4"], ["a\nb.mp4", " a.mp4", "\ud800.mp4"]),
        ([-1], ["a b.mp4", "c\td.mp4"], ["a 12", "a\rb.mp4", "a.mp4 "]),
    ],
)
def test_lists_read_back(tmp_path, labels, held, refused):
    file = str(tmp_path / "list.txt")
    paths = [*held, *refused]
    numbers = [labels[i % len(labels)] for i in range(len(paths))]
    assert write_annotation_list(file, paths, numbers) == refused
    found = read_annotation_list(file)
    assert [found.path(i) for i in range(len(found))] == held
    assert found.labels.tolist() == numbers[: len(held)]
    with pytest.raises(ValueError, match="none of 1 paths"):
        write_annotation_list(file, refused[:1], numbers[:1])
