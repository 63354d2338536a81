"""Pairs of queries and keys compared with a loop over all combinations."""

from __future__ import annotations

import itertools

import pytest
import torch

from sce_video.models.modules.view_pairs import (
    check_target_views,
    check_views,
    default_target_views,
    view_pairs,
)


@pytest.mark.parametrize("num_views", [2, 4])
@pytest.mark.parametrize("symmetric", [True, False])
def test_pairs_equal_a_loop(num_views, symmetric):
    views = range(num_views)
    for size in range(1, num_views if not symmetric else num_views + 1):
        for target_views in itertools.permutations(views, size):
            expected = []
            for key in target_views:
                for query in views:
                    if query != key and (symmetric or query not in target_views):
                        expected.append((query, key))
            assert view_pairs(num_views, target_views, symmetric) == expected


@pytest.mark.parametrize("wrong", [(), (0, 0), (-1,), (0.0,), (True,), ("0",)])
def test_wrong_target_views(wrong):
    with pytest.raises(ValueError, match="one or more different indices of views, counted from 0"):
        check_target_views(wrong)
    with pytest.raises(ValueError, match="target_views"):
        view_pairs(3, wrong)


def test_targets_that_leave_no_query():
    with pytest.raises(ValueError, match="none of the 2 views is a query"):
        view_pairs(2, (0, 1), symmetric=False)


def test_default_target_views():
    large, small = torch.zeros(2, 3, 4, 8, 8), torch.zeros(2, 3, 4, 6, 6)
    assert default_target_views([large, large, small], symmetric=True) == (0, 1)
    assert default_target_views([large, large, large], symmetric=True) == (0, 1, 2)
    assert default_target_views([large, large, large], symmetric=False) == (2,)
    assert default_target_views([small, small, large], symmetric=False) == (2,)


def test_a_local_view_is_no_default_key():
    large, small = torch.zeros(2, 3, 4, 8, 8), torch.zeros(2, 3, 4, 4, 4)
    short = torch.zeros(2, 3, 2, 8, 8)
    message = r"last of these 3 views is a local one of \(4, 4, 4\).*Set model.target_views=\[1\]"
    with pytest.raises(ValueError, match=message):
        default_target_views([large, large, small], symmetric=False)
    with pytest.raises(ValueError, match=r"target_views=\[0\]"):
        default_target_views([large, short], symmetric=False)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [((2, None), 2), ((3, None), None), ((3, (0, 2)), 2), ((None, None, False), 1)],
)
def test_the_number_of_target_views_is_told_where_it_is_known(arguments, count):
    assert check_views(*arguments) == count
