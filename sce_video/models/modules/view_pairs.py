"""Pairs of query views and key views in siamese methods.

``target_views`` contains the indices of the views that the target encodes as keys. None means
:func:`default_target_views`. ``symmetric`` states whether target views are also queries.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def view_pairs(
    num_views: int, target_views: Sequence[int], symmetric: bool = True
) -> list[tuple[int, int]]:
    """Return the pairs (query, key) of views that enter a loss, ordered by key, then by query.

    If symmetric, every view except the key itself is a query for each key. V views with G target
    views then form ``G * (V - 1)`` pairs, and two views give the symmetrised loss of a siamese
    network. If not symmetric, only views that are not target views are queries, and there are ``G *
    (V - G)`` pairs::

        view_pairs(2, (0, 1), symmetric=True)   ->  [(1, 0), (0, 1)]
        view_pairs(2, (1,), symmetric=False)    ->  [(0, 1)]
        view_pairs(3, (0, 1), symmetric=True)   ->  [(1, 0), (2, 0), (0, 1), (2, 1)]

    Raises:
        ValueError: If there are fewer than two views, or no pairs.
    """
    if num_views < 2:
        raise ValueError(f"pairs need at least two views, got {num_views}")
    check_target_views(target_views)
    if max(target_views) >= num_views:
        raise ValueError(
            f"target_views {list(target_views)} must be below the number of views, {num_views}"
        )
    queries = [view for view in range(num_views) if symmetric or view not in target_views]
    if not queries:
        raise ValueError(
            f"with symmetric=False and target_views {list(target_views)}, none of the {num_views} "
            "views is a query. Use fewer target views, or set symmetric=True"
        )
    return [(query, key) for key in target_views for query in queries if query != key]


def pair_views(
    views: Sequence[Tensor], target_views: Sequence[int] | None, symmetric: bool
) -> tuple[tuple[int, ...], dict[int, list[int]]]:
    """Return the target views, and for each query view the views with which it is compared.

    Args:
        views: V views (N, C, T, H, W).
        target_views: Indices of the target views, or None.
        symmetric: Whether target views are also queries.
    """
    targets = tuple(target_views or default_target_views(views, symmetric))
    pairs = view_pairs(len(views), targets, symmetric)
    queries = sorted({query for query, _ in pairs})
    return targets, {view: [key for query, key in pairs if query == view] for view in queries}


def check_views(
    num_views: int | None, target_views: Sequence[int] | None, symmetric: bool = True
) -> int | None:
    """Check the views, and return the number of target views, or None if their sizes decide it.

    Args:
        num_views: Number of views, or None if it is not known before the first sample.
        target_views: Indices of the target views, or None.
        symmetric: Whether target views are also queries.

    Raises:
        ValueError: If the views form no pairs.
    """
    if num_views is not None:
        chosen = target_views or (range(num_views) if symmetric else (num_views - 1,))
        view_pairs(num_views, chosen or (0,), symmetric)
    if target_views is not None:
        return len(target_views)
    if not symmetric:
        return 1
    return 2 if num_views == 2 else None


def check_batch_negatives(num_samples: int, batch_size: int) -> list[str]:
    """Check a batch whose other samples are the negatives, and return warnings.

    Raises:
        ValueError: If there is no other sample.
    """
    if batch_size < 2:
        raise ValueError(
            f"the negatives are the other samples in the batch, but a batch of {batch_size} has "
            "none. Raise train_dataloader.batch_size"
        )
    if batch_size <= num_samples:
        return []
    return [
        f"a step has {batch_size} samples and there are {num_samples} training samples, so some "
        "samples are among their own negatives. Lower train_dataloader.batch_size"
    ]


def check_target_views(target_views: Sequence[int] | None, name: str = "target_views") -> None:
    """Check that ``target_views`` contains one or more different indices of views, or is None.

    Raises:
        ValueError: If it contains anything else.
    """
    if target_views is None:
        return
    indices = list(target_views)
    wrong = [index for index in indices if type(index) is not int or index < 0]
    if not indices or wrong or len(set(indices)) != len(indices):
        raise ValueError(
            f"{name} must be one or more different indices of views, counted from 0, got {indices}"
        )


def default_target_views(views: Sequence[Tensor], symmetric: bool) -> tuple[int, ...]:
    """Return the views that the target encodes if a recipe does not list them.

    If symmetric, these are the global views, which are as large as the first one. The local views
    of multi-crop are only queries. If not symmetric, it is the last view.

    Raises:
        ValueError: If ``symmetric`` is False and the last view is a local one.
    """
    if not symmetric:
        sizes = [view.numel() for view in views]
        if sizes[-1] < max(sizes):
            last_global = max(i for i, size in enumerate(sizes) if size == max(sizes))
            raise ValueError(
                "symmetric=False uses the last view as the key, which must be a global view, but "
                f"the last of these {len(views)} views is a local one of "
                f"{tuple(views[-1].shape[2:])} (frames, height, width). Set "
                f"model.target_views=[{last_global}] or model.symmetric=True"
            )
        return (len(views) - 1,)
    return tuple(i for i, view in enumerate(views) if view.shape == views[0].shape)
