"""``sce-video embed``."""

from __future__ import annotations

from sce_video.options.features import EmbedOptions
from sce_video.utils.command import RESUMABLE, command, printable


@command(options=EmbedOptions, interrupted=RESUMABLE)
def main(options: EmbedOptions) -> int:
    """Embed the videos, and return 1 if some windows are missing, else 0."""
    from sce_video.runs.embed_run import embed

    result = embed(options)
    if result.windows is not None:
        lines = [f"{result.out}: {result.count} {result.windows}"]
        lines += [f"  {problem}" for problem in result.problems]
        print("\n".join(map(printable, lines)))
    return 1 if result.problems else 0
