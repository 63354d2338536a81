"""The size of the sample within a budget, on a clock of the test's own."""

from __future__ import annotations

import re
from bisect import bisect_right

import numpy as np
import pytest

from sce_video.inference.clip_features import EmbeddedClips
from sce_video.runs import candidate_features
from sce_video.runs.candidate_features import embed_within
from sce_video.runs.candidates import Candidate, NetworkPass

FAST, SLOW = Candidate("fast", "fast"), Candidate("slow", "slow")
PATHS = [f"{number}.mp4" for number in range(1000)]


class Network:
    """A network that needs the same time for every video."""

    feature_size, all_pools = 4, False

    def __init__(self, seconds, broken=()):
        self.seconds, self.broken = seconds, broken


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only while videos are embedded; each process needs 1 s to start."""
    now = [100.0]

    def embed_clips(network, paths, workers):
        now[0] += 1.0
        for path in paths:
            seconds = network.seconds
            now[0] += seconds / workers
            if path in network.broken:
                yield EmbeddedClips(path, None, "is broken")
            else:
                values = np.full((2, 4), float(path.split(".")[0]), np.float32)
                yield EmbeddedClips(path, values, "", seconds, seconds / 2, 36.0, 10**6)

    monkeypatch.setattr(candidate_features, "embed_clips", embed_clips)
    monkeypatch.setattr(candidate_features.time, "monotonic", lambda: now[0])
    return now


def no_scores(count):
    return 0.0


def passes(*networks):
    names = (FAST, SLOW)
    return [NetworkPass(network, (name,)) for network, name in zip(networks, names, strict=False)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("budget", [100.0, 600.0])
def test_the_sample_fills_the_budget_and_not_more(clock, budget, workers):
    """Each network has the same videos, and half the budget or more is used."""
    found = embed_within(
        passes(Network(0.1), Network(1.0)), PATHS, 100.0, budget, workers, no_scores, 20
    )
    spent = clock[0] - 100.0
    assert 0.5 * budget < spent < 0.9 * budget
    assert found.tried == len(found.rows) == len(found.clips[SLOW]) == len(found.clips[FAST])
    assert found.clips[FAST][:, 0, 0].tolist() == list(range(found.tried))
    assert found.costs[SLOW].seconds == pytest.approx(0.5 * 3600 / 36)
    assert found.costs[SLOW].bytes_per_hour == pytest.approx(4 * 4 * 100)
    assert found.costs[SLOW].memory == 10**6 and found.costs[FAST].order < found.costs[SLOW].order


def test_all_videos_if_there_is_time(clock):
    found = embed_within(passes(Network(0.1)), PATHS[:40], 100.0, 600.0, 1, no_scores, 20)
    assert found.tried == 40 and clock[0] < 110.0


def test_a_small_budget_is_an_error_that_names_a_sufficient_one(clock):
    networks = passes(Network(0.1), Network(4.0))
    with pytest.raises(ValueError, match=r"30 s suffices for \d+ of 1000 videos") as raised:
        embed_within(networks, PATHS, 100.0, 30.0, 1, no_scores, 20)
    with pytest.raises(ValueError, match=r"a comparison needs 50\. Give --budget \d{3}s or more"):
        clock[0] = 100.0
        embed_within(networks, PATHS, 100.0, 150.0, 1, no_scores, 50)
    enough = float(re.search(r"--budget (\d+)s", str(raised.value))[1])
    assert 60 < enough < 200
    clock[0] = 100.0
    assert embed_within(networks, PATHS, 100.0, enough, 1, no_scores, 20).tried >= 20
    clock[0] = 100.0
    with pytest.raises(ValueError, match="does not suffice to time 2 networks on 6 videos"):
        embed_within(networks, PATHS, 100.0, 5.0, 1, no_scores, 20)


def test_a_network_that_becomes_slow_reduces_the_sample(clock):
    """Videos after the timed ones take ten times as long; the budget still holds nearly."""
    slow = Network(1.0)

    def slower(*arguments, **options):
        slow.seconds = 10.0
        return bisect_right(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidate_features, "bisect_right", slower)
        found = embed_within(passes(slow, Network(0.1)), PATHS, 100.0, 600.0, 1, no_scores, 20)
    assert found.tried < 80 and clock[0] - 100 < 600
    assert len(found.clips[FAST]) == len(found.clips[SLOW])


def test_videos_that_one_network_cannot_embed_are_left_out_for_all(clock):
    networks = passes(Network(0.1, broken=("3.mp4",)), Network(0.1, broken=("3.mp4", "9.mp4")))
    found = embed_within(networks, PATHS[:30], 100.0, 600.0, 1, no_scores, 20)
    assert found.tried == 30 and found.rows.tolist() == [i for i in range(30) if i not in (3, 9)]
    assert found.failures == [("3.mp4", "is broken"), ("9.mp4", "is broken")]
    assert len(found.clips[FAST]) == 28
    broken = tuple(PATHS[:5])
    with pytest.raises(ValueError, match="0 of 5 videos can be decoded, for example 0.mp4: is br"):
        embed_within(passes(Network(0.1, broken)), PATHS[:5], 100.0, 600.0, 1, no_scores, 5)


@pytest.mark.parametrize("each", [0.5, 2.0])
def test_the_time_of_the_scores_is_kept(clock, each):
    """Scores whose time grows with the square of the videos still end within the budget."""

    def score_seconds(count):
        return each * (count / 50) ** 2

    networks = passes(Network(0.1), Network(1.0))
    found = embed_within(networks, PATHS, 100.0, 300.0, 1, score_seconds, 20)
    free = embed_within(networks, PATHS, clock[0], 300.0, 1, no_scores, 20)
    assert 20 < found.tried < free.tried
    clock[0] = 100.0
    embed_within(passes(Network(0.1), Network(1.0)), PATHS, 100.0, 300.0, 1, score_seconds, 20)
    assert 0.5 * 300 < clock[0] + score_seconds(found.tried) - 100.0 < 0.9 * 300
    with pytest.raises(ValueError, match=r"300 s suffices for \d+ of 1000 videos"):
        embed_within(
            passes(Network(0.1)),
            PATHS,
            clock[0],
            300.0,
            1,
            lambda count: 30.0 * count,
            20,
        )


def test_processes_that_start_late_do_not_waste_the_features_of_the_others(clock, monkeypatch):
    """On a busy machine the second start takes 15 s longer than the first one."""
    started = candidate_features.embed_clips

    def embed_clips(network, paths, workers):
        clock[0] += 15.0 if len(paths) > 6 else 0.0
        yield from started(network, paths, workers)

    monkeypatch.setattr(candidate_features, "embed_clips", embed_clips)
    networks = passes(Network(1.0), Network(0.01))
    found = embed_within(networks, PATHS, 100.0, 200.0, 1, no_scores, 20)
    assert found.tried > 100 and clock[0] - 100.0 < 200
