"""Segments of class scores: joined as by a loop, chosen on labels, predicted from windows."""

import numpy as np
import pytest
from helpers.tiny_encoder import moving_frames, write_lossless

from sce_video.datasets.clip_sampling import Windows, window_spans
from sce_video.datasets.segments import Segment, segment_path
from sce_video.inference.classifier import load_classifier, predict
from sce_video.inference.embed import EmbedOptions
from sce_video.inference.segments import (
    ClassTimeline,
    SegmentRule,
    choose_rule,
    join_scores,
    predict_segments,
)
from sce_video.inference.windows import WindowFeatures

CLASSES = ("run", "walk", "background")


def timeline(scores, spans):
    return ClassTimeline(WindowFeatures(np.asarray(scores, np.float32), *np.asarray(spans).T))


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
    with pytest.raises(ValueError, match=r"'fly' of the segments is no class .*'run', 'walk'"):
        choose_rule(found, [Segment("v", 0, 1, "fly")], CLASSES, 2.0)
    for wrong in ({"threshold": 0.0}, {"threshold": 1.5}, {"least": -1.0}):
        with pytest.raises(ValueError):
            SegmentRule(**wrong)


def test_scores_are_those_of_the_segments_as_videos(folder_classifier, tmp_path):
    """The score of a window equals the prediction of the segment with its times."""
    video = str(write_lossless(tmp_path / "long.mp4", moving_frames(140, seed=8)))
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    classifier = load_classifier(folder_classifier, device="cpu")
    windows, options = Windows(2.0, 1.0), EmbedOptions(num_clips=1)
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
    np.testing.assert_allclose(line.found.features, predict(classifier, paths, options), atol=1e-6)
    assert said[0].startswith("chosen on 1 labelled segments: --threshold")
    assert "chosen on them" in said[1] and all(s.path == video for s in segments)
