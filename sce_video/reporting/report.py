"""Results beside the numbers of the paper, as one table: markdown and HTML."""

from __future__ import annotations

import html
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from sce_video.reporting.paper_results import MEAN_OF_SPLITS, PAPER_RESULTS, PaperResult
from sce_video.reporting.result_files import (
    Collection,
    Result,
    compare,
    count_of,
    setting_of,
    setting_of_result,
    share_problem,
    views_of,
)
from sce_video.utils.atomic_file import write_text

TITLE = "Results beside those of the paper"
MEASURED, DEVIATING, NOT_RUN = "measured", "measured, deviates", "not run"

_NAMES = {
    "kinetics400": "Kinetics-400",
    "kinetics200": "Kinetics-200",
    "ucf101": "UCF101",
    "hmdb51": "HMDB51",
    "ssv2": "SSv2",
    "ava": "AVA",
    "r3d18": "ResNet3D-18",
    "r3d50": "ResNet3D-50",
    "linear": "linear",
    "finetune": "finetuned",
    "retrieval": "retrieval",
    "supervised": "supervised",
    "detection": "detection",
    "top1": "top-1",
    "top5": "top-5",
    "sce": "SCE",
    "sce_baseline": "SCE baseline",
    "mean_class_accuracy": "mean class accuracy",
}
_TABLES = {
    "tab:video-sota-action": "Action recognition",
    "tab:video-sota-retrieval": "Video retrieval",
    "tab:video-sota-generalization": "Generalization",
    "tab:video-best": "Ablation on Kinetics-200: best setting",
    "tab:video-baseline": "Ablation on Kinetics-200: baseline and supervised",
}
#: Figures that are no shares from 0 to 1.
_PLAIN_FIGURES = frozenset({"feature_std", "effective_rank", "loss"})
_HEAD = ("benchmark", "network", "pretrained on", "paper", "measured", "difference", "status")
_OTHER_HEAD = ("results", "benchmark", "figures", "why not above", "how")

_CSS = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; color: #1c2024; background: #fff;
       max-width: 82rem; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .4rem .7rem;
         border-bottom: 1px solid #e3e6e9; }
