"""Problems as a table in a file, and as a summary for the terminal."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sce_video.data_tools.verification.problems import KINDS, Problem
from sce_video.utils.atomic_file import write_text
from sce_video.utils.printable import printable_utf8


def write_table(path: str | os.PathLike[str], problems: Sequence[Problem]) -> None:
    """Write a table of problems: markdown if the name ends in ``.md``, else tab-separated.

    The file is replaced atomically; without problems it holds the header row only.
    """
    path = Path(path)
    head = ["problem", "path", "line", "detail", "frames", "seconds", "container", "codec"]
    rows = [[_cell(text) for text in _row(problem)] for problem in problems]
    if path.suffix == ".md":
        table = [head, ["---"] * len(head), *([_escape(text) for text in row] for row in rows)]
        text = "".join(f"| {' | '.join(row)} |\n" for row in table)
    else:
        text = "".join("\t".join(row) + "\n" for row in [head, *rows])
    write_text(path, text)


def _row(problem: Problem) -> list[Any]:
    facts = problem.facts
    seconds = facts.get("seconds")
    return [
        problem.kind,
        problem.path,
        problem.line,
        problem.detail,
        facts.get("frames"),
        None if seconds is None else f"{seconds:.3f}",
        (facts.get("container") or "").split(",")[0],
        facts.get("codec"),
    ]


def _cell(value: Any) -> str:
    text = "" if value is None else str(value)
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def summarize(problems: Sequence[Problem], num_files: int, examples: int = 5) -> str:
    """Lines for the terminal: the number of files with each problem, and the first of them."""
    affected = len({problem.path for problem in problems})
    if not problems:
        return f"{num_files} files, no problems"
    lines = [f"{num_files} files, {num_files - affected} good, {affected} with problems:"]
    counts = Counter(problem.kind for problem in problems)
    for kind, words in KINDS.items():
        if not counts[kind]:
            continue
        lines.append(f"  {kind}: {counts[kind]} ({words})")
        of_kind = [problem for problem in problems if problem.kind == kind]
        shown = [printable_utf8(f"{p.path}: {p.detail}") for p in of_kind[:examples]]
        lines.extend(f"    {line}" for line in shown)
        if len(of_kind) > examples:
            lines.append(f"    ... and {len(of_kind) - examples} more")
    return "\n".join(lines)
