"""Pairs of opposites and factors from class names."""

from __future__ import annotations

import pytest

from sce_video.data_tools.generated import CLASSES, HOWS, WHATS
from sce_video.evaluation.metrics.sense_of_time import class_factors, class_pairs


def test_pairs_with_both_classes():
    classes = ["Folding something", "Opening something", "Holding something", "Closing something"]
    assert class_pairs(classes, "ssv2") == [(3, 1)]
    named = [("Folding something", "Holding something"), ("Folding something", "Absent")]
    assert class_pairs(classes, named) == [(0, 2)]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("ssv2", "labels lack the pairs .* none has both classes among the 2"),
        ("kinetics", "no pairs of opposite classes are known as 'kinetics'"),
        ([("up", "up")], "two different names"),
        (["up"], "two different names"),
        ([], "labels lack the pairs"),
    ],
)
def test_pairs_that_cannot_be_used(pairs, message):
    with pytest.raises(ValueError, match=message):
        class_pairs(["up", "Opening something"], pairs)


def test_factors_of_the_toy_actions():
    factors = class_factors(CLASSES, "{appearance}_{motion}")
    for number, (name, known) in enumerate((("appearance", WHATS), ("motion", HOWS))):
        values, of_label = factors[name]
        assert values == sorted(known)
        assert [values[i] for i in of_label] == [c.split("_")[number] for c in CLASSES]


@pytest.mark.parametrize(
    ("classes", "template", "message"),
    [
        (["a_b", "c"], "{appearance}_{motion}", "the class 'c' has not the form"),
        (["a_b", "a_c"], "{appearance}_{motion}", "all classes have the same appearance"),
        (["a_b"], "a_b", "different factors in braces"),
        (["a_b"], "{x}_{x}", "different factors in braces"),
    ],
)
def test_names_that_have_no_factors(classes, template, message):
    with pytest.raises(ValueError, match=message):
        class_factors(classes, template)
