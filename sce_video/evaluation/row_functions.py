"""From a batch to rows: mean representation, class probabilities, or scores of boxes."""

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
        num_views: Views of a sample.
        central: (n, C), of the central view alone; None if not kept.
        counts: Rows of each sample; None where each has one.
    """

    values: Tensor
    num_views: int
    central: Tensor | None = None
    counts: list[int] | None = None


#: From the bare model and a batch to its rows.
RowFunction = Callable[[Any, dict[str, Any]], BatchRows]


def row_function(
    model: Any, max_views: int = 30, precision: str = "float32"
) -> tuple[str, RowFunction]:
    """What an evaluation computes with a model.

    Args:
        model: With a ``roi_head`` it scores boxes, with a ``cls_head`` it classifies, else it gives
            representations.
        max_views: Views of a video that go through the network at a time: a bound on memory.
        precision: "float32", "bfloat16" or "float16"; below float32 the network runs in autocast.

    Returns:
        ``detection``, ``recognition`` or ``representation``, and the function.

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
    """The function of a batch that averages h over all views of each video.

    Args:
        max_views: Views of a video that go through the network at a time.
        dtype: Below float32 the network runs in mixed precision.
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
    """The function of a batch that classifies every video.

    A row is the mean of the softmax vectors of all views (not the softmax of the mean logits); the
    softmax vector of the central view stands beside it.

    Args:
        max_views: Views of a video that go through the network at a time.
        dtype: Below float32 the network runs in mixed precision; the softmax never does.
    """

    def function(model: Any, batch: dict[str, Any]) -> BatchRows:
        def probabilities(view: Tensor) -> Tensor:
            with torch.autocast(view.device.type, dtype, enabled=dtype != torch.float32):
                logits = model(inputs=view.unsqueeze(1), mode="tensor", stage="head")
            return logits.float().softmax(dim=1)

        videos = rows_of_views(model, batch, probabilities, max_views)
        # Without frames and positions (one stacked view) the middle one is the central view.
        central = [central_view(video) for video in batch.get("videos", ())]
        central = central or [len(videos[0]) // 2] * len(videos)
        mean = torch.stack([video.mean(dim=0) for video in videos]).cpu()
        one = torch.stack([v[i] for v, i in zip(videos, central, strict=True)]).cpu()
        return BatchRows(mean, max(map(len, videos)), one)

    return function


def box_scores(dtype: torch.dtype = torch.float32) -> RowFunction:
    """The function of a batch that scores the actions of the boxes of every key frame.

    Args:
        dtype: Below float32 the network runs in mixed precision.
    """

    def function(model: Any, batch: dict[str, Any]) -> BatchRows:
        counts = [len(boxes) for boxes in batch["boxes"]]
        if sum(counts) == 0:  # no person in any of these key frames
            return BatchRows(torch.empty(0, 0), 1, counts=counts)
        data = model.data_preprocessor(batch, False)
        with torch.autocast(data["inputs"].device.type, dtype, enabled=dtype != torch.float32):
            scores = model(**data, mode="tensor")
        return BatchRows(scores.float().cpu(), 1, counts=counts)

    return function
