"""The metrics of VSC2022 against loops over single pairs and hundredths of a second."""

from __future__ import annotations

import sys

import numpy as np
import pytest


@pytest.fixture(scope="module")
def tool(repo):
    sys.path.insert(0, str(repo / "benchmarks"))
    try:
        import copy_queries

        yield copy_queries
    finally:
        sys.path.remove(str(repo / "benchmarks"))


def test_micro_average_precision_equals_a_loop(tool):
    rng = np.random.default_rng(0)
    names = [(f"q{a}", f"r{b}") for a in range(8) for b in range(6)]
    scores = {pair: float(rng.integers(6)) for pair in names[:40]}  # many are equal
    true = {names[n] for n in rng.permutation(48)[:15]}
    area = recall = 0.0
    for least in sorted(set(scores.values()), reverse=True):
        said = [pair for pair, score in scores.items() if score >= least]
        right = sum(pair in true for pair in said)
        area += right / len(said) * (right / len(true) - recall)
        recall = right / len(true)
    assert tool.micro_average_precision(scores, true) == pytest.approx(area)
    assert tool.micro_average_precision(dict.fromkeys(true, 1.0), true) == pytest.approx(1)


def test_matching_metric_equals_a_loop_over_hundredths_of_a_second(tool):
    rng = np.random.default_rng(1)

    def drawn(count: int, scores: int) -> list:
        found = []
        for _ in range(count):
            q, r = np.sort(rng.integers(0, 60, 2)), np.sort(rng.integers(0, 60, 2))
            pair = f"q{rng.integers(3)}", f"r{rng.integers(2)}"
            times = (*(q / 10 + [0, 0.1]), *(r / 10 + [0, 0.1]))
            found.append(tool.Segment(*pair, *times, float(rng.integers(scores))))
        return found

    true, given = drawn(7, 1), drawn(25, 9)

    def ticks(segments: list, axis: int) -> set:
        """Pair and hundredths of a second that some segments cover in one of the videos."""
        low, high = 2 + 2 * axis, 3 + 2 * axis
        return {
            (*s[:2], t) for s in segments for t in range(round(100 * s[low]), round(100 * s[high]))
        }

    def meets(a, b) -> bool:
        return all(ticks([a], axis) & ticks([b], axis) for axis in (0, 1))

    area = recall = 0.0
    for least in sorted({s.score for s in given}, reverse=True):
        said = [s for s in given if s.score >= least]
        reached = [t for t in true if any(meets(t, s) for s in said)]
        right = [len(ticks(said, axis) & ticks(reached, axis)) for axis in (0, 1)]
        precision = np.prod([right[a] / len(ticks(said, a)) for a in (0, 1)]) ** 0.5
        now = np.prod([right[a] / len(ticks(true, a)) for a in (0, 1)]) ** 0.5
        area, recall = area + precision * (now - recall), now
    assert 0.05 < area < 0.95
    assert tool.matching_metric(true, given) == pytest.approx(area, abs=1e-6)
    assert tool.matching_metric(true, true) == pytest.approx(1)
