"""A grid of classifiers on one backbone: their scores side by side, and the selection of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sce_video.evaluation.functional.accuracy import top_k_accuracy
from sce_video.evaluation.rows import Rows, check_labelled
from sce_video.utils.distributed import unwrap_model


@dataclass(frozen=True)
class Selection:
    """The point of a grid with the highest top-1 accuracy on some rows; the first of equal ones.

    Attributes:
        index: Its index.
        points: Index, name, learning rate, weight decay and ``top1`` of each point.
        paths: Paths of the samples.
        failures: Files that could not be decoded.
        num_views: Views of a sample.
    """

    index: int
    points: list[dict[str, Any]]
    paths: list[str]
    failures: list[tuple[str, str]]
    num_views: int

    @property
    def metrics(self) -> dict[str, float]:
        """``top1_<name>`` of each point."""
        return {f"top1_{point['name']}": point["top1"] for point in self.points}

    @property
    def text(self) -> str:
        """A line for the log."""
        best, worst = self.points[self.index], min(point["top1"] for point in self.points)
        return (
            f"best of {len(self.points)} probes on {len(self.paths)} videos: {best['name']}, top-1 "
            f"{100 * best['top1']:.2f} (the worst {100 * worst:.2f})"
        )

    def describe(self, tested: Rows) -> dict[str, Any]:
        """Provenance: the selected point, all points, and how many tested videos it was made on."""
        return {
            "selected": self.points[self.index],
            "rule": "highest top-1 on the selection set, the first of equal ones",
            "tested_videos": len(set(tested.paths) & set(self.paths)),
            "points": self.points,
            "videos": len(self.paths),
            "failures": len(self.failures),
        }


def open_grid(model: Any) -> Sequence[Any] | None:
    """The points of a model's grid of classifiers; None if it has none or one is selected."""
    head: Any = getattr(unwrap_model(model), "cls_head", None)
    return None if getattr(head, "selected", 0) is not None else head.grid


def given_point(model: Any) -> dict[str, Any] | None:
    """Provenance of a point that the config selects from a grid of several; None otherwise."""
    head: Any = getattr(unwrap_model(model), "cls_head", None)
    grid = getattr(head, "grid", ())
    if len(grid) < 2 or head.selected is None:
        return None
    return {"selected": _described(grid, head.selected), "rule": "given by the config"}


def _described(grid: Sequence[Any], index: int) -> dict[str, Any]:
    point = grid[index]
    names = {"name": point.name, "lr": point.lr, "weight_decay": point.weight_decay}
    return {"index": index, **names}


def point_rows(rows: Rows, index: int, count: int) -> Rows:
    """The rows of one of ``count`` classifiers whose scores are side by side.

    Args:
        rows: ``values`` (N, count * K).
        index: Of the classifier.
        count: Number of classifiers.
    """
    values = rows.values.unflatten(1, (count, -1))[:, index]
    central = rows.central
    if central is not None:
        central = central.unflatten(1, (count, -1))[:, index]
    return replace(rows, values=values, central=central)


def select_point(rows: Rows, grid: Sequence[Any]) -> Selection:
    """The point of a grid with the highest top-1 accuracy on the mean scores of all views.

    Args:
        rows: ``values`` (N, G * K).
        grid: G points with ``name``, ``lr`` and ``weight_decay``.

    Raises:
        ValueError: there are no samples, or one has no label.
    """
    check_labelled(rows, "the selection of a probe", "the selection set")
    accuracies = [
        top_k_accuracy(point_rows(rows, i, len(grid)).values, rows.labels, (1,))[1]
        for i in range(len(grid))
    ]
    points = [_described(grid, i) | {"top1": value} for i, value in enumerate(accuracies)]
    index = max(range(len(grid)), key=accuracies.__getitem__)
    return Selection(index, points, rows.paths, rows.failures, rows.num_views)
