"""Folds of whole groups: never a group in two, classes spread evenly, the same for a seed."""

import numpy as np
import pytest
import torch

from sce_video.evaluation.functional.folds import divide


def scenes(groups=335, classes=21, samples=928, seed=0):
    """Labels and groups as those of recordings: most groups have one class, some have two."""
    random = np.random.default_rng(seed)
    group = np.concatenate([np.arange(groups), random.integers(groups, size=samples - groups)])
    label = group % classes
    second = random.random(samples) < 0.1
    label[second] = (label[second] + 1) % classes
    return torch.from_numpy(label), torch.from_numpy(group)


def test_many_groups_are_divided_into_ten_stratified_folds_of_whole_groups():
    labels, groups = scenes()
    folds = divide(labels, groups)
    assert folds.numbers.unique().tolist() == list(range(10))
    for group in groups.unique():
        assert len(folds.numbers[groups == group].unique()) == 1
    sizes = torch.bincount(folds.numbers)
    assert sizes.max() - sizes.min() <= 0.1 * len(labels) / 10
    shares = torch.stack([torch.bincount(labels[folds.numbers == k]) for k in range(10)])
    # 44 samples of each class: an even share of 4.4, in groups of 2.8 on average.
    assert shares.min() >= 2 and shares.max() <= 8
    assert folds.described()["folds"] == {
        "count": 10,
        "rule": "10 stratified folds of whole groups, seed 0",
    }
    assert folds.text == "one of 10 folds of 335 groups"


def test_folds_are_fixed_by_the_seed_whatever_the_order_of_the_samples():
    labels, groups = scenes()
    found = divide(labels, groups).numbers
    assert torch.equal(found, divide(labels, groups).numbers)
    assert not torch.equal(found, divide(labels, groups, seed=1).numbers)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    assert torch.equal(found[order], divide(labels[order], groups[order]).numbers)


def test_few_groups_are_left_out_one_by_one_and_loo_does_it_for_many():
    labels, groups = scenes(groups=19)
    folds = divide(labels, groups)
    assert torch.equal(folds.numbers, groups) and "folds" not in folds.described()
    assert folds.text == "one of 19 groups"
    labels, groups = scenes()
    assert torch.equal(divide(labels, groups, folds="loo").numbers, groups)
    assert len(divide(labels, groups, folds=3).numbers.unique()) == 3


def test_no_class_ends_in_one_fold():
    # Each class is in two groups, and all samples but those are of a common class.
    labels = torch.cat([torch.arange(30).repeat_interleave(2), torch.full((60,), 30)])
    groups = torch.cat([torch.arange(60), torch.arange(60)])
    for count in (2, 10):
        numbers = divide(labels, groups, folds=count).numbers
        for label in labels.unique():
            assert len(numbers[labels == label].unique()) >= 2


def test_given_folds_are_exactly_these():
    labels, given = torch.arange(6) % 2, torch.tensor([4, 4, 7, 7, 9, 9])
    folds = divide(labels, given=given)
    assert torch.equal(folds.numbers, given) and folds.groups is None
    assert folds.described()["folds"] == {"count": 3, "rule": "given"}
    groups = torch.arange(6)
    assert torch.equal(divide(labels, groups, given=given).groups, groups)


def test_invalid_input_raises():
    labels, groups = torch.arange(6) % 2, torch.arange(6)
    for folds in (1, 7, "all", 2.0):
        with pytest.raises(ValueError, match="from 2 to the number of groups, 6, got"):
            divide(labels, groups, folds=folds)
    with pytest.raises(ValueError, match="folds=3 has no effect"):
        divide(labels, given=groups, folds=3)
    with pytest.raises(ValueError, match="all the same"):
        divide(labels, given=torch.zeros(6, dtype=torch.int64))
    with pytest.raises(ValueError, match="Give groups"):
        divide(labels)
