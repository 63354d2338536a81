"""The figure of a sweep: a panel per column, measured and published numbers by point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sce_video.reporting.sweep_table import SweepTable
from sce_video.visualization.figures import save_figure

_MEASURED, _PUBLISHED = "#1f5f99", "#c2571a"


def draw_sweep(table: SweepTable, path: str | Path) -> None:
    """Write a figure with the points on the vertical axis, in the order of the table.

    A dot is the mean over seeds, small dots are the seeds, an upright line is the published number.
    The dot is hollow where the protocol differs from the published number's.
    """
    count = len(table.columns)
    figure = Figure(figsize=(2 + 2.8 * count, 1.4 + 0.32 * len(table.rows)), layout="constrained")
    axes = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    for axis, column in zip(axes, table.columns, strict=True):
        _draw_column(axis, table, column)
    axes[0].set_yticks(range(len(table.rows)), [name for name, _, _ in table.rows])
    axes[0].invert_yaxis()
    figure.suptitle(table.title, fontsize=11)
    entries: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    if len(entries) > 1:
        handles, labels = list(entries.values()), list(entries)
        style = {"ncols": 4, "fontsize": 8, "frameon": False}
        figure.legend(handles, labels, loc="outside lower center", **style)
    save_figure(figure, path, dpi=130)


def _draw_column(axis: Axes, table: SweepTable, column: str) -> None:
    cells = [(row, cells[column]) for row, (_, _, cells) in enumerate(table.rows)]
    seeds = [(value, row) for row, cell in cells for value in cell.values]
    means = [(cell.mean, row) for row, cell in cells if cell.values and not cell.marks]
    marked = [(cell.mean, row) for row, cell in cells if cell.values and cell.marks]
    published = [(cell.published, row) for row, cell in cells if cell.published is not None]
    several = len(seeds) > len(means) + len(marked)
    if several:
        x, y = zip(*seeds, strict=True)
        axis.scatter(x, y, s=14, color=_MEASURED, alpha=0.45, linewidths=0, label="one seed")
    if means:
        x, y = zip(*means, strict=True)
        label = "mean over seeds" if several else "measured"
        axis.scatter(x, y, s=42, color=_MEASURED, zorder=3, label=label)
    if marked:
        x, y = zip(*marked, strict=True)
        axis.scatter(
            *(x, y, 42), facecolors="white", edgecolors=_MEASURED, zorder=3, label="other protocol"
        )
    if published:
        x, y = zip(*published, strict=True)
        axis.scatter(x, y, s=170, marker="|", color=_PUBLISHED, linewidths=2.2, label="published")
    axis.set_title(column, fontsize=9)
    axis.set_xlabel("percent", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.tick_params(axis="y", length=0)
    axis.set_axisbelow(True)
    axis.grid(color="#e6e6e6", linewidth=0.6)
    axis.set_ylim(-0.6, len(table.rows) - 0.4)
    axis.spines[["top", "right", "left"]].set_visible(False)
