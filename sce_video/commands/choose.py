"""``sce-video choose``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sce_video.options.choose import ChooseOptions
from sce_video.utils.command import command, printable, shown_failures

if TYPE_CHECKING:
    from sce_video.runs.choose import ChooseResult


@command(options=ChooseOptions)
def main(options: ChooseOptions) -> int:
    """Compare networks, and return 1 if some videos could not be decoded, else 0."""
    from sce_video.runs.choose import choose

    result = choose(options)
    print("\n".join(map(printable, _lines(result))))
    return 1 if result.failures else 0


def _lines(result: ChooseResult) -> list[str]:
    """Return the table, its interpretation, and the command to run next."""
    heading = result.decision.heading
    return [
        result.sample,
        *result.table().lines(),
        "",
        *result.decision.reasons,
        *(f"note: {note}" for note in result.notes),
        *shown_failures(result.failures, f", see {result.data}"),
        f"written: {result.page}, {result.data}",
        *([f"{heading}:", f"  {result.command}"] if result.command else [f"{heading}."]),
    ]
