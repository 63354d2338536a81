"""``sce-video look``."""

from __future__ import annotations

from collections.abc import Sequence

from sce_video.options.command_line import parse
from sce_video.options.measure import LookOptions
from sce_video.utils.command import command, printable


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Draw the maps and return the exit status, 1 if some files could not be decoded."""
    options = parse(LookOptions, argv)
    # Imported here, so that --help does not load NumPy.
    from sce_video.pages.look import look

    result = look(options)
    lines = [f"{strip.name}: {strip.note}" for strip in result.strips]
    lines += [result.grid, *(f"left out: {path}: {why}" for path, why in result.failures)]
    print("\n".join(map(printable, [*lines, f"written: {options.out}"])))
    return 1 if result.failures else 0
