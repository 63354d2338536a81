"""Shards of a work."""

from __future__ import annotations

import pytest

from sce_video.jobs.shards import Shard


def test_shards_cover_any_list_exactly():
    paths = [f"class {i % 7}/video_{i}.mp4" for i in range(5000)]
    for count in (1, 2, 7, 32):
        shards = [Shard(number, count) for number in range(1, count + 1)]
        held = [[path for path in paths if shard.holds(path)] for shard in shards]
        assert sorted(sum(held, [])) == sorted(paths)
        assert min(map(len, held)) > 0.7 * 5000 / count


def test_parts_of_a_sequence_are_disjoint_and_complete():
    for count in (1, 3, 5, 9):
        parts = [Shard.parse(f"{i}/{count}").part("abcde") for i in range(1, count + 1)]
        assert sorted("".join(parts)) == list("abcde")
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert Shard().part("abcde") == "abcde"


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "-1/2", "a/b", "1/2/3", ""])
def test_a_shard_is_a_number_up_to_the_count(text):
    with pytest.raises(ValueError, match=f"i from 1 to n, such as 2/4, got '{text}'"):
        Shard.parse(text)
