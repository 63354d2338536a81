"""``sce-video choose``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sce_video.options.choose import ChooseOptions
from sce_video.options.command_line import parse
from sce_video.utils.command import command, printable, shown_failures

if TYPE_CHECKING:
    from sce_video.runs.choose import ChooseResult


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Compare networks and return the exit status, 1 if some videos could not be decoded."""
    options = parse(ChooseOptions, argv)
    # Imported here, so that --help does not load NumPy.
    from sce_video.runs.choose import choose

    result = choose(options)
    print("\n".join(map(printable, _lines(result))))
    return 1 if result.failures else 0


def _lines(result: ChooseResult) -> list[str]:
    """Return the table, what it shows, and the line to run next."""
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
