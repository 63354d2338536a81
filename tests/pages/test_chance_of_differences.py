"""Paired tests of runs: groups of seeds, other videos, missing outcomes, page and terminal."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

from sce_video.evaluation.metrics.base import Outcomes, outcomes_path, save_outcomes
from sce_video.pages.compare_page import chance_of_differences, render_comparison, seed_groups
from sce_video.pages.run_record import RunRecord, RunResult

VIDEOS = 60


def run_of(folder, name, hits, tau=0.1, seed=0, first=0, kept=True):
    """A run with the outcomes of single videos, in an order of its own."""
    path = folder / name
    path.mkdir()
    if kept:
        order = np.random.default_rng(len(name)).permutation(len(hits))
        outcomes = Outcomes(
            paths=[f"{first + i}.mp4" for i in order],
            labels=order % 3,
            names=["knn_top1"],
            values=np.asarray(hits, dtype=np.float32)[order, None],
            by_class=np.array([False]),
        )
        save_outcomes(outcomes_path(path / "results.json"), outcomes)
    return RunRecord(
        name=name,
        folder=str(path),
        config={"model": {"tau": tau}, "randomness": {"seed": seed}},
        results={
            "results.json": RunResult({"knn_top1": float(np.mean(hits))}, {"knn_top1": (0.1, 0.2)})
        },
    )


def hits_of(seed, rate):
    return np.random.default_rng(seed).random(VIDEOS) < rate


def test_single_runs_are_tested_on_the_same_videos(tmp_path):
    hits = [hits_of(0, 0.4), hits_of(1, 0.45), hits_of(2, 0.95)]
    runs = [run_of(tmp_path, f"run{i}", h, tau=i) for i, h in enumerate(hits)]
    chance = chance_of_differences(runs)
    assert not chance.notes and not chance.seeds
    assert ["spread over seeds is not known" in text for text in chance.scope] == [True]
    plain = []
    for one, (i, j) in zip(chance.differences, ((0, 1), (0, 2), (1, 2)), strict=True):
        lost, won = int((hits[i] & ~hits[j]).sum()), int((hits[j] & ~hits[i]).sum())
        plain.append(binomtest(lost, lost + won).pvalue)
        assert one.p_value == pytest.approx(plain[-1])
        assert one.change == pytest.approx(hits[j].mean() - hits[i].mean())
        assert one.interval[0] < one.change < one.interval[1] and one.videos == VIDEOS
    ends = [one.verdict for one in chance.differences]
    assert ends == ["within chance", "run2 is better", "run2 is better"]
    assert chance.differences[0].adjusted == pytest.approx(max(plain))  # the largest of three
    html = render_comparison(runs, {}, chance)
    assert "within chance" in html and "run2 is better" in html and "[10.00, 20.00]" in html
    assert any("within chance" in line for line in chance.lines())


def test_runs_of_other_seeds_are_one_group(tmp_path):
    runs = [run_of(tmp_path, f"a{s}", hits_of(s, 0.5), seed=s) for s in range(3)]
    runs += [run_of(tmp_path, f"b{s}", hits_of(9 + s, 0.9), tau=0.2, seed=s) for s in range(2)]
    assert [len(group) for group in seed_groups(runs).values()] == [3, 2]
    chance = chance_of_differences(runs)
    values = [run.results["results.json"].metrics["knn_top1"] for run in runs[:3]]
    assert chance.seeds[0].mean == pytest.approx(np.mean(values))
    assert chance.seeds[0].deviation == pytest.approx(np.std(values, ddof=1))
    assert "(3 seeds)" in chance.seeds[0].text
    (one,) = chance.differences
    assert one.change == pytest.approx(chance.seeds[1].mean - chance.seeds[0].mean)
    assert one.verdict == "b0 + b1 is better" and one.adjusted == one.p_value
    members = [runs[:3], runs[3:]]
    groups = [[run.results["results.json"].metrics for run in part] for part in members]
    assert one.runs == tuple(map(len, groups))
    spread = [np.var([r["knn_top1"] for r in part], ddof=1) / len(part) for part in groups]
    assert one.interval[1] - one.change > 2 * np.sqrt(sum(spread))  # seeds are resampled too
    assert any("both other seeds and other videos" in line for line in chance.lines())
    (mixed,) = chance_of_differences([*runs[:3], runs[3]]).differences
    assert mixed.runs == (3, 1) and mixed.interval[0] < mixed.change < mixed.interval[1]
    # the same seed twice is no second seed
    again = [run_of(tmp_path, name, hits_of(0, 0.5)) for name in ("c", "d")]
    assert [len(group) for group in seed_groups(again).values()] == [1, 1]


def test_what_cannot_be_tested_is_said(tmp_path):
    first = run_of(tmp_path, "first", hits_of(0, 0.5), tau=1)
    moved = run_of(tmp_path, "moved", hits_of(0, 0.5), tau=2, first=10)
    without = run_of(tmp_path, "without", hits_of(0, 0.5), tau=3, kept=False)
    damaged = run_of(tmp_path, "damaged", hits_of(0, 0.5), tau=4)
    (tmp_path / "damaged" / "results_outcomes.npz").write_bytes(b"x")
    chance = chance_of_differences([first, moved, without, damaged])
    assert not chance.differences
    text = "\n".join(chance.notes)
    # ten videos at each end, and where a path is in both, its label differs
    assert "60 of 60 are only in the first, and 60 of 60 only in the second" in text
    assert "without has no outcomes of single videos next to results.json" in text
    assert "is not a file of outcomes" in text
    html = render_comparison([first, moved], {}, chance)
    assert "Evaluate both on the same list" in html


def test_the_last_logged_rows_of_seeds_are_pooled(tmp_path):
    def logged(seed, **rows):
        return replace(run_of(tmp_path, f"s{seed}", hits_of(seed, 0.5), seed=seed), **rows)

    def rows(iteration, value):
        step = {"iter": iteration, "loss": value, "lr": 0.1, "h_rank": float("nan")}
        online = {"iter": iteration, "epoch": 1, "seconds": 3.0, "knn_top1": value / 10}
        return {"scalars": [{"iter": 1, "loss": 9.0}, step], "evaluations": [online]}

    runs = [logged(seed, **rows(8, float(seed))) for seed in (1, 2, 4)]
    found = {(m.file, m.metric): m for m in chance_of_differences(runs).seeds[1:]}
    names = {("metrics.jsonl", "loss"), ("online_evaluation.jsonl", "knn_top1")}
    assert set(found) == names
    assert found["metrics.jsonl", "loss"].text == "2.333 ± 1.528 (3 seeds)"
    assert found["online_evaluation.jsonl", "knn_top1"].text == "23.33 % ± 15.28 (3 seeds)"
    running = [runs[0], logged(5, **rows(6, 1.0))]  # of other steps: not the same measurement
    assert len(chance_of_differences(running).seeds) == 1
