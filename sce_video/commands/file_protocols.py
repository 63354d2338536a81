"""``sce-video probe``, ``retrieve``, ``transfer`` and ``fuse-scores``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sce_video.options.protocols import (
    FuseScoresOptions,
    ProbeOptions,
    RetrieveOptions,
    TransferOptions,
)
from sce_video.utils.command import command, printable


@command(options=ProbeOptions)
def probe_main(options: ProbeOptions) -> int:
    """Compute the protocols, print a table, and return 0."""
    from sce_video.evaluation.file_protocols import probe

    result = probe(options)
    print(result.table, *_as_lines(result.notes), sep="\n")
    return 0


@command(options=RetrieveOptions)
def retrieve_main(options: RetrieveOptions) -> int:
    """Compute retrieval, print a table, and return 0."""
    from sce_video.evaluation.file_protocols import retrieve

    result = retrieve(options)
    print(
        f"retrieval: {result.queries} queries from {options.query} among {result.gallery} videos "
        f"from {options.bank}, {result.dimensions} dimensions, exact cosine similarity"
    )
    print(f"  {'':8} {'centred':>10} {'plain':>10}")
    for k, value in result.found.centred.items():
        print(f"  {f'R@{k}':8} {100 * value:8.2f} % {100 * result.found.plain[k]:8.2f} %")
    print(*_as_lines(result.notes), sep="\n", end="\n" if result.notes else "")
    return 0


@command(options=TransferOptions)
def transfer_main(options: TransferOptions) -> int:
    """Measure transfer, print the metrics, and return 0."""
    from sce_video.evaluation.file_protocols import transfer

    result = transfer(options)
    if result.c is not None:
        name, value = next(iter(result.metrics.items()))
        metric = name.removeprefix("many_shot_")
        dataset = options.set or "many-shot"
        print(f"{dataset}: {metric} {100 * value:.2f} %, C = {result.c:.4g}")
        for number in result.published.values():
            print(f"  SCE in the paper: {number}")
    else:
        for name, value in result.metrics.items():
            paper = result.published.get(name)
            beside = "" if paper is None else f"   SCE in the paper: {paper}"
            shots = name.removeprefix("low_shot_map_")
            print(f"  {shots:>5}: mAP {100 * value:6.2f} %{beside}")
    print(*_as_lines(result.notes), sep="\n", end="\n" if result.notes else "")
    return 0


#: Metric in each column of the table that a fusion prints
_COLUMNS = {
    "top-1": "top1",
    "top-5": "top5",
    "class mean": "mean_class_accuracy",
    "1-view top-1": "one_view_top1",
    "1-view top-5": "one_view_top5",
}


@command(options=FuseScoresOptions)
def fuse_scores_main(options: FuseScoresOptions) -> int:
    """Fuse the scores, print a table, and return 0."""
    from sce_video.evaluation.file_protocols import fuse_scores

    result = fuse_scores(options)
    from sce_video.evaluation.metrics.base import telling  # needs torch

    print(f"{result.videos} videos, {result.classes} classes")
    named = [*zip(options.scores, result.single, strict=True), ("fused", result.fused)]
    classes = {"num_classes": result.classes}
    print(_table([(name, telling(metrics, classes)) for name, metrics in named]))
    return 0


def _table(rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Return a table in percent, with one line for each file and one for the fusion."""
    width = max(len(name) for name, _ in rows)
    columns = {
        title: key for title, key in _COLUMNS.items() if any(key in values for _, values in rows)
    }
    lines = [" ".join([" " * width, *(f"{title:>12}" for title in columns)])]
    for name, values in rows:
        cells = (
            f"{100 * values[key]:10.2f} %" if key in values else f"{'-':>12}"
            for key in columns.values()
        )
        lines.append(" ".join([f"{name:<{width}}", *cells]))
    return "\n".join(lines)


def _as_lines(notes: Sequence[str]) -> list[str]:
    return [printable(f"  note: {note}") for note in notes]
