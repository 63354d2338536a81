"""``sce-video embed``."""

from __future__ import annotations

from collections.abc import Sequence

from sce_video.options.command_line import parse
from sce_video.options.features import EmbedOptions
from sce_video.utils.command import RESUMABLE, command, printable


@command(interrupted=RESUMABLE)
def main(argv: Sequence[str] | None = None) -> int:
    """Embed and return the exit status, 1 if some windows are missing."""
    options = parse(EmbedOptions, argv)
    # Imported here, so that --help does not load NumPy.
    from sce_video.runs.embed_run import embed

    result = embed(options)
    if result.windows is not None:
        lines = [f"{result.out}: {result.count} {result.windows}"]
        lines += [f"  {problem}" for problem in result.problems]
        print("\n".join(map(printable, lines)))
    return 1 if result.problems else 0
