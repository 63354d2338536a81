"""``sce-video evaluate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sce_video.options.measure import EvaluateOptions
from sce_video.utils.command import command, printable

if TYPE_CHECKING:
    from sce_video.runs.measure import EvaluateResult


@command(options=EvaluateOptions)
def main(options: EvaluateOptions) -> int:
    """Evaluate the network, print where the results are, and return 0."""
    from sce_video.runs.measure import evaluate

    print("\n".join(map(printable, _summary(evaluate(options)))))
    return 0


def _summary(result: EvaluateResult) -> list[str]:
    """Return the lines below the table: the evaluated run, and the file of the results."""
    lines = []
    if result.run is not None:
        plan, words = result.run.plan, [result.run.command]
        words += [] if plan is None else [f"with {plan.recipe}"]
        lines.append(f"evaluated: {result.checkpoint} ({' '.join(words)}, {result.run.state})")
    return [*lines, f"written: {result.out}"]
