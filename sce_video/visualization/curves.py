"""A picture of a training: what it logged and how the representation was judged meanwhile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

# Panels of the picture: title, the curves of it (logged name, label).
_PANELS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "objective (Proposition 1)",
        (("loss", "SCE"), ("infonce", "InfoNCE"), ("ressl", "ReSSL"), ("ceil", "Ceil")),
    ),
    ("similarity of query and key", (("positive_similarity", "cosine"),)),
    ("health of h: effective rank in a batch", (("h_rank", "effective rank"),)),
)


def read_scalars(work_dir: str | Path) -> list[dict[str, Any]]:
    """The rows that a training logged, by iteration; those of resumed runs in one line.

    Where two runs logged the same iteration the later run counts.

    Raises:
        FileNotFoundError: the folder holds no log of a training.
    """
    files = sorted(Path(work_dir).glob("*/vis_data/scalars.json"))
    if not files:
        raise FileNotFoundError(f"no training has logged to {work_dir} (*/vis_data/scalars.json)")
    rows: dict[int, dict[str, Any]] = {}
    for file in files:  # folders are named by time
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if "loss" in row and "iter" in row:
                rows[row["iter"]] = row
    return [rows[i] for i in sorted(rows)]


def read_judgements(work_dir: str | Path) -> list[dict[str, Any]]:
    """The lines of the online judge's file, empty if there is none."""
    file = Path(work_dir) / "online_evaluation.jsonl"
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def draw_run(
    scalars: Sequence[dict[str, Any]],
    judgements: Sequence[dict[str, Any]],
    path: str | Path,
    title: str = "",
) -> None:
    """Write a picture with a panel each for objective, similarity, health and kNN accuracy.

    Args:
        scalars: See :func:`read_scalars`.
        judgements: See :func:`read_judgements`; without any the kNN panel is left out.
        path: Picture to write; the ending says which kind.
        title: Of the whole picture.
    """
    panels = [p for p in _PANELS if any(name in row for name, _ in p[1] for row in scalars)]
    count = len(panels) + bool(judgements)
    figure = Figure(figsize=(3.6 * count, 3.0), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for axis, (name, curves) in zip(axes, panels, strict=False):
        for key, label in curves:
            points = [(row["iter"], row[key]) for row in scalars if key in row]
            axis.plot(*zip(*points, strict=True), label=label, linewidth=1.4)
        if len(curves) > 1:
            axis.legend(frameon=False, fontsize=8)
        axis.set_title(name, fontsize=9)
    if judgements:
        iters = [row["iter"] for row in judgements if "knn_top1" in row]
        top1 = [100 * row["knn_top1"] for row in judgements if "knn_top1" in row]
        axes[-1].plot(iters, top1, marker="o", markersize=4, color="tab:green")
        axes[-1].set_title("kNN top-1 of the frozen network, %", fontsize=9)
        axes[-1].set_ylim(bottom=0)
    for axis in axes:
        axis.set_xlabel("iteration", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    if title:
        figure.suptitle(title, fontsize=10)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
