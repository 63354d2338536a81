"""The decision between networks, on features whose quality is known."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from sce_video.evaluation.functional.label_free import clip_hits, lidar, rankme
from sce_video.evaluation.functional.statistics import mean_interval
from sce_video.runs.candidate_features import Cost
from sce_video.runs.candidate_scores import (
    DECIDES,
    Score,
    decide,
    in_row_space,
    paired_difference,
    score_candidates,
)
from sce_video.runs.candidates import PIXELS, RANDOM_WEIGHTS, Candidate, ChoiceVideos

A, B = Candidate("a", "a"), Candidate("b", "b")
FLOORS = [Candidate(PIXELS), Candidate(RANDOM_WEIGHTS)]
COUNT = 60


def cost(seconds, dimensions=8):
    return Cost(seconds, None, dimensions, None)


def videos(labelled=True):
    labels = np.arange(COUNT) % 3 if labelled else np.full(COUNT, -1)
    folds = np.arange(COUNT) // 3 % 5
    paths = tuple(f"{number}.mp4" for number in range(COUNT))
    left_out = "one of 5 given folds" if labelled else ""
    return ChoiceVideos(paths, labels, ("x", "y", "z"), np.arange(COUNT), folds, left_out)


def made_up(candidate, right, seconds, dimensions=8):
    """A score whose first ``right`` videos are classified rightly."""
    hits = (np.arange(COUNT) < right).astype(np.float64)
    outcomes = {DECIDES: hits, "knn_top1": hits}
    metrics = {name: float(hits.mean()) for name in outcomes}
    return Score(candidate, cost(seconds, dimensions), None, metrics, {}, outcomes)


def floors(right=15):
    return [made_up(candidate, right, 1.0) for candidate in FLOORS]


def test_the_cheaper_one_if_no_difference_can_be_shown():
    scores = [made_up(A, 50, 10.0), made_up(B, 49, 5.0), *floors()]
    found = decide(scores, videos())
    assert found.best == A and found.recommended == B
    first, last = found.reasons
    assert first.startswith("No difference can be shown between a and b: +1.7 [")
    assert last == "b is the cheapest of them."
    by_size = decide([made_up(A, 50, 5.0, 16), made_up(B, 49, 5.0, 8), *floors()], videos())
    assert by_size.recommended == B


def test_the_better_one_if_a_difference_is_shown():
    scores = [made_up(A, 50, 10.0), made_up(B, 30, 5.0), *floors()]
    found = decide(scores, videos())
    assert found.recommended == A
    assert found.reasons == ("a is shown to be better than all others.",)
    assert all(d.shown and d.change > 0 for d in found.differences)
    assert {(d.second.name, d.metric) for d in found.differences} == {
        (name, metric) for name in ("b", PIXELS, RANDOM_WEIGHTS) for metric in (DECIDES, "knn_top1")
    }


def test_training_is_recommended_if_a_floor_is_at_least_as_good():
    found = decide([made_up(A, 50, 10.0), made_up(B, 20, 5.0), *floors(60)], videos())
    assert found.recommended is None and found.possible
    assert found.heading == "Train a network on these videos from scratch"
    expected = "No network exceeds all baselines by 5 points or more (a compared with grey pixels: "
    assert f"{expected}-16.7 [" in found.reasons[-1]


@pytest.mark.parametrize(("unused", "more"), [(0, "Label more"), (840, "larger --budget")])
def test_too_few_videos_allow_no_decision(unused, more):
    """The number that is named would be enough: the same outcomes of as many videos decide."""
    rng = np.random.default_rng(0)

    def noisy(candidate, share, count=COUNT):
        hits = (rng.random(count) < share).astype(np.float64)
        outcomes = {DECIDES: hits, "knn_top1": hits}
        metrics = {name: float(hits.mean()) for name in outcomes}
        return Score(candidate, cost(1.0), None, metrics, {}, outcomes)

    scores = [noisy(A, 0.5), noisy(FLOORS[0], 0.5), noisy(FLOORS[1], 0.1)]
    found = decide(scores, videos(), unused)
    assert found.recommended is None and not found.possible
    assert found.heading == "No decision is possible"
    assert "a may be better or worse than grey pixels: +" in found.reasons[-1]
    assert "60 videos are too few to decide" in found.reasons[-1] and more in found.reasons[-1]
    enough = int(
        re.search("about ([0-9,]+) would be enough", found.reasons[-1])[1].replace(",", "")
    )
    assert COUNT < enough < 2000
    times = -(-enough // COUNT)
    copies = [
        replace(s, outcomes={k: np.tile(v, times) for k, v in s.outcomes.items()}) for s in scores
    ]
    more_videos = videos().subset(np.tile(np.arange(COUNT), times))
    more_videos = replace(more_videos, groups=np.arange(len(more_videos)))
    assert decide(copies, more_videos, unused).possible


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_a_few_groups_show_no_difference(groups):
    """Each group has the same gain, so an interval from resampled groups excludes 0."""
    first = np.arange(COUNT) // groups < 16
    second = first & (np.arange(COUNT) // groups != 0)
    scores = [replace(made_up(A, 0, 1.0), outcomes={DECIDES: first * 1.0, "knn_top1": first * 1.0})]
    scores.append(replace(made_up(B, 0, 1.0), outcomes={DECIDES: second * 1.0}))
    units = np.arange(COUNT) % groups
    found = paired_difference(*scores, units)
    assert found.interval[0] > 0 and not found.shown and not found.is_gain
    worse = paired_difference(*reversed(scores), units)
    assert worse.interval[1] < 0 and not worse.is_irrelevant
    known = replace(scores[0], metrics={DECIDES: 0.5, "knn_top1": 0.5})
    decided = decide([known, *floors(1)], replace(videos(), groups=units))
    assert not decided.possible and "are too few to decide, and about 10 " in decided.reasons[-1]


def test_a_few_videos_show_no_difference():
    """Resampling hardly ever draws none of four videos, but one in eight fair coins does this."""
    found = paired_difference(made_up(A, 20, 1.0), made_up(B, 16, 1.0), np.arange(COUNT))
    assert found.interval[0] > 0 and found.p_value == pytest.approx(0.125) and not found.shown
    six = paired_difference(made_up(A, 20, 1.0), made_up(B, 14, 1.0), np.arange(COUNT))
    assert six.p_value == pytest.approx(2 / 64) and six.is_gain
    decided = decide([made_up(A, 20, 1.0), *floors(16)], videos())
    assert not decided.possible and "60 videos are too few to decide" in decided.reasons[-1]
    assert "about 70 would be enough" in decided.reasons[-1]


def test_the_cheapest_of_the_useful_networks_is_called_so():
    """A cheaper one that may be no better than pixels is among the equal ones too."""
    cheap = made_up(Candidate("c", "c"), 18, 1.0)
    scores = [made_up(A, 22, 10.0), made_up(B, 21, 5.0), cheap, *floors(15)]
    found = decide(scores, videos())
    assert "a and b: " in found.reasons[0] and "c: " in found.reasons[0]
    assert found.recommended == B
    assert found.reasons[-1].endswith(
        "cheapest of those that are shown to be better than every baseline."
    )


def test_training_is_not_recommended_if_another_network_may_be_useful():
    """The network with the highest mean is certainly useless, and another one may be useful."""
    rng = np.random.default_rng(0)
    pixels = np.arange(COUNT) < 30
    changed = rng.permutation(COUNT)[:20]
    other = pixels.copy()
    other[changed] = ~other[changed]
    scores = [made_up(A, 30, 1.0), made_up(B, 0, 1.0), *floors(30)]
    scores[1] = replace(
        scores[1],
        metrics=dict.fromkeys((DECIDES, "knn_top1"), 0.49),
        outcomes=dict.fromkeys((DECIDES, "knn_top1"), other.astype(np.float64)),
    )
    assert decide([scores[0], *scores[2:]], videos()).possible
    assert not decide(scores, videos()).possible


def test_videos_of_one_group_allow_no_decision():
    alone = replace(videos(), groups=np.zeros(COUNT, int))
    found = decide([made_up(A, 50, 10.0), *floors()], alone)
    assert not found.possible and "All videos are in one group" in found.reasons[-1]


def test_a_cheap_network_near_the_best_must_beat_the_floors_too():
    """Its interval may reach both the best one and a floor."""
    rng = np.random.default_rng(0)
    best = made_up(A, 40, 10.0)
    noisy = Score(
        B,
        cost(1.0),
        None,
        {DECIDES: 0.5, "knn_top1": 0.5},
        {},
        dict.fromkeys((DECIDES, "knn_top1"), rng.permutation(np.arange(COUNT) < 30).astype(float)),
    )
    found = decide([best, noisy, *floors(25)], videos())
    assert not next(d for d in found.differences if d.second == B).shown
    assert found.recommended == A


def test_without_labels_nothing_is_shown_and_the_cheapest_is_recommended():
    scores = [made_up(A, 50, 10.0), made_up(B, 1, 5.0), *floors()]
    found = decide(scores, videos(labelled=False))
    assert found.best is None and found.recommended == B and not found.differences
    assert found.reasons[0] == "No difference can be shown between 2 networks."
    assert found.heading == "No decision is possible. b is the cheapest network"
    alone = decide([made_up(A, 50, 10.0), *floors()], videos(labelled=False))
    assert alone.heading == "Use a"


def test_intervals_draw_whole_groups():
    """Copies of videos add no evidence: the interval is that of the videos alone."""
    rng = np.random.default_rng(1)
    hits = (rng.random(40) < 0.7).astype(np.float64)
    single = mean_interval(hits, np.arange(40))
    copied = mean_interval(np.repeat(hits, 10), np.repeat(np.arange(40), 10))
    assert copied == pytest.approx(single, abs=1e-12)
    assert mean_interval(np.repeat(hits, 10), np.arange(400))[0] > single[0] + 0.05
    assert mean_interval(hits, np.zeros(40, int)) is None


def test_a_difference_is_paired():
    """Two networks that fail on the same videos differ by less than their own intervals."""
    first, second = made_up(A, 40, 1.0), made_up(B, 30, 1.0)
    found = paired_difference(first, second, np.arange(COUNT))
    assert found.change == pytest.approx(10 / 60) and found.shown
    assert found.points.startswith("+16.7 [")
    back = paired_difference(second, first, np.arange(COUNT))
    assert back.change == -found.change and back.shown


def test_scores_of_features_that_separate_classes_and_of_noise():
    rng = np.random.default_rng(0)
    known = videos()
    noise = rng.normal(size=(COUNT, 4, 8)).astype(np.float32)
    good = noise.copy()
    good[np.arange(COUNT), :, known.labels] += 20
    costs = dict.fromkeys((A, B), cost(1.0))
    (scored, chance), measured = score_candidates({A: good, B: noise}, costs, known)
    assert len(measured) == COUNT
    assert scored.metrics[DECIDES] == scored.metrics["knn_top1"] == 1.0
    assert scored.rows.features.shape == (COUNT, 8)
    assert chance.metrics[DECIDES] < 0.6
    low, high = chance.intervals[DECIDES]
    assert low < chance.metrics[DECIDES] < high
    assert set(chance.outcomes) == {DECIDES, "knn_top1"}
    unlabelled = videos(labelled=False)
    (free,), _ = score_candidates({A: good}, {A: cost(1.0)}, unlabelled)
    assert {"rankme", "lidar", "clip_retrieval_r1", "effective_rank"} <= free.metrics.keys()
    (whole,), _ = score_candidates({A: good[:, :1]}, {A: cost(1.0)}, unlabelled)
    assert "lidar" not in whole.metrics and whole.metrics["rankme"] > 1


def test_folds_for_which_there_is_no_time_are_left_out_for_all():
    """Both metrics are those of the tested folds; kNN still searches all other videos."""
    clips = np.random.default_rng(0).normal(size=(COUNT, 2, 8)).astype(np.float32)
    known, costs = videos(), {A: cost(1.0), B: cost(1.0)}
    whole, _ = score_candidates({A: clips, B: clips}, costs, known)
    found, measured = score_candidates({A: clips, B: clips}, costs, known, stop=0.0)
    first = known.folds < 2
    assert measured.paths == known.subset(np.flatnonzero(first)).paths and len(measured) == 24
    for score, complete in zip(found, whole, strict=True):
        assert len(score.rows.paths) == COUNT
        assert (score.outcomes["knn_top1"] == complete.outcomes["knn_top1"][first]).all()
        for name in (DECIDES, "knn_top1"):
            assert score.metrics[name] == score.outcomes[name].mean()
    assert decide(found, measured).best in (A, B)


def test_features_in_the_space_of_their_clips_have_equal_measures():
    """Wide features are replaced by as many numbers as there are clips."""
    rng = np.random.default_rng(0)
    wide = rng.normal(size=(20, 1, 300)) + 0.2 * rng.normal(size=(20, 3, 300)) + 0.5
    wide = wide.astype(np.float32)
    narrow = in_row_space(wide)
    assert narrow.shape == (20, 3, 60) and in_row_space(narrow) is narrow
    gram = [x.reshape(60, -1).astype(np.float64) for x in (wide, narrow)]
    np.testing.assert_allclose(gram[1] @ gram[1].T, gram[0] @ gram[0].T, atol=1e-3)
    videos_of = torch.arange(20).repeat_interleave(3)
    before, after = (torch.from_numpy(x.reshape(60, -1)) for x in (wide, narrow))
    assert rankme(after) == pytest.approx(rankme(before), rel=1e-4)
    assert lidar(after, videos_of) == pytest.approx(lidar(before, videos_of), rel=1e-2)
    assert torch.equal(clip_hits(after, videos_of), clip_hits(before, videos_of))
