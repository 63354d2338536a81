"""Groups of samples that are not compared with each other, such as the videos of one person."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor


def group_ids(paths: Sequence[str], pattern: str) -> tuple[Tensor, list[str]]:
    r"""The group of every path, for leave-one-group-out evaluation.

    Args:
        paths: N paths.
        pattern: A regular expression with one group, searched in the path: ``r"person(\d+)"``.

    Returns:
        Group numbers (N,) int64, and the names of the groups in the order of their numbers.

    Raises:
        ValueError: the pattern does not have exactly one group, a path does not match, or there are
            fewer than two groups.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"group_pattern {pattern!r} is no regular expression: {error}") from None
    if compiled.groups != 1:
        raise ValueError(f"group_pattern {pattern!r} must have one group, has {compiled.groups}")
    found = [compiled.search(path) for path in paths]
    unmatched = [path for path, match in zip(paths, found, strict=True) if match is None]
    if unmatched:
        raise ValueError(
            f"group_pattern {pattern!r} matches nothing in {len(unmatched)} of {len(paths)} "
            f"paths, the first is {unmatched[0]!r}"
        )
    values = [match.group(1) for match in found if match is not None]
    names = sorted(set(values))
    if len(names) < 2:
        raise ValueError(f"group_pattern {pattern!r} gives only the group {names}; two are needed")
    number = {name: i for i, name in enumerate(names)}
    return torch.tensor([number[value] for value in values]), names
