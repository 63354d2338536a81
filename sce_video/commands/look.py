"""``sce-video look``."""

from __future__ import annotations

from sce_video.options.measure import LookOptions
from sce_video.utils.command import command, printable


@command(options=LookOptions)
def main(options: LookOptions) -> int:
    """Draw the maps, and return 1 if some files could not be decoded, else 0."""
    from sce_video.pages.look import look

    result = look(options)
    lines = [f"{strip.name}: {strip.note}" for strip in result.strips]
    lines += [result.grid, *(f"left out: {path}: {why}" for path, why in result.failures)]
    print("\n".join(map(printable, [*lines, f"written: {options.out}"])))
    return 1 if result.failures else 0
