"""``sce-video evaluate``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sce_video.options.command_line import parse
from sce_video.options.measure import EvaluateOptions
from sce_video.utils.command import command, printable

if TYPE_CHECKING:
    from sce_video.runs.measure import EvaluateResult


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Evaluate and return the exit status."""
    options = parse(EvaluateOptions, argv)
    # Imported here, so that --help does not load NumPy.
    from sce_video.runs.measure import evaluate

    print("\n".join(map(printable, _summary(evaluate(options)))))
    return 0


def _summary(result: EvaluateResult) -> list[str]:
    """Return what follows the table: the evaluated run, and where the results are."""
    lines = []
    if result.run is not None:
        plan, words = result.run.plan, [result.run.command]
        words += [] if plan is None else [f"with {plan.recipe}"]
        lines.append(f"evaluated: {result.checkpoint} ({' '.join(words)}, {result.run.state})")
    return [*lines, f"written: {result.out}"]
