"""Clips sampled from an open video, and decoded in one pass, RGB differences among them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.readers import FramesReader, rgb_difference

from sce_video.datasets import VideoDecodeError
from sce_video.datasets.clip_sampling import ClipIndices, shown_at
from sce_video.datasets.transforms import KeyFrameClip
from sce_video.registry import TRANSFORMS


def build(name, **options):
    return TRANSFORMS.build({"type": name, **options})


@pytest.fixture
def reader():
    frames = np.random.default_rng(0).integers(0, 256, (40, 6, 7, 3), dtype=np.uint8)
    return FramesReader(frames)


def sample_clips(reader, seed=0, **options):
    transform = build("RandomClips", clip_duration=1.0, num_frames=4, **options)
    return transform({"reader": reader, "rng": np.random.default_rng(seed)})["clips"]


def test_random_clips_options_do_not_reshuffle_each_other(reader):
    for seed in range(10):
        plain = sample_clips(reader, seed, num_views=3)
        both = sample_clips(reader, seed, num_views=3, reverse_prob=0.5, diff_prob=0.5)
        assert [c.start for c in plain] == [c.start for c in both]
        reverse = sample_clips(reader, seed, num_views=3, reverse_prob=0.5)
        assert [c.reversed for c in reverse] == [c.reversed for c in both]


def test_random_clips_probabilities(reader):
    options = dict(num_views=3, reverse_prob=0.2, diff_prob=0.7, duration_jitter=0.2)
    clips = [clip for seed in range(400) for clip in sample_clips(reader, seed, **options)]
    assert np.mean([c.reversed for c in clips]) == pytest.approx(0.2, abs=0.05)
    assert np.mean([c.partners is not None for c in clips]) == pytest.approx(0.7, abs=0.06)
    lengths = np.array([c.clip_duration for c in clips])
    assert 0.8 <= lengths.min() < 0.82 and 1.18 < lengths.max() < 1.2
    # start / room is uniform, and the views of a sample are independent
    room = np.array([c.start for c in clips]) / (4.0 - lengths)
    assert np.abs(np.histogram(room, 5, (0, 1))[0] / len(clips) - 0.2).max() < 0.05
    correlations = np.corrcoef(room.reshape(-1, 3), rowvar=False) - np.eye(3)
    assert np.abs(correlations).max() < 0.2


def test_one_of_the_clips_of_a_test_is_drawn_and_named(reader):
    """The stored features of clip k are those of frames that UniformClips shows as clip k."""
    length = dict(clip_duration=1.0, num_frames=4)
    given = {"reader": reader}
    known = build("UniformClips", **length, num_clips=3)(given)["clips"]
    transform, counts = build("OneOfClips", **length, num_clips=3), [0, 0, 0]
    assert (transform.num_views, transform.num_clips) == (1, 3)
    for seed in range(300):
        drawn = transform({**given, "rng": np.random.default_rng(seed)})
        (clip,) = drawn["clips"]
        assert clip.start == known[drawn["clip"]].start
        np.testing.assert_array_equal(clip.frames, known[drawn["clip"]].frames)
        counts[drawn["clip"]] += 1
    assert min(counts) > 75
    anywhere = build("OneOfClips", **length, num_clips=0)
    drawn = [anywhere({**given, "rng": np.random.default_rng(seed)}) for seed in range(300)]
    assert all("clip" not in results for results in drawn)
    starts = np.array([results["clips"][0].start for results in drawn]) / 3.0
    assert np.abs(np.histogram(starts, 3, (0, 1))[0] / 300 - 1 / 3).max() < 0.1


def test_ordered_clips_are_the_same_clips_by_start(reader):
    options = dict(num_views=4, diff_prob=0.5, duration_jitter=0.2)
    for seed in range(10):
        plain = sample_clips(reader, seed, **options)
        ordered = sample_clips(reader, seed, **options, ordered=True)
        facts = [
            [(c.start, c.clip_duration, c.partners is None) for c in clips]
            for clips in (sorted(plain, key=lambda c: c.start), ordered)
        ]
        assert facts[0] == facts[1]


def test_the_views_of_a_random_frame_are_one_uniform_frame(reader):
    transform = build("RandomFrame", num_views=3, num_local_views=1)
    drawn = []
    for seed in range(400):
        results = transform({"reader": reader, "rng": np.random.default_rng(seed)})
        frames = [clip.frames.tolist() for clip in results["clips"]]
        assert len(frames) == 3 and frames[0] == frames[1] == frames[2]
        assert results["num_local_views"] == 1
        drawn += frames[0]
    assert set(drawn) == set(range(40)) and np.bincount(drawn).max() < 30  # 10 expected
    with pytest.raises(ValueError, match="num_views must be at least 1, got 0"):
        build("RandomFrame", num_views=0)


# -- Clips around AVA's key frames, against tables written by hand


class Reader:
    def __init__(self, timestamps, duration):
        self.timestamps, self.duration = np.asarray(timestamps), duration


def frames(reader, second, *arguments, **options):
    clip = KeyFrameClip(*arguments, **options)
    results = clip({"reader": reader, "timestamp": second, "path": "film.mp4"})
    return results["clips"][0].frames.tolist()


def test_eight_by_eight_at_thirty_frames_a_second():
    cut = Reader(np.arange(27000) / 30, 900.0)
    # second 902 is frame 60: 60 - 32, then every eighth
    assert frames(cut, 902, 8, 8) == [28, 36, 44, 52, 60, 68, 76, 84]
    assert frames(cut, 902, 16, 4) == [28 + 4 * i for i in range(16)]
    # at the ends the first or last frame is held
    assert frames(cut, 900, 8, 8) == [0, 0, 0, 0, 0, 8, 16, 24]
    assert frames(cut, 1799, 8, 8) == [26938, 26946, 26954, 26962, 26970, 26978, 26986, 26994]


def test_other_frame_rates_give_the_same_times():
    slow = Reader(np.arange(15 * 60 * 25) / 25, 900.0)  # 25 a second; 8/30 s are 6.67 frames
    # second 2 is frame 50; times 2 - 32/30, ... : 23.33, 30, 36.67, 43.33, 50, 56.67, 63.33, 70
    assert frames(slow, 902, 8, 8) == [23, 30, 36, 43, 50, 56, 63, 70]
    uneven = np.array([0.0, 0.5, 1.9, 2.0, 3.0])
    assert shown_at(uneven, np.array([-1, 0.0, 0.49, 1.99, 2.0, 9])).tolist() == [0, 0, 0, 2, 3, 4]
    film = Reader(np.arange(30 * 1000) / 30, 1000.0)
    assert frames(film, 902, 4, 2, begins_at=0.0) == [27056, 27058, 27060, 27062]


def test_a_second_that_is_not_in_the_video_is_named():
    short = Reader(np.arange(90) / 30, 3.0)
    for second, message in (
        (903, r"film\.mp4: has no frame at second 903.* lasts 3\.0 s"),
        (899, "899"),
    ):
        with pytest.raises(VideoDecodeError, match=message):
            frames(short, second, 8, 8)
    with pytest.raises(ValueError, match="frame_interval must be at least 1"):
        KeyFrameClip(8, 0)


def test_all_clips_are_read_in_one_ordered_call(reader):
    clips = sample_clips(reader, num_views=3, diff_prob=0.5, reverse_prob=0.5)
    state = build("DecodeClips")({"reader": reader, "clips": clips})
    assert len(reader.calls) == 1 and "reader" not in state
    needed = {int(i) for c in clips for i in c.frames}
    needed |= {int(i) for c in clips if c.partners is not None for i in c.partners}
    assert reader.calls[0] == sorted(needed)
    for clip, view in zip(clips, state["views"], strict=True):
        assert view.shape == (4, 6, 7, 3)
        if clip.partners is None:
            assert (reader.frames[clip.frames] == view).all()


def slow_difference_clip(frames, num_frames, backwards):
    """Differences of the whole clip at full rate in float64, then T of them: the definition."""
    clip = frames[::-1] if backwards else frames
    grey = clip.astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    change = (grey[:-1] - grey[1:] + 255) / 2
    change = np.concatenate([change, change[-1:]])
    picks = [math.floor(i * (len(clip) - 1) / (num_frames - 1) + 1e-9) for i in range(num_frames)]
    return np.repeat(change[picks][..., None], 3, axis=-1)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("num_frames", [2, 5, 12])
def test_difference_equals_the_slow_full_clip(reader, num_frames, backwards):
    transform = build("RandomClips", clip_duration=1.2, num_frames=num_frames, num_views=1,
                      diff_prob=1.0, reverse_prob=float(backwards))  # fmt: skip
    state = transform({"reader": reader, "rng": np.random.default_rng(3)})
    start = state["clips"][0].start
    inside = (reader.timestamps >= start) & (reader.timestamps < start + 1.2)
    view = build("DecodeClips")(state)["views"][0]
    expected = slow_difference_clip(reader.frames[inside], num_frames, backwards)
    assert np.abs(view - expected).max() <= 0.5 + 1e-3


def slow_pair(reader, clip, frame, partner):
    """The rule for one kept frame, frame by frame; None where the clip keeps its colours."""
    end = clip.start + clip.clip_duration
    inside = [i for i, t in enumerate(reader.timestamps) if clip.start <= t + 1e-9 < end]
    played = inside[::-1] if clip.reversed else inside
    grey = reader.frames @ np.array([0.299, 0.587, 0.114])

    def near(other):
        return abs(reader.timestamps[other] - reader.timestamps[frame]) <= 0.5 + 1e-9

    def differs(other):
        return np.abs(grey[frame] - grey[other]).max() > 8

    if differs(partner):
        return frame, partner
    place = played.index(frame)
    for other in played[place + 1 :]:
        if not near(other):
            return None
        if differs(other):
            return frame, other
    for other in played[:place][::-1]:
        if near(other) and differs(other):
            return other, frame
    return None


@pytest.mark.parametrize("runs", [(1, 1), (1, 3), (4, 9)], ids=str)
@pytest.mark.parametrize("backwards", [False, True])
def test_differences_of_footage_that_repeats_frames(reader, runs, backwards):
    """Against a loop; repetitions are off by up to 5 levels, as after lossy encoding."""
    rng = np.random.default_rng(runs[1])
    lengths = rng.integers(runs[0], runs[1] + 1, len(reader.frames))
    shown = np.repeat(np.arange(len(reader.frames)), lengths)[: len(reader.frames)]
    reader.frames = np.clip(reader.frames, 0, 250)[shown].astype(np.int64)
    reader.frames = (reader.frames + rng.integers(0, 6, reader.frames.shape[:3])[..., None]).astype(
        np.uint8
    )
    counted = np.zeros(3, int)
    for seed in range(10):
        drawn = sample_clips(
            reader, seed, num_views=2, diff_prob=0.7, reverse_prob=float(backwards)
        )
        plain = build("DecodeClips")({"reader": reader, "clips": drawn})
        assert plain["clips"] == drawn and plain["differences"][2] == 0
        for clip, view in zip(drawn, plain["views"], strict=True):
            if clip.partners is not None:  # the paper's: always the next frame
                assert (rgb_difference(reader.frames, clip.frames, clip.partners) == view).all()
        state = build("DecodeClips", skip_repeats=True)({"reader": reader, "clips": drawn})
        assert state["differences"][:2] == plain["differences"][:2]
        for clip, made, view in zip(drawn, state["clips"], state["views"], strict=True):
            if clip.partners is None:
                assert made is clip
                continue
            old = list(zip(clip.frames.tolist(), clip.partners.tolist(), strict=True))
            pairs = [slow_pair(reader, clip, *pair) for pair in old]
            counted += [1, pairs != old, None in pairs]
            if None in pairs:
                assert made.partners is None and (reader.frames[clip.frames] == view).all()
                continue
            first, second = np.array(pairs).T
            assert (rgb_difference(reader.frames, first, second) == view).all()
            assert np.ptp(np.asarray(view), axis=(1, 2, 3)).min() > 2  # no uniform grey
        counted -= state["differences"]
    assert not counted.any()


def test_a_still_video_and_one_of_one_frame_keep_their_colours(reader):
    for count in (1, 12):
        reader.frames = np.repeat(reader.frames[:1], count, axis=0)
        reader.timestamps, reader.duration = np.arange(count) / 10, count / 10
        clips = sample_clips(reader, num_views=1, diff_prob=1.0)
        assert isinstance(clips[0], ClipIndices)
        state = build("DecodeClips", skip_repeats=True)({"reader": reader, "clips": clips})
        assert (reader.frames[:1] == state["views"][0]).all()
        assert state["clips"][0].partners is None and state["differences"] == (1, 1, 1)
