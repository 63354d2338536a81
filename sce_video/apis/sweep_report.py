"""The tables of sweeps from what has been measured so far."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sce_video.apis.sweep import Sweep
from sce_video.apis.sweep_plan import Cell, Step
from sce_video.apis.sweep_run import state_of
from sce_video.reporting.result_files import Result, collect_results
from sce_video.reporting.sweep_figure import draw_sweep
from sce_video.reporting.sweep_table import (
    Measured,
    SweepTable,
    as_data,
    collect_cells,
    render_sweep,
)
from sce_video.utils.atomic_file import write_json, write_text


def write_tables(sweeps: Sequence[Sweep], cells: Sequence[Cell], out: Path) -> list[str]:
    """Write ``<sweep>.md``, ``.json`` and ``.png`` of every sweep; returns the markdown of each.

    Each is an atomic file: the shards of a sweep may write them at the same time.
    """
    texts = []
    for sweep in sweeps:
        table = table_of(sweep, cells, out)
        texts.append(render_sweep(table))
        write_text(out / f"{sweep.name}.md", texts[-1])
        write_json(out / f"{sweep.name}.json", as_data(table))
        draw_sweep(table, out / f"{sweep.name}.png")
    return texts


def table_of(sweep: Sweep, cells: Sequence[Cell], out: Path) -> SweepTable:
    """What has been measured of a sweep.

    Args:
        sweep: The table to be made.
        cells: Of this and other sweeps, see :func:`~sce_video.apis.sweep_plan.plan`.
        out: Output folder.
    """
    wanted: dict[tuple[str, str], list[tuple[str, Step]]] = {}
    for cell in cells:
        if cell.sweep == sweep.name:
            wanted.setdefault((cell.point, cell.column), []).append((cell.metric, cell.step))

    def read(step: Step) -> Result | str:
        state = state_of(out, step)
        if state == "done":
            found = collect_results([out / step.folder / step.result])
            return found.results[0] if found.results else f"failed: {found.skipped[0][1]}"
        before = "" if step.before is None else state_of(out, step.before)
        return before if before.startswith("failed") else state

    published = {(p.name, column): v for p in sweep.points for column, v in p.published.items()}
    measured, remarks = collect_cells(wanted, published, read)
    columns = tuple(column.name for column in sweep.columns)
    nothing = Measured(())  # where a point has not all columns
    rows = tuple(
        (point.name, point.note, {c: measured.get((point.name, c), nothing) for c in columns})
        for point in sweep.points
    )
    return SweepTable(sweep.title, sweep.source, columns, rows, remarks, sweep.notes)
