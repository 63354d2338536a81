"""Functions that compute the rows of a batch: representations, class or box scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sce_video.evaluation.multi_view import central_view, rows_of_views
from sce_video.utils.distributed import unwrap_model

PRECISIONS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class BatchRows(NamedTuple):
    """Rows of the samples of one batch, on the CPU.

    Attributes:
        values: (n, C) float32; with ``counts`` (sum of counts, C).
        num_views: Views (clips x crops) of a sample.
        central: (n, C) float32 of the central view alone; None if not kept.
        counts: Number of rows of each sample; None where each sample has one row.
    """

    values: Tensor
    num_views: int
    central: Tensor | None = None
    counts: list[int] | None = None


#: Maps the model, without wrapper and in eval mode, and a batch to the rows of the batch.
RowFunction = Callable[[Any, dict[str, Any]], BatchRows]


def row_function(
    model: Any, max_views: int = 30, precision: str = "float32"
) -> tuple[str, RowFunction]:
    """The kind of rows that a model gives, and the function that computes them.

    Args:
        model: "detection" with a ``roi_head``, "recognition" with a ``cls_head``, otherwise
            "representation".
        max_views: Views of a video per forward pass; bounds the device memory.
        precision: "float32", "bfloat16" or "float16"; the last two run the network in autocast.

    Returns:
        The kind, and the function.

    Raises:
        ValueError: an unknown precision.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}: {precision!r}")
    dtype = PRECISIONS[precision]
    inner = unwrap_model(model)
    if hasattr(inner, "roi_head"):
        return "detection", box_scores(dtype)
    if hasattr(inner, "cls_head"):
        return "recognition", class_scores(max_views, dtype)
    return "representation", mean_representation(max_views, dtype)


def mean_representation(max_views: int = 30, dtype: torch.dtype = torch.float32) -> RowFunction:
    """A row function: the mean representation h over all views of each video.

    Args:
        max_views: Views of a video per forward pass.
        dtype: The network runs in autocast unless this is float32.
    """

    def function(model: Any, batch: dict[str, Any]) -> BatchRows:
        def represent(view: Tensor) -> Tensor:
            with torch.autocast(view.device.type, dtype, enabled=dtype != torch.float32):
                return model(inputs=[view], mode="tensor")[0]

        videos = rows_of_views(model, batch, represent, max_views)
        mean = torch.stack([views.mean(dim=0) for views in videos]).cpu()
        return BatchRows(mean, max(map(len, videos)))

    return function


def class_scores(max_views: int = 30, dtype: torch.dtype = torch.float32) -> RowFunction:
    """A row function: the class probabilities of each video.

    A row is the mean of the softmax vectors of all views (not the softmax of the mean logits);
    ``central`` is the softmax vector of the central view. Where G classifiers give logits
    (N, G, K), a row holds their softmax vectors one after the other, (G * K,).

    Args:
        max_views: Views of a video per forward pass.
        dtype: The network runs in autocast unless this is float32; the softmax is in float32.
    """

    def function(model: Any, batch: dict[str, Any]) -> BatchRows:
        def probabilities(view: Tensor) -> Tensor:
            with torch.autocast(view.device.type, dtype, enabled=dtype != torch.float32):
                logits = model(inputs=view.unsqueeze(1), mode="tensor", stage="head")
            return logits.float().softmax(dim=-1).flatten(1)

        videos = rows_of_views(model, batch, probabilities, max_views)
        # A batch of views that were cut already does not tell clips from crops: the middle view.
        central = [central_view(video) for video in batch.get("videos", ())]
        central = central or [len(videos[0]) // 2] * len(videos)
        mean = torch.stack([video.mean(dim=0) for video in videos]).cpu()
        one = torch.stack([v[i] for v, i in zip(videos, central, strict=True)]).cpu()
        return BatchRows(mean, max(map(len, videos)), one)

    return function


def box_scores(dtype: torch.dtype = torch.float32) -> RowFunction:
    """A row function: the action scores of the boxes of every key frame.

    Args:
        dtype: The network runs in autocast unless this is float32.
    """

    def function(model: Any, batch: dict[str, Any]) -> BatchRows:
        counts = [len(boxes) for boxes in batch["boxes"]]
        if sum(counts) == 0:  # no box in any of these key frames
            return BatchRows(torch.empty(0, 0), 1, counts=counts)
        data = model.data_preprocessor(batch, False)
        with torch.autocast(data["inputs"].device.type, dtype, enabled=dtype != torch.float32):
            scores = model(**data, mode="tensor")
        return BatchRows(scores.float().cpu(), 1, counts=counts)

    return function
