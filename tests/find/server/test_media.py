"""Small pictures of videos, and how many of them are kept."""

import io

import av
from helpers.tiny_encoder import moving_frames, write_lossless

from sce_video.find.search_media import MediaCache, animation, thumbnail


def test_the_cache_keeps_the_most_recently_used():
    cache, made = MediaCache(limit=25), []

    def get(key):
        return cache.get(key, lambda: made.append(key) or bytes([key]) * 10)

    assert [get(key)[0] for key in (1, 2, 1, 3, 1, 2)] == [1, 2, 1, 3, 1, 2]
    assert made == [1, 2, 3, 2], "3 was made when 2 was the least recently used"


def test_a_video_of_an_instant_has_an_animation(tmp_path):
    for count, expected in ((1, 4), (2, 4), (50, 16)):
        video = write_lossless(tmp_path / f"{count}.mp4", moving_frames(count, 24, 32))
        with av.open(io.BytesIO(animation(str(video)))) as container:
            assert sum(1 for _ in container.decode(video=0)) == expected
        assert thumbnail(str(video))[:2] == b"\xff\xd8"
