"""Simulate how often ``compare`` calls two equal settings different, with several seeds.

    python benchmarks/seeds_test.py [--repetitions 2000] [--interaction 0.1] [--gap 0]

A video is classified correctly in a run if a normal variable falls below the quantile of the run's
accuracy, which is drawn around 60 % for each seed. The variable is the sum of three parts: the
video's difficulty, an interaction of video and setting (a share ``--interaction`` of the variance),
and an interaction of video and run (a share of 0.3). Each row shows how often the 95 % interval of
the difference does not contain the true one, ``--gap`` points, and half its mean width, for

- ``videos``: runs are fixed, as for single runs;
- ``welch``: Welch's t of the means of the runs, with fixed videos;
- ``bootstrap``: runs and videos are drawn with replacement;
- ``both``: :func:`~sce_video.evaluation.functional.statistics.seeds_test`.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
from scipy.stats import norm, t, ttest_ind

from sce_video.evaluation.functional.statistics import seeds_test

_NOISE, _ACCURACY, _DRAWS = 0.3, 0.6, 400


def outcomes(random, runs, videos, spread, interaction=0.1, gap=0.0):
    """Return two settings' outcomes (runs, videos) with deviation ``spread`` over seeds."""
    ease = np.sqrt(1 - interaction - _NOISE) * random.standard_normal(videos)
    found = []
    for shift in (0.0, gap):
        own = ease + np.sqrt(interaction) * random.standard_normal(videos)
        rates = np.clip(random.normal(_ACCURACY + shift, spread, runs), 0.01, 0.99)
        drawn = own + np.sqrt(_NOISE) * random.standard_normal((runs, videos))
        found.append((drawn < norm.ppf(rates)[:, None]).astype(float))
    return found


def intervals(random, first, second):
    """Return the ends of the 95 % interval of each method."""
    runs, videos = first.shape
    change = second.mean() - first.mean()
    per_video = (second - first).mean(axis=0)
    width = t.ppf(0.975, videos - 1) * per_video.std(ddof=1) / np.sqrt(videos)
    welch = ttest_ind(second.mean(axis=1), first.mean(axis=1), equal_var=False)
    drawn = random.integers(videos, size=(_DRAWS, videos)) + videos * np.arange(_DRAWS)[:, None]
    times = np.bincount(drawn.reshape(-1), minlength=drawn.size).reshape(_DRAWS, videos) / videos
    seeds = random.multinomial(runs, np.full(runs, 1 / runs), (2, _DRAWS)) / runs
    pairs = zip((first, second), seeds, strict=True)
    means = [((times @ part.T) * own).sum(axis=1) for part, own in pairs]
    return {
        "videos": (change - width, change + width),
        "welch": tuple(welch.confidence_interval(0.95)),
        "bootstrap": tuple(np.quantile(means[1] - means[0], [0.025, 0.975])),
        "both": seeds_test(first, second).interval,
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Level of the comparison of several seeds.")
    parser.add_argument("--repetitions", type=int, default=2000)
    parser.add_argument("--interaction", type=float, default=0.1, help="share of the variance")
    parser.add_argument("--gap", type=float, default=0.0, help="true difference, points")
    args = parser.parse_args(argv)
    print("| seeds | videos | spread, points | method | missed, % | half width, points |")
    print("|---|---|---|---|---|---|")
    for runs, videos, spread in itertools.product((3, 5), (1000, 3783), (0.0, 1.3)):
        random, gap = np.random.default_rng(0), args.gap / 100
        shares = runs, videos, spread / 100, args.interaction, gap
        ends = [intervals(random, *outcomes(random, *shares)) for _ in range(args.repetitions)]
        for name in ends[0]:
            low, high = np.array([each[name] for each in ends]).T
            missed = 100 * np.mean((low > gap) | (high < gap))
            width = 100 * np.mean(high - low) / 2
            print(f"| {runs} | {videos} | {spread} | {name} | {missed:.1f} | {width:.2f} |")


if __name__ == "__main__":
    main()
