"""The test of a classifier on the page of its run, against loops."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.browser import browser_page
from helpers.pages import make_rows

from sce_video.evaluation.metrics.base import Outcomes, outcomes_path, save_outcomes
from sce_video.pages.classifier_part import classifier_parts, confident_mistakes, confusion_counts
from sce_video.pages.run_page import render_run_page
from sce_video.pages.run_record import RunRecord, RunResult
from sce_video.utils.run_files import PROBE, RESULTS


def drawn(count, classes, seed=0):
    random = np.random.default_rng(seed)
    scores = torch.tensor(random.dirichlet(np.ones(classes), count))
    return scores.float(), torch.tensor(random.integers(classes, size=count))


def test_counts_and_mistakes_equal_loops():
    scores, labels = drawn(60, 5)
    counts = np.zeros((5, 5), dtype=int)
    wrong = []
    for row, (score, label) in enumerate(zip(scores.tolist(), labels.tolist(), strict=True)):
        best = score.index(max(score))
        counts[label, best] += 1
        if best != label:
            wrong.append((-score[best], row, best, score[label]))
    assert confusion_counts(scores, labels).tolist() == counts.tolist()
    found = confident_mistakes(scores, labels, 7)
    wanted = [(row, best, -score, own) for score, row, best, own in sorted(wrong)[:7]]
    assert [tuple(mistake) for mistake in found] == wanted  # floats of the same tensor
    assert len(confident_mistakes(scores, labels, 99)) == len(wrong)


@pytest.fixture
def record(tmp_path):
    """A run with a test of ten videos, of which the classifier has 9 right and the probe 3."""
    paths = [f"{i}.mp4" for i in range(10)]
    for name, metric, right in ((RESULTS, "top1", 9), (PROBE, "linear_top1", 3)):
        values = np.array([[float(i < right)] for i in range(10)], dtype=np.float32)
        outcomes = Outcomes(paths, np.zeros(10, int), [metric], values, np.array([False]))
        save_outcomes(outcomes_path(tmp_path / name), outcomes)
    return RunRecord(
        name="run",
        folder=str(tmp_path),
        results={
            RESULTS: RunResult({"top1": 0.9, "one_view_top1": 0.8}, {"top1": (0.7, 1.0)}),
            PROBE: RunResult({"linear_top1": 0.3}),
        },
        data={"classes": ["<bend>", "jack"]},
    )


def parts_of(record, videos, reader, classes=2, labels=None):
    scores, drawn_labels = drawn(len(videos), classes, seed=1)
    rows = replace(make_rows(videos, labels or drawn_labels.tolist()), values=scores)
    return rows, {part.id: part for part in classifier_parts(record, rows, reader=reader)}


def test_the_accuracy_stands_beside_the_probe(record, videos, reader, tmp_path):
    rows, parts = parts_of(record, videos, reader)
    html = parts["classifier"].html
    assert "90.0 %" in html and "70.0 to 100.0" in html and "30.0 %" in html
    gain = re.search(
        r"better than a linear probe .*: \+60.0 points, 95 % interval \+(\d+)\.0 to", html
    )
    assert gain and 20 <= int(gain[1]) <= 40
    most = max(rows.labels.bincount().tolist()) / len(rows)
    assert f"{100 * most:.1f} %" in html

    def sentence(trained, probed):
        for name, metric, right in ((RESULTS, "top1", trained), (PROBE, "linear_top1", probed)):
            values = np.array([[float(i < right)] for i in range(10)], dtype=np.float32)
            paths = [f"{i}.mp4" for i in range(10)]
            outcomes = Outcomes(paths, np.zeros(10, int), [metric], values, np.array([False]))
            save_outcomes(outcomes_path(tmp_path / name), outcomes)
        return parts_of(record, videos, reader)[1]["classifier"].html

    assert "A linear probe of the frozen features is better (-60.0" in sentence(3, 9)
    # The interval excludes 0, but five tosses of a fair coin are all heads or all tails in 6 %.
    assert "No clear difference from a linear probe of the frozen features: +50.0" in sentence(9, 4)
    (tmp_path / "results_outcomes.npz").write_bytes(b"damaged")
    assert "points" not in parts_of(record, videos, reader)[1]["classifier"].html


def test_a_matrix_of_few_classes_and_pairs_of_many(record, videos, reader):
    rows, parts = parts_of(record, videos, reader)
    html = parts["confusion"].html
    cells = [
        int(n or 0) for n in re.findall(r'<td[^>]* style="--share:\d+%"[^>]*>(\d*)</td>', html)
    ]
    assert cells == confusion_counts(rows.values, rows.labels).flatten().tolist()
    assert "&lt;bend&gt;" in html and "<bend>" not in html
    rows, parts = parts_of(record, videos, reader, classes=40)
    html = parts["confusion"].html
    assert "--share" not in html
    pairs = re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td class=\"number\">(\d+) of", html)
    wrong = rows.values.argmax(dim=1) != rows.labels
    assert sum(int(count) for *_, count in pairs) == int(wrong.sum()) <= 20


def test_mistakes_are_clips_that_make_no_request(record, videos, reader, tmp_path):
    paths = [*videos[:4], "s3://evil/a.mp4", str(tmp_path / "gone.mp4")]
    scores = torch.tensor([[0.1, 0.9]]).repeat(6, 1)
    rows = replace(make_rows(paths, [0, 0, 0, 1, 0, 0]), values=scores)
    html = classifier_parts(record, rows, reader=reader)[-1].html
    assert "<b>5 of 6</b>" in html and html.count("✗ jack 90 %") == 5
    assert html.count("&lt;bend&gt; 10 %") == 5 and html.count("cannot be shown") == 3
    assert "in an object store" in html and html.count("data:image/webp") == 3
    rows = replace(rows, labels=torch.ones(6, dtype=torch.int64))
    assert "All 6 test videos are classified correctly." in (
        classifier_parts(record, rows, reader=reader)[-1].html
    )
    rows = replace(rows, labels=-torch.ones(6, dtype=torch.int64))
    assert "have no labels" in classifier_parts(record, rows, reader=reader)[0].html


@pytest.mark.parametrize("width", [390, 1280])
def test_parts_fit_into_the_window(record, videos, reader, tmp_path, width):
    names = [f"a class with a long name {i}" for i in range(12)]
    record = replace(record, data={"classes": names})
    _, parts = parts_of(record, videos, reader, classes=12)
    file = tmp_path / "run.html"
    file.write_text(render_run_page(record, list(parts.values())))
    with browser_page(width=width, dark=width == 390) as page:
        page.goto(file.as_uri())
        assert page.locator("table.confusion td.own").count() == 12
        assert page.evaluate("document.documentElement.scrollWidth") <= width
