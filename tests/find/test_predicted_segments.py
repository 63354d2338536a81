"""Segments of class scores: joined as by a loop, chosen on labels, predicted from windows."""

import numpy as np
import pytest
from helpers.tiny_encoder import moving_frames, write_lossless

from sce_video.datasets.clip_sampling import Windows, window_spans
from sce_video.datasets.segments import Segment, segment_path
from sce_video.find.predicted_segments import choose_rule, predict_segments
from sce_video.inference.class_timeline import ClassTimeline, SegmentRule, join_scores
from sce_video.inference.classifier import class_probabilities, load_classifier
from sce_video.inference.embed import ViewOptions
from sce_video.inference.features import Features

CLASSES = ("run", "walk", "background")


def timeline(scores, spans):
    return ClassTimeline(
        Features(np.asarray(scores, np.float32), ["a.mp4"] * len(spans), np.asarray(spans))
    )


@pytest.mark.parametrize(("seconds", "stride"), [(2.0, 0.5), (2.0, 0.75), (1.0, 1.0), (1.5, 4.0)])
def test_scores_and_segments_equal_a_loop(seconds, stride):
    rng = np.random.default_rng(0)
    spans = window_spans(31.3, Windows(seconds, stride))
    scores = rng.uniform(size=(len(spans), 2)).astype(np.float32)
    found = timeline(scores, spans)
    edges = sorted({round(x, 6) for x in spans.ravel().tolist()})
    assert found.edges.tolist() == edges
    for number in range(2):
        cells = []
        for a, b in zip(edges[:-1], edges[1:], strict=True):
            own = [
                s[number]
                for s, (x, y) in zip(scores, spans, strict=True)
                if x < b - 1e-3 and y > a + 1e-3
            ]
            cells.append(np.mean(own, dtype=np.float64) if len(own) else 0.0)
        np.testing.assert_allclose(found.scores(number), cells, atol=1e-6)
        rule, runs, begin = SegmentRule(0.45, 1.6), [], None
        for i, value in enumerate([*cells, 0.0]):
            if value >= rule.threshold and begin is None:
                begin = i
            elif value < rule.threshold and begin is not None:
                if edges[i] - edges[begin] >= rule.least - 1e-6:
                    runs.append((edges[begin], edges[i]))
                begin = None
        joined = list(join_scores(found.edges, found.scores(number), rule))
        assert [(a, b) for a, b, _ in joined] == runs
        assert all(score >= rule.threshold - 1e-6 for *_, score in joined)


def test_the_rule_is_chosen_on_labels():
    """A class that is never sure, another that flickers: threshold and length must fit both."""
    spans = window_spans(100.0, Windows(2.0, 1.0))
    middle = spans.mean(axis=1)
    truth = [
        Segment("v", start, start + 8, name)
        for start, name in ((5, "run"), (30, "walk"), (50, "run"), (80, "walk"))
    ]
    scores = np.full((len(spans), 3), 0.2)
    for s in truth:
        scores[(middle >= s.start) & (middle <= s.end), CLASSES.index(s.label)] = 0.42
    scores[::9, 0] = np.maximum(scores[::9, 0], 0.41)  # one window alone
    found = {"v": timeline(scores, spans)}
    rule, f1 = choose_rule(found, truth, CLASSES, 2.0, "background")
    assert 0.2 < rule.threshold <= 0.42 and rule.least >= 2.0 and f1 == 1.0
    segments = found["v"].segments("v", CLASSES, rule, "background")
    assert [s.label for s in segments] == ["run", "walk", "run", "walk"]
    fixed = found["v"].segments("v", CLASSES, SegmentRule(), "background")
    assert fixed == []
    with pytest.raises(ValueError, match=r"'fly' of the segments is not a class .*'run', 'walk'"):
        choose_rule(found, [Segment("v", 0, 1, "fly")], CLASSES, 2.0)
    for wrong in ({"threshold": 0.0}, {"threshold": 1.5}, {"least": -1.0}):
        with pytest.raises(ValueError):
            SegmentRule(**wrong)


@pytest.mark.parametrize("given", [{"threshold": 0.33}, {"least": 2.5}, {}])
def test_what_is_not_given_is_chosen_as_by_an_exhaustive_loop(given):
    rng = np.random.default_rng(3)
    spans = window_spans(60.0, Windows(2.0, 0.5))
    scores = rng.dirichlet((0.5, 0.5, 0.8), len(spans))
    truth = [
        Segment("v", start, start + length, CLASSES[int(rng.integers(2))])
        for start, length in ((4, 3), (11, 1), (20, 2), (33, 4), (47, 3))
    ]
    for s in truth:
        inside = (spans[:, 0] >= s.start - 0.6) & (spans[:, 1] <= s.end + 0.6)
        scores[inside, CLASSES.index(s.label)] += 0.4
    found = {"v": timeline(scores, spans)}

    def f1(rule):
        """The F1 at an overlap of one half: segments are matched by falling score, each once."""
        values = []
        predicted = found["v"].segments("v", CLASSES, rule, "background")
        for name in sorted({s.label for s in truth}):
            own = sorted((s for s in predicted if s.label == name), key=lambda s: -s.score)
            free, hits = [s for s in truth if s.label == name], 0
            count = len(free)
            for p in own:
                overlaps = [
                    max(0, min(p.end, t.end) - max(p.start, t.start))
                    / (max(p.end, t.end) - min(p.start, t.start))
                    for t in free
                ]
                if overlaps and max(overlaps) >= 0.5:
                    hits += 1
                    free.pop(int(np.argmax(overlaps)))
            values.append(2 * hits / (len(own) + count))
        return np.mean(values)

    thresholds = (given["threshold"],) if "threshold" in given else np.arange(10, 100, 5) / 100
    lengths = (given["least"],) if "least" in given else (0.0, 1.0, 2.0, 3.0, 4.0)
    tried = {(t, n): f1(SegmentRule(float(t), n)) for t in thresholds for n in lengths}
    rule, best = choose_rule(found, truth, CLASSES, 2.0, "background", **given)
    assert best == pytest.approx(max(tried.values())) and best > min(tried.values()) + 0.05
    assert tried[rule.threshold, rule.least] == pytest.approx(best)
    assert all(getattr(rule, name) == value for name, value in given.items())


def test_scores_are_those_of_the_segments_as_videos(folder_classifier, tmp_path):
    """The score of a window equals the prediction of the segment with its times."""
    video = str(write_lossless(tmp_path / "long.mp4", moving_frames(140, seed=8)))
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    classifier = load_classifier(folder_classifier, device="cpu")
    windows, options = Windows(2.0, 1.0), ViewOptions(num_clips=1)
    said: list[str] = []
    labelled = [Segment(video, 0.5, 3.0, classifier.classes[0])]
    found = list(
        predict_segments(
            *(classifier, [video, str(tmp_path / "broken.mp4")], windows, options),
            labelled=labelled,
            say=said.append,
        )
    )
    (path, line, segments, reason), broken = found
    assert (path, reason) == (video, "") and broken[1] is None and "cannot" in broken[3]
    paths = [segment_path(video, *span) for span in line.found.spans.tolist()]
    np.testing.assert_allclose(
        line.found.values, class_probabilities(classifier, paths, options), atol=1e-6
    )
    assert said[0].startswith("chosen on 1 labelled segments: --threshold")
    assert "chosen on them" in said[1] and all(s.path == video for s in segments)
    options = {"labelled": labelled, "threshold": 0.4, "say": said.append}
    list(predict_segments(classifier, [video], windows, ViewOptions(num_clips=1), **options))
    assert said[2].startswith("chosen on 1 labelled segments: --min-length ")
