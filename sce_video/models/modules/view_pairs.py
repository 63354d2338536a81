"""Which view is a query for which key: the pairing of siamese methods.

``target_views`` are the indices of the views that the target encodes, the keys, or None for
:func:`default_target_views`; ``symmetric`` says whether target views are queries, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def view_pairs(
    num_views: int, target_views: Sequence[int], symmetric: bool = True
) -> list[tuple[int, int]]:
    """The pairs (query, key) of views that enter a loss, ordered by key, then by query.

    Symmetric: each view but the key itself is a query for each key, so two views that are both
    target views give the symmetrised loss of a siamese network, and V views of which G are target
    views give ``G * (V - 1)`` pairs. Not symmetric: only views that are not target views are
    queries, ``G * (V - G)`` pairs::

        view_pairs(2, (0, 1), symmetric=True)   ->  [(1, 0), (0, 1)]
        view_pairs(2, (1,), symmetric=False)    ->  [(0, 1)]
        view_pairs(3, (0, 1), symmetric=True)   ->  [(1, 0), (2, 0), (0, 1), (2, 1)]
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
            f"symmetric=False and target_views {list(target_views)} leave none of the {num_views} "
            "views to be a query: give fewer target views, or symmetric=True"
        )
    return [(query, key) for key in target_views for query in queries if query != key]


def pair_views(
    views: Sequence[Tensor], target_views: Sequence[int] | None, symmetric: bool
) -> tuple[tuple[int, ...], dict[int, list[int]]]:
    """Target views of V views (N, C, T, H, W), and by query view those that it is compared with."""
    targets = tuple(target_views or default_target_views(views, symmetric))
    pairs = view_pairs(len(views), targets, symmetric)
    queries = sorted({query for query, _ in pairs})
    return targets, {view: [key for query, key in pairs if query == view] for view in queries}


def check_views(
    num_views: int | None, target_views: Sequence[int] | None, symmetric: bool = True
) -> int | None:
    """G, the number of target views, or None if it depends on the sizes of the views.

    Samples whose ``num_views`` (None: not known before the first one) form no pairs are a
    ValueError.
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
    """Warnings where the negatives of a sample are the others of its batch; ValueError for none."""
    if batch_size < 2:
        raise ValueError(
            f"the negatives are the other samples of the batch, and a batch of {batch_size} has "
            "none: raise train_dataloader.batch_size"
        )
    if batch_size <= num_samples:
        return []
    return [
        f"a step has {batch_size} samples and there are {num_samples} training samples: some are "
        "among their own negatives; lower train_dataloader.batch_size"
    ]


def check_target_views(target_views: Sequence[int] | None, name: str = "target_views") -> None:
    """Raise ValueError unless these are different indices of views, at least one, or None."""
    if target_views is None:
        return
    indices = list(target_views)
    wrong = [index for index in indices if type(index) is not int or index < 0]
    if not indices or wrong or len(set(indices)) != len(indices):
        raise ValueError(
            f"{name} must be one or more different indices of views from 0, got {indices}"
        )


def default_target_views(views: Sequence[Tensor], symmetric: bool) -> tuple[int, ...]:
    """The views that a target encodes where a recipe does not name them.

    Symmetric: the global views, those as large as the first; local views of multi-crop are queries
    only. Not symmetric: the last view, which must not be a local one.
    """
    if not symmetric:
        sizes = [view.numel() for view in views]
        if sizes[-1] < max(sizes):
            last_global = max(i for i, size in enumerate(sizes) if size == max(sizes))
            raise ValueError(
                "symmetric=False takes the last view as the key, which must be a global view, but "
                f"the last of these {len(views)} views is a local one of "
                f"{tuple(views[-1].shape[2:])} (frames, height, width): set "
                f"model.target_views=[{last_global}] or model.symmetric=True"
            )
        return (len(views) - 1,)
    return tuple(i for i, view in enumerate(views) if view.shape == views[0].shape)