thead th { border-bottom: 2px solid #8b949e; white-space: nowrap; }
tbody th { background: #f3f4f6; font-weight: 600; padding-top: .7rem; }
td:first-child { min-width: 13rem; }
td.number { text-align: right; white-space: nowrap; } td.short { white-space: nowrap; }
th.number { text-align: right; }
.status { white-space: nowrap; border-radius: .8rem; padding: .1rem .6rem; font-size: .85em; }
.measured .status { background: #d3f2dc; color: #0b4f22; }
.deviates .status { background: #ffe9b8; color: #5f4100; }
.not-run .status { background: #eceef0; color: #57606a; }
.not-run td { color: #57606a; }
.measured td:first-child { border-left: 4px solid #2da44e; }
.deviates td:first-child { border-left: 4px solid #d4a72c; }
.not-run td:first-child { border-left: 4px solid #eceef0; }
.small { display: block; font-size: .82em; color: #57606a; overflow-wrap: anywhere; }
.mark { display: block; font-size: .85em; color: #8a4b00; }
code { font-size: .95em; overflow-wrap: anywhere; }
""".strip()


@dataclass(frozen=True)
class Measurement:
    """One result in a cell.

    Attributes:
        name: File of the result.
        values: Percent, one for each number of the cell.
        plain: Retrieval without centring, percent; empty where there is none.
        marks: How it was measured otherwise than the paper's.
        how: The protocol in words.
    """

    name: str
    values: tuple[float, ...]
    plain: tuple[float, ...]
    marks: tuple[str, ...]
    how: str


@dataclass(frozen=True)
class Cell:
    """One number of the paper, or R@1/5/10 together, and what was measured."""

    papers: tuple[PaperResult, ...]
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True)
class OtherResult:
    """A result that stands beside no number of the paper, and why."""

    result: Result
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The whole table.

    Attributes:
        cells: In the order of the paper's results.
        others: Results that are comparable with no number of the paper.
        foreign: (file, why) of json files without results.
    """

    cells: tuple[Cell, ...]
    others: tuple[OtherResult, ...]
    foreign: tuple[tuple[str, str], ...]

    def status_counts(self) -> Counter[str]:
        """How many cells are measured, measured otherwise, not run; the best of a cell counts."""
        counts: Counter[str] = Counter()
        for cell in self.cells:
            marked = [bool(m.marks) for m in cell.measurements]
            counts[NOT_RUN if not marked else DEVIATING if all(marked) else MEASURED] += 1
        return counts


# -- putting results beside the paper's ----------------------------------------------------


def build_report(collection: Collection, papers: Sequence[PaperResult] = PAPER_RESULTS) -> Report:
    """Put every result in the cells it belongs to, or among the others.

    A mean of three splits also fills the cells of its single splits; a single split stands in the
    cell of a mean, marked, unless it is part of one. Two results of one cell are both shown.
    """
    groups = [tuple(group) for _, group in groupby(papers, key=_cell_key)]
    filled: dict[int, list[Measurement]] = {index: [] for index in range(len(groups))}
    others = []
    for result in collection.results:
        obstacles = compare(result).obstacles
        reasons: list[str] = []
        placed = False
        for index, group in enumerate(groups):
            for candidate in (result, *result.parts):
                found = _place(candidate, group, alone=candidate is result)
                if isinstance(found, Measurement):
                    filled[index].append(found)
                    placed = placed or candidate is result
                elif found is not None and candidate is result:
                    reasons.append(found)
        if not placed:
            why = obstacles or tuple(dict.fromkeys(reasons)) or (_no_row(result),)
            others.append(OtherResult(result, why))
    cells = [Cell(group, tuple(filled[index])) for index, group in enumerate(groups)]
    return Report(tuple(cells), tuple(others), tuple(collection.foreign))


def _cell_key(paper: PaperResult) -> tuple[Any, ...]:
    return (*setting_of(paper), paper.split, paper.table)


def _place(
    result: Result, papers: tuple[PaperResult, ...], alone: bool
) -> Measurement | str | None:
    """The measurement for a cell; why it is none; or None where it is about something else.

    Args:
        result: A result, or a split of a mean.
        papers: The numbers of the cell.
        alone: It is not a split of a mean.
    """
    if setting_of_result(result) != setting_of(papers[0]):
        return None
    wanted = papers[0].split
    marks: tuple[str, ...] = ()
    if wanted == MEAN_OF_SPLITS and not result.parts:
        if not alone:
            return None
        split = "one split" if result.split is None else f"split {result.split}"
        marks = (f"{split} alone, the paper's is the mean of 3",)
    elif result.split not in (wanted, None):
        return f"of {_split_words(result.split)}, the paper's is of {_split_words(wanted)} alone"
    comparability = compare(result)
    if comparability.obstacles:
        return None
    problem = share_problem(result, [paper.metric for paper in papers])
    if problem is not None:
        return problem
    return Measurement(
        name=result.name,
        values=tuple(100 * _figure(result, paper.metric) for paper in papers),
        plain=_plain_recall(result, papers),
        marks=(*marks, *comparability.marks),
        how=describe(result),
    )


def _figure(result: Result, name: str) -> float:
    value = result.metric(name)
    assert value is not None  # share_problem has looked
    return value


def _plain_recall(result: Result, papers: tuple[PaperResult, ...]) -> tuple[float, ...]:
    if papers[0].protocol != "retrieval":
        return ()
    names = [paper.metric.replace("retrieval_", "retrieval_plain_") for paper in papers]
    if share_problem(result, names) is not None:
        return ()
    return tuple(100 * _figure(result, name) for name in names)


def _no_row(result: Result) -> str:
    return f"the paper has no number for: {_benchmark_words(result)}"


# -- words ---------------------------------------------------------------------------------


def describe(result: Result) -> str:
    """How a result was measured, in a line; of a mean what the splits share, and each split."""
    if not result.parts:
        return ", ".join(_words(result))
    words = [_words(part) for part in result.parts]
    shared = [word for word in words[0] if all(word in others for others in words)]
    lines = [", ".join(shared)] if shared else []
    for part, own in zip(result.parts, words, strict=True):
        top = part.metric("top1")
        figure = [] if top is None else [_percent(top)]
        rest = [word for word in own if word not in shared]
        lines.append(f"split {part.split}: {', '.join([*figure, *rest])}")
    return "; ".join(lines)


def _words(result: Result) -> list[str]:
    protocol = result.protocol
    words = []
    views = views_of(protocol)
    if views is not None:
        words.append(f"{views[0]} x {views[1]} views")
    for name in ("crop_size", "test_size"):
        if isinstance(protocol.get(name), int):
            words.append(f"crop {protocol[name]}")
            break
    for name, what in (("videos", "videos"), ("bank_videos", "searched"), ("failures", "failed")):
        value = count_of(protocol.get(name))
        if value is not None:
            words.append(f"{value:,} {what}")
    test = protocol.get("test")
    for source in (protocol, test if isinstance(test, dict) else {}):
        decoder = source.get("decoder_version") or source.get("decoder")
        if decoder:
            words.append(f"decoder {decoder}")
            break
    checkpoint = protocol.get("checkpoint")
    if isinstance(checkpoint, dict):
        digest = str(checkpoint.get("sha256") or "")[:12]
        path = checkpoint.get("path") or checkpoint.get("source") or "?"
        words.append(f"checkpoint {_basename(path)}{f' ({digest})' if digest else ''}")
    for name, what in (("one_view_top1", "1 view top-1"), ("top5", "top-5")):
        figure = result.metric(name)
        if figure is not None:
            words.append(f"{what} {_percent(figure)}")
    return words


def _basename(path: Any) -> str:
    return str(path).replace("\\", "/").rsplit("/", 1)[-1]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _benchmark_words(result: Result) -> str:
    benchmark = result.benchmark
    if not benchmark:
        return "not stated"
    words = [
        _name(benchmark.get("dataset")),
        _name(benchmark.get("protocol")),
        _split_words(result.split),
        _name(benchmark.get("network")),
        f"{benchmark.get('frames')} x {benchmark.get('size')}²",
    ]
    source = benchmark.get("pretrained_on")
    way = benchmark.get("pretraining")
    trained = f"pretrained on {_name(source)}" if source is not None else "not pretrained"
    words.append(trained if way is None else f"{trained} by {_name(way)}")
    return ", ".join(word for word in words if word)


def _name(value: Any) -> str:
    return _NAMES.get(value, value) if isinstance(value, str) else str(value)


def _split_words(split: int | str | None) -> str:
    if split is None or split == "val":
        return ""
    return f"split {split}" if isinstance(split, int) else f"{split} splits"


def _cell_words(cell: Cell) -> tuple[str, str, str, str]:
    """Benchmark, network, pretraining and the paper's number."""
    paper = cell.papers[0]
    metric = _name(paper.metric)
    if paper.protocol == "retrieval":
        ranks = [p.metric.removeprefix("retrieval_r") for p in cell.papers]
        metric = f"R@{'/'.join(ranks)}"
    parts = [_name(paper.dataset), _name(paper.protocol), _split_words(paper.split), metric]
    benchmark = ", ".join(part for part in parts if part)
    network = f"{_name(paper.network)}, {paper.frames} x {paper.size}²"
    source = "none" if paper.pretrained_on is None else _name(paper.pretrained_on)
    if paper.pretraining is not None:
        source += f", {_name(paper.pretraining)}"
    return benchmark, network, source, _numbers(p.value for p in cell.papers)


def _numbers(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values)


def _differences(cell: Cell, measurement: Measurement) -> str:
    """Signed differences of the numbers as shown, so that they add up on paper."""
    pairs = zip(measurement.values, cell.papers, strict=True)
    return " / ".join(_signed(round(v, 1) - paper.value) for v, paper in pairs)


def _signed(points: float) -> str:
    text = f"{points:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


def _figures_words(result: Result) -> list[str]:
    words = []
    for name, value in result.metrics.items():
        shown = f"{value:.2f}" if name in _PLAIN_FIGURES else _percent(value)
        words.append(f"{_name(name)} {shown}")
    return words


def _summary(report: Report) -> list[str]:
    counts = report.status_counts()
    lines = [
        f"{len(report.cells)} cells of the paper: {counts[MEASURED]} measured, "
        f"{counts[DEVIATING]} measured otherwise than the paper, {counts[NOT_RUN]} not run."
    ]
    if not any(cell.measurements for cell in report.cells) and not report.others:
        lines.append("No results were found.")
    if report.others:
        lines.append(f"Other results, in the second table: {len(report.others)}.")
    if report.foreign:
        lines.append(f"Json files without results, named at the end: {len(report.foreign)}.")
    return lines


_LEGEND = (
    "Percent, as in the paper; differences in points. Every number of the paper stands with its "
    "table and row. Retrieval is centred; plain is without centring. A result is marked where it "
    "was not measured as the paper's was."
)


def _row_title(table: str, row: str, note: str) -> str:
    return f"{table}, row: {row}" + (f" ({note})" if note else "")


def _by_table(report: Report) -> list[tuple[str, list[tuple[str, list[Cell]]]]]:
    """Cells by table and row of the paper."""
    return [
        (table, [(row, list(cells)) for row, cells in groupby(of_table, lambda c: c.papers[0].row)])
        for table, of_table in groupby(report.cells, lambda c: c.papers[0].table)
    ]


# -- markdown ------------------------------------------------------------------------------


def render_markdown(report: Report) -> str:
    """The report as markdown (tables as on GitHub)."""
    lines = [f"# {TITLE}", "", *_summary(report), "", _LEGEND, ""]
    head = (*_HEAD, "table and row of the paper", "results and protocol")
    lines += [_md_row(head), _md_row(["---"] * len(head))]
    for cell in report.cells:
        lines.extend(_md_row(row) for row in _md_cell(cell))
    if report.others:
        lines += ["", "## Other results", "", _md_row(_OTHER_HEAD)]
        lines.append(_md_row(["---"] * len(_OTHER_HEAD)))
        for other in report.others:
            result = other.result
            words = [_md(_benchmark_words(result)), _md(", ".join(_figures_words(result)))]
            reasons = "<br>".join(_md(reason) for reason in other.reasons)
            lines.append(_md_row([_code(result.name), *words, reasons, _md(describe(result))]))
    if report.foreign:
        lines += ["", "## Files without results", ""]
        lines.extend(f"- {_code(name)}: {_md(why)}" for name, why in report.foreign)
    return "\n".join(lines) + "\n"


def _md_cell(cell: Cell) -> list[list[str]]:
    paper = cell.papers[0]
    title = _md(_row_title(paper.table, paper.row, paper.note))
    first = [_md(text) for text in _cell_words(cell)]
    if not cell.measurements:
        return [[*first, "", "", NOT_RUN, title, ""]]
    rows = []
    for m in cell.measurements:
        measured = f"**{_numbers(m.values)}**"
        if m.plain:
            measured += f"<br>plain {_numbers(m.plain)}"
        status = MEASURED if not m.marks else f"{DEVIATING}: {_md('; '.join(m.marks))}"
        source = f"{_code(m.name)}<br>{_md(m.how)}" if m.how else _code(m.name)
        rows.append([*first, measured, _differences(cell, m), status, title, source])
    return rows


def _md_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _md(text: str) -> str:
    """Text that markdown shows as it is, in one line."""
    for character in "\\`*_[]|":
        text = text.replace(character, f"\\{character}")
    return " ".join(html.escape(text, quote=False).split())


def _code(text: str) -> str:
    # Inside a table even code needs its bars escaped; <code> also stands any backtick.
    escaped = html.escape(" ".join(text.split()), quote=False)
    for character, entity in (("|", "&#124;"), ("`", "&#96;"), ("*", "&#42;"), ("_", "&#95;")):
        escaped = escaped.replace(character, entity)
    return f"<code>{escaped}</code>"


# -- HTML ----------------------------------------------------------------------------------


def render_html(report: Report) -> str:
    """The report as one HTML page that needs nothing else."""
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(TITLE)}</title>\n<style>\n{_CSS}\n</style>\n</head>\n<body>",
        f"<h1>{html.escape(TITLE)}</h1>",
        *(f"<p>{html.escape(line)}</p>" for line in _summary(report)),
        f'<p class="small">{html.escape(_LEGEND)}</p>',
        '<div class="wide">\n<table>',
        _html_head(_HEAD),
    ]
    for table, rows in _by_table(report):
        for row, cells in rows:
            title = f"{_TABLES.get(table, table)} · {_row_title(table, row, '')}"
            parts.append("<tbody>")
            parts.append(f'<tr><th colspan="{len(_HEAD)}">{html.escape(title)}</th></tr>')
            parts.extend(line for cell in cells for line in _html_cell(cell))
            parts.append("</tbody>")
    parts.append("</table>\n</div>")
    if report.others:
        parts.append('<h2>Other results</h2>\n<div class="wide">\n<table>')
        parts.append(f"{_html_head(_OTHER_HEAD)}\n<tbody>")
        parts.extend(_html_other(other) for other in report.others)
        parts.append("</tbody>\n</table>\n</div>")
    if report.foreign:
        parts.append("<h2>Files without results</h2>\n<ul>")
        for name, why in report.foreign:
            parts.append(f"<li><code>{html.escape(name)}</code>: {html.escape(why)}</li>")
        parts.append("</ul>")
    parts.append("</body>\n</html>\n")
    return "\n".join(parts)


def _html_head(names: Sequence[str]) -> str:
    kinds = {name: ' class="number"' for name in ("paper", "measured", "difference")}
    cells = "".join(f'<th scope="col"{kinds.get(n, "")}>{html.escape(n)}</th>' for n in names)
    return f"<thead><tr>{cells}</tr></thead>"


def _html_cell(cell: Cell) -> list[str]:
    benchmark, network, source, paper = (html.escape(text) for text in _cell_words(cell))
    note = cell.papers[0].note
    if note:
        benchmark += f'<span class="small">{html.escape(note)}</span>'
    first = (
        f'<td>{benchmark}</td><td class="short">{network}</td><td>{source}</td>'
        f'<td class="number">{paper}</td>'
    )
    status = '<td><span class="status">{}</span></td>'
    if not cell.measurements:
        empty = '<td class="number"></td>' * 2
        return [f'<tr class="not-run">{first}{empty}{status.format(NOT_RUN)}</tr>']
    rows = []
    for m in cell.measurements:
        value = f"<strong>{_numbers(m.values)}</strong>"
        if m.plain:
            value += f'<span class="small">plain {_numbers(m.plain)}</span>'
        kind, words = ("deviates", DEVIATING) if m.marks else ("measured", MEASURED)
        marks = "".join(f'<span class="mark">{html.escape(mark)}</span>' for mark in m.marks)
        details = f'<span class="small"><code>{html.escape(m.name)}</code></span>'
        details += f'<span class="small">{html.escape(m.how)}</span>'
        rows.append(
            f'<tr class="{kind}" title="{html.escape(m.name)}: {html.escape(m.how)}">{first}'
            f'<td class="number">{value}</td><td class="number">{_differences(cell, m)}</td>'
            f'<td><span class="status">{words}</span>{marks}{details}</td></tr>'
        )
    return rows


def _html_other(other: OtherResult) -> str:
    result = other.result
    reasons = "".join(f'<span class="mark">{html.escape(r)}</span>' for r in other.reasons)
    figures = "<br>".join(html.escape(words) for words in _figures_words(result))
    return (
        f"<tr><td><code>{html.escape(result.name)}</code></td>"
        f"<td>{html.escape(_benchmark_words(result))}</td><td>{figures}</td>"
        f"<td>{reasons}</td>"
        f'<td><span class="small">{html.escape(describe(result))}</span></td></tr>'
    )


# -- writing -------------------------------------------------------------------------------


def write_page(path: str | os.PathLike[str], text: str) -> None:
    """Write a page in one step; a report from before is replaced.

    Raises:
        ValueError: The file exists and is no report of this kind.
    """
    path = Path(path)
    if path.exists():
        with open(path, encoding="utf-8", errors="replace") as file:
            if TITLE not in file.read(500):
                raise ValueError(f"{path} exists and is no report: move it, or choose another name")
    write_text(path, text)
