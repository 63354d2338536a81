"""The linear probe of candidates, fold by fold, against the probe of ``sce-video evaluate``."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sce_video.evaluation.metrics.feature_metrics import LinearProbe
from sce_video.evaluation.rows import Rows
from sce_video.runs import candidate_probe
from sce_video.runs.candidate_probe import DECAYS, probe_by_fold, time_probes
from sce_video.runs.candidate_videos import ChoiceVideos
from sce_video.runs.candidates import Candidate

A, B = Candidate("a", "a"), Candidate("b", "b")
COUNT = 90


@pytest.fixture
def videos():
    """90 videos of three classes and 30 groups, in five folds of whole groups."""
    groups = np.arange(COUNT) // 3
    paths = tuple(f"{number}.mp4" for number in range(COUNT))
    labels = np.random.default_rng(3).integers(0, 3, COUNT)
    return ChoiceVideos(paths, labels, ("x", "y", "z"), groups, groups % 5, "one of 5 folds")


@pytest.fixture
def features(videos):
    random = np.random.default_rng(0)
    wide = random.normal(size=(COUNT, 200)) + np.eye(3)[videos.labels].repeat(67, 1)[:, :200] / 3
    narrow = random.normal(size=(COUNT, 8)) + np.eye(3)[videos.labels].repeat(3, 1)[:, :8]
    return {A: torch.from_numpy(wide).float(), B: torch.from_numpy(narrow).float()}


def test_the_hits_are_those_of_the_metric(features, videos):
    """Also with more dimensions than videos."""
    found = probe_by_fold(features, videos, np.inf)
    assert found.folds == 5 and found.tested.tolist() == list(range(COUNT))
    for candidate, values in features.items():
        rows = Rows(
            values=values,
            labels=torch.from_numpy(videos.labels),
            indices=torch.arange(COUNT),
            paths=list(videos.paths),
            groups=torch.from_numpy(videos.groups),
            folds=torch.from_numpy(videos.folds),
        )
        metric = LinearProbe(l2_grid=DECAYS)
        metric.compute(rows)
        assert (metric.outcomes["linear_top1"].numpy() == found.hits[candidate]).all()
        assert 0.4 < found.hits[candidate].mean() < 1


def test_whole_folds_are_tested_until_the_time_is_over(features, videos, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(candidate_probe.time, "monotonic", lambda: now[0])
    fit = candidate_probe.fit_linear_probe

    def timed_fit(*arguments, **options):
        now[0] += 1.0
        return fit(*arguments, **options)

    monkeypatch.setattr(candidate_probe, "fit_linear_probe", timed_fit)
    whole = probe_by_fold(features, videos, np.inf)
    for stop, folds in ((0.0, 1), (3.9, 1), (4.0, 2), (9.9, 4), (10.0, 5)):
        now[0] = 0.0
        found = probe_by_fold(features, videos, stop)
        assert found.folds == folds and now[0] == 2.0 * folds
        assert (found.tested == np.flatnonzero(videos.folds < folds)).all()
        for candidate in features:
            assert (found.hits[candidate] == whole.hits[candidate][found.tested]).all()


def test_the_estimate_grows_with_videos_folds_and_candidates(videos, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(candidate_probe.time, "monotonic", lambda: now[0])

    def fit(values, labels, **options):
        now[0] += values.shape[1] / 100
        assert len(labels.unique()) == 3

    monkeypatch.setattr(candidate_probe, "fit_linear_probe", fit)
    found = time_probes([100, 1000, 1000], videos)
    assert now[0] == pytest.approx(11.0)  # each size once
    assert found.total(200) == pytest.approx(5 * 21.0)
    # Twice the videos are twice the work with few dimensions, and at most four times with many.
    assert found.total(400) == pytest.approx(5 * (2 * 1.0 + 4 * 20.0))
    assert found.total(4000) == pytest.approx(5 * (20 * 1.0 + 20 * 5 * 20.0))
    without = ChoiceVideos(videos.paths, videos.labels, (), videos.groups, videos.folds)
    assert time_probes([100], without).total(1000) == 0
